// Random rows. A value depends on (key, step, global element index) only: the key selects the random stream, the step
// goes into the counter, and `first` and `runs` say which elements of the full tensor this one holds (element_runs.h).
// In dropout the size of the full tensor may select the stream as well (DropoutAttrs::all).
// Nothing is stateful, so any shard of a tensor can be drawn on any rank, in any order, with the same bits;
// recomputing a forward repeats its dropout.
#include "runtime/op/core/infer.h"
#include "runtime/op/rows/element_runs.h"
#include "runtime/op/rows/random_attrs.h"
#include "runtime/op/rows/vjp.h"
#include "runtime/tensor/fnv1a.h"

namespace sherd {

namespace {

void check_step(const InferCall& call, std::size_t i) {
  const TensorMeta& step = call.in[i];
  if (step.absent) return;
  check(step.dtype == DType::i64 && step.numel() == 1, "{}: the step is a 0-d i64 tensor, got {}", call.op.name, step);
}

Metas infer_random(const InferCall& call) {
  const auto& attrs = call.attrs.as<RandomAttrs>();
  for (std::int64_t d : attrs.shape) check(d >= 0, "a shape has no negative dims, got {}", attrs.shape);
  check(is_floating(attrs.dtype), "{} draws floats, not {}", call.op.name, name(attrs.dtype));
  check_runs(attrs.first, attrs.runs);
  check_step(call, 0);
  const Device on = call.in[0].device;  // the host if there is no step
  check(on.is_meta() || on == Device::cpu() || on == attrs.device, "{} draws on {}, its step is on {}", call.op.name,
        to_string(attrs.device), to_string(on));
  return one_output(attrs.shape, attrs.dtype);
}

Device device_of_random(AttrsView attrs) { return attrs.as<RandomAttrs>().device; }

Metas infer_dropout(const InferCall& call) {
  const auto& attrs = call.attrs.as<DropoutAttrs>();
  const TensorMeta& x = required(call, 0);
  check(is_floating(x.dtype), "dropout of {}: it scales, so it needs a float", x);
  check(attrs.p >= 0 && attrs.p <= 1, "dropout with probability {}; it lies in 0..1", attrs.p);
  check_runs(attrs.first, attrs.runs);
  check(attrs.all >= 0, "dropout of a part of {} elements; a whole has 0 or more", attrs.all);
  check_step(call, 1);
  return one_output(x.shape, x.dtype);
}

// Dropout is linear in x for a given key and step: the gradient gets the same mask.
void dropout_vjp(VjpCall& c) { c.give(0, op::dropout, c.attrs, c.grad(), c.in(1)); }

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// 0xff ends the text: ("ab", "c") and ("a", "bc") differ.
std::uint64_t hash_of(std::string_view text, std::uint64_t hash = kFnvStart) {
  return fnv1a("\xff", fnv1a(text, hash));
}

Tensor draw(const Op& op, const RandomAttrs& attrs, Tensor step) {
  if (step.defined()) return call(op, attrs, std::move(step));
  return call(op, attrs);
}

constexpr std::string_view kNoInput = "no differentiable input";

}  // namespace

constinit const Op op::random_normal{
    .name = "random_normal",
    .doc = "step (0-d i64, or none) -> shape: normal with mean a and deviation b.",
    .attrs = &attr_kind<RandomAttrs>,
    .infer = infer_random,
    .no_gradient = kNoInput,
    .device = device_of_random,
    .optional = 0b1,
};

constinit const Op op::random_uniform{
    .name = "random_uniform",
    .doc = "step (0-d i64, or none) -> shape: uniform in [a, b).",
    .attrs = &attr_kind<RandomAttrs>,
    .infer = infer_random,
    .no_gradient = kNoInput,
    .device = device_of_random,
    .optional = 0b1,
};

constinit const Op op::dropout{
    .name = "dropout",
    .doc = "x, step (0-d i64, or none) -> x / (1 - p), or 0 with probability p.",
    .attrs = &attr_kind<DropoutAttrs>,
    .infer = infer_dropout,
    .dims = "...,->...",
    .traits = {.linear = true},
    .needs = {.inputs = 0b10},
    .vjp = dropout_vjp,
    .optional = 0b10,
};

void register_random(OpTable& table) { table.add({&op::random_normal, &op::random_uniform, &op::dropout}); }

// FNV-1a over the texts, then SplitMix64's finaliser over the other arguments. Part of the format of saved runs: a
// changed key changes every initial weight.
std::uint64_t random_key(std::uint64_t seed, std::string_view path, std::string_view purpose,
                         std::uint64_t call_index) {
  const std::uint64_t text = hash_of(purpose, hash_of(path));
  return mix(mix(mix(text) + kGolden + seed) + kGolden + call_index);
}

std::uint64_t DropoutAttrs::stream_key() const {
  return all == 0 ? key : mix(key + kGolden + static_cast<std::uint64_t>(all));
}

Tensor random_normal(const Shape& shape, std::uint64_t key, double mean, double std, std::int64_t first, DType dtype,
                     Tensor step, Device device) {
  return draw(op::random_normal, {shape, dtype, key, first, static_cast<float>(mean), static_cast<float>(std), device},
              std::move(step));
}

Tensor random_uniform(const Shape& shape, std::uint64_t key, double low, double high, std::int64_t first, DType dtype,
                      Tensor step, Device device) {
  return draw(op::random_uniform, {shape, dtype, key, first, static_cast<float>(low), static_cast<float>(high), device},
              std::move(step));
}

Tensor dropout(Tensor x, double p, std::uint64_t key, Tensor step, std::int64_t first, std::int64_t all) {
  if (p == 0) return x;
  const DropoutAttrs attrs{.p = static_cast<float>(p), .key = key, .first = first, .all = all};
  return call(op::dropout, attrs, std::move(x), std::move(step));
}

}  // namespace sherd
