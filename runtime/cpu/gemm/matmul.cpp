// From tensors to the seam of gemm.h, by the layouts of op/matmul_layout.h; what is left is made dense in scratch.
#include <cstring>

#include "runtime/cpu/dense.h"
#include "runtime/cpu/gemm/gemm_tree.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/scratch.h"
#include "runtime/op/rows/matmul_attrs.h"
#include "runtime/op/rows/matmul_layout.h"

namespace sherd::cpu {

namespace {

const std::byte* prepare(const Tensor& t, ScratchCursor& scratch) {
  return matrix_layout(t.meta()).usable ? t.data<std::byte>() : scratch.dense<std::byte>(t);
}

void matmul_kernel(const KernelCall& c) {
  const Tensor& out = c.out[0];
  if (out.numel() == 0) return;
  if (c.in[0].size(-1) == 0) {  // sums of nothing
    if (!c.accumulate) std::memset(out.raw(), 0, static_cast<std::size_t>(out.bytes()));
    return;
  }
  const Shape batch(std::span(out.shape().begin(), out.shape().end() - 2));
  const BatchedMatrix a = batched_matrix(c.in[0].meta(), batch), b = batched_matrix(c.in[1].meta(), batch);
  const ProductCalls calls(batch, a, b, out.size(-2), out.size(-1));
  const Gemm g{.dtype = out.dtype(),
               .result = out.dtype(),
               .transpose_a = a.matrix.transposed,
               .transpose_b = b.matrix.transposed,
               .m = calls.m,
               .n = out.size(-1),
               .k = c.in[0].size(-1),
               .lda = a.matrix.ld,
               .ldb = b.matrix.ld,
               .ldc = out.size(-1),
               .batch = calls.batch,
               .stride_a = calls.stride_a,
               .stride_b = calls.stride_b,
               .stride_c = calls.stride_c,
               .accumulate = c.accumulate};
  ScratchCursor scratch(c.exec);
  const std::byte *first_a = prepare(c.in[0], scratch), *first_b = prepare(c.in[1], scratch);
  const std::int64_t size = byte_size(g.dtype);
  for (std::int64_t i = 0; i < calls.count; ++i) {
    const ProductCalls::Offsets at = calls.offsets(i);
    gemm(g, first_a + at.a * size, first_b + at.b * size, out.mutable_data<std::byte>() + at.c * size);
  }
}

// A tensor as a matrix of rows, dense in scratch if need be.
struct Rows {
  const void* data;
  MatrixLayout layout;
};
Rows prepare_rows(const Tensor& t, ScratchCursor& scratch) {
  const MatrixLayout layout = rows_layout(t.meta());
  if (layout.usable) return {t.raw(), layout};
  return {scratch.dense_raw(t), dense_layout(t.meta())};
}
Rows prepare_matrix(const Tensor& t, ScratchCursor& scratch) {
  const MatrixLayout layout = matrix_layout(t.meta());
  if (layout.usable) return {t.raw(), layout};
  return {scratch.dense_raw(t), dense_layout(t.meta())};
}

// From one leaf to the next in a matrix of rows.
std::int64_t leaf_stride(const MatrixLayout& layout, std::int64_t rows) {
  return rows * (layout.transposed ? 1 : layout.ld);
}

// One problem for each of `leaves` equal parts of the rows. The right matrix is [K, N], or as weights are.
void rows_of_leaves(const KernelCall& c, std::int64_t leaves, bool is_weight, const Tensor& bias) {
  const Tensor& out = c.out[0];
  if (out.numel() == 0) return;
  ScratchCursor scratch(c.exec);
  const Rows x = prepare_rows(c.in[0], scratch), weight = prepare_matrix(c.in[1], scratch);
  const std::int64_t n = out.shape().back(), rows = out.numel() / n / leaves;
  const Gemm g{.dtype = out.dtype(),
               .result = out.dtype(),
               .transpose_a = x.layout.transposed,
               .transpose_b = weight.layout.transposed != is_weight,
               .m = rows,
               .n = n,
               .k = c.in[1].size(is_weight ? 1 : 0),
               .lda = x.layout.ld,
               .ldb = weight.layout.ld,
               .ldc = n,
               .batch = leaves,
               .stride_a = leaf_stride(x.layout, rows),
               .stride_c = rows * n,
               .accumulate = c.accumulate,
               .bias = bias.defined() ? scratch.dense_raw(bias) : nullptr};
  gemm(g, x.data, weight.data, out.raw());
}

void linear_kernel(const KernelCall& c) { rows_of_leaves(c, 1, true, c.in[2]); }
void leaf_linear_kernel(const KernelCall& c) { rows_of_leaves(c, c.attrs.as<LeafAttrs>().leaves, true, c.in[2]); }
void leaf_matmul_kernel(const KernelCall& c) { rows_of_leaves(c, c.attrs.as<LeafAttrs>().leaves, false, {}); }

// [..., N] [..., K] -> [N, K], as one problem for each of `leaves` equal parts of the rows.
template <class Product>
void weight_products(const KernelCall& c, std::int64_t leaves, const Product& product) {
  const Tensor& out = c.out[0];
  if (out.numel() == 0) return;
  ScratchCursor scratch(c.exec);
  const Rows a = prepare_rows(c.in[0], scratch), b = prepare_rows(c.in[1], scratch);
  const std::int64_t rows = c.in[0].numel() / out.size(0) / leaves;
  const Gemm g{.dtype = c.in[0].dtype(),
               .result = out.dtype(),
               .transpose_a = !a.layout.transposed,
               .transpose_b = b.layout.transposed,
               .m = out.size(0),
               .n = out.size(1),
               .k = rows,
               .lda = a.layout.ld,
               .ldb = b.layout.ld,
               .ldc = out.size(1),
               .batch = leaves,
               .stride_a = leaf_stride(a.layout, rows),
               .stride_b = leaf_stride(b.layout, rows),
               .accumulate = c.accumulate};
  product(g, a.data, b.data, out.raw());
}

void linear_weight_grad_kernel(const KernelCall& c) { weight_products(c, 1, gemm); }

void leaf_weight_grad_kernel(const KernelCall& c) { weight_products(c, c.attrs.as<LeafAttrs>().leaves, gemm_tree); }

std::int64_t scratch_unless(bool usable, const TensorMeta& t) { return usable ? 0 : dense_scratch_bytes(t); }

}  // namespace

std::int64_t matmul_scratch(const InferCall& call) {
  std::int64_t bytes = 0;
  for (const TensorMeta& t : call.in) bytes += scratch_unless(matrix_layout(t).usable, t);
  return bytes;
}

std::int64_t linear_scratch(const InferCall& call) {
  return scratch_unless(rows_layout(call.in[0]).usable, call.in[0]) +
         scratch_unless(matrix_layout(call.in[1]).usable, call.in[1]) + dense_scratch_bytes(call.in[2]);
}

std::int64_t linear_weight_grad_scratch(const InferCall& call) {
  std::int64_t bytes = 0;
  for (const TensorMeta& t : call.in) bytes += scratch_unless(rows_layout(t).usable, t);
  return bytes;
}

namespace {
std::int64_t leaf_matmul_scratch(const InferCall& call) {
  return scratch_unless(rows_layout(call.in[0]).usable, call.in[0]) +
         scratch_unless(matrix_layout(call.in[1]).usable, call.in[1]);
}
}  // namespace

void register_matmul(OpTable& table) {
  table.kernel(op::matmul, Device::Kind::cpu, matmul_kernel, matmul_scratch);
  table.kernel(op::linear, Device::Kind::cpu, linear_kernel, linear_scratch);
  table.kernel(op::linear_weight_grad, Device::Kind::cpu, linear_weight_grad_kernel, linear_weight_grad_scratch);
  table.kernel(op::leaf_linear, Device::Kind::cpu, leaf_linear_kernel, linear_scratch);
  table.kernel(op::leaf_matmul, Device::Kind::cpu, leaf_matmul_kernel, leaf_matmul_scratch);
  table.kernel(op::leaf_weight_grad, Device::Kind::cpu, leaf_weight_grad_kernel, linear_weight_grad_scratch);
}

}  // namespace sherd::cpu
