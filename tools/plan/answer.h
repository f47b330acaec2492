#pragma once
// The answer of a plan in sentences: which row to take, why, what it beats, and where another one would win.
#include <string>
#include <vector>

#include "tools/plan/planner.h"

namespace sherd::plan {

/// What holds a step up most.
enum class Bound : std::uint8_t { compute, link, calls, memory };
std::string_view name(Bound bound);

struct Answer {
  Choice choice{};
  Bound bound = Bound::compute;
  std::vector<std::string> sentences{};  ///< the recommendation first, then its reason, the runner-up, ties
};

/// Chooses among options that are priced; others are compared by memory alone.
Answer answer_of(const std::vector<Option>& options, const PlannedFor& planned, const ModelSize& size);

/// Where another row wins, as one thing changes.
struct FlipOf {
  std::string what;  ///< "out ib400x1, bytes/s of a NIC"
  double now = 0;
  std::vector<Flip> flips{};  ///< below and above, if any
  double from = 0, to = 0;    ///< what was searched
  std::string text() const;   ///< a line
};
/// Bisections: bandwidth between hosts, sequences of a rank, tokens of a sequence, memory of a rank, micro-batches.
std::vector<FlipOf> flips_of(const Rivals& rivals, const Answer& answer);

/// The least number of micro-batches, as large as now, with which MFU reaches `mfu`, by the winning row there; up to
/// `most`. Nothing where none does, or the step is there already.
struct Accumulated {
  std::int64_t micro_batches;
  std::string name;
  double mfu, seconds;
};
std::optional<Accumulated> accumulate_for(double mfu, std::int64_t most, const Rivals& rivals, const ModelSize& size);

/// The share of the devices' peak at which a step of so many operations runs; 0 where no peak is known.
std::optional<double> mfu_of(double flops, double seconds, const PlannedFor& planned);

}  // namespace sherd::plan
