#pragma once
// The buffers of a unit, and what of them is there when. (The third, of full gradients, is made for each backward pass:
// gradient_inbox.h.)
//
//   shards     | p0 rows of this rank | p1 rows of this rank | ...     lives always; what the optimizer updates
//   gathered   | p0 ............ full | p1 ............ full | ...     present between gather and release
//
// A gather puts every rank's rows at their final address, cast to the type the module computes in. On one shard without
// casts the two are one buffer, and nothing is ever gathered. A strategy whose parameters are not sharded keeps what
// was gathered until the shards are written: one gather for any number of passes.
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nn/module.h"
#include "nn/parallel/shard/custom_gather.h"
#include "nn/parallel/shard/unit_layout.h"
#include "runtime/memory/storage.h"
#include "runtime/op/step_names.h"

namespace sherd::nn {

class UnitBuffers final : public StorageOwner, public ShardKeeper {
 public:
  /// Becomes the keeper of `parameters`, the pieces of `unit` in this order. Of existing values this rank keeps its
  /// rows; parameters on meta stay there until materialize(). Error if some have values and others not.
  UnitBuffers(PlacedUnit unit, const std::vector<Parameter*>& parameters);
  ~UnitBuffers();
  UnitBuffers(const UnitBuffers&) = delete;
  UnitBuffers& operator=(const UnitBuffers&) = delete;

  const UnitLayout& layout() const { return *layout_; }
  std::size_t size() const { return pieces_.size(); }
  /// The parameter of a piece; null once it was destroyed, with its module.
  Parameter* parameter(std::size_t piece) const { return parameter_of(pieces_[piece]); }
  std::vector<Parameter*> parameters() const;
  const ShardPlacement& placement(std::size_t piece) const { return pieces_[piece].at; }
  /// The piece of this parameter; size() if it has none.
  std::size_t find(const Slot& slot) const {
    const auto found = by_leaf_.find(slot.leaf());
    return found == by_leaf_.end() ? size() : found->second;
  }
  Device device() const { return shards_.device(); }
  /// Whether shards and gathered parameters are one buffer.
  bool is_shard_full() const { return is_shard_full_; }

  bool is_meta() const { return !shards_.defined(); }
  /// Whether the gathered tensors are registered. A prefetched buffer is gathered and not registered.
  bool is_unsharded() const { return is_unsharded_; }
  /// There, or on its way.
  bool is_gathered() const { return has_full() || (custom_ && custom_->is_started()); }
  /// From now on reshard() and drop_unused() leave what is gathered there as long as it is of the shards' values.
  void keep_gathered() { keeps_gathered_ = true; }
  /// Whether the tape keeps gathered tensors for a backward pass.
  bool has_readers() const { return !is_shard_full_ && gathered_.defined() && gathered_.storage()->num_saved > 0; }

  /// Allocates the shards on `device`; no-op when allocated. Error if there are several ranks and their groups do
  /// not move memory of that device.
  void materialize(Device device);
  /// Moves values, or what is on meta, into buffers of another layout, which differs in types only. Local.
  void cast_to(const UnitLayout& layout);
  /// Gathers by `gather` from now on; null: as other units do. On one shard it is not called. Error if the unit has
  /// been gathered: a captured step would go on as before. Local.
  void set_gather(std::shared_ptr<UnitGather> gather);
  /// Starts a gather unless the gathered buffer is current or being gathered; registers nothing. Collective on the
  /// queue "gather"; does not wait.
  void prefetch();
  /// prefetch(), and registers the gathered tensors: plain, or distributed over the axes of tensor parallelism. Their
  /// first access waits for the gather, or this call, where a custom gather ends by reading it. Error if there are no
  /// values yet.
  void unshard();
  /// Waits for the gather and throws its error.
  void wait();
  /// Registers the sharded tensors and frees the gathered buffer, even if it was prefetched and never used. Local.
  void reshard() override;
  /// Frees a gathered buffer that is not registered. Local.
  void drop_unused();
  /// reshard(), and frees the gathered buffer also where it is kept: a gather that failed has left anything in it.
  void drop();
  /// The local tensor of a gathered parameter as modules see it: plain, or wrapped as a distributed tensor.
  Tensor as_gathered(std::size_t piece, const Tensor& local) const;
  /// Gathers that started only when backward unpacked a saved tensor, because no module hook had run before.
  int late_gathers() const { return late_gathers_; }

  // StorageOwner
  void ensure_present(Storage& storage) override;
  void begin_replay(Storage&) override;
  void abandon_replay(Storage& storage, std::string_view reason) noexcept override;

 private:
  struct Piece {
    NodeRef leaf;  // of the parameter: knows whether that still exists
    ShardPlacement at;
    Tensor gathered{};  // with the slot's leaf
  };
  // Modules of one unit may be destroyed one by one, with their parameters.
  static Parameter* parameter_of(const Piece& piece) {
    return static_cast<Parameter*>(static_cast<const Leaf*>(piece.leaf.get())->slot);
  }
  bool has_full() const { return !is_shard_full_ && gathered_.defined() && gathered_.storage()->is_present(); }
  bool is_current() const;
  bool needs_gather() const;
  void attach(Piece& piece, std::size_t index);
  void attach_all();
  void put_on_meta(std::size_t index);
  void drop_gathered();
  void register_shards();
  void take_values(const std::vector<Tensor>& values);

  const UnitLayout* layout_;
  bool is_shard_full_;
  std::vector<Piece> pieces_;
  std::unordered_map<const Node*, std::size_t> by_leaf_;  // pieces: a gradient knows its parameter only
  Tensor shards_, gathered_;                              // u8 [bytes]
  std::shared_ptr<const NamedStorage> gathered_name_;
  int late_gathers_ = 0;
  std::unique_ptr<CustomGather> custom_;  // null: one row does it
  bool has_gathered_ = false;
  bool is_unsharded_ = false;
  bool keeps_gathered_ = false;
};

}  // namespace sherd::nn
