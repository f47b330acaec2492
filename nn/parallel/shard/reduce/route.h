#pragma once
// The way of one parameter's gradient to grad(), as data: a list of hops between places. It follows from facts alone
// (Route::of), adds up (check), is run by route_run.h and printed by print_units().
//
//   full_shard                scatter arrival>shard, keep shard>grad
//   its second micro-batch    scatter arrival>grad +gradient, keep grad>grad
//   hybrid_shard              scatter arrival>shard, sum_replicas shard>shard, keep shard>grad
//   hybrid_shard_state        scatter arrival>apart, scatter_replicas apart>owned, keep owned>grad
//   without synchronisation   hold arrival>held
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/parallel/data_mesh.h"
#include "runtime/op/unit/unit.h"

namespace sherd::nn {

class Route {
 public:
  /// Where a gradient, or this rank's part of it, lies.
  enum class Place : std::uint8_t {
    arrival,   ///< in full, where backward has written it
    held,      ///< in full, from pass to pass
    shard,     ///< this rank's shard in fresh memory, in the type of grad()
    apart,     ///< this rank's shard in fresh memory, in the type that travels
    unsummed,  ///< this rank's shard from pass to pass, not summed over replicas yet
    owned,     ///< what this rank owns of its shard (hybrid_shard_state), in fresh memory
    grad,      ///< grad() in memory
    home       ///< grad() outside of memory
  };
  static constexpr std::size_t kNumPlaces = 8;
  /// In the order in which the rows of a reduction go out.
  enum class Move : std::uint8_t {
    hold,              ///< add to what waits for a later pass
    fetch,             ///< bring grad() from its home
    copy,              ///< put a shard that is not summed over replicas apart
    scatter,           ///< sum over the ranks of the shards, to this rank's shard, and scale averages
    sum_replicas,      ///< sum over replicas
    scatter_replicas,  ///< sum over replicas, to what this rank owns
    hook,              ///< run the user's all-reduce hook
    agree,             ///< sum over the axis of tensor parallelism when the pass ends, with those of other units
    keep,              ///< make it what the slot of `to` has, or add it to that
    evict              ///< write grad() to its home
  };

  /// What is done with a sum, as bits: the axes that it is over, and whether the factor is in it, if it is an average.
  static constexpr int kShards = 1, kReplicas = 2, kTensor = 4, kFactor = 8, kAll = 15;
  /// A typed sum: what lies in a place.
  struct Sum {
    int done = 0;       ///< kShards | ...
    int passes = 0;     ///< this one, and each kind of earlier ones
    int roundings = 0;  ///< to a wire narrower than grad()
    DType dtype = DType::f32;
    bool operator==(const Sum&) const = default;
  };
  struct Hop {
    Move move;
    Place from, to;
    AddTo add_to = AddTo::nothing;  ///< what lies in `to` before
    Sum after{};                    ///< what lies there then
    bool operator==(const Hop&) const = default;
  };

  /// A shard that replicas have not summed: none; one; one that lies beside those of all others that are reduced.
  enum class Unsummed : std::uint8_t { none, some, together };
  /// All that a route follows from.
  struct Facts {
    // The parameter, in its unit.
    bool has_shards = false, has_replicas = false;                  ///< several
    bool has_tensor = false;                                        ///< replicated over tensor parallelism
    bool divides = false;                                           ///< replicas divide the shards
    bool has_home = false;                                          ///< for its gradient
    bool is_direct = false;                                         ///< its full gradient is the reduced one
    DType made = DType::f32, wire = DType::f32, kept = DType::f32;  ///< by backward, while it travels, in grad()
    // What users have set, as ReductionKnobs.
    bool syncs = true, all_reduces = true, reduces_unused = false, has_custom = false, has_hook = false;
    bool sums_in_tree = false;  ///< passes that wait add up as a tree, apart from where backward writes
    ShardedOver accumulated = ShardedOver::none;
    // When the pass ends.
    bool has_grad = false, is_grad_home = false;
    bool is_held = false;     ///< full gradients of the unit wait
    bool is_partial = false;  ///< over the axis of tensor parallelism
    Unsummed unsummed = Unsummed::none;

    /// Whether the pass leaves its full gradient, or its shard, to a later one.
    bool holds() const { return !syncs && accumulated == ShardedOver::none; }
    bool leaves_unsummed() const {
      return has_replicas && !(all_reduces && (syncs || accumulated == ShardedOver::all));
    }
    /// Whether what is held has a buffer of its own, in the wider type of the reduction.
    bool is_wide() const { return byte_size(made) < byte_size(wire); }
    bool holds_apart() const { return sums_in_tree || is_wide(); }
    /// Whether averages are scaled once they are summed over replicas as well. Else they are where they are summed over
    /// shards, so that f16 sums do not overflow, and a shard that is left to a later pass needs no more.
    bool scales_last() const { return sums_in_tree && has_replicas; }
    bool operator==(const Facts&) const = default;
  };

  explicit Route(std::vector<Hop> hops);
  /// The route of a pass; it adds up. Error with refusal().
  static Route of(const Facts& facts);
  /// Why no pass ends with these facts; empty if one may.
  static std::string_view refusal(const Facts& facts);
  /// Adds up the sums of all hops. Error unless each place is written before it is read, what is added to one another
  /// is summed and scaled alike, the sum at the end is over each axis once, has the factor once, and this pass and all
  /// earlier ones that it reduces, and hops are in the order of moves.
  void check(const Facts& facts);

  const std::vector<Hop>& hops() const { return hops_; }
  bool writes(Place place) const { return (written_ >> static_cast<unsigned>(place) & 1U) != 0; }
  /// A bit for each move.
  unsigned moves() const { return moves_; }
  /// The hop of that move, or null: there is at most one.
  const Hop* find(Move move) const;
  /// "scatter arrival>grad +gradient, keep grad>grad"
  std::string text() const;

 private:
  std::vector<Hop> hops_;
  unsigned moves_ = 0, written_ = 0;
};

}  // namespace sherd::nn
