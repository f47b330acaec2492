#pragma once
// In which order a rank calls collectives, over all queues and groups. NCCL wants one order over all communicators of a
// device on all ranks, says nothing of another, and hangs.
//
//   world    gather a . . . . . . . . gather c       c: call 3, as reduce b comes before it
//            . . . . . reduce b                      on a rank that calls reduce b last it is call 2
//   tp       . . . . . . . . . sum d                 d: call 1, behind 2 of the world, which has all ranks of tp
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::cuda::nccl {

/// On the rank's thread.
class CallOrder {
 public:
  /// The next group, by the ranks that are in it; their numbers are those of the first group. Ranks may have different
  /// groups in between.
  void add(std::vector<int> ranks);
  /// The rank calls the next collective of that group. Returns its place, in words that are the same on all ranks of
  /// the group if they have called the same before: of this group, and of the groups that its ranks are all in.
  std::string next(std::size_t group);
  /// No calls were made.
  void restart();

 private:
  struct Group {
    std::vector<int> ranks;          // sorted
    std::vector<std::size_t> outer;  // other groups that have all of these ranks, which therefore all know them
    std::uint64_t calls = 0;
  };
  std::vector<Group> groups_;
};

}  // namespace sherd::cuda::nccl
