#include "tools/walk/formulas.h"

#include <algorithm>
#include <numeric>

#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/plan/apply.h"
#include "runtime/tensor/error.h"

namespace sherd::walk {

namespace {

using nn::ShardedOver;
using Units = std::vector<UnitSize>;

std::int64_t per(std::int64_t count, int parts) { return (count + parts - 1) / parts; }

/// A row's strategy on its mesh, and the units that it has.
struct Setup {
  nn::UnitPolicy policy;
  const Units& units;
  int replicas = 1, shards = 1, tp = 1;
  std::int64_t micro_batches = 1;
  std::int64_t made = 4;  ///< bytes of a full element
  bool computes_again = false;
  double recompute_factor = 1;

  /// Elements of a unit, sharded over this much, on the rank that has most.
  std::int64_t part(const UnitSize& unit, ShardedOver over) const {
    if (over == ShardedOver::none) return unit.elements();
    return unit.part(shards, over == ShardedOver::all ? replicas : 1);
  }
  std::int64_t part(ShardedOver over) const {
    std::int64_t sum = 0;
    for (const UnitSize& unit : units) sum += part(unit, over);
    return sum;
  }
  /// Bytes of its shard, whatever a replica owns of that.
  std::int64_t shard_bytes(const UnitSize& unit) const { return 4 * part(unit, ShardedOver::shards); }
  /// Bytes of the values that the optimizer updates.
  std::int64_t owned_bytes(const UnitSize& unit) const { return 4 * part(unit, policy.optimizer); }
  std::int64_t full_bytes(const UnitSize& unit) const { return made * unit.elements(); }
  bool is_sharded() const { return policy.optimizer != ShardedOver::none; }
  bool divides_shards() const {
    return policy.parameters == ShardedOver::shards && policy.optimizer == ShardedOver::all && replicas > 1;
  }
  bool reshards() const {
    return policy.parameters != ShardedOver::none &&
           (!policy.reshard_after_forward || !policy.reshard_after_forward->is_off());
  }
  int slices() const {
    return reshards() && policy.reshard_after_forward ? policy.reshard_after_forward->slices(shards) : 0;
  }
};

Setup setup_of(const TrainConfig& config, const Units& units) {
  Setup setup{.policy = nn::unit_policy(config.plan, nn::PlanFacts{.memory_limit = config.memory_limit}),
              .units = units};
  for (const DeviceMesh::Axis& axis : config.plan.mesh.over(1))
    (axis.name == "dp" ? setup.shards : axis.name == "replicate" ? setup.replicas : setup.tp) = axis.size;
  setup.micro_batches = config.plan.micro_batches;
  setup.made = byte_size(config.plan.param_dtype);
  setup.computes_again = config.plan.recompute != "none";
  setup.recompute_factor = walk::recompute_factor(config);
  return setup;
}

/// Whether `inner` lies below the module of `outer`, whose unit is there while it runs.
bool is_below(const UnitSize& inner, const UnitSize& outer) {
  return outer.is_root ? !inner.is_root : inner.name.starts_with(outer.name + ".");
}

// The root; a unit with those around it; and what is prefetched, or, where blocks run again, what of a block is there
// already. In backward the same units are neighbours.
std::int64_t gathered_at_a_time(const Setup& s) {
  std::int64_t most = 0;
  for (std::size_t i = 0; i < s.units.size(); ++i) {
    const UnitSize& own = s.units[i];
    std::int64_t sum = 0;
    for (std::size_t j = 0; j < s.units.size(); ++j) {
      const UnitSize& other = s.units[j];
      const bool is_next = s.policy.prefetch && j == i + 1;
      const bool runs_again =
          s.computes_again && j == i + 1 && std::ranges::any_of(s.units, [&](const UnitSize& block) {
            return !block.is_root && is_below(own, block) && is_below(other, block);
          });
      if (i == j || other.is_root || is_below(own, other) || is_next || runs_again) sum += s.full_bytes(other);
    }
    most = std::max(most, sum);
  }
  return most;
}

std::int64_t unsharded_bytes(const Setup& s) {
  const std::int64_t all = s.made * s.part(ShardedOver::none);
  if (!s.is_sharded()) return s.made == 4 ? 0 : all;  // full tensors are the parameters, unless they are cast
  if (!s.reshards()) return all;
  const int k = s.slices();
  std::int64_t slices = 0;
  for (const UnitSize& unit : s.units)
    if (k > 0 && !unit.is_root) slices += s.made * unit.part(k);
  return slices + gathered_at_a_time(s);
}

// Backward completes units in the reverse of the order of forward, the root last. The full gradients of a unit are
// there from the first that is made, after the first unit inside is complete; its shard comes when it is reduced, while
// the full ones are still gradients.
std::int64_t gradient_bytes(const Setup& s) {
  std::int64_t reduced = 0, most = 0;
  for (std::size_t i = s.units.size(); i-- > 0;) {
    const UnitSize& own = s.units[i];
    std::int64_t full = s.full_bytes(own);
    for (const UnitSize& around : s.units) {
      const bool has_begun = around.is_root || (i + 1 < s.units.size() && is_below(s.units[i + 1], around));
      if (is_below(own, around) && has_begun) full += s.full_bytes(around);
    }
    const std::int64_t shard = s.owned_bytes(own);
    most = std::max(most, full + reduced + (s.divides_shards() ? 0 : shard));
    reduced += shard;
  }
  return std::max(most, reduced);
}

// A unit's full gradients while they are reduced. Where replicas divide the shards these are reduced into memory apart,
// that of the next unit before the full ones are through.
std::int64_t communication_bytes(const Setup& s) {
  if (!s.is_sharded()) return 0;
  std::int64_t most = 0;
  for (std::size_t i = s.units.size(); i-- > 0;) {
    const std::int64_t apart = s.divides_shards() ? s.shard_bytes(s.units[i]) : 0;
    const std::int64_t next = s.divides_shards() && i > 0 ? s.shard_bytes(s.units[i - 1]) : 0;
    most = std::max(most, s.full_bytes(s.units[i]) + apart + next);
  }
  return most;
}

void add(CommCounts::Item& item, std::int64_t calls, std::int64_t bytes) {
  item.calls += calls;
  item.bytes += calls * bytes;
}

/// By the axis that it goes over.
struct Moves {
  CommCounts shards, replicas, all;  ///< `all` is over the ranks that have data of their own
};

Moves moves_of(const Setup& s, const TrainConfig& config) {
  Moves moves;
  const std::int64_t m = s.micro_batches, reductions = config.plan.accumulate_shards ? m : 1;
  const std::int64_t summed = m > 1 && reductions == 1 ? nn::waiting_gradient_bytes(config.plan) : s.made;
  for (const UnitSize& unit : s.units) {
    const std::int64_t shard = s.shard_bytes(unit);
    if (!s.is_sharded()) {
      add(moves.all.all_reduce, reductions, 4 * unit.elements());
      continue;
    }
    const bool once = s.policy.parameters == ShardedOver::none, twice = s.reshards() && !unit.is_root;
    add(moves.shards.all_gather, once ? 1 : twice ? 2 * m : m, s.full_bytes(unit));
    add(moves.shards.reduce_scatter, reductions, summed * unit.elements());
    if (s.replicas == 1) continue;
    if (!s.divides_shards()) {
      add(moves.replicas.all_reduce, reductions, shard);
      continue;
    }
    add(moves.replicas.all_gather, 1, shard);
    add(moves.replicas.reduce_scatter, reductions, shard);
  }
  add(moves.all.all_reduce, 1, 4);                      // the loss
  if (s.is_sharded()) add(moves.all.all_reduce, 1, 8);  // the squared norm
  return moves;
}

// The formula of runtime/comm/group/link.h.
LinkTimes::Axis seconds_on(const std::optional<LinkShape>& link, int ranks, const CommCounts& counts) {
  if (!link || ranks == 1) return {};
  const auto once = [&](const CommCounts::Item& item) {
    return static_cast<double>(item.calls) * (ranks - 1) * link->seconds +
           static_cast<double>(item.bytes) * (ranks - 1) / ranks / link->bytes_per_second;
  };
  return {once(counts.all_gather), once(counts.reduce_scatter) + 2 * once(counts.all_reduce)};
}

// Share of backward until the last unit's gradients are complete.
double share_of_last_unit(const Units& units) {
  double blocks = 0;
  for (const UnitSize& unit : units)
    if (!unit.is_root) blocks += static_cast<double>(unit.elements());
  return units.size() > 1 ? static_cast<double>(units.back().elements()) / blocks : 1;
}

std::optional<LinkTimes> link_times(const Setup& s, const TrainConfig& config) {
  const Links& links = config.link;
  const std::vector<DeviceMesh::Axis> axes{{"dp", s.shards}, {"replicate", s.replicas}};
  if (s.tp > 1 || !links.over(axes)) return std::nullopt;
  const auto on_links = [&](const Moves& moves) {
    const std::span all(axes);
    return std::array{seconds_on(links.over(all.first(1)), s.shards, moves.shards),
                      seconds_on(links.over(all.last(1)), s.replicas, moves.replicas),
                      seconds_on(links.over(all), s.shards * s.replicas, moves.all)};
  };
  LinkTimes times{.axes = on_links(moves_of(s, config)), .forward = 1 / (3 * s.recompute_factor)};
  times.first_reduction = times.forward + (1 - times.forward) * share_of_last_unit(s.units);
  const auto of_one = [&](const UnitSize& unit) {
    const Units alone{unit};
    Setup one{.policy = s.policy, .units = alone, .replicas = s.replicas, .shards = s.shards, .made = s.made};
    return on_links(moves_of(one, config));
  };
  for (const LinkTimes::Axis& axis : of_one(s.units.front())) times.floor += axis.gathers + axis.reductions;
  const LinkTimes::Axis last = of_one(s.units.back())[0];
  times.before_replicas = last.gathers + last.reductions;
  if (!s.policy.prefetch) times.floor = std::max(times.floor, times.axes[0].gathers + times.axes[0].reductions);
  return times;
}

}  // namespace

std::int64_t UnitSize::elements() const { return part(1); }

std::int64_t UnitSize::part(int parts, int owners) const {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) sum += per(per(piece.rows, parts), owners) * piece.row_elements;
  return sum;
}

std::vector<UnitSize> unit_sizes(nn::LanguageModel& model) {
  Units sizes;
  for (const nn::UnitHandle& unit : nn::units(model)) {
    UnitSize& size = sizes.emplace_back(UnitSize{.name = unit.name(), .is_root = unit == nn::unit_of(model)});
    for (const UnitPiece& piece : unit.layout().pieces)
      size.pieces.push_back({piece.shape[0], std::accumulate(piece.shape.begin() + 1, piece.shape.end(),
                                                             std::int64_t{1}, std::multiplies<>())});
  }
  std::ranges::stable_partition(sizes, &UnitSize::is_root);
  return sizes;
}

RowFormula formula_of(const TrainConfig& config, const Units& units) {
  const Setup s = setup_of(config, units);
  RowFormula formula;
  const auto memory = [&formula](MemoryCategory category) -> auto& {
    return formula.memory[static_cast<std::size_t>(category)];
  };
  memory(MemoryCategory::parameters) =
      4 * s.part(s.policy.parameters == ShardedOver::none ? s.policy.optimizer : s.policy.parameters);
  memory(MemoryCategory::unsharded) = unsharded_bytes(s);
  if (!config.plan.offload.any()) memory(MemoryCategory::optimizer) = 8 * s.part(s.policy.optimizer);
  if (s.micro_batches == 1) {  // else they wait for each other
    memory(MemoryCategory::gradients) = gradient_bytes(s);
    memory(MemoryCategory::communication) = communication_bytes(s);
  }
  if (s.policy.offload)  // what is fetched is there as long as transfers take
    for (const MemoryCategory category :
         {MemoryCategory::parameters, MemoryCategory::unsharded, MemoryCategory::gradients})
      memory(category).reset();
  // Tensor parallelism communicates activations, and gradients that it reduces in memory of its own; what is encoded
  // travels in buffers of its own.
  if (s.tp > 1 || !config.plan.gather.is_exact() || !config.plan.reduce.is_exact()) {
    for (const MemoryCategory category :
         {MemoryCategory::unsharded, MemoryCategory::gradients, MemoryCategory::communication})
      memory(category).reset();
    return formula;
  }
  const Moves moves = moves_of(s, config);
  formula.comm.emplace(moves.shards);
  *formula.comm += moves.replicas;
  *formula.comm += moves.all;
  if (!config.plan.offload.any()) formula.link = link_times(s, config);  // else a file takes time as well
  return formula;
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
  for (const Axis& axis : axes) most = std::max(most, axis.gathers + axis.reductions);
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
