// From tensors to gemm(), by the layouts of op/matmul_layout.h; what is left is made dense in workspace.
#include <optional>

#include "runtime/cuda/gemm/gemm.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/dense.h"
#include "runtime/op/rows/matmul_attrs.h"
#include "runtime/op/rows/matmul_layout.h"

namespace sherd::cuda {

namespace {

// An input where it lies, or a dense copy if an engine cannot use that layout.
class Operand {
 public:
  Operand(Context& context, const Tensor& t, const MatrixLayout& layout)
      : layout_(layout.usable ? layout : dense_layout(t.meta())), size_(byte_size(t.dtype())), data_(t.raw()) {
    if (!layout.usable) data_ = copy_.emplace(context, t).raw();
  }
  bool transposed() const { return layout_.transposed; }
  std::int64_t ld() const { return layout_.ld; }
  const void* data(std::int64_t element = 0) const { return static_cast<const std::byte*>(data_) + element * size_; }

 private:
  const MatrixLayout layout_;
  const std::int64_t size_;
  const void* data_;
  std::optional<Dense> copy_;
};

void matmul_kernel(const KernelCall& c) {
  const Tensor& out = c.out[0];
  if (out.numel() == 0) return;
  Context& context = context_of(c);
  const Shape batch(std::span(out.shape().begin(), out.shape().end() - 2));
  const Operand a(context, c.in[0], matrix_layout(c.in[0].meta())), b(context, c.in[1], matrix_layout(c.in[1].meta()));
  const ProductCalls calls(batch, batched_matrix(c.in[0].meta(), batch), batched_matrix(c.in[1].meta(), batch),
                           out.size(-2), out.size(-1));
  const Gemm g{.dtype = out.dtype(),
               .result = out.dtype(),
               .transpose_a = a.transposed(),
               .transpose_b = b.transposed(),
               .m = calls.m,
               .n = out.size(-1),
               .k = c.in[0].size(-1),
               .lda = a.ld(),
               .ldb = b.ld(),
               .ldc = out.size(-1),
               .batch = calls.batch,
               .stride_a = calls.stride_a,
               .stride_b = calls.stride_b,
               .stride_c = calls.stride_c,
               .accumulate = c.accumulate};
  for (std::int64_t i = 0; i < calls.count; ++i) {
    const ProductCalls::Offsets at = calls.offsets(i);
    gemm(context, g, a.data(at.a), b.data(at.b), out.mutable_data<std::byte>() + at.c * byte_size(g.result));
  }
}

// Elements from one of several equal parts of the rows to the next.
std::int64_t part_stride(const Operand& rows, std::int64_t count) {
  return count * (rows.transposed() ? 1 : rows.ld());
}

// One problem for each of `leaves` equal parts of the rows. The right matrix is [K, N], or as weights are.
void rows_of_leaves(const KernelCall& c, std::int64_t leaves, bool is_weight, const Tensor& bias) {
  const Tensor& out = c.out[0];
  if (out.numel() == 0) return;
  Context& context = context_of(c);
  const Operand x(context, c.in[0], rows_layout(c.in[0].meta())),
      weight(context, c.in[1], matrix_layout(c.in[1].meta()));
  const Dense dense_bias(context, bias);
  const std::int64_t n = out.shape().back(), rows = out.numel() / n / leaves;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf)
    gemm(context,
         {.dtype = out.dtype(),
          .result = out.dtype(),
          .transpose_a = x.transposed(),
          .transpose_b = weight.transposed() != is_weight,
          .m = rows,
          .n = n,
          .k = c.in[1].size(is_weight ? 1 : 0),
          .lda = x.ld(),
          .ldb = weight.ld(),
          .ldc = n,
          .accumulate = c.accumulate,
          .bias = dense_bias.raw()},
         x.data(leaf * part_stride(x, rows)), weight.data(),
         out.mutable_data<std::byte>() + leaf * rows * n * byte_size(out.dtype()));
}

void linear_kernel(const KernelCall& c) { rows_of_leaves(c, 1, true, c.in[2]); }
void leaf_linear_kernel(const KernelCall& c) { rows_of_leaves(c, c.attrs.as<LeafAttrs>().leaves, true, c.in[2]); }
void leaf_matmul_kernel(const KernelCall& c) { rows_of_leaves(c, c.attrs.as<LeafAttrs>().leaves, false, {}); }

void weight_grad_of_leaves(const KernelCall& c, std::int64_t leaves) {
  const Tensor& out = c.out[0];
  if (out.numel() == 0) return;
  Context& context = context_of(c);
  const Operand a(context, c.in[0], rows_layout(c.in[0].meta())), b(context, c.in[1], rows_layout(c.in[1].meta()));
  const std::int64_t rows = c.in[0].numel() / out.size(0) / leaves;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf)
    gemm(context,
         {.dtype = c.in[0].dtype(),
          .result = out.dtype(),
          .transpose_a = !a.transposed(),
          .transpose_b = b.transposed(),
          .m = out.size(0),
          .n = out.size(1),
          .k = rows,
          .lda = a.ld(),
          .ldb = b.ld(),
          .ldc = out.size(1),
          .accumulate = c.accumulate || leaf > 0},
         a.data(leaf * part_stride(a, rows)), b.data(leaf * part_stride(b, rows)), out.raw());
}

void linear_weight_grad_kernel(const KernelCall& c) { weight_grad_of_leaves(c, 1); }
void leaf_weight_grad_kernel(const KernelCall& c) { weight_grad_of_leaves(c, c.attrs.as<LeafAttrs>().leaves); }

constexpr KernelEntry kEntries[] = {
    {op::matmul, matmul_kernel},
    {op::linear, linear_kernel},
    {op::linear_weight_grad, linear_weight_grad_kernel},
    {op::leaf_linear, leaf_linear_kernel},
    {op::leaf_matmul, leaf_matmul_kernel},
    {op::leaf_weight_grad, leaf_weight_grad_kernel},
};

}  // namespace

void register_matmul(OpTable& table) { add_kernels(table, kEntries); }

}  // namespace sherd::cuda
