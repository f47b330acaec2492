#pragma once
// What users may put in place of a unit's communication: a gather and a reduction of their own, an encoding of what is
// gathered, and a hook between the reduction and grad(). All of it is made of rows, so that a captured step replays it:
// what they do besides, on the host, happens when a step runs eagerly or is recorded, and in no replay.
//
//   start: rows ... [gather_start]            while another module computes
//   finish: [restore] ... rows into `full`    before the module computes
//   reduce: rows from the full gradients into this rank's shards --> hook --> grad()
//
// On one shard nothing is communicated: there gather, reduction and encoding are not called, the hook is.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/op/unit/unit.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

/// A gather of the user's. `shards` and `full` are the unit's buffers, u8, laid out as `unit` says; `full` may have no
/// bytes. All ranks of the unit issue the same collectives.
class UnitGather : NoCopy {
 public:
  virtual ~UnitGather() = default;

  /// The unit has memory on `device` from now on: makes storages that rows name, without bytes.
  virtual void materialize(const UnitLayout& unit, Device device) { (void)unit, (void)device; }
  /// Submits what may overlap with compute. Not called again before finish() or cancel().
  virtual void start(const UnitLayout& unit, const Tensor& shards, const Tensor& full) = 0;
  /// After this `full` has its bytes, by start_gather() or restore_unit(), and rows or a queue fill them: who reads
  /// them waits. Every rank's shards are at their place, in the types of `unit`. Not called without start().
  virtual void finish(const UnitLayout& unit, const Tensor& shards, const Tensor& full) {
    (void)unit, (void)shards, (void)full;
  }
  /// What start() began is not used, or a step was left. Frees what it holds, if anything. Local; throws nothing, for
  /// it is called while an exception ends a step.
  virtual void cancel() {}
};

/// A reduction of the user's, called where start_reduce() would be, with its arguments (runtime/op/unit/unit.h): sums
/// over the shards' group the pieces that `attrs` lists, scales averages, and stores or adds this rank's part of each
/// in `out`. Casts, the sum over replicas and grad() are not its concern. Work that it queues is best queued as
/// `attrs.in_flight` says.
using UnitReduce =
    std::function<void(const UnitReduceAttrs& attrs, const Tensor& gradients, std::span<const Tensor> out)>;

/// What a hook between reduction and grad() sees: one tensor for each of `pieces`, this rank's shard of the gradient of
/// this pass, summed over all ranks, in the type of grad(). It may write them: copy_into(shards[i], ...). Reading
/// waits for the reduction.
struct ReducedUnit {
  const UnitLayout& unit;
  std::span<const ReducedPiece> pieces;
  std::span<const Tensor> shards;
};
/// Runs once for each reduction of a unit, and in no pass that leaves gradients, or their sum over replicas, to a later
/// one. What earlier passes left in grad() is added after it.
using AllReduceHook = std::function<void(const ReducedUnit& reduced)>;

/// The user's own encoding of what is gathered: every rank encodes its shard of each parameter, what comes of it is
/// gathered, and each rank decodes all shards. Gradients and the values that the optimizer updates are not touched.
struct GatherTransform {
  std::string name{};  ///< for messages: "int8"
  /// From a shard, [own rows, ...], or [.., own part of the dim that is sharded, ..], in the parameter's type, to one
  /// or more tensors of any type and shape. Called with tensors on meta too, of all ranks' shapes: what it returns may
  /// depend on shape and dtype alone in number, shapes and dtypes. Shards may differ in rows, and have none: nothing is
  /// padded.
  std::function<std::vector<Tensor>(const Tensor& shard)> encode{};
  /// Decodes `encoded`, one rank's tensors, into `rows`: that rank's part of the full parameter in the type that
  /// modules compute in, dense if it is of dim 0. Not called where there are no rows.
  std::function<void(std::span<const Tensor> encoded, const Tensor& rows)> decode{};
};

}  // namespace sherd::nn
