// Letters: N rows (4 sequences of 4096 tokens), D width, F feed-forward width, V vocabulary, H heads, G heads of keys.
#include "tools/bench/gpu_ops.h"

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
#include "runtime/tensor/nearest.h"

namespace sherd::bench {

namespace {

constexpr std::int64_t kN = 16384, kD = 2048, kF = 8192, kV = 128256, kB = 4, kT = 4096, kH = 16, kG = 4, kK = 128;
constexpr double kTwo = 2, kFour = 4;  // bytes of bf16 and f32

struct Maker {
  Device device;
  bool small;
  std::int64_t size(std::int64_t full, std::int64_t tiny) const { return small ? tiny : full; }
  Tensor values(const Shape& shape, std::string_view name, DType dtype = DType::bf16) const {
    return random_normal(shape, random_key(1, name, "bench"), 0, 1, 0, dtype, {}, device);
  }
  Tensor ids(const Shape& shape, std::int64_t below) const {
    const Tensor x =
        random_uniform(shape, random_key(1, "ids", "bench"), 0, static_cast<double>(below), 0, DType::f32, {}, device);
    return cast(x, DType::i32);
  }
};

using Call = std::function<void()>;

/// A call of a row, its results dropped.
template <class... In>
Call row_call(const Op& op, Attrs attrs, In... in) {
  return [&op, attrs, inputs = std::vector<Tensor>{in...}] {
    const GradMode off(false);
    std::vector<Tensor> copies = inputs;  // handles: nothing is donated
    call_op(op, copies, attrs);
  };
}

Call rms_norm_forward(const Maker& m) {
  const std::int64_t n = m.size(kN, 64), d = m.size(kD, 64);
  return row_call(op::rms_norm, NormAttrs{}, m.values({n, d}, "x"), m.values({d}, "w"));
}

// Through the tape, once: then only the backward row is called again.
Call backward_of(std::vector<Tensor> inputs, const std::function<Tensor(const std::vector<Tensor>&)>& forward) {
  struct State {
    std::vector<std::unique_ptr<Slot>> slots;
    Tensor out, grad;
  };
  auto state = std::make_shared<State>();
  std::vector<Tensor> leaves;
  for (Tensor& t : inputs) {
    if (!is_floating(t.dtype())) {
      leaves.push_back(t);
      continue;
    }
    state->slots.push_back(std::make_unique<Slot>("input", true));
    state->slots.back()->set(t);
    leaves.push_back(state->slots.back()->value());
  }
  state->out = forward(leaves);
  state->grad = full(state->out.shape(), 1, state->out.dtype(), state->out.device());
  return [state] {
    backward(state->out, {.grad = state->grad, .retain_graph = true});
    for (const auto& slot : state->slots) slot->clear_grad();
  };
}

Call rms_norm_backward(const Maker& m) {
  const std::int64_t n = m.size(kN, 64), d = m.size(kD, 64);
  return backward_of({m.values({n, d}, "x"), m.values({d}, "w")},
                     [](const std::vector<Tensor>& in) { return rms_norm(in[0], in[1]); });
}

Call layer_norm_forward(const Maker& m) {
  const std::int64_t n = m.size(kN, 64), d = m.size(kD, 64);
  return row_call(op::layer_norm, NormAttrs{}, m.values({n, d}, "x"), m.values({d}, "w"), m.values({d}, "b"));
}

Call swiglu_forward(const Maker& m) {
  const std::int64_t n = m.size(kN, 64), f = m.size(kF, 64);
  return row_call(op::swiglu, {}, m.values({n, f}, "gate"), m.values({n, f}, "up"));
}

Call swiglu_backward(const Maker& m) {
  const std::int64_t n = m.size(kN, 64), f = m.size(kF, 64);
  return row_call(op::swiglu_backward, {}, m.values({n, f}, "grad"), m.values({n, f}, "gate"), m.values({n, f}, "up"));
}

Call add_forward(const Maker& m) {
  const std::int64_t n = m.size(kN, 64), d = m.size(kD, 64);
  return row_call(op::add, {}, m.values({n, d}, "a"), m.values({n, d}, "b"));
}

Call cast_forward(const Maker& m) {
  return row_call(op::cast, CastAttrs{DType::bf16}, m.values({m.size(kN * kD, 4096)}, "x", DType::f32));
}

Call rope_forward(const Maker& m) {
  const std::int64_t t = m.size(kT, 16);
  return row_call(op::rope, RopeAttrs{.theta = 500000}, m.values({m.size(kB, 1), kH, t, kK}, "q"));
}

Call softmax_forward(const Maker& m) {
  return row_call(op::softmax, DimAttrs{1}, m.values({m.size(kN, 16), m.size(kT, 256)}, "x"));
}

Call cross_entropy_forward(const Maker& m) {
  const std::int64_t n = m.size(kT, 8), v = m.size(kV, 512);
  return row_call(op::cross_entropy, CrossEntropyAttrs{}, m.values({n, v}, "logits"), m.ids({n}, v));
}

Call cross_entropy_backward(const Maker& m) {
  const std::int64_t n = m.size(kT, 8), v = m.size(kV, 512);
  return backward_of({m.values({n, v}, "logits"), m.ids({n}, v)},
                     [](const std::vector<Tensor>& in) { return cross_entropy(in[0], in[1]); });
}

// The whole head of a step: logits, loss and both gradients, on the batch's rows at once.
Call head(const Maker& m) {
  const std::int64_t n = m.size(kN, 16), d = m.size(kD, 32), v = m.size(kV, 128);
  struct State {
    std::unique_ptr<Slot> x, w;
    Tensor targets;
  };
  auto state = std::make_shared<State>();
  state->x = std::make_unique<Slot>("x", true);
  state->x->set(m.values({n, d}, "x"));
  state->w = std::make_unique<Slot>("w", true);
  state->w->set(m.values({v, d}, "w"));
  state->targets = m.ids({n}, v);
  return [state] {
    backward(linear_cross_entropy(state->x->value(), state->w->value(), state->targets));
    state->x->clear_grad();
    state->w->clear_grad();
  };
}

Call embedding_forward(const Maker& m) {
  const std::int64_t v = m.size(kV, 64), d = m.size(kD, 32);
  return row_call(op::embedding, EmbeddingAttrs{}, m.values({v, d}, "table"), m.ids({m.size(kN, 64)}, v));
}

Call embedding_backward(const Maker& m) {
  const std::int64_t v = m.size(kV, 64), d = m.size(kD, 32);
  return backward_of({m.values({v, d}, "table"), m.ids({m.size(kN, 64)}, v)},
                     [](const std::vector<Tensor>& in) { return embedding(in[0], in[1]); });
}

// An index per element: every thread has a place of its own, so nothing but the cache brings neighbours together.
Call gather_forward(const Maker& m) {
  const std::int64_t n = m.size(kN, 16), t = m.size(kT, 32), d = m.size(kD, 16);
  return row_call(op::gather, DimAttrs{1}, m.values({n, t}, "x"), m.ids({n, d}, t));
}

Call scatter_add_forward(const Maker& m) {
  const std::int64_t n = m.size(kT, 8), t = m.size(kT, 32), d = m.size(kD, 80);
  return row_call(op::scatter_add, DimAttrs{1}, m.values({n, t}, "x"), m.ids({n, d}, t), m.values({n, d}, "source"));
}

Call topk_forward(const Maker& m) {
  return row_call(op::topk, TopKAttrs{m.size(50, 5), 1}, m.values({m.size(16, 2), m.size(kV, 512)}, "logits"));
}

Call var_forward(const Maker& m) {
  return row_call(op::var, VarAttrs{{.dims = 2}, 1}, m.values({m.size(kN, 64), m.size(kD, 64)}, "x"));
}

Call transposing_copy(const Maker& m) {
  const std::int64_t t = m.size(kT, 16);
  return row_call(op::copy, {}, transpose(m.values({m.size(kB, 1), t, kH, kK}, "x"), 1, 2));
}

Call sum_over_rows(const Maker& m) {
  return row_call(op::sum, ReduceAttrs{.dims = 1}, m.values({m.size(kN, 64), m.size(kD, 64)}, "x"));
}

Call adamw(const Maker& m) {
  const Shape shape{m.size(kV, 64) * m.size(kD, 8)};
  const auto state = [&](std::string_view name) { return m.values(shape, name, DType::f32); };
  const Tensor v = square(state("v"));
  return row_call(op::adamw, AdamWAttrs{.count = 1}, state("p"), state("m"), v, state("g"),
                  to(Tensor::scalar(1e-4), m.device), to(Tensor::scalar(3), m.device), to(Tensor::scalar(1), m.device));
}

Call power_sum_of_gradients(const Maker& m) {
  return row_call(op::power_sum, PowerSumAttrs{2}, m.values({m.size(kV, 64) * m.size(kD, 8)}, "g", DType::f32));
}

std::vector<Tensor> attention_inputs(const Maker& m) {
  const std::int64_t b = m.size(kB, 1), t = m.size(kT, 32);
  return {m.values({b, kH, t, kK}, "q"), m.values({b, kG, t, kK}, "k"), m.values({b, kG, t, kK}, "v")};
}

Call attention_forward(const Maker& m) {
  const std::vector<Tensor> in = attention_inputs(m);
  return row_call(op::scaled_dot_product_attention, AttentionAttrs{.scale = 0.0883883476, .causal = true}, in[0], in[1],
                  in[2]);
}

Call attention_backward(const Maker& m) {
  return backward_of(attention_inputs(m),
                     [](const std::vector<Tensor>& in) { return scaled_dot_product_attention(in[0], in[1], in[2]); });
}

GpuOp op(std::string_view name, std::string_view summary, Call (*prepare)(const Maker&), double bytes,
         double flops = 0) {
  return {name, summary, [prepare](Device device, bool small) { return prepare({device, small}); }, bytes, flops};
}

constexpr double kRows = static_cast<double>(kN) * kD, kWide = static_cast<double>(kN) * kF;
constexpr double kLogits = static_cast<double>(kT) * kV, kTable = static_cast<double>(kV) * kD;
constexpr double kScores = static_cast<double>(kB) * kH * kT * kT / 2 * kK;  // causal half

}  // namespace

const std::vector<GpuOp>& gpu_ops() {
  static const std::vector<GpuOp> all{
      op("add", "bf16 [16384, 2048]", add_forward, 3 * kTwo * kRows),
      op("cast", "f32 -> bf16, 34 M", cast_forward, (kFour + kTwo) * kRows),
      op("transpose", "bf16 [4, 4096, 16, 128] -> heads first", transposing_copy, 2 * kTwo * kRows),
      op("sum", "bf16 over 16384 rows", sum_over_rows, kTwo * kRows),
      op("rms_norm.forward", "bf16 [16384, 2048]", rms_norm_forward, 2 * kTwo * kRows),
      op("rms_norm.backward", "bf16 [16384, 2048]", rms_norm_backward, 3 * kTwo * kRows),
      op("layer_norm.forward", "bf16 [16384, 2048]", layer_norm_forward, 2 * kTwo * kRows),
      op("rope", "bf16 [4, 16, 4096, 128]", rope_forward, 2 * kTwo * kRows),
      op("swiglu.forward", "bf16 [16384, 8192]", swiglu_forward, 3 * kTwo * kWide),
      op("swiglu.backward", "bf16 [16384, 8192]", swiglu_backward, 5 * kTwo * kWide),
      op("softmax", "bf16 [16384, 4096]", softmax_forward, 2 * kTwo * static_cast<double>(kN) * kT),
      op("cross_entropy.forward", "bf16 [4096, 128256]", cross_entropy_forward, kTwo * kLogits),
      op("cross_entropy.backward", "bf16 [4096, 128256]", cross_entropy_backward, 2 * kTwo * kLogits),
      op("head", "bf16: logits [16384, 128256], loss, both gradients", head, 0, 6 * static_cast<double>(kN) * kD * kV),
      op("embedding", "bf16, 16384 of 128256 rows", embedding_forward, 2 * kTwo * kRows),
      op("embedding.backward", "bf16, 16384 of 128256 rows", embedding_backward, kTwo * (kTable + kRows)),
      op("gather", "bf16 [16384, 2048] of [16384, 4096]", gather_forward, 0),
      op("scatter_add", "bf16 [4096, 2048] into [4096, 4096]", scatter_add_forward, 0),
      op("topk", "bf16, 50 of 128256, 16 rows", topk_forward, 0),
      op("var", "bf16 [16384, 2048]", var_forward, kTwo * kRows),
      op("adamw", "f32, 263 M parameters", adamw, 7 * kFour * kTable),
      op("power_sum", "f32, 263 M", power_sum_of_gradients, kFour * kTable),
      op("attention.forward", "bf16, causal, 16 heads over 4, T 4096, K 128", attention_forward, 0, 4 * kScores),
      op("attention.backward", "the same", attention_backward, 0, 10 * kScores),
  };
  return all;
}

const GpuOp& gpu_op(std::string_view name) {
  std::vector<std::string> names;
  for (const GpuOp& o : gpu_ops()) {
    if (o.name == name) return o;
    names.emplace_back(o.name);
  }
  fail("there is no GPU op \"{}\" to time{}", name, did_you_mean(name, names));
}

}  // namespace sherd::bench
