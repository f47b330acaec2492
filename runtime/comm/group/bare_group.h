#pragma once
// What a library of collectives has: calls on equally many elements of one dtype. composed_group.h makes of it all that
// units and rows ask for.
#include <chrono>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/comm/group/exchange_sum.h"
#include "runtime/comm/group/group_transport.h"

namespace sherd {
class SharedWork;
}

namespace sherd::comm {

/// One call. bool is bytes of 0 and 1. `count` elements of `dtype`: of each rank's part for all_gather, reduce_scatter,
/// else of the whole.
///   all_gather       in, or the own part of out, to every rank's out [rank][count]
///   reduce_scatter   in [rank][count], whose own part may be out
///   all_reduce       in, which may be out
///   broadcast        the root's in, which may be out
///   reduce           in, which may be the root's out; other ranks have no out
///   send, recv       in, out
struct BareCall {
  enum class Op : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, reduce, send, recv };
  Op op{};
  const void* in = nullptr;
  void* out = nullptr;
  DType dtype{};
  std::int64_t count = 0;
  ReduceKind kind = ReduceKind::sum;  ///< of a reduction; never avg
  int peer = 0;                       ///< root; the other rank
};

/// The ranks of one group over a library. What it moves it moves as work of a queue: on the thread of a host queue, on
/// the stream of a device queue, inside of the item that the composed group has submitted. One communicator per queue.
class BareGroup : public PieceMover {
 public:
  BareGroup(const BareGroup&) = delete;
  BareGroup& operator=(const BareGroup&) = delete;

  /// Its abilities say what is true of the library: `same_counts`, `lists`, `nan_wins`, `ordered_sum`.
  const GroupFacts& facts() const { return facts_; }
  virtual bool supports(Device device) const = 0;
  /// All of `calls` as one launch; none has 0 elements. Every rank gives the same list but for addresses, save what
  /// has a peer of its own: send and recv.
  virtual void run(std::span<const BareCall> calls, Queue& queue) = 0;
  /// All ranks are about to come to this collective of its memory; what they run next is of it. On the rank's thread.
  /// Returns what they tell each other of its times, or null.
  virtual std::shared_ptr<SharedWork> announce(const Collective&, const CollectiveSite&) { return nullptr; }
  /// The group of the same ranks that moves host memory.
  virtual HostGroup& host() = 0;

  /// As those of ProcessGroup.
  virtual std::shared_ptr<BareGroup> subgroup(std::span<const int> ranks, std::string_view label) = 0;
  virtual void abort(std::string_view reason) = 0;
  virtual void reset() = 0;
  virtual void set_deadline(std::chrono::nanoseconds deadline) = 0;

 protected:
  explicit BareGroup(GroupFacts facts) : facts_(std::move(facts)) {}

 private:
  const GroupFacts facts_;
};

}  // namespace sherd::comm
