#pragma once
// Which batches of the data a run has left out, after they made it diverge.
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/op/attrs/attr_text.h"

namespace sherd::train {

/// "37,112": numbers from 0 with commas between them, or none; nothing for other text.
std::optional<std::vector<std::int64_t>> numbers_from_text(std::string_view text);

/// Steps take the batches 0, 1, 2, ... in their order, without those that are skipped.
class SkippedBatches {
 public:
  SkippedBatches() = default;
  /// From text(); Error for other text, which `source` names.
  SkippedBatches(std::string_view text, const std::string& source);

  /// The batch of a step counted from 0.
  std::int64_t batch_of(std::int64_t step) const;
  /// Leaves out the batch of that step: it takes the next one, and so do those after it.
  void skip_batch_of(std::int64_t step) { batches_.insert(batch_of(step)); }
  std::size_t count() const { return batches_.size(); }
  /// "37,112", for checkpoints; empty if there are none.
  std::string text() const;

 private:
  std::set<std::int64_t> batches_;
};

}  // namespace sherd::train

namespace sherd {

/// "37,112"
template <>
struct AttrValue<train::SkippedBatches> {
  using SkippedBatches = train::SkippedBatches;
  static void print(const SkippedBatches& value, AttrWriter& out) { out.name(value.text()); }
  static void read(SkippedBatches& value, AttrReader& in) { value = SkippedBatches(in.name(), "a rank of the run"); }
  static bool equal(const SkippedBatches& a, const SkippedBatches& b) { return a.text() == b.text(); }
  static std::uint64_t hash(const SkippedBatches& value) { return std::hash<std::string>()(value.text()); }
};

}  // namespace sherd
