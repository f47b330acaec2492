#include "tools/walk/link_times.h"

#include <algorithm>

#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/plan/apply.h"
#include "runtime/comm/group/link.h"

namespace sherd::walk {

namespace {

using nn::ShardedOver;
using AxisTimes = std::array<LinkTimes::Axis, 3>;

/// The ranks of an axis and their link.
struct Ring {
  int ranks = 1;
  std::optional<LinkShape> link{};
  /// Seconds of so many gathers, or reduce-scatters, of so many bytes each; an all-reduce takes twice that.
  double seconds(double calls, double bytes) const {
    return link ? calls * comm::price_of(*link).seconds(Movement::gather, ranks, bytes) : 0;
  }
};

/// A row's strategy on its mesh.
struct Setup {
  nn::UnitPolicy policy;
  Ring shards, replicas, all;  ///< `all`: the ranks that have data of their own
  double made = 4;             ///< bytes of a full element
  double summed = 4;           ///< of an element of a gradient that is reduced
  bool reshards = false;

  /// A unit's collectives in so many micro-batches, and those of the loss and the norm with the root's.
  AxisTimes seconds_of(const UnitSize& unit, double micro_batches, double reductions) const {
    const auto elements = static_cast<double>(unit.elements);
    const bool is_sharded = policy.optimizer != ShardedOver::none, once = policy.parameters == ShardedOver::none;
    AxisTimes axes;
    auto& [dp, replicate, both] = axes;
    if (unit.is_root) both.reductions = 2 * all.seconds(is_sharded ? 2 : 1, sizeof(double));
    if (!is_sharded) {
      both.reductions += 2 * all.seconds(reductions, 4 * elements);
      return axes;
    }
    const double gathers = once ? 1 : reshards && !unit.is_root ? 2 * micro_batches : micro_batches;
    dp = {shards.seconds(gathers, made * elements), shards.seconds(reductions, summed * elements)};
    const double shard = 4 * elements / shards.ranks;
    const bool divides = policy.parameters == ShardedOver::shards && policy.optimizer == ShardedOver::all;
    if (divides) replicate = {replicas.seconds(1, shard), replicas.seconds(reductions, shard)};
    else replicate.reductions = 2 * replicas.seconds(reductions, shard);
    return axes;
  }
};

Setup setup_of(const TrainConfig& config, const std::vector<DeviceMesh::Axis>& axes) {
  const nn::TrainingPlan& plan = config.plan;
  const std::span all(axes);
  Setup s{.policy = nn::unit_policy(plan, nn::PlanFacts{.memory_limit = config.memory_limit}),
          .shards = {axes[0].size, config.link.over(all.first(1))},
          .replicas = {axes[1].size, config.link.over(all.last(1))},
          .all = {axes[0].size * axes[1].size, config.link.over(all)},
          .made = static_cast<double>(byte_size(plan.param_dtype))};
  const bool waits = plan.micro_batches > 1 && !plan.accumulate_shards;
  s.summed = waits ? static_cast<double>(nn::waiting_gradient_bytes(plan)) : s.made;
  s.reshards = s.policy.parameters != ShardedOver::none &&
               (!s.policy.reshard_after_forward || !s.policy.reshard_after_forward->is_off());
  return s;
}

// Share of backward until the last unit's gradients are complete.
double share_of_last_unit(const std::vector<UnitSize>& units) {
  double blocks = 0;
  for (const UnitSize& unit : units)
    if (!unit.is_root) blocks += static_cast<double>(unit.elements);
  return units.size() > 1 ? static_cast<double>(units.back().elements) / blocks : 1;
}

}  // namespace

std::vector<UnitSize> unit_sizes(nn::LanguageModel& model) {
  std::vector<UnitSize> sizes;
  for (const nn::UnitHandle& unit : nn::units(model)) {
    UnitSize& size = sizes.emplace_back(UnitSize{.is_root = unit == nn::unit_of(model)});
    for (const UnitPiece& piece : unit.layout().pieces) size.elements += numel(piece.shape);
  }
  std::ranges::stable_partition(sizes, &UnitSize::is_root);
  return sizes;
}

std::optional<LinkTimes> link_times(const TrainConfig& config, const std::vector<UnitSize>& units) {
  nn::TrainingPlan plan = config.plan;
  std::vector<DeviceMesh::Axis> axes{{"dp", 1}, {"replicate", 1}};
  for (const DeviceMesh::Axis& axis : plan.mesh.over(1)) {
    if (axis.name == "tp" && axis.size > 1) return std::nullopt;
    for (DeviceMesh::Axis& own : axes)
      if (own.name == axis.name) own.size = axis.size;
  }
  if (!config.link.over(axes) || plan.offload.any() || !plan.gather.is_exact() || !plan.reduce.is_exact())
    return std::nullopt;
  plan = nn::on_ranks(std::move(plan), axes[0].size * axes[1].size);
  const Setup setup = setup_of(config, axes);
  const auto micro_batches = static_cast<double>(plan.micro_batches);
  LinkTimes times{.forward = 1 / (3 * recompute_factor(config))};
  for (const UnitSize& unit : units) {
    const AxisTimes own = setup.seconds_of(unit, micro_batches, plan.accumulate_shards ? micro_batches : 1);
    for (std::size_t i = 0; i < own.size(); ++i) {
      times.axes[i].gathers += own[i].gathers;
      times.axes[i].reductions += own[i].reductions;
    }
  }
  times.first_reduction = times.forward + (1 - times.forward) * share_of_last_unit(units);
  for (const LinkTimes::Axis& axis : setup.seconds_of(units.front(), 1, 1)) times.floor += axis.sum();
  times.before_replicas = setup.seconds_of(units.back(), 1, 1)[0].sum();
  if (!setup.policy.prefetch) times.floor = std::max(times.floor, times.axes[0].sum());
  return times;
}

// Elements of the matrices of a block, each multiplied with every token; and what attention multiplies, for the causal
// half of T tokens. The last product of a block never runs again: backward does not read what it gave.
double recompute_factor(const TrainConfig& config) {
  const TrainConfig::Model& m = config.model;
  const auto width = static_cast<double>(m.width), hidden = static_cast<double>(m.hidden);
  const double keys = width / static_cast<double>(m.heads) * static_cast<double>(m.kv_heads);
  const double in = width * width + 2 * width * keys, out = width * width, down = width * hidden;
  const double up = m.style == "gpt2" ? down : 2 * down;
  const double attention = static_cast<double>(m.sequence) * width;
  const double head =
      width * static_cast<double>(std::max<std::int64_t>(m.vocabulary, 256)) / static_cast<double>(m.layers);
  const double forward = in + attention + out + up + down + head;
  const double again = config.plan.recompute == "full"        ? in + attention + out + up
                       : config.plan.recompute == "selective" ? out + up
                                                              : 0;
  return 1 + again / (3 * forward);
}

double LinkTimes::busiest() const {
  double most = 0;
  for (const Axis& axis : axes) most = std::max(most, axis.sum());
  return most;
}

double LinkTimes::step_seconds(double compute_seconds) const {
  double most = std::max(compute_seconds + floor, busiest());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].reductions == 0) continue;
    const bool is_over_replicas = i == 1;
    const double forward_over = std::max(forward * compute_seconds, is_over_replicas ? axes[i].gathers : 0);
    most = std::max(most, forward_over + (first_reduction - forward) * compute_seconds +
                              (is_over_replicas ? before_replicas : 0) + axes[i].reductions);
  }
  return most;
}

}  // namespace sherd::walk
