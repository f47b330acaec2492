// Optimizer rows. One call updates all parameters of a group in place: lists instead of one launch per tensor. The
// learning rate, the step and the gradient scale are tensors, so that a captured step reads their present values. A
// scale that is not finite leaves everything as it was: one bad gradient costs a step, not the parameters.
#include <cmath>
#include <vector>

#include "runtime/op/core/infer.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

void check_scalar(const TensorMeta& t, std::string_view what) {
  check(t.numel() == 1 && (t.dtype == DType::f32 || t.dtype == DType::f64),
        "{} is {}; it must be a one-element tensor of f32 or f64", what, t);
}

// Parameters and state: one dtype, one shape, dense, because they are written in place.
void check_state(const TensorMeta& state, const TensorMeta& param, std::size_t i, std::string_view what) {
  check(state.shape == param.shape && state.dtype == param.dtype, "{} {} is {}, its parameter is {}", what, i, state,
        param);
  check(state.is_contiguous(), "{} {} is {} with strides {}: what an optimizer writes must be dense", what, i, state,
        state.strides);
}

void check_lists(const InferCall& call, std::size_t n, std::span<const std::string_view> states) {
  for (const std::size_t i : up_to(n)) {
    const TensorMeta& param = required(call, i);
    check(param.dtype == DType::f32 || param.dtype == DType::f64,
          "parameter {} is {}; optimizers update f32 or f64 (keep a 16-bit copy beside it)", i, param);
    check_state(param, param, i, "parameter");
    for (const std::size_t s : indices(states)) check_state(required(call, (s + 1) * n + i), param, i, states[s]);
    const TensorMeta& grad = required(call, (states.size() + 1) * n + i);
    check(grad.shape == param.shape, "gradient {} is {}, its parameter is {}", i, grad, param);
    check(is_floating(grad.dtype), "gradient {} is {}; it must be a floating type", i, grad);
  }
}

void check_not_negative(std::string_view what, double value) {
  check(value >= 0 && std::isfinite(value), "{} must be a finite number of at least 0, got {}", what, value);
}

void check_count(const InferCall& call, int count, std::size_t lists, std::size_t scalars) {
  const std::size_t expected = lists * static_cast<std::size_t>(count) + scalars;
  check(count >= 0 && call.in.size() == expected, "{} tensors for {} parameters; {} takes {} lists and {} scalars",
        call.in.size(), count, call.op.name, lists, scalars);
}

Metas infer_adamw(const InferCall& call) {
  const auto& a = call.attrs.as<AdamWAttrs>();
  const auto n = static_cast<std::size_t>(a.count);
  check_count(call, a.count, 4, 3);
  check(a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1, "betas must lie in [0, 1), got {} and {}", a.beta1,
        a.beta2);
  check_not_negative("eps", a.eps);
  check_not_negative("weight decay", a.weight_decay);
  constexpr std::string_view states[] = {"first moment", "second moment"};
  check_lists(call, n, states);
  check_scalar(required(call, 4 * n), "lr");
  check_scalar(required(call, 4 * n + 1), "step");
  check_scalar(required(call, 4 * n + 2), "scale");
  return {};
}

int mutated_adamw(const InferCall& call) { return 3 * call.attrs.as<AdamWAttrs>().count; }

Metas infer_sgd(const InferCall& call) {
  const auto& a = call.attrs.as<SgdAttrs>();
  const auto n = static_cast<std::size_t>(a.count);
  constexpr std::string_view states[] = {"momentum"};
  const std::size_t num_states = a.momentum != 0 ? 1 : 0;
  check_count(call, a.count, 2 + num_states, 2);
  check_not_negative("momentum", a.momentum);
  check_not_negative("weight decay", a.weight_decay);
  check(!a.nesterov || a.momentum > 0, "Nesterov's step needs momentum > 0, got {}", a.momentum);
  check_lists(call, n, std::span(states, num_states));
  check_scalar(required(call, (2 + num_states) * n), "lr");
  check_scalar(required(call, (2 + num_states) * n + 1), "scale");
  return {};
}

int mutated_sgd(const InferCall& call) {
  const auto& a = call.attrs.as<SgdAttrs>();
  return a.momentum != 0 ? 2 * a.count : a.count;
}

Metas infer_count_step(const InferCall& call) {
  const int count = call.attrs.as<CountStepAttrs>().count;
  check_count(call, count, 1, 1);
  for (const std::size_t i : up_to(static_cast<std::size_t>(count))) check_scalar(required(call, i), "a count");
  check_scalar(required(call, static_cast<std::size_t>(count)), "scale");
  return {};
}

int mutated_count_step(const InferCall& call) { return call.attrs.as<CountStepAttrs>().count; }

Metas power_sum_of_inputs(const InferCall& call, std::size_t first) {
  const double p = call.attrs.as<PowerSumAttrs>().p;
  check(p > 0, "power_sum needs p > 0 (infinity for the maximum), got {}", p);
  for (const std::size_t i : Numbers<std::size_t>(first, call.in.size()))
    check(is_floating(required(call, i).dtype), "power_sum: tensor {} is {}; it must be a floating type", i - first,
          call.in[i]);
  return {{.shape = {}, .dtype = DType::f64}};
}

Metas infer_power_sum(const InferCall& call) { return power_sum_of_inputs(call, 0); }

Metas infer_power_sum_from(const InferCall& call) {
  const TensorMeta& before = call.in[0];
  check(!before.defined() || (before.ndim() == 0 && before.dtype == DType::f64),
        "power_sum_from: the sum of what came before is {}; give it as 0-d f64, or none", before);
  return power_sum_of_inputs(call, 1);
}

// One double per block of elements; runtime/cpu/rows/optimizer.cpp splits tensors into the same blocks.
std::int64_t scratch_power_sum(const InferCall& call) {
  std::int64_t blocks = 0;
  for (const TensorMeta& t : call.in) blocks += (t.numel() + kPowerSumBlock - 1) / kPowerSumBlock;
  return blocks * static_cast<std::int64_t>(sizeof(double));
}

// Operations per element of the first inputs, counted from the kernels.
double list_flops(const InferCall& call, std::size_t count, int per_element) {
  double elements = 0;
  for (const std::size_t i : up_to(count)) elements += static_cast<double>(call.in[i].numel());
  return per_element * elements;
}
// The scaled gradient 1, first moment 3, second moment 4, decay and step 6.
double adamw_flops(const InferCall& call) {
  return list_flops(call, static_cast<std::size_t>(call.attrs.as<AdamWAttrs>().count), 14);
}
// The scaled gradient and decay 3, momentum 2, Nesterov's step 2, the step 2.
double sgd_flops(const InferCall& call) {
  const auto& a = call.attrs.as<SgdAttrs>();
  const int momentum = a.momentum == 0 ? 0 : a.nesterov ? 4 : 2;
  return list_flops(call, static_cast<std::size_t>(a.count), 5 + momentum);
}
// An addition.
double count_step_flops(const InferCall& call) { return call.attrs.as<CountStepAttrs>().count; }
// A power and a sum.
double power_sum_flops(const InferCall& call) { return list_flops(call, call.in.size(), 2); }

void append(std::vector<Tensor>& inputs, std::span<const Tensor> tensors) {
  inputs.insert(inputs.end(), tensors.begin(), tensors.end());
}

void append_dense(std::vector<Tensor>& inputs, std::span<const Tensor> tensors) {
  for (const Tensor& t : tensors) inputs.push_back(contiguous(t));
}

void check_equal_counts(std::string_view what, std::size_t count, std::size_t params) {
  check(count == params, "{} {} for {} parameters", count, what, params);
}

// Each rank updates its own elements, so a parameter and its state must have one layout; equal local shapes do not
// prove that.
void check_same_layouts(std::string_view what, std::span<const Tensor> tensors, std::span<const Tensor> params) {
  for (const std::size_t i : indices(tensors))
    check(tensors[i].layout() == params[i].layout(),
          "{} {} is {}, its parameter is {}: redistribute() one to the other", what, i, tensors[i], params[i]);
}

}  // namespace

constinit const Op op::adamw{
    .name = "adamw",
    .doc =
        "AdamW with decoupled decay over lists: parameters, first and second moments (written in place), "
        "gradients, then 0-d lr, step, scale. A scale that is not finite: nothing is written.",
    .attrs = &attr_kind<AdamWAttrs>,
    .infer = infer_adamw,
    .traits = {.effect = true, .local_extents = true},
    .no_gradient = "effect",
    .mutated = mutated_adamw,
    .flops = adamw_flops,
};

constinit const Op op::sgd{
    .name = "sgd",
    .doc =
        "SGD with momentum over lists: parameters, momenta (written in place; none when momentum is 0), "
        "gradients, then 0-d lr, scale. A scale that is not finite: nothing is written.",
    .attrs = &attr_kind<SgdAttrs>,
    .infer = infer_sgd,
    .traits = {.effect = true, .local_extents = true},
    .no_gradient = "effect",
    .mutated = mutated_sgd,
    .flops = sgd_flops,
};

constinit const Op op::count_step{
    .name = "count_step",
    .doc =
        "Adds 1 to each of a list of 0-d counts (written in place); a 0-d scale follows. If it is not finite: nothing "
        "is written.",
    .attrs = &attr_kind<CountStepAttrs>,
    .infer = infer_count_step,
    .traits = {.effect = true, .local_extents = true},
    .no_gradient = "effect",
    .mutated = mutated_count_step,
    .flops = count_step_flops,
};

constinit const Op op::power_sum{
    .name = "power_sum",
    .doc = "0-d f64 sum of |x|^p over a list of tensors (max |x| for p = infinity), this rank's elements.",
    .attrs = &attr_kind<PowerSumAttrs>,
    .infer = infer_power_sum,
    .traits = {.local_extents = true},
    .no_gradient = "a statistic of gradients",
    .flops = power_sum_flops,
};

constinit const Op op::power_sum_from{
    .name = "power_sum_from",
    .doc =
        "0-d f64 power_sum of a list and of what came before it, whose 0-d f64 sum is the first input if there is any.",
    .attrs = &attr_kind<PowerSumAttrs>,
    .infer = infer_power_sum_from,
    .traits = {.local_extents = true},
    .no_gradient = "a statistic of gradients",
    .flops = power_sum_flops,
    .optional = 0b1,
};

void register_optimizer(OpTable& table) {
  table.add({&op::adamw, &op::sgd, &op::count_step, &op::power_sum, &op::power_sum_from});
  for (const Op* const row : {&op::power_sum, &op::power_sum_from})
    table.scratch(*row, Device::Kind::cpu, scratch_power_sum);
}

void adamw_step(std::span<const Tensor> params, std::span<const Tensor> m, std::span<const Tensor> v,
                std::span<const Tensor> grads, const Tensor& lr, const Tensor& step, const Tensor& scale,
                const AdamWAttrs& options) {
  check_equal_counts("first moments", m.size(), params.size());
  check_equal_counts("second moments", v.size(), params.size());
  check_equal_counts("gradients", grads.size(), params.size());
  check_same_layouts("first moment", m, params);
  check_same_layouts("second moment", v, params);
  check_same_layouts("gradient", grads, params);
  std::vector<Tensor> inputs;
  inputs.reserve(4 * params.size() + 3);
  append(inputs, params);
  append(inputs, m);
  append(inputs, v);
  append_dense(inputs, grads);
  inputs.insert(inputs.end(), {lr, step, scale});
  AdamWAttrs attrs = options;
  attrs.count = static_cast<int>(params.size());
  call_op(op::adamw, inputs, attrs);
}

void sgd_step(std::span<const Tensor> params, std::span<const Tensor> momenta, std::span<const Tensor> grads,
              const Tensor& lr, const Tensor& scale, const SgdAttrs& options) {
  const bool has_momentum = options.momentum != 0;
  check_equal_counts("momenta", momenta.size(), has_momentum ? params.size() : 0);
  check_equal_counts("gradients", grads.size(), params.size());
  check_same_layouts("momentum", momenta, params);
  check_same_layouts("gradient", grads, params);
  std::vector<Tensor> inputs;
  inputs.reserve(3 * params.size() + 2);
  append(inputs, params);
  append(inputs, momenta);
  append_dense(inputs, grads);
  inputs.insert(inputs.end(), {lr, scale});
  SgdAttrs attrs = options;
  attrs.count = static_cast<int>(params.size());
  call_op(op::sgd, inputs, attrs);
}

void count_step(std::span<const Tensor> counts, const Tensor& scale) {
  std::vector<Tensor> inputs;
  inputs.reserve(counts.size() + 1);
  append(inputs, counts);
  inputs.push_back(scale);
  call_op(op::count_step, inputs, CountStepAttrs{static_cast<int>(counts.size())});
}

Tensor power_sum_from(const Tensor& before, std::span<const Tensor> tensors, double p) {
  std::vector<Tensor> inputs{before};
  inputs.reserve(tensors.size() + 1);
  append_dense(inputs, tensors);
  return std::move(call_op(op::power_sum_from, inputs, PowerSumAttrs{p})[0]);
}

Tensor power_sum(std::span<const Tensor> tensors, double p) {
  std::vector<Tensor> inputs;
  inputs.reserve(tensors.size());
  append_dense(inputs, tensors);
  return std::move(call_op(op::power_sum, inputs, PowerSumAttrs{p})[0]);
}

}  // namespace sherd
