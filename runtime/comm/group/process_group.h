#pragma once
// The ranks of one group, as programs hold them. Functions on tensors (all_reduce() and the like) communicate.
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/comm/group/group_transport.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// What ranks do together. All ranks issue the same collectives in the same order, with equal dtypes, counts, kinds and
/// roots. Ranks that disagree all raise CommError naming both calls; a rank that dies or calls abort() makes the others
/// raise within 5 s; a rank that does not come raises after the deadline. After an error the group is poisoned: every
/// call raises the same reason until all ranks call reset().
class ProcessGroup : public GroupTransport, public std::enable_shared_from_this<ProcessGroup>, NoCopy {
 public:
  virtual ~ProcessGroup() = default;

  int rank() const { return facts().rank; }
  int size() const { return facts().size; }
  /// "shm", "thread": for messages.
  std::string_view kind() const { return facts().kind; }
  /// "world", or the label of a subgroup and its place among the divisions: "tp#2" is the second division of the world,
  /// "ep#2.1" the first one of that. Ranks that divide alike use equal names; on one rank no two groups divided from
  /// one world share a name.
  const std::string& name() const { return facts().name; }

  /// Whether collectives of buffers there can be issued.
  virtual bool supports(Device device) const = 0;
  /// The group of some of these ranks, which are numbered in the order of `ranks`. Collective over this group: every
  /// rank calls it and names the group it will be in; lists of two ranks are equal or share no rank. A group of its
  /// own: calls, sequence numbers, deadline; poisoned with this one, and reset() of either, by all ranks of the first
  /// group, is of both. `label` is for its name(). Error, on every rank, if a list is none of these.
  virtual std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, std::string_view label = "group") = 0;

  /// Poisons the group: peers waiting in a collective raise CommError quoting `reason` at once. From any thread.
  virtual void abort(std::string_view reason) = 0;
  /// Collective. Clears the poison once every rank has called it. Waits for this rank's threads that are still leaving
  /// a call; they must not start a new one. Error on a lane.
  virtual void reset() = 0;
  /// Limit on the wait inside one call; 300 s at first.
  virtual void set_deadline(std::chrono::nanoseconds deadline) = 0;

 protected:
  using GroupTransport::GroupTransport;
};

/// A group of one rank: no collective moves anything. What a program without a launcher runs on.
std::shared_ptr<ProcessGroup> make_single_group();

}  // namespace sherd
