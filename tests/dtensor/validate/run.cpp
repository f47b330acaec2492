#include "tests/dtensor/validate/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>

#include "dtensor/api.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

namespace {

std::uint64_t hash_of(std::string_view text, std::uint64_t seed) {
  for (char c : text) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return seed ^ (seed >> 29);
}

/// A call's inputs as differentiable leaves.
class Leaves {
 public:
  explicit Leaves(std::span<const Tensor> inputs) {
    for (const Tensor& t : inputs) {
      const bool wanted = t.defined() && is_floating(t.dtype());
      slots_.push_back(wanted ? std::make_unique<Slot>("input", true) : nullptr);
      if (wanted) slots_.back()->set(t);
      values_.push_back(wanted ? slots_.back()->value() : t);
    }
  }
  std::vector<Tensor> values() const { return values_; }
  Tensor grad(std::size_t i) const { return slots_[i] ? slots_[i]->grad() : Tensor(); }

 private:
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Tensor> values_;
};

bool is_differentiable(const Op& op, const Tensor& out, std::span<const Tensor> inputs) {
  return op.vjp && is_floating(out.dtype()) && std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) {
           return t.defined() && is_floating(t.dtype());
         });
}

/// The call on one rank.
struct Reference {
  Variant variant;
  std::vector<Tensor> inputs;
  std::vector<Values> input_values, outputs, grads;  // no shape and no values: absent
  Values cotangent;
  bool has_grads = false;
};

Reference make_reference(const Op& op, const Variant& variant, DType dtype) {
  Reference ref{variant, inputs_of(variant, dtype, 1), {}, {}, {}, {}};
  for (const Tensor& t : ref.inputs) ref.input_values.push_back(t.defined() ? values_of(t) : Values{});
  const Leaves leaves(ref.inputs);
  std::vector<Tensor> in = leaves.values();
  const Tensors out = call_op(op, in, variant.op_case.attrs);
  for (const Tensor& t : out) ref.outputs.push_back(values_of(t));
  ref.has_grads = is_differentiable(op, out[0], ref.inputs);
  if (!ref.has_grads) return ref;
  const Tensor cotangent = draw(normal(out[0].shape()), out[0].dtype(), 88);
  ref.cotangent = values_of(cotangent);
  backward(out[0], {.grad = cotangent});
  for (std::size_t i = 0; i < ref.inputs.size(); ++i)
    ref.grads.push_back(leaves.grad(i).defined() ? values_of(leaves.grad(i)) : Values{});
  return ref;
}

// Partial values of an infinite one may be infinite of either sign, so their sum may be NaN.
std::string first_difference(const Values& actual, const Values& expected, double limit, bool has_terms) {
  if (!(actual.shape == expected.shape) || actual.dtype != expected.dtype)
    return fmt::format("is {}{}, expected {}{}", name(actual.dtype), to_string(actual.shape), name(expected.dtype),
                       to_string(expected.shape));
  for (std::size_t i = 0; i < actual.at.size(); ++i)
    if (!is_near({{}, actual.dtype, {actual.at[i]}}, {{}, actual.dtype, {expected.at[i]}}, limit) &&
        !(has_terms && std::isnan(actual.at[i]) && !std::isfinite(expected.at[i])))
      return fmt::format("element {} of {} is {}, expected {}", i, to_string(expected.shape), actual.at[i],
                         expected.at[i]);
  return {};
}

/// All that one rank of a mesh runs.
class RankRun {
 public:
  RankRun(const Op& op, const MeshShape& shape, std::shared_ptr<ProcessGroup> group)
      : op_(op), shape_(shape), group_(std::move(group)), mesh_(make_mesh(group_, shape)) {}

  Result run(const Reference& ref, const Combination& combination, std::uint64_t seed) {
    Result result{ref.variant, combination};
    const Leaves leaves(spread_inputs(ref, combination, seed));
    Tensors out;
    try {
      const CommCounter counter;
      std::vector<Tensor> in = leaves.values();
      out = call_op(op_, in, ref.variant.op_case.attrs);
      result.calls = counter.total().calls;
      result.bytes = counter.total().bytes;
      result.cost = result.calls > 0 ? Cost::moves : Cost::free;
    } catch (const CommError&) { throw; } catch (const Error& error) {
      result.cost = Cost::refused;
      result.refusal = error.message();
      return result;
    }
    check_values(ref, combination, out, result);
    if (ref.has_grads && result.wrong.empty()) check_grads(ref, leaves, out[0], seed, result);
    return result;
  }

  /// All ranks must have made as many collectives, and been refused alike.
  void agree(const Result& result) {
    std::int64_t state[2] = {result.calls + (result.cost == Cost::refused ? 1'000'000 : 0), 0};
    state[1] = -state[0];
    group_->host().all_reduce({in_place(state, DType::i64, 2)}, {.kind = ReduceKind::max});
    if (state[0] != -state[1])
      fail("ranks disagree: this one made {} collectives{}", result.calls,
           result.refusal.empty() ? "" : " and says: " + result.refusal);
  }

 private:
  static DeviceMesh make_mesh(const std::shared_ptr<ProcessGroup>& group, const MeshShape& shape) {
    group->set_deadline(std::chrono::seconds(20));
    std::vector<DeviceMesh::Axis> axes;
    for (int size : shape.sizes) axes.push_back({std::string(1, static_cast<char>('a' + axes.size())), size});
    return {group, axes};
  }

  Tensor spread(const Values& whole, const Placements& placements, std::uint64_t seed) const {
    return Tensor::distributed(whole.shape, Spec::of(mesh_, placements),
                               tensor_of(part_at(whole, placements, shape_.sizes, mesh_.coordinates(), seed)));
  }

  std::vector<Tensor> spread_inputs(const Reference& ref, const Combination& c, std::uint64_t seed) const {
    std::vector<Tensor> in;
    for (std::size_t i = 0; i < ref.inputs.size(); ++i)
      in.push_back(ref.inputs[i].defined() ? spread(ref.input_values[i], c.in[i], seed + 31 * i) : Tensor());
    return in;
  }

  static bool has_terms(const Combination& c) {
    bool any = false;
    for (const Placements& p : c.in)
      for (const Placement& one : p) any |= one.is_partial();
    return any;
  }

  // Elements that each rank computed by itself, without a reduction, have one rank's bits.
  double limit(const Reference& ref, const Combination& c, const Tensor& out) const {
    if (!has_terms(c) && !Spec::from(out).is_partial() && (op_.traits.pointwise || op_.traits.view)) return 0;
    double limit = tolerance(out.dtype());
    for (const Tensor& t : ref.inputs)
      if (t.defined()) limit = std::max(limit, tolerance(t.dtype()));
    return limit * ref.variant.op_case.slack;
  }

  void check_values(const Reference& ref, const Combination& c, const Tensors& out, Result& result) const {
    const GradMode off(false);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!out[i].is_distributed()) {
        result.wrong = fmt::format("output {} is the plain tensor {}", i, describe(out[i]));
        return;
      }
      const Spec& spec = Spec::from(out[i]);
      result.out += to_string(Combination{{Placements(spec.placements())}}) + (i + 1 < out.size() ? " " : "");
      const std::string difference = first_difference(values_of(full_tensor(out[i].detach())), ref.outputs[i],
                                                      limit(ref, c, out[i]), has_terms(c));
      if (!difference.empty() && result.wrong.empty()) result.wrong = fmt::format("output {} {}", i, difference);
    }
  }

  void check_grads(const Reference& ref, const Leaves& leaves, const Tensor& out, std::uint64_t seed, Result& result) {
    Placements placements;
    std::vector<Placement> choices = {Replicate(), Partial()};
    for (int d = 0; d < out.ndim(); ++d) choices.push_back(Shard(d));
    std::mt19937_64 random(seed);
    for (int a = 0; a < mesh_.ndim(); ++a) placements.push_back(choices[random() % choices.size()]);
    const std::string where =
        fmt::format("backward of a gradient that lies as {}: ", to_string(Combination{{placements}}));
    try {
      backward(out, {.grad = spread(ref.cotangent, placements, seed)});
    } catch (const CommError&) { throw; } catch (const Error& error) {
      result.refusal = where + error.what();
      return;
    }
    for (std::size_t i = 0; i < ref.grads.size(); ++i) {
      const Tensor grad = leaves.grad(i);
      const bool expected = !ref.grads[i].at.empty() || numel(ref.grads[i].shape) == 0;
      if (!grad.defined()) {
        if (expected && ref.inputs[i].defined() && is_floating(ref.inputs[i].dtype()))
          result.wrong = fmt::format("{}gradient {} is missing", where, i);
        continue;
      }
      if (!grad.is_distributed()) {
        result.wrong = fmt::format("{}gradient {} is the plain tensor {}", where, i, describe(grad));
        return;
      }
      double limit = tolerance(grad.dtype());
      for (DType dtype : {out.dtype(), ref.inputs[i].dtype()}) limit = std::max(limit, tolerance(dtype));
      limit *= 4 * ref.variant.op_case.slack * ref.variant.op_case.grad_slack;
      const GradMode off(false);
      const std::string difference =
          first_difference(values_of(full_tensor(grad)), ref.grads[i], limit, has_terms(result.combination));
      if (!difference.empty() && result.wrong.empty())
        result.wrong = fmt::format("{}gradient {} ({}) {}", where, i, describe(grad), difference);
    }
  }

  const Op& op_;
  const MeshShape& shape_;
  std::shared_ptr<ProcessGroup> group_;
  DeviceMesh mesh_;
};

std::vector<Variant> chosen_variants(const Op& op, const MeshShape& mesh, const Effort& effort) {
  std::vector<Variant> all = variants_of(op, mesh.ranks());
  std::mt19937_64 random(hash_of(op.name, effort.seed + static_cast<std::uint64_t>(mesh.ranks())));
  for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random() % i]);
  // Even and uneven variants first: they show most.
  std::stable_sort(all.begin(), all.end(), [](const Variant& a, const Variant& b) {
    const auto rank = [](Sizes s) { return s == Sizes::as_is ? 3 : s == Sizes::sparse ? 2 : 1; };
    return rank(a.sizes) < rank(b.sizes);
  });
  if (all.size() > effort.variants) {
    std::vector<Variant> some(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(effort.variants * 2 / 3));
    some.insert(some.end(), all.end() - static_cast<std::ptrdiff_t>(effort.variants - some.size()), all.end());
    all = std::move(some);
  }
  return all;
}

}  // namespace

int MeshShape::ranks() const {
  int n = 1;
  for (int size : sizes) n *= size;
  return n;
}

std::string MeshShape::name() const { return fmt::format("{}", fmt::join(sizes, "x")); }

std::vector<Result> run_on_mesh(const Op& op, const MeshShape& mesh, const Effort& effort) {
  const std::vector<Variant> variants = chosen_variants(op, mesh, effort);
  std::vector<std::vector<Result>> of_ranks(static_cast<std::size_t>(mesh.ranks()));
  Result broken;  // rank 0 is always at its latest combination
  try {
    run_ranks(mesh.ranks(), [&](const std::shared_ptr<ProcessGroup>& group) {
      RankContext::current().allocator().set_poison(true);
      RankRun rank(op, mesh, group);
      std::vector<Result>& results = of_ranks[static_cast<std::size_t>(group->rank())];
      for (const Variant& variant : variants) {
        const Reference ref = make_reference(op, variant, effort.dtype);
        const auto signatures = listed_signatures(op, ref.inputs, variant.op_case.attrs);
        const std::uint64_t seed = hash_of(variant.name(), effort.seed);
        for (const Combination& c :
             combinations(ref.inputs, signatures, static_cast<int>(mesh.sizes.size()), effort.combinations, seed)) {
          if (group->rank() == 0) broken = {variant, c};
          results.push_back(rank.run(ref, c, seed + results.size()));
          rank.agree(results.back());
        }
      }
    });
  } catch (const std::exception& error) {
    broken.wrong = error.what();
    of_ranks[0].push_back(broken);
    return of_ranks[0];
  }
  for (std::size_t r = 1; r < of_ranks.size(); ++r)
    for (std::size_t i = 0; i < of_ranks[r].size(); ++i) {
      Result& first = of_ranks[0][i];
      if (first.wrong.empty() && !of_ranks[r][i].wrong.empty())
        first.wrong = fmt::format("on rank {}: {}", r, of_ranks[r][i].wrong);
    }
  return of_ranks[0];
}

}  // namespace sherd::testing
