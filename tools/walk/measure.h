#pragma once
// One row of a walk: what ghosts and formulas say of it, and the run that measures it.
#include <optional>
#include <string>
#include <vector>

#include "runtime/os/descriptor.h"
#include "tools/walk/formulas.h"
#include "tools/walk/rows.h"

namespace sherd::walk {

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

/// Fills the row with the predicted bytes of `ranks` ranks, whose text has so many tokens, and returns the units.
/// Throws what predict_peak() throws.
std::vector<UnitSize> predict(RowPlan& plan, int ranks, std::int64_t data_vocabulary);

/// Fills what formulas say; their times if a step computes for `compute_seconds`, unless that is 0.
void fill_formula(RowPlan& plan, const RowFormula& formula, double compute_seconds);

/// Runs the plan as `ranks` processes of `sherd run`, alone on this machine: some steps to settle, then `steps` of
/// which the fastest is what times are of. Fills what is measured, or the row's failure with what the run says; of a
/// row that has been measured before the faster times stay.
void measure(RowPlan& plan, int ranks, int steps);

}  // namespace sherd::walk
