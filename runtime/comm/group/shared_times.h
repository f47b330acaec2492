#pragma once
// How ranks learn who came last to collectives on their devices. A collective ends at one moment on all ranks, so of
// the rank that came last it took the shortest: nobody needs a clock that other ranks have.
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "runtime/comm/group/host_group.h"
#include "runtime/exec/shared_work.h"

namespace sherd::comm {

using SharedWorks = std::vector<std::shared_ptr<SharedWork>>;

/// The last collectives of all ranks of one group on one queue, numbered alike on all. On the rank's thread.
class SharedTimes {
 public:
  /// One is about to be issued.
  std::shared_ptr<SharedWork> next();
  /// What ranks are to compare with that one: every few collectives the last ones, which a host that runs ahead of its
  /// device does not know yet, or knows from before. Else empty.
  SharedWorks due() const;

 private:
  std::uint64_t number_ = 0;
  std::deque<std::shared_ptr<SharedWork>> last_;
};

/// Tells works that are over on all ranks how long they stood still. Collective on `lane`, which does not count it;
/// `works` are the same collectives on all ranks.
void compare_times(HostGroup& lane, std::span<const std::shared_ptr<SharedWork>> works);

}  // namespace sherd::comm
