#pragma once
// A unit of fully_shard by hand: what it is, what can be done to it between steps, and its settings.
//
//   units(model).set_requires_gradient_sync(false);               // of all units below a module
//   unit_of(block).set_reshard_after_forward(false);              // of one
//   for (const UnitHandle& unit : units(model)) ...unit.name()
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/parallel/shard/gather/unit_gather.h"
#include "nn/parallel/shard/unit/policy.h"
#include "runtime/comm/group/reduce_kind.h"
#include "runtime/op/unit/unit_layout.h"

namespace sherd::nn {

class UnshardHandle;
class Wrap;

/// The unit that a call of fully_shard() has made. A value: copies speak of the same unit. It does not keep the unit
/// alive, which goes with its modules; then every call but is_alive() is an Error.
class UnitHandle {
 public:
  explicit UnitHandle(const std::shared_ptr<Wrap>& wrap);
  friend bool operator==(const UnitHandle& a, const UnitHandle& b) { return a.wrap_.lock() == b.wrap_.lock(); }

  bool is_alive() const { return !wrap_.expired(); }
  /// Path of its module, "(model)" for a root; those of several joined by "+".
  const std::string& name() const;
  /// Whether any parameters are its own. The calls from here to late_gathers() are an Error if none are.
  bool has_parameters() const;
  std::vector<Parameter*> parameters() const;
  /// Parameters that are gathered and reduced together.
  struct Part {
    UnitLayoutPtr layout;
    std::vector<Parameter*> parameters;
    int slices = 0;         ///< ranks that it reshards to after forward; 0: as all or none of them
    bool reshards = false;  ///< after forward: not what a strategy keeps until the optimizer has written the shards
  };
  /// The first has all its parameters, but those on another mesh and those that stay replicated.
  std::vector<Part> parts() const;
  /// The ways that gradients of a part take if a pass ends as things stand (reduce/route.h), each with how many
  /// parameters, and how ranks are summed: "2 parameters: scatter arrival>shard, keep shard>grad; sums 4 shards in 2
  /// levels".
  std::vector<std::string> routes(std::size_t part) const;
  /// Layout of the first part.
  const UnitLayout& layout() const;
  /// Bytes of all its gathered parameters on this rank.
  std::int64_t gathered_bytes() const;
  /// Whether the gathered tensors are registered; whether they are there or on their way, as prefetched ones are
  /// before they are registered. On one shard without casts the shards are the full tensors: never gathered.
  bool is_unsharded() const;
  bool is_gathered() const;
  /// Whether the first part reshards after forward.
  bool reshards_after_forward() const;
  /// When it ran in the last forward of its root, counted from 0 with the calls of all units, and of wrapped modules
  /// that use a parameter of one; each call. Empty before the first.
  std::vector<int> order_in_forward() const;
  /// Gathers that started only when backward asked for a saved tensor, because no module hook had run before.
  int late_gathers() const;

  // ---- by hand ----

  /// Registers the unsharded parameters. Collective; returns before the gather is done, the first read of a parameter
  /// waits for it.
  void unshard() const;
  /// The same, with a handle to wait without reading.
  UnshardHandle unshard_async() const;
  /// Registers the shards and frees the unsharded parameters. Local. Writes to the unsharded parameters are lost.
  void reshard() const;

  // ---- settings; on all ranks alike, between steps, local unless they say more ----

  /// Summed gradients are divided by `factor`; initially the number of ranks, replicas included.
  /// Error unless it is above 0 and f32 holds it and its reciprocal, by which sums are multiplied.
  void set_gradient_divide_factor(double factor) const;
  /// HSDP, off: backward passes reduce over the shard axis only. For all but the last micro-batch of a step.
  /// - What they reduce accumulates apart from grad(); the next pass with it on sums that over replicas.
  /// - Clearing a gradient drops what waits for it; an optimizer's step() while something waits is an Error that names
  ///   the parameter.
  void set_requires_all_reduce(bool on) const;
  /// Off: backward passes reduce nothing. For all but the last micro-batch of a step, so m of them cost the reductions
  /// of one.
  /// - Full gradients add up in the type of the reduction, apart from grad(), in memory accounted as gradients.
  /// - The next pass with it on reduces the sum, of a unit that it does not use at its end; over replicas too unless
  ///   set_requires_all_reduce() is off.
  /// - A sum over the axes of tensor parallelism is not put off.
  /// - Clearing a gradient drops what waits for it, as reset_after_error() does; an optimizer's step() while something
  ///   waits is an Error that names the parameter. A captured step may leave gradients to another.
  /// - UnitPolicy::gradients makes it accumulate shards instead.
  void set_requires_gradient_sync(bool on) const;
  /// As UnitPolicy::reshard_after_forward, with its errors. The groups of a number of ranks are made at the first call
  /// with it, collectively over the axis that shards.
  void set_reshard_after_forward(ReshardAfterForward reshard) const;
  /// As UnitPolicy::reduce_unused: grad() of a trainable parameter is there after every backward pass, zero where no
  /// rank has used it.
  void set_reduce_unused(bool on) const;
  /// Off: parameters stay gathered after backward, until the optimizer has written their shards, or reshard(). With
  /// reshard_after_forward off too, a step of m micro-batches gathers each unit once.
  void set_reshard_after_backward(bool reshard) const;
  /// On: resharding keeps the memory of gathered parameters, so that they come back at the same address, for those who
  /// have noted it (a graph of a device).
  /// - It stays accounted as unsharded. What is kept is not read as values: each gather fills it again.
  /// - Of other levels (slices) nothing is kept.
  /// - Off again: what is kept is freed, now or at the next reshard.
  /// - A step that was captured holds either way; a device records it again where it had used what is freed.
  void set_keep_unsharded_storage(bool keep) const;
  /// Full gradient buffers that may be in reduction at a time; initially 1. A further one waits for the oldest. Error
  /// if `count` < 1.
  void set_max_reductions(int count) const;
  /// Off: backward passes leave the recorded order of calls to the next one, which may be that of an earlier forward.
  /// Error unless it is the root of its tree.
  void set_is_last_backward(bool is_last) const;
  /// While its modules compute forward (backward), gathers these instead of the unit that the recorded order suggests.
  /// - An empty list restores the default; units that are gone by then are left out.
  /// - Takes effect within one forward or backward. Two and more need memory for as many gathered units.
  void set_forward_prefetch(const std::vector<UnitHandle>& units) const;
  void set_backward_prefetch(const std::vector<UnitHandle>& units) const;
  /// Communication of the user's own (unit_gather.h); null: the usual one.
  /// - A gather, or a transform in its place, is set before the unit is first gathered, the others between steps: a
  ///   captured step with another one is not replayed. A gather serves one unit.
  /// - Parameters that stay replicated are reduced as ever, and are one more reduction for the hook.
  /// - Error if the unit's parameters lie on several meshes, or gradients add up as a tree (UnitPolicy::sums_in_tree);
  ///   of a gather, if it reshards to some of its ranks after forward; for a transform as of TransformedGather.
  void set_custom_gather(std::shared_ptr<UnitGather> gather) const;
  void set_gather_transform(GatherTransform transform) const;
  void set_custom_reduce(UnitReduce reduce) const;
  void set_all_reduce_hook(AllReduceHook hook) const;

 private:
  friend class Units;
  Wrap& wrap() const;
  static std::vector<std::weak_ptr<Wrap>> wraps_of(const std::vector<UnitHandle>& units);
  std::weak_ptr<Wrap> wrap_;
  std::string name_;  // for the error when it is gone
};

/// Result of unshard_async(). As a UnitHandle it does not keep the unit alive.
class UnshardHandle {
 public:
  explicit UnshardHandle(const std::shared_ptr<Wrap>& wrap) : wrap_(wrap) {}
  /// Blocks until the parameters are gathered; throws the gather's error. May be called any number of times, or never:
  /// reading a parameter waits too. No-op once the modules were destroyed: that has waited.
  void wait() const;

 private:
  std::weak_ptr<Wrap> wrap_;
};

/// The units of a module and of those below that have parameters of their own, in module order, and the settings that
/// make sense for all: each is that of every one of them (UnitHandle), and an Error where no module is wrapped.
class Units {
 public:
  explicit Units(Module& root);

  std::size_t size() const { return units_.size(); }
  const UnitHandle& operator[](std::size_t i) const { return units_[i]; }
  auto begin() const { return units_.begin(); }
  auto end() const { return units_.end(); }

  /// What print_units() shows of units, beside a line for each.
  struct Lines {
    bool parameters = true;  ///< a line for each parameter under its unit
    bool routes = false;     ///< under its unit, how its gradients are reduced (UnitHandle::routes)
  };
  /// What earlier passes have left of one parameter's gradient to a later one.
  struct PendingGradient {
    Parameter* parameter = nullptr;
    /// Sum of this rank's full gradients of passes with set_requires_gradient_sync() off, placed as the parameter is
    /// when gathered (plain, or distributed over the axis of tensor parallelism), in the type of the reduction; a view
    /// of it where leading dims are merged (shard_merged). Undefined if none waits.
    Tensor full{};
    /// What the reduction makes of `full`: an average over the data ranks, or a sum of gradients that were Partial.
    /// Zeros for an unused parameter (reduce_unused) take the kind of the first gradient that is added to them.
    ReduceKind kind = ReduceKind::avg;
    /// This rank's shard of passes with set_requires_all_reduce() off: a plain tensor, reduced and scaled, but not
    /// summed over replicas. Undefined if none waits.
    Tensor shard{};
  };
  /// Parameters with gradients that wait, unit by unit; of those that add up as a tree (UnitPolicy::sums_in_tree) once
  /// for each sum that waits, which is another one after each pass. Local, without communication; reading a tensor
  /// waits for work in flight. A parameter's tensor (if distributed, its local one) is the same object after every
  /// further pass until it is reduced, or dropped: by clearing the parameter's gradient, as
  /// Optimizer::clear_gradients() does, or by reset_after_error(). What is written into it counts; a copy that is kept
  /// keeps its unit's bytes. Error within a backward pass, whose gradients are not complete.
  ///
  ///   units(model).set_requires_gradient_sync(false);
  ///   for (...) backward(...);                                                   // full gradients add up
  ///   for (Units::PendingGradient& g : units(model).pending_gradients()) ...g.full  // may be written
  ///   units(model).set_requires_gradient_sync(true);
  ///   finalize_backward(model);  // reduces what waits; nothing if called again
  std::vector<PendingGradient> pending_gradients() const;

  /// Blocks until gradients that are being reduced are there; throws the reduction's error. May be called any number of
  /// times, or never: reading a gradient waits too. Units that are gone by then are left out.
  void wait() const;

  void set_gradient_divide_factor(double factor) const {
    for (const UnitHandle& unit : told()) unit.set_gradient_divide_factor(factor);
  }
  void set_requires_all_reduce(bool on) const {
    for (const UnitHandle& unit : told()) unit.set_requires_all_reduce(on);
  }
  void set_requires_gradient_sync(bool on) const {
    for (const UnitHandle& unit : told()) unit.set_requires_gradient_sync(on);
  }
  void set_reshard_after_forward(ReshardAfterForward reshard) const {
    for (const UnitHandle& unit : told()) unit.set_reshard_after_forward(reshard);
  }
  void set_reduce_unused(bool on) const {
    for (const UnitHandle& unit : told()) unit.set_reduce_unused(on);
  }
  void set_reshard_after_backward(bool reshard) const {
    for (const UnitHandle& unit : told()) unit.set_reshard_after_backward(reshard);
  }
  void set_keep_unsharded_storage(bool keep) const {
    for (const UnitHandle& unit : told()) unit.set_keep_unsharded_storage(keep);
  }
  void set_max_reductions(int count) const {
    for (const UnitHandle& unit : told()) unit.set_max_reductions(count);
  }
  void set_gather_transform(const GatherTransform& transform) const {
    for (const UnitHandle& unit : told()) unit.set_gather_transform(transform);
  }
  void set_custom_reduce(const UnitReduce& reduce) const {
    for (const UnitHandle& unit : told()) unit.set_custom_reduce(reduce);
  }
  void set_all_reduce_hook(const AllReduceHook& hook) const {
    for (const UnitHandle& unit : told()) unit.set_all_reduce_hook(hook);
  }

 private:
  const std::vector<UnitHandle>& told() const;
  std::vector<UnitHandle> units_;
  std::string unwrapped_;  // path of the root where no module is wrapped
};

}  // namespace sherd::nn
