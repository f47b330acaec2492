#pragma once
// What of a unit is there when: gathers before its parameters are read, and lets go after.
//
//   shards --prefetch(), unshard()--> gathered --reshard_after_forward()--> slices, or shards --reshard()--> shards
//
// Levels are the bytes (unit_levels.h), slots what parameters show of them (unit_slots.h). A strategy whose parameters
// are not sharded keeps what was gathered until the shards are written: one gather for any number of passes.
//
// Buffers live as long as their modules, or as the tape keeps a gathered tensor of theirs, if that is longer: backward
// gathers for a model that is gone, as for any other, and its gradients land nowhere.
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "nn/parallel/shard/unit/unit_levels.h"
#include "nn/parallel/shard/unit/unit_listener.h"
#include "nn/parallel/shard/unit/unit_slots.h"
#include "nn/shard_keeper.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

class UnitBuffers final : public StorageOwner,
                          public ShardKeeper,
                          public std::enable_shared_from_this<UnitBuffers>,
                          NoCopy {
 public:
  /// Becomes the keeper of `parameters`, the pieces of `unit` in this order. Of existing values this rank keeps its
  /// rows; parameters on meta stay there until materialize(). Either all have values or none. `offload`: of the shards.
  UnitBuffers(PlacedUnit unit, const std::vector<Parameter*>& parameters,
              const std::optional<ShardOffload>& offload = {});
  /// Whom to tell, until leave_to_tape().
  void set_unit(UnitListener& unit) { unit_ = &unit; }
  ~UnitBuffers() { slots_.leave(); }

  const UnitPieces& pieces() const { return pieces_; }
  const UnitLevels& levels() const { return levels_; }
  UnitLevels& levels() { return levels_; }

  /// Whether the gathered tensors are registered. A prefetched buffer is gathered and not registered.
  bool is_unsharded() const { return slots_.shown() == UnitSlots::Level::gathered; }
  /// From now on reshard() and drop_unused() leave what is gathered there as long as it is of the shards' values.
  void keep_gathered() { keeps_gathered_ = true; }
  bool keeps_gathered() const { return keeps_gathered_; }
  /// Its modules are gone, and a backward pass may still come that reads what was gathered: then the tape keeps it,
  /// with the groups of `data`, until it drops the last tensor. Parameters that live on are nobody's. Local.
  void leave_to_tape(const DataMesh& data);

  /// Allocates the shards on `device`; no-op when allocated. Errors of UnitLevels::materialize().
  void materialize(Device device);
  /// Moves values, or what is on meta, into buffers of another layout, which differs in types only. Local.
  void cast_to(const UnitLayoutPtr& layout);
  /// Starts a gather unless the gathered buffer is current or being gathered; registers nothing. Collective on the
  /// queue "gather"; does not wait.
  void prefetch() { levels_.start(); }
  /// prefetch(), and registers the gathered tensors: plain, or distributed over the axes of tensor parallelism. Their
  /// first access waits for the gather, or this call, where a custom gather ends by reading it. Error if there are no
  /// values yet.
  void unshard();
  /// From now on reshard_after_forward() leaves slices of the ranks of this mesh's last axis (split_for_slices); unset:
  /// it leaves shards.
  void set_slices(const std::optional<DeviceMesh>& split);
  /// As reshard(), where backward is to come: if there are slices, cuts this rank's out of the gathered buffer and
  /// registers them. They stay until reshard(), and what gathers until then gathers them. Local.
  void reshard_after_forward();
  /// Registers the sharded tensors and frees the gathered buffer, even if it was prefetched and never used. Local.
  void reshard() override;
  void shards_written() override;
  bool keeps_in_memory() const override { return levels_.home() == nullptr; }
  /// Frees a gathered buffer that is not registered. Local.
  void drop_unused();
  /// reshard(), and frees the gathered buffer also where it is kept: a gather that failed has left anything in it.
  void drop();
  /// Gathers that started only when backward unpacked a saved tensor, because no module hook had run before.
  int late_gathers() const { return late_gathers_; }

  // StorageOwner
  void ensure_present(Storage& storage) override;
  void last_saved_dropped(Storage&) noexcept override;
  void begin_replay(Storage&) override;
  void abandon_replay(Storage& storage, std::string_view reason) noexcept override;

 private:
  bool is_read_by_tape() const;
  void show_shards();

  UnitPieces pieces_;
  UnitLevels levels_;
  UnitSlots slots_;
  int late_gathers_ = 0;
  bool keeps_gathered_ = false;
  UnitListener* unit_ = nullptr;
  /// Set while nobody but the tape keeps it.
  struct Orphan {
    std::shared_ptr<UnitBuffers> self;
    DataMesh data;
  };
  std::optional<Orphan> orphan_;
};

}  // namespace sherd::nn
