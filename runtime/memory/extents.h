#pragma once
// Divides a range of bytes. A request gets the lowest free place that holds it, and free neighbours merge, so what is
// live stays dense at the bottom: the highest place ever taken stays near the most that was live at once.
// (Address-ordered first fit; Wilson et al., Dynamic Storage Allocation, 1995, section 3.)
#include <cstdint>
#include <vector>

namespace sherd {

class Extents {
 public:
  static constexpr std::int64_t kNone = -1;
  explicit Extents(std::int64_t bytes) : free_{{0, bytes}} {}

  /// Offset of `bytes` > 0 that are now taken, or kNone. The same calls give the same offsets on every run.
  std::int64_t take(std::int64_t bytes);
  /// Gives back what take(bytes) gave.
  void give(std::int64_t offset, std::int64_t bytes);

 private:
  struct Extent {
    std::int64_t offset, bytes;
  };
  std::vector<Extent> free_;  // by offset; no two touch
};

}  // namespace sherd
