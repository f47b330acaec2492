#pragma once
// The collectives of one host, written once for ranks that are threads and ranks that are processes.
#include <memory>
#include <mutex>
#include <string_view>

#include "runtime/comm/board/board.h"
#include "runtime/comm/board/lateness.h"
#include "runtime/comm/board/shares.h"
#include "runtime/comm/group/host_group.h"

namespace sherd::comm {

class BoardGroup;
class Mail;
class SplitCall;

/// The calls of one lane of a group. Reductions add as a tree over ranks whatever the sizes, so their bits are the
/// same for threads and processes, and for all_reduce and reduce_scatter. A call that is wrong on one rank only raises
/// Error there and CommError on the peers. What is of the whole group goes to the group, which is its own lane 0.
class BoardLane : public HostGroup {
 public:
  BoardLane(BoardGroup& group, GroupFacts facts, const std::shared_ptr<std::byte>& memory, const BoardOptions& options);

  bool supports(Device device) const override { return device == Device::cpu(); }
  void issue(Collective call, const CollectiveSite& site) override;
  HostGroup& lane(std::string_view queue) override;
  HostGroup& lane(int index) override;

  void run(const Collective& call) override;
  void meet(const Collective& call) override;
  std::string failure() override;

  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, std::string_view label) override;
  void abort(std::string_view reason) override;
  void reset() override;
  void set_deadline(std::chrono::nanoseconds deadline) override { board_.watch().set_deadline(deadline); }
  CommCounts counts() const override {
    const std::lock_guard lock(counts_mutex_);
    return counts_;
  }
  /// Seconds, of those in counts() of this lane alone, that this rank waited because another had not come to the call.
  double skew_seconds() const {
    const std::lock_guard lock(counts_mutex_);
    return skew_seconds_;
  }
  /// How late this rank comes, in calls of all ranks only; of the group: over all lanes.
  virtual Lateness lateness() const {
    const std::lock_guard lock(counts_mutex_);
    return lateness_;
  }
  void shape_link(const LinkShape& shape) override;
  SharedHeap shared_heap() const override;

 private:
  friend class BoardGroup;
  friend class SplitCall;
  /// A call that ranks are about to come to: what they compare, and how its tensors are cut.
  struct Opened {
    Fingerprint call;
    Shares shares;
    std::int64_t num_bytes = 0;
  };

  template <class Body>
  void checked(CommOp op, Body&& body);
  template <class Body>
  void enter(CommOp op, const Fingerprint& call, std::int64_t num_bytes, Body&& body, Mail* mail = nullptr);
  Opened open(const Collective& call);
  void open_gather(const CollectivePart& part, Opened& opened) const;
  void open_scatter(const CollectivePart& part, const ReduceOptions& options, Opened& opened) const;
  void count(CommOp op, std::int64_t num_bytes, BoardClock::time_point start);
  void run_gather(const Collective& call);
  void run_scatter(const Collective& call);
  void run_reduce(const Collective& call);
  void run_broadcast(const Collective& call);
  void run_swap(const Collective& call);
  void run_pair(const Collective& call, bool moves = true);
  void run_barrier();

  BoardGroup& group_;
  Board board_;
  mutable std::mutex counts_mutex_;
  CommCounts counts_;
  double skew_seconds_ = 0;
  Lateness lateness_;
};

}  // namespace sherd::comm
