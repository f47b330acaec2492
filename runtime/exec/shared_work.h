#pragma once
// The times of one collective on the device of a rank, and what other ranks' times say of them.
#include <atomic>
#include <cstdint>

#include "runtime/exec/queue.h"

namespace sherd {

/// One rank's record, which its thread writes and the threads that compare ranks read. Times are as Trace::now().
class SharedWork {
 public:
  /// The work is over.
  void ran(std::int64_t started, std::int64_t ended) {
    started_ = started;
    ended_ = ended;
  }
  std::int64_t started() const { return started_; }
  /// 0: it is not known to be over.
  std::int64_t ended() const { return ended_; }

  /// Until when it stood still because another rank had not come; once. Empty of the rank that came last.
  void set_skew(Skew skew) {
    from_ = skew.from;
    until_ = skew.until;
    is_known_ = true;
  }
  bool is_skew_known() const { return is_known_; }
  Skew skew() const { return {from_, until_}; }

 private:
  std::atomic<std::int64_t> started_{0}, ended_{0}, from_{0}, until_{0};
  std::atomic<bool> is_known_{false};
};

}  // namespace sherd
