#pragma once
// Which level of a unit stands in the slots of its parameters: what modules read, and what the slots keep between
// steps.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nn/parallel/shard/unit/unit_levels.h"
#include "nn/shard_keeper.h"

namespace sherd::nn {

class UnitSlots {
 public:
  enum class Level : std::uint8_t { shards, slices, gathered };
  /// All three outlive this.
  UnitSlots(const UnitPieces& pieces, const UnitLevels& levels, ShardKeeper& keeper)
      : pieces_(pieces), levels_(levels), keeper_(keeper), views_(pieces.size()) {}

  Level shown() const { return shown_; }
  /// Puts tensors without values into the slots.
  void show_meta() const;
  /// Puts the shards into the slots, whose bytes are new.
  void attach();
  void show_shards();
  /// Cuts the slices, from gathered bytes that are there.
  void show_slices();
  void show_gathered();
  /// The levels have other slices, or none. They are not shown.
  void forget_slices();
  /// The parameters are nobody's.
  void leave() const;

 private:
  struct Views {
    Tensor gathered, slice;  // with the slot's leaf
  };
  void attach(std::size_t piece, Parameter& p);
  void show(Level level, const auto& view_of);

  const UnitPieces& pieces_;
  const UnitLevels& levels_;
  ShardKeeper& keeper_;
  std::vector<Views> views_;  // by piece
  Level shown_ = Level::shards;
};

}  // namespace sherd::nn
