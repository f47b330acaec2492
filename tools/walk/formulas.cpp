#include "tools/walk/formulas.h"

#include <algorithm>
#include <numeric>

#include "nn/parallel/shard/fully_shard.h"
#include "runtime/tensor/error.h"
#include "tools/train/sharding.h"

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

  /// Of a unit, where it is sharded over this much: elements of the rank that has most.
  std::int64_t part(const UnitSize& unit, ShardedOver over) const {
    if (over == ShardedOver::none) return unit.elements();
    return unit.part(shards, over == ShardedOver::all ? replicas : 1);
  }
  std::int64_t part(ShardedOver over) const {
    std::int64_t sum = 0;
    for (const UnitSize& unit : units) sum += part(unit, over);
    return sum;
  }
  /// Of its shard, whatever a replica owns of that.
  std::int64_t shard_bytes(const UnitSize& unit) const { return 4 * part(unit, ShardedOver::shards); }
  /// Of the values that the optimizer updates.
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
  Setup setup{.policy = unit_policy(config), .units = units};
  for (const DeviceMesh::Axis& axis : parse_mesh(config.mesh, 1))
    (axis.name == "dp" ? setup.shards : axis.name == "replicate" ? setup.replicas : setup.tp) = axis.size;
  setup.micro_batches = config.accumulate;
  setup.made = byte_size(dtype_from_name(config.param_dtype));
  setup.computes_again = config.recompute != "none";
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
  const std::int64_t m = s.micro_batches, reductions = config.accumulate_shards ? m : 1;
  const std::int64_t summed = m > 1 && reductions == 1 ? waiting_gradient_bytes(config) : s.made;
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
double seconds_on(const LinkShape& link, int ranks, const CommCounts& counts) {
  const auto once = [&](const CommCounts::Item& item) {
    return static_cast<double>(item.calls) * (ranks - 1) * link.seconds +
           static_cast<double>(item.bytes) * (ranks - 1) / ranks / link.bytes_per_second;
  };
  return once(counts.all_gather) + once(counts.reduce_scatter) + 2 * once(counts.all_reduce);
}

// Nothing hides the root's gather, which comes first, and its reduction, which is the last; without prefetch, no
// transfer of the axis that shards.
void add_seconds(RowFormula& formula, const Setup& s, const TrainConfig& config) {
  const std::vector<AxisLink> links = parse_links(config.link);
  const std::vector<DeviceMesh::Axis> axes = parse_mesh(config.mesh, 1);
  std::vector<DeviceMesh::Axis> data;
  for (const DeviceMesh::Axis& axis : axes)
    if (axis.name != "tp") data.push_back(axis);
  const auto both = link_over(links, data);
  if (!both || s.tp > 1) return;
  const auto over = [&](std::string_view name, int ranks, const CommCounts& counts) {
    if (ranks == 1) return 0.0;
    const DeviceMesh::Axis axis{std::string(name), ranks};
    const auto link = link_over(links, {&axis, 1});
    return link ? seconds_on(*link, ranks, counts) : 0.0;
  };
  const auto floor_of = [&](const Moves& m) {
    return over("dp", s.shards, m.shards) + over("replicate", s.replicas, m.replicas) +
           seconds_on(*both, s.shards * s.replicas, m.all);
  };
  const Moves moves = moves_of(s, config);
  const double all = seconds_on(*both, s.shards * s.replicas, moves.all);
  const double of_shards = over("dp", s.shards, moves.shards),
               of_replicas = over("replicate", s.replicas, moves.replicas);
  formula.busy_seconds = std::max({of_shards, of_replicas, all});
  const Units root{s.units.front()};
  Setup alone{.policy = s.policy, .units = root, .replicas = s.replicas, .shards = s.shards, .made = s.made};
  formula.floor_seconds = floor_of(moves_of(alone, config));
  if (!s.policy.prefetch && s.is_sharded()) formula.floor_seconds = std::max(*formula.floor_seconds, of_shards);
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
  memory(MemoryCategory::optimizer) = 8 * s.part(s.policy.optimizer);
  if (s.micro_batches == 1) {  // else they wait for each other
    memory(MemoryCategory::gradients) = gradient_bytes(s);
    memory(MemoryCategory::communication) = communication_bytes(s);
  }
  if (s.tp > 1) {  // activations are communicated and reduced in memory of their own
    memory(MemoryCategory::gradients).reset();
    memory(MemoryCategory::communication).reset();
  }
  const bool is_exact = config.gather == "exact" && config.reduce == "exact";
  if (s.tp > 1 || !is_exact) return formula;
  const Moves moves = moves_of(s, config);
  formula.comm.emplace(moves.shards);
  *formula.comm += moves.replicas;
  *formula.comm += moves.all;
  add_seconds(formula, s, config);
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
  const double again = config.recompute == "full"        ? in + attention + out + up
                       : config.recompute == "selective" ? out + up
                                                         : 0;
  return 1 + again / (3 * forward);
}

std::optional<StepTimes> step_times(const RowFormula& formula, double compute_seconds) {
  if (!formula.busy_seconds) return std::nullopt;
  const double step = std::max(compute_seconds + *formula.floor_seconds, *formula.busy_seconds);
  return StepTimes{step, step - compute_seconds};
}

}  // namespace sherd::walk
