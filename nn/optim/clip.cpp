// One number from gradients in any layouts. Every rank sums the powers of its own elements; where several ranks of the
// reduction hold replicas of an element, each counts its fraction:
//
//   mesh(dp=2,tp=2)      f32[8,4]{0: tp,dp}     on one rank       the full sum
//                        f32[8]{0: dp}          on the tp ranks   half of it each
//                        plain, f32[8]{}        on all ranks      added after the reduction
//
// Where all ranks are to agree on what they hold several times, every axis reduces, and plain gradients are replicas.
#include "nn/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "dtensor/spec.h"
#include "nn/optim/check_options.h"
#include "nn/optim/offloaded_state.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/exact_sum.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

// Root axes of more than one rank along which a layout shards.
std::vector<int> sharding_axes(const Spec& spec, const DeviceMesh& root) {
  const DeviceMesh mesh = spec.mesh();
  std::vector<int> axes;
  for (const int a : up_to(mesh.ndim()))
    if (spec.placement(a).is_shard())
      for (const int r : mesh.root_axes(a))
        if (root.size(r) > 1) axes.push_back(r);
  std::sort(axes.begin(), axes.end());
  return axes;
}

// Gradients that are reduced together: those sharded over slices of one root mesh. Every rank has the same lists, empty
// shards included, so all ranks issue the same rows.
struct NormPart {
  DeviceMesh root;
  std::vector<int> axes;  // that shard any of them
  struct Sharded {
    std::vector<int> axes;
    std::vector<Tensor> grads;
  };
  std::vector<Sharded> by_axes;

  void add(std::vector<int> over, const Tensor& grad) {
    auto found = std::find_if(by_axes.begin(), by_axes.end(), [&](const Sharded& s) { return s.axes == over; });
    if (found == by_axes.end()) found = by_axes.insert(by_axes.end(), Sharded{over, {}});
    found->grads.push_back(grad);
    std::vector<int> joined;
    std::set_union(axes.begin(), axes.end(), over.begin(), over.end(), std::back_inserter(joined));
    axes = std::move(joined);
  }
};

struct NormParts {
  std::vector<Tensor> replicated;  // equal on all ranks
  std::vector<NormPart> sharded;
};

enum class ReduceOver : std::uint8_t { sharding_axes, all_axes };

std::vector<int> all_axes(const DeviceMesh& root) {
  std::vector<int> axes(static_cast<std::size_t>(root.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

NormParts split_by_mesh(const std::vector<Parameter*>& parameters, ReduceOver over) {
  const bool over_all = over == ReduceOver::all_axes;
  NormParts parts;
  for (const Parameter* p : parameters) {
    const Tensor& grad = p->grad();
    if (!grad.defined()) continue;
    if (!grad.is_distributed()) {
      parts.replicated.push_back(grad);
      continue;
    }
    const Spec& spec = Spec::from(grad);
    check(!spec.is_partial(),
          "the gradient of \"{}\" is {}, which is not reduced yet: a norm of partial values means nothing; "
          "redistribute() it first",
          p->name(), grad);
    const DeviceMesh root = spec.mesh().root();
    std::vector<int> axes = sharding_axes(spec, root);
    if (axes.empty() && (!over_all || root.num_ranks() == 1)) {
      parts.replicated.push_back(grad);
      continue;
    }
    std::vector<NormPart>& sharded = parts.sharded;
    auto part = std::find_if(sharded.begin(), sharded.end(), [&](const NormPart& n) { return n.root == root; });
    if (part == sharded.end())
      part = sharded.insert(sharded.end(), NormPart{root, over_all ? all_axes(root) : std::vector<int>{}, {}});
    part->add(std::move(axes), grad);
  }
  if (over_all && !parts.sharded.empty()) {
    for (const Tensor& plain : parts.replicated) parts.sharded[0].add({}, plain);
    parts.replicated.clear();
  }
  return parts;
}

// ---- gradients outside of memory ----

/// A piece of a list, and what of it comes from outside of memory.
struct NormPiece {
  StatePiece runs;
  std::vector<Tensor> homes{};
  Tensor here{};
};

NormPiece fetched(StatePiece runs, std::span<const Tensor> list) {
  NormPiece piece{.runs = std::move(runs)};
  Device device;
  for (const StateRun& run : piece.runs)
    if (const OffloadHome* const home = home_of(list[run.parameter])) {
      device = home->device;
      piece.homes.push_back(elements_of(list[run.parameter], run));
    }
  if (!piece.homes.empty()) piece.here = fetch(piece.homes, {.device = device}, MemoryCategory::gradients);
  return piece;
}

std::vector<Tensor> tensors_of(const NormPiece& piece, std::span<const Tensor> list) {
  const std::vector<Tensor> here = piece.here.defined() ? parts_of(piece.here, piece.homes) : std::vector<Tensor>();
  auto next = here.begin();
  std::vector<Tensor> tensors;
  for (const StateRun& run : piece.runs) {
    const Tensor& t = list[run.parameter];
    tensors.push_back(home_of(t) ? *next++ : elements_of(contiguous(t.local().detach()), run));
  }
  return tensors;
}

// Runs are cut where power_sum cuts, so that the sum has the bits of one call; ranks cut alike. Two pieces are in
// memory at a time: one that is summed and the next one.
Tensor power_sum_in_pieces(std::span<const Tensor> list, std::int64_t bytes_in_flight, double p) {
  const std::int64_t least = kPowerSumBlock * byte_size(list[0].dtype());
  StatePieces cut(std::max(bytes_in_flight / 3, least), 1, kPowerSumBlock);
  std::vector<StatePiece> pieces;
  for (const std::size_t i : indices(list))
    for (StatePiece& piece : cut.add(i, list[i])) pieces.push_back(std::move(piece));
  pieces.push_back(cut.take_rest());
  Tensor total;
  NormPiece next = fetched(std::move(pieces[0]), list);
  for (const std::size_t i : indices(pieces)) {
    const NormPiece now = std::exchange(next, {});
    if (i + 1 < pieces.size()) next = fetched(std::move(pieces[i + 1]), list);
    total = power_sum_from(total, tensors_of(now, list), p);
  }
  return total;
}

// Sums this rank's elements.
Tensor local_power_sum(std::span<const Tensor> list, double p) {
  for (const Tensor& t : list)
    if (const OffloadHome* const home = home_of(t)) return power_sum_in_pieces(list, home->bytes_in_flight, p);
  std::vector<Tensor> locals;
  locals.reserve(list.size());
  for (const Tensor& t : list) locals.push_back(t.local().detach());
  return power_sum(locals, p);
}

Tensor combine(Tensor a, Tensor b, bool is_max) {
  if (!a.defined()) return b;
  return is_max ? maximum(std::move(a), std::move(b)) : add(std::move(a), std::move(b));
}

int ranks_along(const DeviceMesh& root, std::span<const int> axes) {
  int ranks = 1;
  for (const int a : axes) ranks *= root.size(a);
  return ranks;
}

// The group of the ranks that differ along these axes only, or of all ranks where there is none.
ProcessGroup& reducing_group(const NormPart& part, std::vector<int>& axes) {
  axes = part.axes;
  if (axes.size() == 1) return part.root.group(axes[0]);
  if (ProcessGroup* group = part.root.joint_group(axes)) return *group;
  axes = all_axes(part.root);
  return *part.root.joint_group(axes);
}

Tensor reduced(const NormPart& part, double p) {
  const bool is_max = std::isinf(p);
  std::vector<int> axes;
  ProcessGroup& group = reducing_group(part, axes);
  Tensor total;
  for (const NormPart::Sharded& list : part.by_axes) {
    Tensor sum = local_power_sum(list.grads, p);
    const int replicas = ranks_along(part.root, axes) / ranks_along(part.root, list.axes);
    if (replicas > 1 && !is_max) sum = mul(std::move(sum), 1.0 / replicas);
    total = combine(std::move(total), std::move(sum), is_max);
  }
  return all_reduce(std::move(total), group, is_max ? ReduceKind::max : ReduceKind::sum);
}

Tensor rounded_power_sum(const NormParts& parts, double p) {
  Tensor total;
  if (!parts.replicated.empty()) total = local_power_sum(parts.replicated, p);
  for (const NormPart& part : parts.sharded) total = combine(std::move(total), reduced(part, p), std::isinf(p));
  return total;
}

// Integers: whatever ranks and axes there are, and in which order.
Tensor exact_words(std::span<const Tensor> list, double p) {
  std::vector<Tensor> locals;
  for (const Tensor& t : list) {
    check(!home_of(t), "a norm that is free of the layout needs gradients in memory, and they are offloaded");
    locals.push_back(t.local().detach());
  }
  return exact_power_sum(locals, p);
}

Tensor layout_free_power_sum(const NormParts& parts, double p) {
  Tensor words;
  const auto add_words = [&](Tensor more) { words = words.defined() ? add(std::move(words), std::move(more)) : more; };
  if (!parts.replicated.empty()) add_words(exact_words(parts.replicated, p));
  for (const NormPart& part : parts.sharded)
    for (const NormPart::Sharded& list : part.by_axes) {
      Tensor sum = exact_words(list.grads, p);
      for (const int axis : list.axes) sum = all_reduce(std::move(sum), part.root.group(axis), ReduceKind::sum);
      add_words(std::move(sum));
    }
  return words.defined() ? exact_total(std::move(words)) : words;
}

Tensor norm_over(const std::vector<Parameter*>& parameters, double p, ReduceOver over,
                 Tensor (*sum)(const NormParts& parts, double p)) {
  GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  const bool is_max = std::isinf(p);
  const NormParts parts = split_by_mesh(parameters, over);
  Tensor total = sum(parts, p);
  if (!total.defined()) return zeros({});
  if (p == 2) total = sqrt(std::move(total));
  else if (!is_max && p != 1) total = pow(std::move(total), 1 / p);
  return cast(std::move(total), DType::f32);
}

}  // namespace

Tensor grad_norm(const std::vector<Parameter*>& parameters, double p) {
  const PurposeScope purpose("grad_norm");
  check_each_once(parameters, "grad_norm(), which would count it twice");
  return norm_over(parameters, p, ReduceOver::sharding_axes, rounded_power_sum);
}

Tensor layout_free_grad_norm(const std::vector<Parameter*>& parameters, double p) {
  const PurposeScope purpose("layout_free_grad_norm");
  check_each_once(parameters, "layout_free_grad_norm(), which would count it twice");
  return norm_over(parameters, p, ReduceOver::sharding_axes, layout_free_power_sum);
}

Tensor agreed_grad_norm(const std::vector<Parameter*>& parameters, double p) {
  const PurposeScope purpose("agreed_grad_norm");
  return norm_over(parameters, p, ReduceOver::all_axes, rounded_power_sum);
}

Tensor clip_factor(const Tensor& norm, double max_norm) {
  check(max_norm > 0, "the norm of gradients is to be limited to max_norm, which must be above 0, got {}", max_norm);
  const Tensor factor = clamp(mul(reciprocal(add(norm, 1e-6)), max_norm), 0, 1);
  return add(factor, mul(norm, 0));  // 0 x infinity is NaN
}

Tensor clip_grad_norm(Optimizer& optimizer, double max_norm, double p) {
  const PurposeScope purpose("clip_grad_norm");
  return clip_grad_norm(optimizer, max_norm,
                        norm_over(optimizer.parameters(), p, ReduceOver::sharding_axes, rounded_power_sum));
}

Tensor clip_grad_norm(Optimizer& optimizer, double max_norm, Tensor norm) {
  GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  optimizer.set_gradient_scale(clip_factor(norm, max_norm));
  return norm;
}

}  // namespace sherd::nn
