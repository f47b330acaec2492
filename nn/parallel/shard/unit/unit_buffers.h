#pragma once
// The buffers of a unit, and what of them is there when. (The third, of full gradients, is made for each backward pass:
// gradient_arrival.h.)
//
//   shards     | p0 rows of this rank | p1 rows of this rank | ...     lives always; what the optimizer updates
//   gathered   | p0 ............ full | p1 ............ full | ...     present between gather and release
//
// A gather puts every rank's rows at their final address, cast to the type the module computes in. On one shard without
// casts the two are one buffer, and nothing is ever gathered. A strategy whose parameters are not sharded keeps what
// was gathered until the shards are written: one gather for any number of passes.
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
//
// Buffers live as long as their modules, or as the tape keeps a gathered tensor of theirs, if that is longer: backward
// gathers for a model that is gone, as for any other, and its gradients land nowhere.
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "nn/module.h"
#include "nn/parallel/data_mesh.h"
#include "nn/parallel/shard/gather/custom_gather.h"
#include "nn/parallel/shard/unit/shard_home.h"
#include "nn/parallel/shard/unit/unit_layout.h"
#include "nn/parallel/shard/unit/unit_slices.h"
#include "runtime/memory/storage.h"
#include "runtime/op/core/step_names.h"

namespace sherd::nn {

class UnitBuffers final : public StorageOwner, public ShardKeeper, public std::enable_shared_from_this<UnitBuffers> {
 public:
  /// The unit (wrap/unit.h), as its parts see it.
  class Listener {
   public:
    /// A gradient of this pass has arrived.
    virtual void arrived() = 0;
    /// All gradients of this pass are complete; `are_all`: every parameter has one.
    virtual void completed(bool are_all) = 0;
    /// Gradients are about to be communicated.
    virtual void communicates() = 0;
    /// A step was left by an exception: return to the state between steps, without communication. Peers that wait for
    /// this rank raise CommError with `reason`; so does every further collective until the group's reset().
    virtual void abandon(std::string_view reason) noexcept = 0;

   protected:
    ~Listener() = default;
  };

  /// Becomes the keeper of `parameters`, the pieces of `unit` in this order. Of existing values this rank keeps its
  /// rows; parameters on meta stay there until materialize(). Either all have values or none. `offload`: of the shards.
  UnitBuffers(PlacedUnit unit, const std::vector<Parameter*>& parameters,
              const std::optional<ShardOffload>& offload = {});
  /// Whom to tell, until leave_to_tape().
  void set_unit(Listener& unit) { unit_ = &unit; }
  ~UnitBuffers();
  UnitBuffers(const UnitBuffers&) = delete;
  UnitBuffers& operator=(const UnitBuffers&) = delete;

  const UnitLayout& layout() const { return *layout_; }
  /// The layout from what this rank owns to its shards; null if both are the same.
  const UnitLayout* owned() const { return owned_.get(); }
  /// Shape of this rank's shard of a piece; it may own a part of the shard.
  const Shape& shard_shape(std::size_t piece) const {
    return owned_ ? owned_->pieces[piece].shape : pieces_[piece].at.local_shape;
  }
  std::size_t size() const { return pieces_.size(); }
  /// The parameter of a piece; null once it was destroyed, with its module.
  Parameter* parameter(std::size_t piece) const { return parameter_of(pieces_[piece]); }
  std::vector<Parameter*> parameters() const;
  const ShardPlacement& placement(std::size_t piece) const { return pieces_[piece].at; }
  /// The groups that a parameter's ranks meet in, those of more than one rank: who holds its shards, who holds this one
  /// too, and of each axis of tensor parallelism. From any rank one after the other they reach all. Local.
  std::vector<ProcessGroup*> groups_of(std::size_t piece) const;
  /// Where parameters are gathered, and shards too unless they are offloaded.
  Device device() const { return device_; }
  /// Whether shards and gathered parameters are one buffer.
  bool is_shard_full() const { return is_shard_full_; }
  /// Whether a gathered parameter is a copy of its shard.
  bool is_plain() const { return layout_->shards == 1 && !casts(*layout_) && !owned_; }
  /// Null: shards are in memory.
  const ShardHome* home() const { return home_.get(); }

  bool is_meta() const { return !shards_.defined(); }
  /// Whether the gathered tensors are registered. A prefetched buffer is gathered and not registered.
  bool is_unsharded() const { return registered_ == Registered::full; }
  /// There, or on its way.
  bool is_gathered() const {
    return has_full() || (custom_ && custom_->is_started()) || (home_ && home_->is_started());
  }
  /// From now on reshard() and drop_unused() leave what is gathered there as long as it is of the shards' values.
  void keep_gathered() { keeps_gathered_ = true; }
  bool keeps_gathered() const { return keeps_gathered_; }
  /// On: the memory of gathered parameters is kept when they are released, and they are gathered to the same address.
  /// It counts as unsharded all along. Nothing to keep where the shards are the full tensors.
  void set_keeps_memory(bool on);
  /// Whether the tape keeps gathered tensors for a backward pass.
  bool has_readers() const { return !is_shard_full_ && gathered_.defined() && gathered_.storage()->num_saved > 0; }
  /// Its modules are gone, and a backward pass may still come that reads what was gathered: then the tape keeps it,
  /// with the groups of `data`, until it drops the last tensor. Parameters that live on are nobody's. Local.
  void leave_to_tape(const DataMesh& data);

  /// Allocates the shards on `device`; no-op when allocated. Error if there are several ranks and their groups do
  /// not move memory of that device.
  void materialize(Device device);
  /// Moves values, or what is on meta, into buffers of another layout, which differs in types only. Local.
  void cast_to(const UnitLayoutPtr& layout);
  /// Gathers by `gather` from now on; null: as other units do. On one shard it is not called. Error if the unit has
  /// been gathered: a captured step would go on as before; if its shards are offloaded; or if it leaves slices, as
  /// set_slices() where it has one. Local.
  void set_gather(std::shared_ptr<UnitGather> gather);
  bool has_custom_gather() const { return custom_ != nullptr; }
  /// Whether a gather communicates.
  bool gathers() const { return layout_->shards > 1 || owned_ != nullptr; }
  /// Starts a gather unless the gathered buffer is current or being gathered; registers nothing. Collective on the
  /// queue "gather"; does not wait.
  void prefetch();
  /// prefetch(), and registers the gathered tensors: plain, or distributed over the axes of tensor parallelism. Their
  /// first access waits for the gather, or this call, where a custom gather ends by reading it. Error if there are no
  /// values yet.
  void unshard();
  /// Waits for the gather and throws its error.
  void wait();
  /// From now on reshard_after_forward() leaves slices of the ranks of this mesh's last axis (split_for_slices); unset:
  /// it leaves shards.
  void set_slices(const std::optional<DeviceMesh>& split);
  /// Over how many ranks parameters are sharded between forward and backward where it leaves slices; else 0.
  int slices() const { return slices_ ? slices_->ranks() : 0; }
  /// The mesh of set_slices(); null if it leaves none.
  const DeviceMesh* split() const { return slices_ ? &slices_->split() : nullptr; }
  /// As reshard(), where backward is to come: if there are slices, cuts this rank's out of the gathered buffer and
  /// registers them. They stay until reshard(), and what gathers until then gathers them. Local.
  void reshard_after_forward();
  /// Registers the sharded tensors and frees the gathered buffer, even if it was prefetched and never used. Local.
  void reshard() override;
  void shards_written() override;
  bool keeps_in_memory() const override { return home_ == nullptr; }
  /// Frees a gathered buffer that is not registered. Local.
  void drop_unused();
  /// reshard(), and frees the gathered buffer also where it is kept: a gather that failed has left anything in it.
  void drop();
  /// The local tensor of a gathered parameter as modules see it: plain, or wrapped as a distributed tensor.
  Tensor as_gathered(std::size_t piece, const Tensor& local) const;
  /// A full local tensor, or the shard of one rank, in the shape that modules see: itself, or a view where leading dims
  /// are merged (shard_merged).
  Tensor as_used(std::size_t piece, const Tensor& full) const;
  /// The reverse: what modules see, in the shape whose dims are sharded.
  Tensor as_sharded(std::size_t piece, const Tensor& used) const;
  /// Gathers that started only when backward unpacked a saved tensor, because no module hook had run before.
  int late_gathers() const { return late_gathers_; }

  // StorageOwner
  void ensure_present(Storage& storage) override;
  void last_saved_dropped(Storage&) noexcept override;
  void begin_replay(Storage&) override;
  void abandon_replay(Storage& storage, std::string_view reason) noexcept override;

 private:
  struct Piece {
    NodeRef leaf;  // of the parameter: knows whether that still exists
    ShardPlacement at;
    Tensor gathered{}, slice{};  // with the slot's leaf
  };
  // Modules of one unit may be destroyed one by one, with their parameters.
  static Parameter* parameter_of(const Piece& piece) {
    return piece.leaf ? static_cast<Parameter*>(static_cast<const Leaf*>(piece.leaf.get())->slot) : nullptr;
  }
  enum class Registered : std::uint8_t { shards, slices, full };
  bool has_full() const { return !is_shard_full_ && gathered_.defined() && gathered_.storage()->is_present(); }
  bool is_of_shards(const Tensor& bytes) const;
  bool is_current() const;
  static bool is_known(const Tensor& bytes);
  bool needs_gather() const;
  bool may_use(const Tensor& level) const;
  Tensor add_place(std::int64_t bytes, std::string_view what);
  bool is_read_by_tape() const;
  void forget_parameters();
  void attach(Piece& piece, std::size_t index);
  void attach_all();
  void put_on_meta(std::size_t index);
  void drop_slices();
  void drop_gathered();
  void register_shards();
  void cancel_gather();
  void take_values(const std::vector<Tensor>& values);

  UnitLayoutPtr layout_;
  UnitLayoutPtr owned_;
  bool is_shard_full_;
  std::vector<Piece> pieces_;
  Tensor shards_, gathered_;  // u8 [bytes]
  Tensor shard_version_;      // u8 [0]: of the shards when replicas have gathered what each owns
  std::unique_ptr<UnitSlices> slices_;
  std::vector<std::shared_ptr<const NamedStorage>> names_;
  int late_gathers_ = 0;
  Registered registered_ = Registered::shards;
  std::unique_ptr<CustomGather> custom_;  // null: one row does it
  std::unique_ptr<ShardHome> home_;       // null: shards are in memory
  Device device_{};
  bool has_gathered_ = false;
  bool keeps_gathered_ = false;
  bool keeps_memory_ = false;
  Listener* unit_ = nullptr;
  /// Set while nobody but the tape keeps it.
  struct Orphan {
    std::shared_ptr<UnitBuffers> self;
    DataMesh data;
  };
  std::optional<Orphan> orphan_;
};

}  // namespace sherd::nn
