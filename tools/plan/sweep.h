#pragma once
// The winner for each of several values of a setting.
#include <string>
#include <vector>

#include "tools/plan/planner.h"

namespace sherd::plan {

/// "batch=16:256": values of a key from the first to the second, each twice the one before; "" for none. Error naming
/// the text and what is wrong with it.
class Sweep {
 public:
  template <nn::Text T>
  Sweep(const T& text) : Sweep(parse(text)) {}  // NOLINT: flags.sweep = "batch=16:256"
  const std::string& text() const { return text_; }
  bool is_set() const { return !text_.empty(); }
  const std::string& key() const { return key_; }
  double from() const { return from_; }
  double to() const { return to_; }

 private:
  Sweep() = default;
  static Sweep parse(std::string_view text);
  std::string text_, key_;
  double from_ = 0, to_ = 0;
};

/// A line for each value: a key of the config that is a number, or `link`, bytes per second between hosts (within them,
/// if there is one). ExitError of usage naming --sweep and what is wrong with it.
std::string sweep_text(const Sweep& sweep, const std::vector<RowPlan>& rows, const PlannedFor& planned);

}  // namespace sherd::plan
