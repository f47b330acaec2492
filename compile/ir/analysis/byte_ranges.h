#pragma once
// Which bytes of a storage have been written: disjoint ranges in ascending order.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace sherd::ir {

class ByteRanges {
 public:
  using Range = std::pair<std::int64_t, std::int64_t>;  ///< [first, last)

  void add(Range range) {
    if (range.first >= range.second) return;
    std::erase_if(ranges_, [&](const Range& other) {
      if (other.second < range.first || range.second < other.first) return false;
      range = {std::min(range.first, other.first), std::max(range.second, other.second)};
      return true;
    });
    ranges_.insert(std::upper_bound(ranges_.begin(), ranges_.end(), range), range);
  }
  bool cover(Range range) const {
    return range.first >= range.second || std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& other) {
             return other.first <= range.first && range.second <= other.second;
           });
  }

 private:
  std::vector<Range> ranges_;
};

}  // namespace sherd::ir
