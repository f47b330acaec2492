#pragma once
// Rows queue collectives between the ranks of one group by this, on buffers of any device, and agreements between ranks
// find the group of the host. Each kind of group implements it; what programs ask of a group is in process_group.h.
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/comm/group/collective.h"

namespace sherd {

class HostGroup;

/// What a group says of itself on one rank.
struct GroupFacts {
  int rank = 0, size = 1;
  std::string_view kind;  ///< a literal
  std::string name;
  Abilities abilities;
  std::shared_ptr<const RankGrid> grid{};  ///< of a ghost's group whose ranks are one: in the numbering of the job
};

/// Moves tensors between the ranks of a group.
class GroupTransport {
 public:
  const Abilities& abilities() const { return facts_.abilities; }
  /// The ranks of a ghost's group in the numbering of the job, if they are a grid there; else null.
  const RankGrid* grid() const { return facts_.grid.get(); }
  /// Queues a collective and returns: who touches the lent bytes waits for it, and who wants to block waits for
  /// `site.queue.record()`. On the rank's thread, which issues the collectives of all queues in one order on all ranks;
  /// those of one queue run in that order, those of different queues do not wait for each other. Error if a buffer is
  /// too small, on a device that the group does not support, or on another device than the queue's.
  virtual void issue(Collective call, const CollectiveSite& site) = 0;
  /// The group of the same ranks that moves host memory: agreements between ranks go through it. Perhaps this one.
  virtual HostGroup& host() = 0;

 protected:
  explicit GroupTransport(GroupFacts facts) : facts_(std::move(facts)) {}
  ~GroupTransport() = default;
  const GroupFacts& facts() const { return facts_; }

 private:
  const GroupFacts facts_;
};

}  // namespace sherd
