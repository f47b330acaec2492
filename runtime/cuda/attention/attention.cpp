// Rows of attention: which kernels compute a call.
#include "runtime/cuda/attention/attention.h"

#include <limits>
#include <utility>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/kernels.h"
#include "runtime/exec/picks.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/os/settings.h"

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
  context_of(c).attention().forward(shape_of(c.in[0], c.in[1], c.attrs.as<AttentionAttrs>()), {.q = view_of(c.in[0]),
                                                                                               .k = view_of(c.in[1]),
                                                                                               .v = view_of(c.in[2]),
                                                                                               .out = view_of(c.out[0]),
                                                                                               .lse = c.out[1].raw()});
}

void backward_kernel(const KernelCall& c) {
  context_of(c).attention().backward(shape_of(c.in[1], c.in[2], c.attrs.as<AttentionAttrs>()),
                                     {.grad = view_of(c.in[0]),
                                      .q = view_of(c.in[1]),
                                      .k = view_of(c.in[2]),
                                      .v = view_of(c.in[3]),
                                      .out = view_of(c.in[4]),
                                      .lse = view_of(c.in[5]),
                                      .dq = view_of(c.out[0]),
                                      .dk = view_of(c.out[1]),
                                      .dv = view_of(c.out[2])});
}

constexpr KernelEntry kRows[] = {
    {op::scaled_dot_product_attention, forward_kernel},
    {op::scaled_dot_product_attention_backward, backward_kernel},
};

constexpr std::pair<std::string_view, AttentionChoice> kChoices[] = {
    {"fast", AttentionChoice::fast},
    {"deterministic", AttentionChoice::deterministic},
    {"own", AttentionChoice::own},
};

}  // namespace

AttentionChoice attention_choice(const std::string& asked, bool is_reproducible) {
  if (asked.empty()) return is_reproducible ? AttentionChoice::deterministic : AttentionChoice::fast;
  check(!is_reproducible || asked != "fast",
        "SHERD_ATTENTION is fast, whose backward sums in no fixed order, and the run is to be reproducible "
        "(--reproducible, SHERD_REPRODUCIBLE): take deterministic or own, or leave it out");
  for (const auto& [text, choice] : kChoices)
    if (asked == text) return choice;
  fail("SHERD_ATTENTION is {}; it can be fast, deterministic or own", asked);
}

std::string describe_attention() {
  std::string asked = requested_attention();
  if (asked.empty()) asked = is_requested_reproducible() ? "deterministic" : "fast";
  const std::string cudnn = describe_cudnn();
  const bool own = asked == "own" || cudnn.starts_with("none");
  return fmt::format(
      "{}; SHERD_ATTENTION: {}{}", own ? "own kernels" : "cuDNN's (bf16, f16; K <= 128, K % 8 == 0), else own", asked,
      asked == "fast" && !own ? ", whose backward sums in no fixed order; the others repeat their bits" : "");
}

Attention::Attention(Context& context)
    : context_(context), choice_(attention_choice(requested_attention(), picks_of_rank().is_reproducible)) {}

AttentionLibrary* Attention::library() {
  if (choice_ == AttentionChoice::own) return nullptr;
  if (!asked_) library_ = open_cudnn(context_);
  asked_ = true;
  return library_.get();
}

void Attention::forward(const AttentionShape& shape, const AttentionForward& tensors) {
  if (AttentionLibrary* other = library(); other && other->forward(shape, tensors)) return;
  if (flash_takes(shape, context_.properties().sharedMemPerBlockOptin))
    flash_forward(context_.stream(), shape, tensors);
  else tiled_attention_forward(context_.stream(), shape, tensors);
}

void Attention::backward(const AttentionShape& shape, AttentionBackward tensors) {
  const bool deterministic = choice_ == AttentionChoice::deterministic;
  if (AttentionLibrary* other = library(); other && other->backward(shape, tensors, deterministic)) return;
  const std::int64_t element = shape.dtype == DType::f64 ? 8 : 4;
  const Workspace dot(context_, shape.query_rows() * element);
  tensors.dot = dot.data();
  attention_row_dots(context_.stream(), shape, tensors);
  if (flash_takes(shape, context_.properties().sharedMemPerBlockOptin))
    flash_backward(context_.stream(), shape, tensors);
  else tiled_attention_backward(context_.stream(), shape, tensors);
}

void register_attention(OpTable& table) { add_kernels(table, kRows); }

}  // namespace sherd::cuda
