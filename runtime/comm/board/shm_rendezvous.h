#pragma once
// How the processes of a shm_group meet. Rank 0 makes a sealed memfd and a listening socket with a random abstract
// name, and publishes name, token and its host's name in the store. Every rank makes a pair of sockets, keeps the near
// end to itself and hands the far end to rank 0, which collects all far ends and sends them to everyone along with the
// memfd:
//
//   rank r -> rank 0:   Hello{rank, size, process, token}   + far end of r
//   rank 0 -> rank r:   Welcome{size, window, heap}         + memfd, at once: both see each other's signs of life on it
//                       Complete                            + far ends of all ranks, when the last has come
//                       or "refused: " and the reason, which all that have come are told
//
// The near end of r exists in process r only, so its far ends hang up when r ends, for whatever reason. The listening
// socket is closed before the group is used; then no name exists any more.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/board/heartbeat.h"
#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/store/unix_socket.h"
#include "runtime/os/descriptor.h"

namespace sherd::comm {

struct Segment {
  Descriptor memory;
  std::size_t window_bytes = 0;
  std::size_t heap_bytes = 0;     // of each rank; heaps follow the board at a huge page
  std::vector<Descriptor> lives;  // far ends, by rank
  Descriptor near_end;
  std::shared_ptr<std::byte> board;      // the segment as this process maps it
  std::unique_ptr<Heartbeat> heartbeat;  // of this rank, on that board
};

/// Board and heaps in the segment.
struct SegmentLayout {
  SegmentLayout(int size, const Segment& segment);
  std::size_t board_bytes;
  std::size_t bytes;
};

struct Meeting {
  Store& store;
  int rank;
  int size;
  const ShmGroupOptions& options;
  SocketTime start = SocketTime::clock::now();
  /// For ranks that have given signs of life, and for those that have not.
  SocketTime until = start + options.rendezvous_deadline;
  std::chrono::nanoseconds silence = std::min<std::chrono::nanoseconds>(options.silence, options.rendezvous_deadline);
  SocketTime until_without_sign = start + silence;
  std::string key() const { return "shm_group/" + options.name; }
  /// The next moment, at most `limit`, to ask whether to go on waiting.
  SocketTime next_look(SocketTime limit) const;
  /// Throws CommError with the reason of ShmGroupOptions::gives_up.
  void check_given_up() const;
};

/// Blocks until all ranks have come, or until one is known not to fit, has died, has given no sign of life for too
/// long, or the deadline has passed: CommError on every rank that has come, with one reason.
Segment meet(const Meeting& meeting);

}  // namespace sherd::comm
