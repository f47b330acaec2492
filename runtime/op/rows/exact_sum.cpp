#include "runtime/op/rows/exact_sum.h"

#include <cmath>
#include <vector>

#include "runtime/op/core/infer.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer_attrs.h"

namespace sherd {

namespace {

constexpr std::int64_t kMostExactRows = std::int64_t{1} << 30;  // on a rank; others are added

Metas infer_exact_power_sum(const InferCall& call) {
  const double p = call.attrs.as<PowerSumAttrs>().p;
  check(p > 0 && std::isfinite(p), "exact_power_sum needs a finite p > 0, got {}", p);
  for (std::size_t i = 0; i < call.in.size(); ++i)
    check(is_floating(required(call, i).dtype), "exact_power_sum: tensor {} is {}; it must be a floating type", i,
          call.in[i]);
  std::int64_t rows = 0;
  for (const TensorMeta& t : call.in) rows += t.ndim() == 0 ? 1 : t.shape[0];
  check(rows <= kMostExactRows, "exact_power_sum of {} rows: its words hold the sum of {} at most", rows,
        kMostExactRows);
  return {{.shape = {kExactWords}, .dtype = DType::i64}};
}

Metas infer_exact_total(const InferCall& call) {
  const TensorMeta& words = required(call, 0);
  check(words.shape == Shape{kExactWords} && words.dtype == DType::i64,
        "exact_total of {}: it takes what exact_power_sum gives, i64[{}]", words, kExactWords);
  return {{.shape = {}, .dtype = DType::f64}};
}

double exact_power_sum_flops(const InferCall& call) {
  double elements = 0;
  for (const TensorMeta& t : call.in) elements += static_cast<double>(t.numel());
  return 2 * elements;
}

constexpr std::string_view kNoGradient = "a statistic of gradients";

}  // namespace

constinit const Op op::exact_power_sum{
    .name = "exact_power_sum",
    .doc = "The sum of |x|^p over a list of tensors, this rank's elements, without rounding between rows: i64 words.",
    .attrs = &attr_kind<PowerSumAttrs>,
    .infer = infer_exact_power_sum,
    .traits = {.local_extents = true},
    .no_gradient = kNoGradient,
    .flops = exact_power_sum_flops,
};

constinit const Op op::exact_total{
    .name = "exact_total",
    .doc = "words of exact_power_sum -> the nearest 0-d f64.",
    .infer = infer_exact_total,
    .dims = "[d]->",
    .no_gradient = kNoGradient,
};

void register_exact_sum(OpTable& table) { table.add({&op::exact_power_sum, &op::exact_total}); }

Tensor exact_power_sum(std::span<const Tensor> tensors, double p) {
  std::vector<Tensor> inputs(tensors.begin(), tensors.end());
  for (Tensor& t : inputs) t = contiguous(std::move(t));
  return std::move(call_op(op::exact_power_sum, inputs, PowerSumAttrs{p})[0]);
}

Tensor exact_total(Tensor words) { return call(op::exact_total, {}, std::move(words)); }

}  // namespace sherd
