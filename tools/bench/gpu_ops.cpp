#include "tools/bench/gpu_ops.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/gather.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/loss_attrs.h"
#include "runtime/op/rows/norm_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "runtime/op/rows/pointwise_attrs.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "tools/train/flags.h"

namespace sherd::bench {

using namespace train;

namespace {

/// A dim of inputs, by its letter.
struct Letter {
  char letter;
  std::int64_t full, small;
};
// N rows (4 sequences of 4096 tokens), D width, F feed-forward width, V vocabulary, H heads, G heads of keys; R rows of
// logits, Q of those that are sampled from.
constexpr Letter kLetters[] = {{'N', 16384, 64}, {'D', 2048, 64}, {'F', 8192, 64}, {'V', 128256, 512},
                               {'B', 4, 1},      {'T', 4096, 32}, {'H', 16, 16},   {'G', 4, 4},
                               {'K', 128, 128},  {'R', 4096, 8},  {'Q', 16, 2}};
constexpr double kTwo = 2, kFour = 4;  // bytes of bf16 and f32

using Inputs = std::vector<Tensor>;
using Call = std::function<void()>;
using Forward = Tensor (*)(const Inputs& in);

struct Maker {
  Device device;
  bool small;

  std::int64_t size(char letter) const {
    const Letter* const found = std::ranges::find(kLetters, letter, &Letter::letter);
    return small ? found->small : found->full;
  }
  /// "ND" is bf16 [N, D], "ND:f32" another dtype; "N<V" i32 [N] of ids below V.
  Tensor input(std::string_view text, std::string_view name) const {
    const std::size_t end = text.find_first_of("<:");
    Shape shape;
    for (const char letter : text.substr(0, end)) shape.push_back(size(letter));
    if (end == std::string_view::npos || text[end] == ':')
      return random_normal(shape, random_key(1, name, "bench"), 0, 1, 0,
                           end == std::string_view::npos ? DType::bf16 : dtype_from_name(text.substr(end + 1)), {},
                           device);
    const auto below = static_cast<double>(size(text[end + 1]));
    return cast(random_uniform(shape, random_key(1, "ids", "bench"), 0, below, 0, DType::f32, {}, device), DType::i32);
  }
  Inputs inputs(std::string_view texts) const {
    std::istringstream words{std::string(texts)};
    Inputs all;
    for (std::string text; words >> text;) all.push_back(input(text, std::to_string(all.size())));
    return all;
  }
};

/// A call of a row, its results dropped.
Call row_call(const Op& op, const Attrs& attrs, const Inputs& inputs) {
  return [&op, attrs, inputs] {
    const GradMode off(false);
    Inputs copies = inputs;  // handles: nothing is donated
    call_op(op, copies, attrs);
  };
}

/// Floating inputs as leaves of a tape.
class Leaves {
 public:
  explicit Leaves(Inputs inputs) : values_(std::move(inputs)) {
    for (Tensor& value : values_) {
      if (!is_floating(value.dtype())) continue;
      slots_.push_back(std::make_unique<Slot>("input", true));
      slots_.back()->set(value);
      value = slots_.back()->value();
    }
  }
  const Inputs& values() const { return values_; }
  void clear() const {
    for (const auto& slot : slots_) slot->clear_grad();
  }

 private:
  Inputs values_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

// Through the tape, once: then only the backward row is called again.
Call backward_of(const Inputs& inputs, Forward forward) {
  const auto leaves = std::make_shared<Leaves>(inputs);
  const Tensor out = forward(leaves->values()), grad = full(out.shape(), 1, out.dtype(), out.device());
  return [=] {
    backward(out, {.grad = grad, .retain_graph = true});
    leaves->clear();
  };
}

// The whole head of a step: logits, loss and both gradients, on the batch's rows at once.
Call head(const Maker& m) {
  const auto leaves = std::make_shared<Leaves>(m.inputs("ND VD N<V"));
  return [leaves] {
    const Inputs& in = leaves->values();
    backward(linear_cross_entropy(in[0], in[1], in[2]));
    leaves->clear();
  };
}

Call transposing_copy(const Maker& m) { return row_call(op::copy, {}, {transpose(m.input("BTHK", "x"), 1, 2)}); }

Call adamw(const Maker& m) {
  Inputs state = m.inputs("VD:f32 VD:f32 VD:f32 VD:f32");  // parameter, both moments, gradient
  state[2] = square(state[2]);
  for (const double scalar : {1e-4, 3.0, 1.0}) state.push_back(to(Tensor::scalar(scalar), m.device));
  return row_call(op::adamw, AdamWAttrs{.count = 1}, state);
}

GpuOp own(std::string_view name, std::string_view summary, Call (*prepare)(const Maker&), double bytes,
          double flops = 0) {
  return {name, summary, [=](Device device, bool small) { return prepare({device, small}); }, bytes, flops};
}
GpuOp row(std::string_view name, std::string_view summary, std::string_view inputs, const Op& op, const Attrs& attrs,
          double bytes, double flops = 0) {
  const auto prepare = [=, &op](Device device, bool small) {
    return row_call(op, attrs, Maker{device, small}.inputs(inputs));
  };
  return {name, summary, prepare, bytes, flops};
}
GpuOp backwards(std::string_view name, std::string_view summary, std::string_view inputs, Forward forward, double bytes,
                double flops = 0) {
  const auto prepare = [=](Device device, bool small) {
    return backward_of(Maker{device, small}.inputs(inputs), forward);
  };
  return {name, summary, prepare, bytes, flops};
}

constexpr double kN = 16384, kD = 2048, kV = 128256, kT = 4096;
constexpr double kRows = kN * kD, kWide = kN * 8192, kLogits = kT * kV, kTable = kV * kD;
constexpr double kScores = 4.0 * 16 * kT * kT / 2 * 128;  // causal half

}  // namespace

const std::vector<GpuOp>& gpu_ops() {
  static const std::vector<GpuOp> all{
      row("add", "bf16 [16384, 2048]", "ND ND", op::add, {}, 3 * kTwo * kRows),
      row("cast", "f32 -> bf16, 34 M", "ND:f32", op::cast, CastAttrs{DType::bf16}, (kFour + kTwo) * kRows),
      own("transpose", "bf16 [4, 4096, 16, 128] -> heads first", transposing_copy, 2 * kTwo * kRows),
      row("sum", "bf16 over 16384 rows", "ND", op::sum, ReduceAttrs{.dims = 1}, kTwo * kRows),
      row("rms_norm.forward", "bf16 [16384, 2048]", "ND D", op::rms_norm, NormAttrs{}, 2 * kTwo * kRows),
      backwards(
          "rms_norm.backward", "bf16 [16384, 2048]", "ND D", [](const Inputs& in) { return rms_norm(in[0], in[1]); },
          3 * kTwo * kRows),
      row("layer_norm.forward", "bf16 [16384, 2048]", "ND D D", op::layer_norm, NormAttrs{}, 2 * kTwo * kRows),
      row("rope", "bf16 [4, 16, 4096, 128]", "BHTK", op::rope, RopeAttrs{.theta = 500000}, 2 * kTwo * kRows),
      row("swiglu.forward", "bf16 [16384, 8192]", "NF NF", op::swiglu, {}, 3 * kTwo * kWide),
      row("swiglu.backward", "bf16 [16384, 8192]", "NF NF NF", op::swiglu_backward, {}, 5 * kTwo * kWide),
      row("softmax", "bf16 [16384, 4096]", "NT", op::softmax, DimAttrs{1}, 2 * kTwo * kN * kT),
      row("cross_entropy.forward", "bf16 [4096, 128256]", "RV R<V", op::cross_entropy, CrossEntropyAttrs{},
          kTwo * kLogits),
      backwards(
          "cross_entropy.backward", "bf16 [4096, 128256]", "RV R<V",
          [](const Inputs& in) { return cross_entropy(in[0], in[1]); }, 2 * kTwo * kLogits),
      own("head", "bf16: logits [16384, 128256], loss, both gradients", head, 0, 6 * kN * kD * kV),
      row("embedding", "bf16, 16384 of 128256 rows", "VD N<V", op::embedding, EmbeddingAttrs{}, 2 * kTwo * kRows),
      backwards(
          "embedding.backward", "bf16, 16384 of 128256 rows", "VD N<V",
          [](const Inputs& in) { return embedding(in[0], in[1]); }, kTwo * (kTable + kRows)),
      // An index per element: every thread has a place of its own, so nothing but the cache brings neighbours together.
      row("gather", "bf16 [16384, 2048] of [16384, 4096]", "NT ND<T", op::gather, DimAttrs{1}, 0),
      row("scatter_add", "bf16 [4096, 2048] into [4096, 4096]", "RT RD<T RD", op::scatter_add, DimAttrs{1}, 0),
      row("topk", "bf16, 50 of 128256, 16 rows", "QV", op::topk, TopKAttrs{50, 1}, 0),
      row("var", "bf16 [16384, 2048]", "ND", op::var, VarAttrs{{.dims = 2}, 1}, kTwo * kRows),
      own("adamw", "f32, 263 M parameters", adamw, 7 * kFour * kTable),
      row("power_sum", "f32, 263 M", "VD:f32", op::power_sum, PowerSumAttrs{2}, kFour * kTable),
      row("attention.forward", "bf16, causal, 16 heads over 4, T 4096, K 128", "BHTK BGTK BGTK",
          op::scaled_dot_product_attention, AttentionAttrs{.scale = 0.0883883476, .causal = true}, 0, 4 * kScores),
      backwards(
          "attention.backward", "the same", "BHTK BGTK BGTK",
          [](const Inputs& in) { return scaled_dot_product_attention(in[0], in[1], in[2]); }, 0, 10 * kScores),
  };
  return all;
}

const GpuOp& gpu_op(std::string_view name) {
  const auto found = std::ranges::find(gpu_ops(), name, &GpuOp::name);
  check(found != gpu_ops().end(), "there is no GPU op \"{}\" to time{}", name, did_you_mean(name, gpu_ops()));
  return *found;
}

}  // namespace sherd::bench
