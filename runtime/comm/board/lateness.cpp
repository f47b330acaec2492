// Bucket 0 is 0 ns; bucket 1 + 4 e + q holds times from (1 + q/4) 2^e up to the next one's.
#include "runtime/comm/board/lateness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "runtime/tensor/indices.h"

namespace sherd {

std::size_t Lateness::bucket_of(std::int64_t nanoseconds) {
  if (nanoseconds <= 0) return 0;
  const auto n = static_cast<std::uint64_t>(nanoseconds);
  const auto octave = static_cast<std::size_t>(std::bit_width(n)) - 1;
  const std::uint64_t quarter = octave >= 2 ? (n >> (octave - 2)) & 3u : (n << (2 - octave)) & 3u;
  return std::min(1 + 4 * octave + static_cast<std::size_t>(quarter), kBuckets - 1);
}

// The middle of a bucket.
double Lateness::seconds_of(std::size_t bucket) {
  if (bucket == 0) return 0;
  const std::size_t octave = (bucket - 1) / 4, quarter = (bucket - 1) % 4;
  return std::ldexp(1 + (static_cast<double>(quarter) + 0.5) / 4, static_cast<int>(octave)) * 1e-9;
}

std::int64_t Lateness::calls() const { return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}); }

double Lateness::median_seconds() const {
  const std::int64_t half = (calls() + 1) / 2;
  std::int64_t before = 0;
  for (const std::size_t bucket : up_to(kBuckets)) {
    before += counts_[bucket];
    if (before >= half && before > 0) return seconds_of(bucket);
  }
  return 0;
}

Lateness& Lateness::operator+=(const Lateness& other) {
  for (const std::size_t b : up_to(kBuckets)) counts_[b] += other.counts_[b];
  return *this;
}

Lateness& Lateness::operator-=(const Lateness& other) {
  for (const std::size_t b : up_to(kBuckets)) counts_[b] -= other.counts_[b];
  return *this;
}

}  // namespace sherd
