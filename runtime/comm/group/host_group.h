#pragma once
// Groups whose collectives move host memory: what they can beside ProcessGroup. Calls here run to their end on the
// calling thread: agreements between ranks, and what the work of a queue does. A call takes a *list* of tensors and is
// one launch. Accumulation runs in rank order, hence is repeatable.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// One tensor of a grouped launch: `counts[r]` elements belong to rank r and lie in rank order from `data`.
/// Counts may be uneven or zero. all_gather: the own part is already in place, the others are filled in; or, with
/// `source`, the own part is there as counts[rank] elements of source_dtype, and the call puts all parts in place and
/// casts them in the same pass. Of several `blocks` (collective.h) there is always a source.
struct GatherPart {
  void* data;
  DType dtype;
  std::span<const std::int64_t> counts;
  const void* source = nullptr;
  DType source_dtype = DType::f32;
  std::int64_t blocks = 1;
};

/// reduce_scatter: `in` holds sum(counts) elements on every rank, `out` receives counts[rank] reduced ones.
/// `out` may lie inside `in` at the own part. With `accumulate` the result is added to what `out` holds. Floats may
/// travel and arrive in other types: every input and the result are rounded to `wire`, sums are kept in f32 (f64 of
/// f64), and `out` is of type `out_dtype`, f64 added to in f64; unset, both are `dtype`. A wider wire than the inputs
/// moves no more bytes.
struct ScatterPart {
  const void* in;
  void* out;
  DType dtype;
  std::span<const std::int64_t> counts;
  bool accumulate = false;
  std::optional<DType> wire{};
  std::optional<DType> out_dtype{};
  std::int64_t blocks = 1;  ///< of `in`, see collective.h; `out` then lies apart
};

/// `count` elements, reduced or overwritten in place. all_reduce, and broadcast on the root: with `source` they are
/// there before the call, which puts them in place.
struct FlatPart {
  void* data;
  DType dtype;
  std::int64_t count;
  const void* source = nullptr;
};

/// all_to_all: `in` holds in_counts[r] elements for each rank r, in rank order; `out` receives out_counts[r] from each,
/// which must be what rank r sends. They must not overlap.
struct SwapPart {
  const void* in;
  void* out;
  DType dtype;
  std::span<const std::int64_t> in_counts;
  std::span<const std::int64_t> out_counts;
};

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

  virtual void all_gather(std::span<const GatherPart> parts) = 0;
  virtual void reduce_scatter(std::span<const ScatterPart> parts, ReduceOptions options) = 0;
  virtual void all_reduce(std::span<const FlatPart> parts, ReduceOptions options) = 0;
  virtual void broadcast(std::span<const FlatPart> parts, int root) = 0;
  virtual void all_to_all(std::span<const SwapPart> parts) = 0;
  virtual void barrier() = 0;

  /// Between two ranks: the others take no part. A send ends when the peer has received everything, so two ranks that
  /// first send to each other wait for each other; the deadline names both calls. Lists must agree in types and counts.
  virtual void send(std::span<const FlatPart> parts, int to) = 0;
  virtual void recv(std::span<const FlatPart> parts, int from) = 0;

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
/// A collective of host memory as parts of a HostGroup, which borrow the counts of `call`.
std::vector<GatherPart> gather_parts(const Collective& call, int rank);
std::vector<ScatterPart> scatter_parts(const Collective& call);
/// Runs a collective on host memory to its end, on the calling thread: what the work of a host queue does.
void run_on_host(HostGroup& lane, const Collective& call);
/// Throws Error unless `group` can issue this there.
void check_issue(const ProcessGroup& group, const Collective& call, const CollectiveSite& site);
/// What is submitted for it, without what it does.
QueueWork work_of(HostGroup& lane, const Collective& call, const CollectiveSite& site);
/// ProcessGroup::issue() of a group that moves host memory alone: checks the buffers and queues run_on_host().
void issue_on_host(HostGroup& group, Collective call, const CollectiveSite& site);
}  // namespace comm

}  // namespace sherd
