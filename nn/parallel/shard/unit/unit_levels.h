#pragma once
// The bytes of a unit, level by level, and how the gathered ones are filled. (Full gradients are made for each backward
// pass: gradient_arrival.h.)
//
//   shards     | p0 rows of this rank | p1 rows of this rank | ...     lives always; what the optimizer updates
//   gathered   | p0 ............ full | p1 ............ full | ...     present between gather and release
//
// A gather puts every rank's rows at their final address, cast to the type the module computes in. On one shard without
// casts the two are one buffer, and nothing is ever gathered.
//
// There may be a level below the shards, and one between the two:
//
//   owned      | .. this rank's part of them .. |     what the optimizer updates where replicas divide the shards: in
//                                                     the buffer of the shards, which the replicas gather in place
//   slices     | p0 rows of 1 of k ranks | ...  |     from forward to backward, where it reshards to k (unit_slices.h)
//
// Shards may be outside of memory, and come for a gather (shard_home.h): then shards and gathered parameters are never
// one buffer.
//
// Whether a level is of the values below is told by the versions of their storages. The owned parts and the shards are
// one storage, so an empty one beside them has the version that was gathered.
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "nn/parallel/shard/gather/custom_gather.h"
#include "nn/parallel/shard/unit/shard_home.h"
#include "nn/parallel/shard/unit/unit_pieces.h"
#include "nn/parallel/shard/unit/unit_slices.h"
#include "runtime/memory/storage.h"
#include "runtime/op/core/step_names.h"

namespace sherd::nn {

class UnitLevels {
 public:
  /// Takes no memory yet. `owner` is that of bytes which come and go; like `pieces` it outlives this. `offload`: of the
  /// shards.
  UnitLevels(const UnitPieces& pieces, StorageOwner& owner, const std::optional<ShardOffload>& offload);
  ~UnitLevels() { leave_owner(); }

  bool is_meta() const { return !shards_.defined(); }
  /// Where parameters are gathered, and shards too unless they are offloaded.
  Device device() const { return device_; }
  /// u8 [bytes]; undefined on meta.
  const Tensor& shards() const { return shards_; }
  const Tensor& gathered() const { return gathered_; }
  /// Whether shards and gathered parameters are one buffer.
  bool is_shard_full() const { return is_shard_full_; }
  /// Null: shards are in memory.
  const ShardHome* home() const { return home_.get(); }
  /// Null: resharding after forward leaves shards.
  const UnitSlices* slices() const { return slices_.get(); }
  /// Whether the tape keeps gathered tensors for a backward pass.
  bool has_readers() const { return !is_shard_full_ && gathered_.defined() && gathered_.storage()->num_saved > 0; }

  /// Allocates the shards on `device`, zeros, and places for the others. Error if there are several ranks and their
  /// groups do not move memory of that device.
  void materialize(Device device);
  /// Leaves the bytes, if there are any, to those who keep them: the pieces have another layout.
  void layout_changed();
  /// On: the memory of gathered parameters is kept when they are released, and they are gathered to the same address.
  /// It counts as unsharded all along. Nothing to keep where the shards are the full tensors.
  void set_keeps_memory(bool on);
  /// Gathers by `gather` from now on; null: as other units do. On one shard it is not called. Error if the unit has
  /// been gathered: a captured step would go on as before; if its shards are offloaded; or if it leaves slices, as
  /// set_slices() where it has one. Local.
  void set_gather(std::shared_ptr<UnitGather> gather);
  bool has_custom_gather() const { return custom_ != nullptr; }
  /// Makes slices of the ranks of this mesh's last axis (split_for_slices), or none.
  void set_slices(const std::optional<DeviceMesh>& split);

  /// Whether the gathered bytes are there, on their way or current or not.
  bool is_there() const { return !is_shard_full_ && gathered_.defined() && gathered_.storage()->is_present(); }
  /// There, or on its way.
  bool is_gathered() const {
    return is_there() || (custom_ && custom_->is_started()) || (home_ && home_->is_started());
  }
  /// Whether what is there is of the shards' values.
  bool is_current() const;
  /// Whether it is not, or a step that is recorded does not know it.
  bool needs_gather() const;
  /// Starts a gather from the nearest level that is there. Error if there are no values yet. Collective on the queue
  /// "gather"; does not wait.
  void start();
  /// The second half of a gather that has two: a custom one, or one of shards at home.
  void finish();
  /// Waits for the gather and throws its error.
  void wait() const;
  /// What was started is not used. Local.
  void cancel();
  /// Frees the gathered bytes, if they are there. Local.
  void release() const;
  /// Somebody has written what this rank owns, so replicas have not gathered the shards. Local.
  void forget_replicas() const;
  /// Frees what a gather that has failed may have filled. Local.
  void drop() const;

 private:
  bool is_of_shards(const Tensor& bytes) const;
  bool may_use(const Tensor& level) const;
  Tensor add_place(std::int64_t bytes, std::string_view what);
  void leave_owner() const;

  const UnitPieces& pieces_;
  StorageOwner& owner_;
  std::unique_ptr<ShardHome> home_;  // null: shards are in memory
  bool is_shard_full_;
  Tensor shards_, gathered_;
  Tensor shard_version_;  // u8 [0]: of the shards when replicas have gathered what each owns
  std::unique_ptr<UnitSlices> slices_;
  std::vector<std::shared_ptr<const NamedStorage>> names_;
  std::unique_ptr<CustomGather> custom_;  // null: one row does it
  Device device_{};
  bool has_gathered_ = false;
  bool keeps_memory_ = false;
};

}  // namespace sherd::nn
