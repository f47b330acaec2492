#pragma once
// The shortest path behind transition.h. Layouts are packed into eight bytes, because a search visits many of them;
// axes of size 1 are left out, because they change nothing.
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dtensor/transition/transition.h"

namespace sherd {

inline constexpr int kMaxSearchAxes = 8;

/// A layout, per axis of a search: Replicate, Partial, or a dim and the axis' position in the order that splits it.
struct PackedLayout {
  static constexpr std::uint8_t kReplicate = 0, kPartial = 1, kFirstShard = 2;
  std::array<std::uint8_t, kMaxSearchAxes> place{};

  static std::uint8_t shard(int dim, int order) {
    return static_cast<std::uint8_t>(kFirstShard + dim * kMaxSearchAxes + order);
  }
  bool is_shard(int axis) const { return at(axis) >= kFirstShard; }
  int dim(int axis) const { return (at(axis) - kFirstShard) / kMaxSearchAxes; }
  int order(int axis) const { return (at(axis) - kFirstShard) % kMaxSearchAxes; }
  std::uint8_t at(int axis) const { return place[static_cast<std::size_t>(axis)]; }
  void set(int axis, std::uint8_t value) { place[static_cast<std::size_t>(axis)] = value; }
  friend bool operator==(const PackedLayout&, const PackedLayout&) = default;
};

/// A list of axes of one mesh, as the search numbers them.
using AxisList = SmallVec<int, 4>;

struct SearchProblem {
  struct Axis {
    int size = 1;
    LinkPrice price{};
    ReduceKind kind = ReduceKind::sum;  ///< of a Partial value along it
    bool fixed = false;                 ///< must not change
  };
  std::vector<Axis> axes{};
  std::vector<int> dims{};  ///< that may be sharded on the way
  Shape shape{};
  std::int64_t element_bytes = 1;
  PackedLayout from{}, to{};
  std::function<bool(const AxisList&)> has_group{};  ///< whether one group spans these axes, in that order
};

struct SearchStep {
  TransitionStep::Kind kind = TransitionStep::Kind::slice;
  AxisList axes{};
  int from_dim = 0, to_dim = 0;
  std::int64_t bytes = 0, priced_bytes = 0;  ///< of the buffer; that the price counts
  double seconds = 0;
  PackedLayout result{};
};

/// The cheapest steps; of equal price the fewest. Nothing if there is no path.
std::optional<std::vector<SearchStep>> search_transition(const SearchProblem& problem);

}  // namespace sherd
