#pragma once
// A unit of fully_shard: parameters that are gathered and reduced together. It owns their buffers, the place where
// their gradients arrive, the routes on which these leave, and what users have set of that; all of them tell the unit
// what happens, and it says what follows.
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "nn/parallel/shard/reduce/route_run.h"
#include "nn/parallel/shard/unit/policy.h"
#include "nn/parallel/shard/wrap/unit_members.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

class Unit final : private UnitListener, NoCopy {
 public:
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

  Unit(const UnitMembers& members, PlacedUnit placed, const UnitPolicy& policy);
  ~Unit() { buffers.leave_to_tape(data); }

  DataMesh data;
  const std::vector<ParameterTypes> types;  ///< of its pieces
  const std::shared_ptr<UnitBuffers> kept;  ///< shared with the tape, which may outlive it
  UnitBuffers& buffers;
  const UnitPieces& pieces;
  int users = 0;  ///< calls that run and read its gathered parameters
  const bool is_replicated;

  /// Over how many ranks parameters are sharded between forward and backward, if neither over none nor all; else 0.
  int slices() const { return buffers.levels().slices() ? buffers.levels().slices()->ranks() : 0; }
  const ReductionSettings& settings() const { return settings_; }
  const GradientArrival& arrival() const { return arrival_; }
  template <auto Knob, class T>
  void set(T value) {
    if (settings_.knobs.set<Knob>(std::move(value))) settings_changed();
  }
  /// Reduces over the shards by `reduce` from now on; null: as other units do.
  void set_reduce(UnitReduce reduce);
  /// Gathers by `gather` from now on; null: as other units do. Error where gradients add up as a tree.
  void set_gather(std::shared_ptr<UnitGather> gather);
  /// Called with every reduction that ends in grad(); null: none is.
  void set_all_reduce_hook(AllReduceHook hook);
  /// Whose end to ask for when a gradient arrives, instead of that of this unit alone: a pass may reach parameters
  /// through no wrapped module's output.
  void set_end(std::shared_ptr<BackwardEnd> end) { end_ = std::move(end); }

  /// Allocates the shards, and the home of gradients if they are to have one; no-op when allocated.
  void materialize(Device device);
  /// Moves it to another floating dtype, before it has run.
  void cast_to(DType dtype);
  /// Whether freeing what was gathered saves more than it costs: on one rank the next gather would cast again what is
  /// in memory.
  bool frees_after_forward() const { return pieces.gathers() || !buffers.keeps_in_memory(); }
  /// Frees gathered parameters after backward, unless that is off.
  void reshard();
  /// Reshards: the backward of the unit's modules is over. Local.
  void leave_backward();
  /// Reshards, and reduces the gradients of this pass that wait, if any. Collective.
  void finish_backward();
  void abandon(std::string_view reason) noexcept override;
  /// Drops gradients of a pass that failed. Local.
  void discard_pending() noexcept;
  /// Drops all gradients that earlier passes have left outside of grad() in memory. Local.
  void discard_earlier() noexcept;

 private:
  void check_may_set(std::string_view what, bool is_own, std::string_view why) const;
  void arrived() override { end_->expect(); }
  void completed(bool are_all) override;
  void communicates() override { end_->agree(); }
  void settings_changed();
  void reduce();
  void run_hooks();

  ReductionSettings settings_;
  GradientArrival arrival_;
  RouteRun routes_;
  std::shared_ptr<BackwardEnd> end_;
  std::vector<std::size_t> reduced_;  // pieces whose hooks are still to run
};

}  // namespace sherd::nn
