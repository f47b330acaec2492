#pragma once
// Runs the routes of a unit's gradients: the loop goes over moves, and a hop that the routes of several parameters have
// is one row for all of them. It alone calls the rows of reductions.
//
//   copy               cast into a communication_buffer
//   scatter            reduce_start, or the user's own
//   sum_replicas       replica_sum_start
//   scatter_replicas   reduce_start over replicas
//   fetch, evict       gradient_home.h
#include <array>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "nn/parallel/shard/reduce/gradient_arrival.h"
#include "nn/parallel/shard/reduce/gradient_home.h"

namespace sherd::nn {

class RouteRun {
 public:
  /// Runs the routes of what has come to `arrival`. All that it refers to outlives it.
  RouteRun(UnitBuffers& buffers, GradientArrival& arrival, const ReductionSettings& settings,
           UnitListener& unit);

  /// The buffers have memory now: makes the home of gradients, if they are to have one.
  void materialize();
  /// The buffers have another layout; there are no gradients yet.
  void layout_changed();
  /// Starts the reduction of all that waits.
  void run();
  /// Drops gradients at home: nobody knows which of them a step that has failed has written whole.
  void drop_home() noexcept;

 private:
  using Place = Route::Place;
  struct Member {
    std::size_t piece;
    const Route* route = nullptr;
    std::array<Tensor, Route::kNumPlaces> places{};
    Tensor& at(Place place) { return places[static_cast<std::size_t>(place)]; }
  };
  struct Step {
    Member& member;
    const Route::Hop& hop;
    Tensor& from() const { return member.at(hop.from); }
    Tensor& to() const { return member.at(hop.to); }
  };
  using Steps = std::span<const Step>;
  struct Known {
    Route::Facts facts;
    Route route;
  };

  const Route& route_of(const Route::Facts& facts);
  bool lie_together(std::span<Member> members) const;
  std::vector<Member> members();
  void make_room(std::span<Member> members, Place place) const;
  void call(Route::Move move, Steps steps);
  void scatter(Steps steps, bool over_replicas);
  void sum_replicas(Steps steps, std::span<const Tensor> sums) const;
  void keep(const Step& step) const;

  UnitBuffers& buffers_;
  const UnitPieces& pieces_;
  GradientArrival& arrival_;
  const ReductionSettings& settings_;
  UnitListener& unit_;
  UnitLayoutPtr shards_;                // where replicas divide the shards: its full tensors are gradients of those
  std::unique_ptr<GradientHome> home_;  // null: reduced gradients are in memory
  std::list<Known> known_;              // of the layout
  std::vector<ReducedPiece> told_;      // of the run: what hooks are told of
};

}  // namespace sherd::nn
