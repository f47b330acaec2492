#include "tests/dtensor/validate/missing.h"

#include <algorithm>
#include <cmath>

#include "dtensor/spec.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/support/near.h"

namespace sherd::testing {

namespace {

// Values and partial values are drawn several times, small tensors more often: what is right by chance for one draw is
// wrong for another.
constexpr std::int64_t kLeastDraws = 3, kMostDraws = 40, kElements = 200;

using Outputs = std::vector<Values>;                   // of one call
using Readings = std::vector<std::vector<Placement>>;  // per output

Outputs run(const Op& op, std::vector<Tensor> in, const Attrs& attrs) {
  const GradMode off(false);
  const std::vector<Tensor> held = in;
  Outputs out;
  for (const Tensor& t : call_op(op, in, attrs)) out.push_back(values_of(t));
  return out;
}

// Attributes that give the shape of the result must give a shard's shape: where the result is sharded along `dim`.
Attrs local_attrs(const Op& op, const Attrs& attrs, int dim, int ranks, int rank) {
  const auto cut = [&](Shape shape) {
    shape[dim] = chunk_range(shape[dim], ranks, rank).size();
    return shape;
  };
  if (&op == &op::view || &op == &op::expand) return ShapeAttrs{cut(attrs.as<ShapeAttrs>().shape)};
  if (&op == &op::sum_to) return SumToAttrs{cut(attrs.as<SumToAttrs>().shape)};
  return attrs;
}

bool has_shape(const Op& op) { return &op == &op::view || &op == &op::expand || &op == &op::sum_to; }

/// One draw of values and partial values: what every rank has, and the right result.
struct Trial {
  std::vector<std::vector<Tensor>> in;  // per rank
  Outputs expected;
};

// Quarters: equal values, and equal partial values, must occur. Distinct ones are close to 0 and always the same set,
// so they are scaled and shifted.
std::vector<Tensor> coarse_inputs(const Variant& variant, std::uint64_t seed) {
  std::vector<Tensor> inputs = inputs_of(variant, DType::f64, seed);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Arg& arg = variant.op_case.args[i];
    if (!arg.is_floating()) continue;
    Values v = values_of(inputs[i]);
    const double moved = static_cast<double>(seed % 9) - 4;
    for (double& x : v.at) x = arg.draw == Draw::distinct ? (std::round(16 * x) + moved) / 4 : std::round(4 * x) / 4;
    inputs[i] = tensor_of(v);
  }
  return inputs;
}

Trial make_trial(const Op& op, const Variant& variant, const Combination& c, int ranks, int draw) {
  const auto seed = static_cast<std::uint64_t>(draw);
  const std::vector<Tensor> whole = coarse_inputs(variant, 7 + seed);
  Trial trial{std::vector<std::vector<Tensor>>(static_cast<std::size_t>(ranks)), run(op, whole, variant.op_case.attrs)};
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (!whole[i].defined()) {
      for (auto& in : trial.in) in.emplace_back();
      continue;
    }
    const std::vector<Values> parts = parts_along(values_of(whole[i]), c.in[i][0], ranks, 100 * seed + i);
    for (std::size_t r = 0; r < trial.in.size(); ++r) trial.in[r].push_back(tensor_of(parts[r]));
  }
  return trial;
}

// Per rank; nothing if the row refuses the local tensors of one rank.
std::vector<Outputs> run_locally(const Op& op, const Trial& trial, const Attrs& attrs, int cut_dim) {
  std::vector<Outputs> all;
  const int ranks = static_cast<int>(trial.in.size());
  try {
    for (int r = 0; r < ranks; ++r)
      all.push_back(run(op, trial.in[static_cast<std::size_t>(r)],
                        cut_dim < 0 ? attrs : local_attrs(op, attrs, cut_dim, ranks, r)));
  } catch (const Error&) { return {}; }
  return all;
}

std::vector<Placement> possible_readings(const Values& whole) {
  std::vector<Placement> all = {Replicate()};
  for (int d = 0; d < whole.shape.size(); ++d) all.push_back(Shard(d));
  const bool is_flags = whole.dtype == DType::boolean;
  if (!is_flags) all.push_back(Partial());
  if (is_floating(whole.dtype)) all.push_back(Partial(ReduceKind::avg));
  all.push_back(Partial(ReduceKind::max));
  all.push_back(Partial(ReduceKind::min));
  return all;
}

// Keeps the readings that give the right result.
void filter(Readings& readings, const std::vector<Outputs>& parts, const Outputs& expected) {
  for (std::size_t o = 0; o < readings.size(); ++o) {
    std::vector<Values> of_ranks;
    for (const Outputs& out : parts) of_ranks.push_back(out[o]);
    // Rows that keep statistics in f32 differ by its rounding.
    const double limit = 1e3 * tolerance(expected[o].dtype == DType::f64 ? DType::f64 : DType::f32);
    std::erase_if(readings[o], [&](const Placement& p) {
      const std::optional<Values> whole = read_as(of_ranks, p, expected[o].shape);
      return !whole || !is_near(*whole, expected[o], limit);
    });
  }
}

bool is_readable(const Readings& readings) {
  return !readings.empty() && std::none_of(readings.begin(), readings.end(), [](const auto& r) { return r.empty(); });
}

std::string text_of(const Readings& readings) {
  std::string text;
  for (const auto& list : readings) text += (text.empty() ? "" : " ") + to_string(list.front());
  return text;
}

std::optional<std::string> local_execution(const Op& op, const std::vector<Trial>& trials, const Attrs& attrs,
                                           int cut_dim) {
  Readings readings;
  for (const Values& out : trials[0].expected) readings.push_back(possible_readings(out));
  for (const Trial& trial : trials) {
    const std::vector<Outputs> parts = run_locally(op, trial, attrs, cut_dim);
    if (parts.empty()) return {};
    filter(readings, parts, trial.expected);
    if (!is_readable(readings)) return {};
  }
  return text_of(readings);
}

bool has_elements(const Variant& variant) {
  return std::all_of(variant.op_case.args.begin(), variant.op_case.args.end(),
                     [](const Arg& arg) { return numel(arg.shape) > 0; });
}

// A dim of one element is on one rank, and the others hold nothing: right for sums, but no layout is chosen for that.
bool cuts_one_element(const Variant& variant, const Combination& combination) {
  for (std::size_t i = 0; i < combination.in.size(); ++i)
    for (const Placement& p : combination.in[i])
      if (p.is_shard() && variant.op_case.args[i].shape[p.dim] == 1) return true;
  return false;
}

// The loss over one class is 0 whatever the logits: such a call proves nothing for other calls.
bool is_constant(const std::vector<Trial>& trials) {
  return std::all_of(trials.begin(), trials.end(),
                     [&](const Trial& trial) { return is_near(trial.expected[0], trials[0].expected[0], 0); });
}

}  // namespace

std::optional<std::string> local_execution(const Op& op, const Variant& variant, const Combination& combination,
                                           int ranks) {
  if (!has_elements(variant) || cuts_one_element(variant, combination)) return {};
  // Most combinations fail the first trial.
  std::vector<Trial> trials = {make_trial(op, variant, combination, ranks, 0)};
  std::vector<int> cuts = {-1};
  if (has_shape(op))
    for (int d = 0; d < trials[0].expected[0].shape.size(); ++d) cuts.push_back(d);
  for (int cut : cuts) {
    if (!local_execution(op, trials, variant.op_case.attrs, cut)) continue;
    if (trials.size() == 1) {
      const std::int64_t n = kElements / std::max<std::int64_t>(1, numel(trials[0].expected[0].shape));
      for (int draw = 1; draw < std::clamp(n, kLeastDraws, kMostDraws); ++draw)
        trials.push_back(make_trial(op, variant, combination, ranks, draw));
      if (is_constant(trials)) return {};
    }
    if (auto text = local_execution(op, trials, variant.op_case.attrs, cut)) return text;
  }
  return {};
}

}  // namespace sherd::testing
