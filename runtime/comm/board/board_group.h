#pragma once
// The collectives of one host, written once for ranks that are threads and ranks that are processes.
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/comm/board/board.h"
#include "runtime/comm/board/lateness.h"
#include "runtime/comm/board/shares.h"
#include "runtime/comm/group/division.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/link.h"

namespace sherd::comm {

/// A call that ranks are about to come to: what they compare, and how its tensors are cut.
struct OpenedCall {
  Fingerprint call;
  Shares shares;
  std::int64_t num_bytes = 0;
};

class Mail;
class SplitCall;

/// A group, or one of its further lanes. Reductions run in rank order 0 .. n-1 whatever the sizes, so their bits are
/// the same for threads and processes, and for all_reduce and reduce_scatter. A call that is wrong on one rank only
/// raises Error there and CommError on the peers.
class BoardGroup final : public HostGroup {
 public:
  /// A group with all its lanes. `kind` is a literal; options.lane is 0. Made by make_shared.
  BoardGroup(std::string_view kind, const std::shared_ptr<std::byte>& memory, const BoardOptions& options,
             std::string name = "world");

  bool supports(Device device) const override { return device == Device::cpu(); }
  void issue(Collective call, const CollectiveSite& site) override;
  HostGroup& lane(std::string_view queue) override { return lane(group_.lane_numbers_.of(queue)); }
  HostGroup& lane(int index) override;

  void all_gather(std::span<const GatherPart> parts) override;
  void reduce_scatter(std::span<const ScatterPart> parts, ReduceOptions options) override;
  void all_reduce(std::span<const FlatPart> parts, ReduceOptions options) override;
  void broadcast(std::span<const FlatPart> parts, int root) override;
  void all_to_all(std::span<const SwapPart> parts) override;
  void barrier() override;
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, std::string_view label) override;
  /// If this is a root: the subgroups divided from it, directly or through others, that are alive.
  std::vector<std::shared_ptr<BoardGroup>> living_subgroups() const;
  void send(std::span<const FlatPart> parts, int to) override;
  void recv(std::span<const FlatPart> parts, int from) override;

  void abort(std::string_view reason) override;
  void reset() override;
  void set_deadline(std::chrono::nanoseconds deadline) override;
  CommCounts counts() const override;
  /// Of counts().seconds of this lane alone: how long this rank waited because another had not come to the call.
  double skew_seconds() const;
  /// Of this rank, over all lanes, calls of all ranks only.
  Lateness lateness() const;
  void shape_link(const LinkShape& shape) override;
  SharedHeap shared_heap() const override;

 private:
  friend class SplitCall;
  BoardGroup(BoardGroup& group, const std::shared_ptr<std::byte>& memory, const BoardOptions& options);

  BoardGroup& root() { return group_.root_ ? *group_.root_ : group_; }

  template <class Body>
  void checked(CommOp op, Body&& body);
  template <class Body>
  void run(CommOp op, const Fingerprint& call, std::int64_t num_bytes, Body&& body, Mail* mail = nullptr);
  OpenedCall open(std::span<const GatherPart> parts);
  OpenedCall open(std::span<const ScatterPart> parts, const ReduceOptions& options);
  void count(CommOp op, std::int64_t num_bytes, BoardClock::time_point start);
  void run_pair(CommOp op, std::span<const FlatPart> parts, int peer);
  void check_counts(std::span<const std::int64_t> counts, std::int64_t blocks = 1) const;

  Division division_;  // of lane 0
  BoardGroup& group_;  // lane 0, maybe this
  Board board_;
  std::vector<std::unique_ptr<BoardGroup>> lanes_;     // of lane 0: 1, 2, ...
  LaneNumbers lane_numbers_;                           // of lane 0
  std::unique_ptr<Link> link_;                         // of lane 0
  std::shared_ptr<BoardGroup> root_;                   // of a subgroup
  mutable std::mutex subgroups_mutex_;
  std::vector<std::weak_ptr<BoardGroup>> subgroups_;  // of the root: all divided from it, directly or not
  mutable std::mutex counts_mutex_;
  CommCounts counts_;
  double skew_seconds_ = 0;
  Lateness lateness_;
};

}  // namespace sherd::comm
