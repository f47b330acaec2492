#include "tools/launch/stopped_time.h"

#include <algorithm>

#include "tools/launch/process_tree.h"

namespace sherd {

using std::chrono::milliseconds;

StoppedTime::StoppedTime(milliseconds longest)
    : interval_(std::clamp(longest / 12, milliseconds(10), milliseconds(5000))) {}

milliseconds StoppedTime::of(const std::vector<pid_t>& groups, Clock::time_point now) {
  if (groups != groups_) time_ = Clock::duration(0), were_stopped_ = false;
  else if (now < looked_at_ + interval_ / 2) return std::chrono::duration_cast<milliseconds>(time_);
  groups_ = groups;
  const std::vector<ProcessEntry> below = descendants();
  const bool are_stopped = std::ranges::all_of(groups, [&](pid_t group) { return is_stopped(group, below); });
  if (!are_stopped) time_ = Clock::duration(0);
  else if (were_stopped_) time_ += std::min<Clock::duration>(now - looked_at_, 2 * interval_);
  were_stopped_ = are_stopped;
  looked_at_ = now;
  return std::chrono::duration_cast<milliseconds>(time_);
}

}  // namespace sherd
