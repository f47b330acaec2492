#pragma once
// Ranks as processes of one host. They share one anonymous memory segment, so nothing has a name that could be left
// behind: the kernel frees everything when the last process ends, however it ends.
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/comm/group/process_group.h"
#include "runtime/comm/group/wait_notice.h"
#include "runtime/comm/store/store.h"

namespace sherd {

struct ShmGroupOptions {
  /// Key in the store; groups that use the same store need different ones.
  std::string name = "world";
  /// Limit on the time until all ranks have come. A rank that has given no sign of life yet is waited for `silence`.
  std::chrono::milliseconds rendezvous_deadline = std::chrono::seconds(300);
  /// A rank that is waited for and gives no sign of life is given up after so long, or after the deadline if that is
  /// shorter. A thread of each rank gives a sign twice a second, and 8 times within this if that is more often.
  std::chrono::nanoseconds silence = std::chrono::seconds(60);
  /// Ranks that wait for each other are told so when they are found to in two looks, this apart; 0: none looks.
  std::chrono::nanoseconds look = std::chrono::seconds(2);
  /// Staging memory: each rank has two windows of this size per lane. Rank 0's value holds for all.
  std::size_t window_bytes = std::size_t{1} << 20;
  /// Address space of each rank's shared heap; pages come when they are touched. Unset: the memory of the host, or what
  /// the address space has room for (default_heap_bytes); 0: none. Rank 0's value holds for all.
  std::optional<std::size_t> heap_bytes{};
  /// Waits that take long say so, also those of collectives later.
  WaitNotice notice{};
  /// Asked ten times a second while ranks gather, on the calling thread: why not to wait for them any longer; empty: no
  /// reason. The reason is the CommError of all that have come.
  std::function<std::string()> gives_up{};
};

/// Collective over the processes 0..size-1, which must run as the same user in the same network namespace. Blocks until
/// all have come. A rank that dies later is noticed by its socket within a second, one whose process is stopped by its
/// silence: as a thread gives the signs of life, a rank that computes for long is not silent. A rank that forks without
/// exec must not outlive its group in the child: the child would keep the socket open. Throws Error for a rank or size
/// out of range (at most 252 ranks), CommError naming what is missing, or who does not fit, when the ranks do not come
/// together: the same on all that have come.
std::shared_ptr<ProcessGroup> make_shm_group(Store& store, int rank, int size, const ShmGroupOptions& options = {});

}  // namespace sherd
