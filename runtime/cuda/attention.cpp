// Rows of attention: which kernels compute a call.
#include <limits>

#include "runtime/cuda/attention_kernels.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/kernels.h"
#include "runtime/op/attr_types.h"

namespace sherd::cuda {

namespace {

HeadsView view_of(const Tensor& t) {
  const Strides& s = t.strides();
  return {t.raw(), s[0], s[1], s[2], t.ndim() == 4 ? s[3] : 1};
}

int to_int(std::int64_t n, const char* what) {
  constexpr std::int64_t most = std::numeric_limits<int>::max() / 2;  // sums of two sizes stay in range
  check(n <= most, "attention of {} {}; the kernels count up to {}", n, what, most);
  return static_cast<int>(n);
}

AttentionShape shape_of(const Tensor& q, const Tensor& k, const AttentionAttrs& attrs) {
  return {.dtype = q.dtype(),
          .b = to_int(q.size(0), "batches"),
          .h = to_int(q.size(1), "query heads"),
          .g = to_int(k.size(1), "key heads"),
          .tq = to_int(q.size(2), "queries"),
          .tk = to_int(k.size(2), "keys"),
          .k = to_int(q.size(3), "elements per head"),
          .scale = attrs.scale,
          .causal = attrs.causal};
}

void forward_kernel(const KernelCall& c) {
  Context& context = context_of(c);
  const AttentionShape shape = shape_of(c.in[0], c.in[1], c.attrs.as<AttentionAttrs>());
  const AttentionForward tensors{.q = view_of(c.in[0]),
                                 .k = view_of(c.in[1]),
                                 .v = view_of(c.in[2]),
                                 .out = view_of(c.out[0]),
                                 .lse = c.out[1].raw()};
  if (flash_takes(shape)) flash_forward(context.stream(), shape, tensors);
  else tiled_attention_forward(context.stream(), shape, tensors);
}

void backward_kernel(const KernelCall& c) {
  Context& context = context_of(c);
  const AttentionShape shape = shape_of(c.in[1], c.in[2], c.attrs.as<AttentionAttrs>());
  const Workspace dot(context, shape.query_rows() * byte_size(c.in[5].dtype()));
  const AttentionBackward tensors{.grad = view_of(c.in[0]),
                                  .q = view_of(c.in[1]),
                                  .k = view_of(c.in[2]),
                                  .v = view_of(c.in[3]),
                                  .out = view_of(c.in[4]),
                                  .lse = view_of(c.in[5]),
                                  .dq = view_of(c.out[0]),
                                  .dk = view_of(c.out[1]),
                                  .dv = view_of(c.out[2]),
                                  .dot = dot.data()};
  attention_row_dots(context.stream(), shape, tensors);
  if (flash_takes(shape)) flash_backward(context.stream(), shape, tensors);
  else tiled_attention_backward(context.stream(), shape, tensors);
}

constexpr KernelEntry kRows[] = {
    {"scaled_dot_product_attention", forward_kernel},
    {"scaled_dot_product_attention_backward", backward_kernel},
};

}  // namespace

void register_attention(OpTable& table) { add_kernels(table, kRows); }

}  // namespace sherd::cuda
