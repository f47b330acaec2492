// From tensors to the seam of gemm.h. Most strided layouts are what a matrix product takes anyway: a transposed matrix
// is a flag, a slice of columns a leading dimension. What is left is made dense in scratch.
#include <cstring>

#include "runtime/cpu/dense.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/scratch.h"

namespace sherd::cpu {

namespace {

// The last two dims as stored: rows `ld` apart, of the matrix or (transposed) of its transpose.
struct MatrixLayout {
  bool usable = false, transposed = false;
  std::int64_t ld = 1;
};

MatrixLayout matrix_layout(std::int64_t rows, std::int64_t columns, std::int64_t row, std::int64_t column) {
  if ((column == 1 || columns <= 1) && (row >= columns || rows <= 1))
    return {true, false, std::max<std::int64_t>(rows <= 1 ? columns : row, 1)};
  if ((row == 1 || rows <= 1) && (column >= rows || columns <= 1))
    return {true, true, std::max<std::int64_t>(columns <= 1 ? rows : column, 1)};
  return {};
}

MatrixLayout matrix_layout(const Tensor& t) {
  const int n = t.ndim();
  return matrix_layout(t.shape()[n - 2], t.shape()[n - 1], t.strides()[n - 2], t.strides()[n - 1]);
}

// All dims but the last as one dim of rows; not usable if their strides are not those of one.
MatrixLayout rows_layout(const Tensor& t) {
  const int last = t.ndim() - 1;
  std::int64_t rows = 1, row = t.shape()[last];  // stride of the flattened dim, once a dim of size > 1 is met
  for (int d = last - 1; d >= 0; --d) {
    if (t.shape()[d] == 1) continue;
    if (rows == 1) row = t.strides()[d];
    else if (t.strides()[d] != row * rows) return {};
    rows *= t.shape()[d];
  }
  return matrix_layout(rows, t.shape()[last], row, t.strides()[last]);
}

// One operand of a batched product, ready for the seam.
struct Operand {
  const std::byte* data;
  MatrixLayout layout;
  Strides batch;  // over the result's batch dims, 0 where broadcast
};

Shape batch_dims(const Shape& shape) { return Shape(std::span(shape.begin(), shape.end() - 2)); }

Operand prepare(const Tensor& t, const Shape& batch, ScratchCursor& scratch) {
  MatrixLayout layout = matrix_layout(t);
  Strides strides = t.strides();
  const std::byte* data;
  if (layout.usable) {
    data = t.data<std::byte>();
  } else {
    data = scratch.dense<std::byte>(t);
    strides = contiguous_strides(t.shape());
    layout = {true, false, t.shape().back()};
  }
  return {data, layout, broadcast_strides(batch_dims(t.shape()), batch_dims(strides), batch)};
}

// Batch dims of size 1 have no say in how the others step.
Shape drop_single_dims(Shape batch, Operand& a, Operand& b) {
  for (int d = batch.size() - 1; d >= 0; --d)
    if (batch[d] == 1)
      for (Dims* dims : {&batch, &a.batch, &b.batch}) dims->erase(d);
  return batch;
}

// How many trailing dims of `shape` step by one fixed distance in `strides`.
int uniform_dims(const Shape& shape, const Strides& strides) {
  int first = shape.size() - 1;
  while (first > 0 && strides[first - 1] == strides[first] * shape[first]) --first;
  return shape.size() - first;
}

// If one B serves the whole batch and the rows of A go on from problem to problem, all of it is one tall product.
bool is_one_product(const Operand& a, const Operand& b, const Gemm& g, const Shape& batch) {
  if (batch.empty() || g.transpose_a) return false;
  for (const std::int64_t stride : b.batch)
    if (stride != 0) return false;
  return uniform_dims(batch, a.batch) == batch.size() && a.batch.back() == g.m * g.lda;
}

void run_batches(Gemm g, const Operand& a, const Operand& b, const Shape& batch, const Tensor& out) {
  const int inner = batch.empty() ? 0 : std::min(uniform_dims(batch, a.batch), uniform_dims(batch, b.batch));
  const int outer = batch.size() - inner;
  for (int d = outer; d < batch.size(); ++d) g.batch *= batch[d];
  if (inner > 0) {
    g.stride_a = a.batch.back();
    g.stride_b = b.batch.back();
  }
  g.stride_c = g.m * g.n;
  std::int64_t calls = 1;
  for (int d = 0; d < outer; ++d) calls *= batch[d];
  const std::int64_t size = byte_size(g.dtype);
  for (std::int64_t i = 0; i < calls; ++i) {
    std::int64_t rest = i, at_a = 0, at_b = 0;
    for (int d = outer - 1; d >= 0; --d) {
      at_a += rest % batch[d] * a.batch[d];
      at_b += rest % batch[d] * b.batch[d];
      rest /= batch[d];
    }
    gemm(g, a.data + at_a * size, b.data + at_b * size,
         out.mutable_data<std::byte>() + i * g.batch * g.stride_c * size);
  }
}

void matmul_kernel(const KernelCall& c) {
  const Tensor& out = c.out[0];
  if (out.numel() == 0) return;
  if (c.in[0].size(-1) == 0) {  // sums of nothing
    if (!c.accumulate) std::memset(out.raw(), 0, static_cast<std::size_t>(out.bytes()));
    return;
  }
  const Shape batch = batch_dims(out.shape());
  ScratchCursor scratch(c.exec);
  Operand a = prepare(c.in[0], batch, scratch), b = prepare(c.in[1], batch, scratch);
  const Shape problems = drop_single_dims(batch, a, b);
  Gemm g{.dtype = out.dtype(),
         .result = out.dtype(),
         .transpose_a = a.layout.transposed,
         .transpose_b = b.layout.transposed,
         .m = out.size(-2),
         .n = out.size(-1),
         .k = c.in[0].size(-1),
         .lda = a.layout.ld,
         .ldb = b.layout.ld,
         .ldc = out.size(-1),
         .accumulate = c.accumulate};
  if (!is_one_product(a, b, g, problems)) return run_batches(g, a, b, problems, out);
  g.m *= numel(problems);
  gemm(g, a.data, b.data, out.raw());
}

// A tensor as a matrix of rows, dense in scratch if need be.
struct Rows {
  const void* data;
  MatrixLayout layout;
};
Rows prepare_rows(const Tensor& t, ScratchCursor& scratch) {
  const MatrixLayout layout = rows_layout(t);
  if (layout.usable) return {t.raw(), layout};
  return {scratch.dense_raw(t), {true, false, t.shape().back()}};
}
Rows prepare_matrix(const Tensor& t, ScratchCursor& scratch) {
  const MatrixLayout layout = matrix_layout(t);
  if (layout.usable) return {t.raw(), layout};
  return {scratch.dense_raw(t), {true, false, t.shape().back()}};
}

void linear_kernel(const KernelCall& c) {
  const Tensor &out = c.out[0], &bias = c.in[2];
  if (out.numel() == 0) return;
  ScratchCursor scratch(c.exec);
  const Rows x = prepare_rows(c.in[0], scratch), weight = prepare_matrix(c.in[1], scratch);
  const std::int64_t n = out.shape().back();
  const Gemm g{.dtype = out.dtype(),
               .result = out.dtype(),
               .transpose_a = x.layout.transposed,
               .transpose_b = !weight.layout.transposed,
               .m = out.numel() / n,
               .n = n,
               .k = c.in[1].size(1),
               .lda = x.layout.ld,
               .ldb = weight.layout.ld,
               .ldc = n,
               .bias = bias.defined() ? scratch.dense_raw(bias) : nullptr};
  gemm(g, x.data, weight.data, out.raw());
}

void linear_weight_grad_kernel(const KernelCall& c) {
  const Tensor& out = c.out[0];
  if (out.numel() == 0) return;
  ScratchCursor scratch(c.exec);
  const Rows a = prepare_rows(c.in[0], scratch), b = prepare_rows(c.in[1], scratch);
  const std::int64_t rows = c.in[0].numel() / out.size(0);
  const Gemm g{.dtype = out.dtype(),
               .result = out.dtype(),
               .transpose_a = !a.layout.transposed,
               .transpose_b = b.layout.transposed,
               .m = out.size(0),
               .n = out.size(1),
               .k = rows,
               .lda = a.layout.ld,
               .ldb = b.layout.ld,
               .ldc = out.size(1),
               .accumulate = c.accumulate};
  gemm(g, a.data, b.data, out.raw());
}

std::int64_t scratch_unless(bool usable, const Tensor& t) { return usable ? 0 : dense_scratch_bytes(t); }

}  // namespace

std::int64_t matmul_scratch(const InferCall& call) {
  std::int64_t bytes = 0;
  for (const Tensor& t : call.in) bytes += scratch_unless(matrix_layout(t).usable, t);
  return bytes;
}

std::int64_t linear_scratch(const InferCall& call) {
  return scratch_unless(rows_layout(call.in[0]).usable, call.in[0]) +
         scratch_unless(matrix_layout(call.in[1]).usable, call.in[1]) + dense_scratch_bytes(call.in[2]);
}

std::int64_t linear_weight_grad_scratch(const InferCall& call) {
  std::int64_t bytes = 0;
  for (const Tensor& t : call.in) bytes += scratch_unless(rows_layout(t).usable, t);
  return bytes;
}

void register_matmul(OpTable& table) {
  table.kernel("matmul", Device::Kind::cpu, matmul_kernel, matmul_scratch);
  table.kernel("linear", Device::Kind::cpu, linear_kernel, linear_scratch);
  table.kernel("linear_weight_grad", Device::Kind::cpu, linear_weight_grad_kernel, linear_weight_grad_scratch);
}

}  // namespace sherd::cpu
