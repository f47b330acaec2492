#pragma once
// Groups whose collectives move host memory: what they can beside ProcessGroup. Calls here run to their end on the
// calling thread: agreements between ranks, and what the work of a queue does. A call takes a *list* of tensors and is
// one launch. Ranks are added as a tree (sum_order.h).
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Counts since the group was made; one grouped launch is one call. `bytes` are those of the full buffers. `copied` are
/// those that this rank has written to move them, into its own tensors and into memory that its peers read: a gather of
/// shards that lie in shared heaps writes each element once, at its place and in its type.
struct CommCounts {
  struct Item {
    std::int64_t calls = 0, bytes = 0, copied = 0;
  };
  Item all_gather, reduce_scatter, all_reduce, broadcast, barrier, all_to_all, send, recv;
  double seconds = 0;  ///< that the callers' threads have spent inside calls

  const Item& of(comm::CommOp op) const;
  Item& of(comm::CommOp op);
  CommCounts& operator+=(const CommCounts& other);
  CommCounts& operator-=(const CommCounts& other);
};

/// Memory of one rank that its peers can read: 2 MiB aligned, zero, and without pages until they are touched.
struct SharedHeap {
  std::shared_ptr<std::byte> memory;
  std::size_t bytes = 0;
};

/// A link to measure with: every rank receives over one full-duplex link, and collectives on it come one after the
/// other whatever their lane. One takes steps x seconds + bytes x (n-1)/n / bytes_per_second, where all_gather,
/// reduce_scatter, broadcast and all_to_all have n-1 steps; all_reduce is a reduce_scatter and an all_gather. recv
/// takes seconds + bytes / bytes_per_second.
struct LinkShape {
  double bytes_per_second = 0;
  double seconds = 0;  ///< latency of one step
};

/// Buffers are host memory. A group has independent lanes, so that several threads of a rank can communicate at once:
/// calls of one lane follow each other, calls of different lanes do not wait for each other. A failure is of all
/// together. A call returns when this rank's buffers may be used, and throws what failed.
class HostGroup : public ProcessGroup {
 public:
  static constexpr int kNumLanes = 6;

  HostGroup& host() final { return *this; }
  /// The communicator of a queue: an ordered lane of its own that calls on that queue's threads go through, made at
  /// first use, which must come in one order on all ranks where the queue is none of lanes.h. Error if there are
  /// too many.
  virtual HostGroup& lane(std::string_view queue) = 0;
  /// An ordered lane of its own: calls, sequence numbers, deadline, counts. Lane 0 is the group itself. One thread
  /// at a time may use a lane. Lives as long as the group. Error unless 0 <= index < kNumLanes.
  virtual HostGroup& lane(int index) = 0;

  /// Runs a collective to its end. The addresses of its buffers count, not their sizes. all_to_all: a rank receives
  /// what its peer sends, or the call fails. A send ends when the peer has received everything, so two ranks that first
  /// send to each other wait for each other; the deadline names both calls. Lists of a pair must agree in types and
  /// counts.
  virtual void run(const Collective& call) = 0;

  /// Comes to a collective that something else moves: ends when all ranks have come (of a pair: both), and compares what
  /// they call as run() does. Addresses do not count. counts() counts it. By default a barrier, which compares nothing.
  virtual void meet(const Collective& call);
  /// Why calls of the group fail, or are going to: its poison, a rank that has died or is frozen. Empty if nothing is
  /// known. From any thread.
  virtual std::string failure() { return {}; }

  using Parts = std::vector<CollectivePart>;
  void all_gather(Parts parts) { run({.op = comm::CommOp::all_gather, .parts = std::move(parts)}); }
  void reduce_scatter(Parts parts, ReduceOptions reduction) {
    run({.op = comm::CommOp::reduce_scatter, .parts = std::move(parts), .reduction = reduction});
  }
  void all_reduce(Parts parts, ReduceOptions reduction) {
    run({.op = comm::CommOp::all_reduce, .parts = std::move(parts), .reduction = reduction});
  }
  void broadcast(Parts parts, int root) {
    run({.op = comm::CommOp::broadcast, .parts = std::move(parts), .peer = root});
  }
  void all_to_all(Parts parts) { run({.op = comm::CommOp::all_to_all, .parts = std::move(parts)}); }
  void send(Parts parts, int to) { run({.op = comm::CommOp::send, .parts = std::move(parts), .peer = to}); }
  void recv(Parts parts, int from) { run({.op = comm::CommOp::recv, .parts = std::move(parts), .peer = from}); }
  void barrier() { run({.op = comm::CommOp::barrier}); }

  /// Counts of this lane; the group's are the sum over all lanes. From any thread.
  virtual CommCounts counts() const = 0;
  /// Makes every collective of the group take at least as long as on that link; the caller sleeps for what is left,
  /// after the data has moved. Before the first call, alike on all ranks. Error unless bytes_per_second > 0 and seconds
  /// >= 0.
  virtual void shape_link(const LinkShape& shape) = 0;
  /// Large tensors that lie here on all ranks are gathered and reduced without staging: peers read them in place. Empty
  /// where peers read any memory. The same memory at each call, which the caller divides; it outlives the group.
  virtual SharedHeap shared_heap() const = 0;

 protected:
  using ProcessGroup::ProcessGroup;
};

namespace comm {
/// Throws Error unless `group` can issue this there.
void check_issue(const ProcessGroup& group, const Collective& call, const CollectiveSite& site);
/// What a call moves, for who prices it; nothing of a call of two ranks, or in a group of one. It borrows the
/// group's name and grid.
std::optional<WireUse> wire_of(const ProcessGroup& group, CommOp op);
/// What is submitted for it, without what it does.
QueueWork work_of(HostGroup& lane, const Collective& call, const CollectiveSite& site);
/// ProcessGroup::issue() of a group that moves host memory alone: checks the buffers and queues run().
void issue_on_host(HostGroup& group, Collective call, const CollectiveSite& site);
}  // namespace comm

}  // namespace sherd
