#pragma once
// Where the gradients of a unit arrive in a backward pass, and what has arrived:
//
//   arrival  | p0 ............ full | p2 ............ full | ...     of the pieces that train, written there by vjps
//
// They leave by their routes when the last one is complete, or at the end of the pass (route_run.h). Rows read them
// where backward wrote them. A pass that does not synchronise leaves them to a later one (held_gradients.h).
#include <memory>
#include <vector>

#include "nn/parallel/partial_gradients.h"
#include "nn/parallel/shard/reduce/held_gradients.h"
#include "nn/parallel/shard/reduce/reduction_settings.h"
#include "nn/parallel/shard/unit/unit_buffers.h"

namespace sherd::nn {

class GradientArrival final : public GradSink {
 public:
  /// The gradient of this pass: none; a full one to average or to sum; zeros, which are either, but go out as an
  /// average, so peers must not sum; on one rank, added to grad() already.
  enum class Kind : std::uint8_t { none, average, sum, zeros, in_place };
  struct Entry {
    static constexpr std::int64_t kNoPlace = -1;
    Kind kind = Kind::none;
    std::int64_t offset = kNoPlace;  ///< of its full gradient in the buffer
    Tensor full{};                   ///< that gradient, once somebody has asked for it
    /// Its grad() is this rank's shard of the passes that were not summed over replicas: a slot, so that one captured
    /// step can leave it to another. Null where there are no replicas.
    std::unique_ptr<Slot> aside{};
    /// Set where the parameter is replicated over a tensor-parallel axis: its gradient may be Partial over that axis.
    /// It is reduced over the data axes first, and its shard over that axis, together with those of other units.
    std::shared_ptr<PartialGradients> partial_gradients{};
    bool is_partial = false;       ///< the gradient of this pass, over that axis
    bool writes_in_place = false;  ///< the destination that was asked for last is grad()

    Tensor unsummed() const { return aside ? aside->grad() : Tensor(); }
    bool has_unsummed() const { return aside && aside->grad().defined(); }
    bool waits() const { return kind != Kind::none && kind != Kind::in_place; }  ///< to be reduced
    ReduceKind reduce_kind() const { return kind == Kind::sum ? ReduceKind::sum : ReduceKind::avg; }
  };

  /// Becomes the sink of the parameters of `buffers`. All that it refers to outlives it.
  GradientArrival(const UnitBuffers& buffers, ReductionSettings& settings, UnitListener& unit);
  ~GradientArrival();

  const Entry& operator[](std::size_t piece) const { return entries_[piece]; }
  /// The full gradients, u8, and the unit with their types and places; undefined if there are none.
  const Tensor& bytes() const { return gradients_; }
  const UnitLayout& layout() const { return *layout_; }
  /// The full gradient of a piece, as modules see it.
  const Tensor& full(std::size_t piece);
  /// What earlier passes have left in full; null if none was to.
  const HeldGradients* held() const { return held_.get(); }
  /// What the route of a piece follows from, were the pass to end now.
  Route::Facts facts(std::size_t piece) const;

  /// After a change of the settings: makes the place for gradients that wait, once there may be any.
  void settings_changed();
  /// The buffers have another layout; there are no gradients yet.
  void layout_changed();
  /// The pass is over: holds its gradients, or takes those that were held, and counts as zero what is to. Returns
  /// whether there are any to reduce.
  bool close();
  /// All are reduced.
  void clear();
  /// Drops gradients of a pass that failed.
  void discard();
  /// Drops sums of earlier passes that are not reduced, or not summed over replicas, yet.
  void discard_earlier();

  // GradSink
  Destination destination(Slot& slot) override;
  void wrote(Slot& slot) override;
  void accept(Slot& slot, Tensor gradient) override;
  Destination home_of_leaves(Slot& slot) override;
  Tensor of_leaf(Slot& slot, Tensor gradient) override;
  void finish(Slot& slot) override;
  void abandon(Slot&, std::string_view reason) noexcept override { unit_.abandon(reason); }
  void cleared(Slot& slot) override;
  bool holds_more(const Slot& slot) const override {
    const std::size_t i = slot.sink_place();
    return (settings_.knobs.get<&ReductionKnobs::hold_levels>() > 0 && is_held(i)) || entries_[i].has_unsummed();
  }

 private:
  std::int64_t lay_out(const UnitLayout& layout);
  Destination local_destination(std::size_t i);
  Tensor local_gradient(std::size_t i, Tensor gradient);
  void reduce_partial_now(std::size_t i);
  void note(std::size_t i, Kind kind);
  bool is_held(std::size_t i) const { return held_ && held_->has(i); }
  void hold();
  void take_held();
  void add_zeros();
  void reset();

  const UnitLevels& levels_;
  const UnitPieces& pieces_;
  ReductionSettings& settings_;
  UnitListener& unit_;
  std::vector<Entry> entries_;              // by piece
  Tensor gradients_;                        // u8, or undefined
  UnitLayoutPtr layout_;                    // has the types of the full gradients
  std::unique_ptr<HeldGradients> held_;     // null until a pass was to leave gradients
  std::size_t finished_ = 0, reached_ = 0;  // parameters that are complete, of those in this pass
  std::uint64_t zeros_pass_ = 0;            // the pass that has counted what it does not reach as zero
};

}  // namespace sherd::nn
