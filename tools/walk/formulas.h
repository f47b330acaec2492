#pragma once
// What closed formulas say of a row, from the sizes of its units alone: bytes that a rank holds at most, what it
// communicates in a step, and how long that takes on a link.
//
// N elements of 4 bytes on s shards and o replicas, R of them the root's and u a unit's, take (more in
// docs/internals/fully_shard.md):
//
//   parameters     4 N / s, or whole                      unsharded      R + two neighbours, or all that stays
//   gradients      shards so far + the full ones of the   communication  the largest unit in reduction
//                  root and of the unit that is made      optimizer      8 N / s, or / (s o)
//
// Rows are shared as they divide: a rank may have one more of each parameter.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/models/language_model.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/memory/accounting.h"
#include "tools/train/config.h"
#include "tools/train/links.h"

namespace sherd::walk {

/// A unit of fully_shard: the local tensors of its parameters when they are gathered, as rows of dim 0.
struct UnitSize {
  struct Piece {
    std::int64_t rows = 0, row_elements = 0;
  };
  std::string name{};
  std::vector<Piece> pieces{};
  bool is_root = false;

  std::int64_t elements() const;
  /// Elements of the rank with most rows of each piece, where `parts` ranks share them, and `owners` each part.
  std::int64_t part(int parts, int owners = 1) const;
};
/// In module order, which is that of forward.
std::vector<UnitSize> unit_sizes(nn::LanguageModel& model);

/// Seconds of a step's collectives on shaped links.
struct LinkTimes {
  struct Axis {
    double gathers = 0, reductions = 0;
  };
  std::array<Axis, 3> axes{};  ///< dp, replicate, both as one: links that work at the same time
  /// What nothing can hide: the root's gather, which comes first, its reduction, which is the last; without prefetch
  /// all of dp.
  double floor = 0;
  /// Shares of computing: of forward, and of what comes before the first reduction, forward and the last unit's
  /// backward.
  double forward = 0, first_reduction = 0;
  /// Seconds of dp before the first reduction over replicas: what the last unit communicates there.
  double before_replicas = 0;

  /// Seconds of the link that is busy longest.
  double busiest() const;
  /// Seconds of a step that computes for so long: no less than that and the floor, than any link takes, and than a link
  /// takes from the first reduction on, before which forward is over, and what it gathers over replicas.
  double step_seconds(double compute_seconds) const;
};

struct RowFormula {
  /// Bytes of the rank that holds most; none where there is no closed form, as of activations.
  std::array<std::optional<std::int64_t>, kNumCategories> memory{};
  /// Counts of all collectives but those of tensor parallelism; none with these.
  std::optional<CommCounts> comm{};
  std::optional<LinkTimes> link{};  ///< none without a link
};

/// `config` is resolved, its mesh names its ranks.
RowFormula formula_of(const TrainConfig& config, const std::vector<UnitSize>& units);

/// How much a step computes beside one without recomputation: of the multiplications in a block, forward and twice as
/// many in backward, those that run again.
double recompute_factor(const TrainConfig& config);

}  // namespace sherd::walk
