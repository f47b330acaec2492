#pragma once
// A link to measure with: says when a collective would be through if every rank received over one full-duplex link.
// Only arithmetic; the group sleeps.
#include <chrono>
#include <cstdint>
#include <mutex>

#include "runtime/comm/group/fingerprint.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/price.h"

namespace sherd::comm {

/// What a shaped link takes, as prices say it.
LinkPrice price_of(const LinkShape& shape);

/// One rank's link. Collectives of all lanes share it, one after the other.
class Link {
 public:
  using Clock = std::chrono::steady_clock;

  /// Throws Error unless bytes_per_second > 0 and seconds >= 0.
  Link(const LinkShape& shape, int num_ranks);

  const LinkShape& shape() const { return shape_; }
  /// Seconds that one collective of `num_bytes` (the full tensors) takes.
  double seconds(CommOp op, std::int64_t num_bytes) const;
  /// Takes the link for a collective in which all ranks have met at `met_at`, and returns when it is through: it
  /// begins when both the ranks and the link are there. From any thread.
  Clock::time_point pass(Clock::time_point met_at, CommOp op, std::int64_t num_bytes);

 private:
  LinkShape shape_;
  int num_ranks_;
  std::mutex mutex_;
  Clock::time_point free_at_{};
};

}  // namespace sherd::comm
