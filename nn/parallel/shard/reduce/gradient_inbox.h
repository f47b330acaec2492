#pragma once
// Where the gradients of a unit arrive in a backward pass, and how they leave it as shards.
//
//   gradients  | p0 ............ full | p2 ............ full | ...     of the pieces that train, written there by vjps
//        reduce_start, when the last one is complete, or at the end of the pass
//   shards     | p0 rows of this rank | p2 rows of this rank | ...     grad() of the parameters
//        replica_sum_start, where there are replicas (HSDP); where those divide the shards, a second reduce_start to
//        what this rank owns of them (owned_gradients.h), which is grad() then
//
// The reduction reads gradients where backward wrote them, and casts back. A pass that does not synchronise leaves them
// to a later one (held_gradients.h).
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/parallel/data_mesh.h"
#include "nn/parallel/partial_gradients.h"
#include "nn/parallel/shard/gather/unit_gather.h"
#include "nn/parallel/shard/reduce/gradient_home.h"
#include "nn/parallel/shard/reduce/held_gradients.h"
#include "nn/parallel/shard/reduce/owned_gradients.h"
#include "nn/parallel/shard/unit/unit_buffers.h"
#include "nn/parallel/shard/unit/unit_knobs.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/unit/unit.h"

namespace sherd::nn {

/// Runs something once at the end of every backward pass in which somebody expects it. Shared by those who do.
class BackwardEnd final : public std::enable_shared_from_this<BackwardEnd> {
 public:
  /// `agree`: to be called before gradients are communicated.
  explicit BackwardEnd(std::function<void()> run, std::function<void()> agree = {})
      : run_(std::move(run)), agree_(std::move(agree)) {}
  /// Within a pass: it runs at its end. Cheap when it is expected already; no-op outside of a pass.
  void expect();
  void agree() const {
    if (agree_) agree_();
  }

 private:
  std::function<void()> run_, agree_;
  std::uint64_t pass_ = 0;  // that was asked last
};

class GradientInbox final : public GradSink {
 public:
  /// Becomes the sink of the parameters of `buffers`, which outlives this.
  GradientInbox(UnitBuffers& buffers, const DataMesh& data);
  ~GradientInbox();
  GradientInbox(const GradientInbox&) = delete;
  GradientInbox& operator=(const GradientInbox&) = delete;

  /// Whose end to ask for when a gradient arrives, instead of finish_backward() for this unit alone: a pass may reach
  /// parameters through no wrapped module's output.
  void set_end(std::shared_ptr<BackwardEnd> end) { end_ = std::move(end); }
  /// Reshards, and reduces the pending gradients of this backward pass, if any. Collective.
  void finish_backward();
  /// Reshards: the backward of the unit's modules is over. Local.
  void leave_backward();
  /// Drops gradients of a pass that failed. Local.
  void discard_pending();
  /// Drops sums of earlier passes that are not reduced, or not summed over replicas, yet; and gradients at home. Local.
  void discard_earlier();
  /// After an exception in a step: returns to the state between steps, without communication. Peers that wait for this
  /// rank raise CommError with `reason`; so does every further collective until the group's reset().
  void abandon(std::string_view reason) noexcept;

  /// The buffers have memory now: makes the home of gradients, if they are to have one. Local.
  void materialize();
  /// The buffers have another layout; there are no gradients yet. Local.
  void layout_changed();
  /// How many reductions may hold their input at a time; the next one waits.
  void set_max_reductions(int count) { knobs_.set<&ReductionKnobs::max_reductions>(count); }
  /// Divides the sum over ranks by `factor` instead of the number of ranks, replicas included.
  void set_divide_factor(double factor);
  /// Off: a backward pass reduces over the shard axis only, and its sum is kept until a pass with it on.
  void set_all_reduces(bool on);
  /// On: parameters that a pass does not reach count as zero, and every pass that reaches a parameter of the tree
  /// reduces the unit.
  void set_reduces_unused(bool on);
  /// Off: a backward pass reduces nothing, and its gradients are reduced by the next pass with it on, or by
  /// finish_backward(). If shards are accumulated, it is as set_all_reduces(); if those of all ranks are, nothing
  /// waits.
  void set_syncs(bool on);
  /// Of passes that are not to synchronise: UnitPolicy::gradients.
  void set_accumulated(ShardedOver over);
  /// Reduces over the shards by `reduce` from now on; null: as other units do. On one shard it is not called.
  void set_reduce(UnitReduce reduce);
  /// Called with every reduction that ends in grad(); null: none is.
  void set_all_reduce_hook(AllReduceHook hook);
  /// Off: gathered parameters stay registered when backward is done with them.
  void set_reshards(bool on) { knobs_.set<&ReductionKnobs::reshards>(on); }
  /// What is to be set alike on all ranks, by name.
  std::vector<std::pair<std::string, std::string>> settings() const;

  /// What earlier passes have left (pending_gradients.h): in full, null if none was to; and this rank's shard of a
  /// piece, undefined if replicas have summed it.
  const HeldGradients* held() const { return held_.get(); }
  Tensor unsummed(std::size_t piece) const { return entries_[piece].unsummed(); }

  // GradSink
  Destination destination(Slot& slot) override;
  void wrote(Slot& slot) override;
  void accept(Slot& slot, Tensor gradient) override;
  void finish(Slot& slot) override;
  void abandon(Slot&, std::string_view reason) noexcept override { abandon(reason); }
  void cleared(Slot& slot) override;
  bool holds_more(const Slot& slot) const override {
    const std::size_t i = slot.sink_place();
    return (knobs_.get<&ReductionKnobs::may_hold>() && is_held(i)) || entries_[i].has_unsummed();
  }

 private:
  // Gradient of this backward pass: none; a full one to average or to sum; zeros, which here are either, but are
  // launched as an average, so peers must not sum; on one rank, added to grad() already.
  enum class Pending : std::uint8_t { none, average, sum, zeros, in_place };
  struct Entry {
    Pending pending = Pending::none;
    std::int64_t offset = kNoPlace;  // of its full gradient in the buffer
    Tensor full{};                   // that gradient, once somebody has asked for it
    // Its grad() is this rank's shard of the passes that were not summed over replicas: a slot, so that one captured
    // step can leave it to another. Null where there are no replicas.
    std::unique_ptr<Slot> aside{};
    // Set where the parameter is replicated over a tensor-parallel axis: its gradient may be Partial over that axis. It
    // is reduced over the data axes first, and its shard over that axis, together with those of other units.
    std::shared_ptr<PartialGradients> partial_gradients{};
    // Within a launch: whether its grad() is to be its home, and what has come from there to be added to.
    bool goes_home = false;
    Tensor earlier{};
    bool is_partial = false;       // the pending gradient, over the tensor-parallel axis
    bool writes_in_place = false;  // the destination that was asked for last is grad()
    Tensor unsummed() const { return aside ? aside->grad() : Tensor(); }
    bool has_unsummed() const { return aside && aside->grad().defined(); }
    bool waits() const { return pending != Pending::none && pending != Pending::in_place; }  // to be reduced
  };
  static constexpr std::int64_t kNoPlace = -1;
  struct Launch;
  /// Of full gradients in a buffer: kNoPlace for those that have none.
  struct Places {
    std::vector<std::int64_t> offsets{};
    std::int64_t bytes = 0;
  };

  std::size_t index_of(const Slot& slot) const;
  const UnitPiece& piece(std::size_t i) const { return buffers_.layout().pieces[i]; }
  bool adds_in_place(std::size_t i) const;
  const Tensor& full_view(std::size_t i);
  bool has_place(std::size_t i) const;
  const Places& places(const UnitLayout& layout);
  void set_layout_of_gradients(const UnitLayout& layout);
  void make_buffer();
  void drop_buffer();
  Destination local_destination(std::size_t i);
  Tensor local_gradient(std::size_t i, Tensor gradient);
  void reduce_partial_now(std::size_t i);
  void note(std::size_t i, Pending kind);
  void reduce_pending();
  void run_hooks();
  void keep_gradients();
  bool is_held(std::size_t i) const { return held_ && held_->has(i); }
  bool holds() const { return !knobs().syncs && knobs().accumulated == ShardedOver::none; }
  const ReductionKnobs& knobs() const { return knobs_.all(); }
  static std::optional<ReduceKind> kind_of(Pending pending);
  void hold();
  void take_held();
  bool leaves_unsummed() const {
    const bool sums = knobs().all_reduces && (knobs().syncs || knobs().accumulated == ShardedOver::all);
    return !sums && data_.num_replicas() > 1;
  }
  void add_zeros_to_unsummed();
  void add_zeros_for_unused();
  void add_zeros(std::size_t i);
  std::size_t num_reached() const;
  Tensor earlier_sum(std::size_t i) const;
  Tensor gradient_to_add_to(std::size_t i) const;
  void fetch_earlier();
  void send_home(const Launch& launch);
  void drop_home() noexcept;
  /// Makes `shard` the gradient, or adds it to that; then it is where the sum lies in memory.
  void deliver(std::size_t i, Tensor& shard);
  void launch();
  Launch members_to_launch() const;
  void make_room(const std::vector<std::size_t>& members, std::vector<Tensor>& gradients, bool is_owned) const;
  void sum_apart(Launch& launch) const;
  void reduce(const Launch& launch) const;
  void launch_owned(Launch& launch) const;
  void launch_shards(Launch& launch, bool sums_replicas) const;
  void holding_changed();
  void reduction_changed();

  UnitBuffers& buffers_;
  DataMesh data_;
  std::vector<Entry> entries_;           // by piece
  Tensor gradients_;                     // u8, or undefined
  Places places_;                        // what places() found last: keeps its memory
  UnitLayoutPtr unit_of_gradients_;      // has the types of the full gradients in it
  std::unique_ptr<HeldGradients> held_;  // null until a pass was to leave gradients
  std::optional<OwnedGradients> owned_;  // where replicas divide the shards
  std::unique_ptr<GradientHome> home_;   // null: reduced gradients are in memory
  std::shared_ptr<BackwardEnd> end_;
  UnitReduce reduce_;
  AllReduceHook hook_;
  HostState<ReductionKnobs> knobs_;
  std::size_t finished_ = 0;          // parameters whose gradient is complete in this pass
  std::size_t reached_ = 0;           // of how many that this pass reaches, counted with the first
  std::uint64_t zeros_pass_ = 0;      // the pass that has counted what it does not reach as zero
  std::vector<std::size_t> reduced_;  // pieces whose hooks are still to run
  bool is_gradient_reduced_ = false;  // the full gradients are the reduced ones: one rank, no cast, rounding or scaling
  bool has_pending_ = false;
};

}  // namespace sherd::nn
