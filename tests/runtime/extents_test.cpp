// Dividing a range. Oracle: one flag per byte, searched from the bottom.
#include "runtime/memory/extents.h"

#include <gtest/gtest.h>

#include <random>

namespace sherd {
namespace {

/// The same by brute force.
class Flags {
 public:
  explicit Flags(std::size_t bytes) : taken_(bytes, false) {}
  std::int64_t take(std::int64_t bytes) {
    std::int64_t run = 0;
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      run = taken_[i] ? 0 : run + 1;
      if (run < bytes) continue;
      const std::int64_t first = static_cast<std::int64_t>(i) + 1 - bytes;
      set(first, bytes, true);
      return first;
    }
    return Extents::kNone;
  }
  void set(std::int64_t offset, std::int64_t bytes, bool taken) {
    for (std::int64_t i = offset; i < offset + bytes; ++i) taken_[static_cast<std::size_t>(i)] = taken;
  }

 private:
  std::vector<bool> taken_;
};

TEST(Extents, TheLowestPlaceThatFitsWhateverCameBefore) {
  constexpr std::int64_t kBytes = 500;
  Extents extents(kBytes);
  Flags flags(kBytes);
  std::vector<std::pair<std::int64_t, std::int64_t>> live;
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    if (live.empty() || random() % 5 < 3) {
      const std::int64_t bytes = 1 + random() % 60, offset = extents.take(bytes);
      ASSERT_EQ(offset, flags.take(bytes)) << "call " << i << ", " << bytes << " bytes";
      if (offset != Extents::kNone) live.emplace_back(offset, bytes);
      else ++refused;
    } else {
      std::swap(live[random() % live.size()], live.back());
      const auto [offset, bytes] = live.back();
      live.pop_back();
      extents.give(offset, bytes);
      flags.set(offset, bytes, false);
    }
  }
  EXPECT_GT(refused, 0) << "the range was never full";
  for (const auto& [offset, bytes] : live) extents.give(offset, bytes);
  EXPECT_EQ(extents.take(kBytes), 0) << "everything merged again";
  EXPECT_EQ(extents.take(1), Extents::kNone);
}

}  // namespace
}  // namespace sherd
