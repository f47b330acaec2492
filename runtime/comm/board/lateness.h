#pragma once
// How long after the first rank this one comes to collectives: who is late everywhere keeps the others waiting.
#include <array>
#include <cstddef>
#include <cstdint>

namespace sherd {

/// A distribution of times in buckets, each a quarter longer than the one before: adding one costs nothing, and a
/// median is right to an eighth.
class Lateness {
 public:
  void add(std::int64_t nanoseconds) { ++counts_[bucket_of(nanoseconds)]; }
  std::int64_t calls() const;
  /// The median of all calls; 0 if there are none, or if this rank is first at most of them.
  double median_seconds() const;
  Lateness& operator+=(const Lateness& other);
  Lateness& operator-=(const Lateness& other);

 private:
  static constexpr std::size_t kBuckets = 160;  // four for each power of two: up to 18 minutes, and what is more
  static std::size_t bucket_of(std::int64_t nanoseconds);
  static double seconds_of(std::size_t bucket);
  std::array<std::int64_t, kBuckets> counts_{};
};

}  // namespace sherd
