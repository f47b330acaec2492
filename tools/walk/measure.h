#pragma once
// One row of a walk: what is predicted of it, and the run that measures it.
#include <optional>
#include <string>
#include <vector>

#include "runtime/os/descriptor.h"
#include "tools/plan/rows.h"
#include "tools/walk/prices.h"

namespace sherd::walk {

using plan::RowPlan;
using table::Row;

/// A text in a file without a name, which children read while it lives: nothing is left, however this program ends.
class NamelessText {
 public:
  explicit NamelessText(const std::string& text);
  std::string path() const;

 private:
  Descriptor file_;
};

/// Letters in no order, of 65 kinds, enough for sequences of so many tokens.
std::string made_up_text(std::int64_t sequence);

/// Fills the row with what ghosts of `ranks` ranks, whose text has so many tokens, hold and communicate, and returns
/// the settled step of rank 0. Throws what predict_peak() throws. Within a memory budget ghosts do not know what the
/// run will decide, by prices that it measures: the run's own prediction comes with measure().
Timeline predict(RowPlan& plan, int ranks, std::int64_t data_vocabulary);

/// Fills the times of the step on the cluster, and what it sends over each axis; with `has_times` off the latter alone.
void predict_times(RowPlan& plan, const Timeline& step, const Cluster& cluster, bool has_times);

/// Why the host has no memory for the row's ranks, as they are predicted; empty if it has.
std::string too_large(const Row& row);

/// Runs the plan on `ranks` ranks of its group under `sherd run`, alone on this machine: some steps to settle, then
/// `steps` of which the fastest is what times are of. Fills what is measured, or the row's failure with what the run
/// says; of a row that has been measured before the faster times stay, and how far its runs lie apart is filled, too.
void measure(RowPlan& plan, int ranks, int steps);

}  // namespace sherd::walk
