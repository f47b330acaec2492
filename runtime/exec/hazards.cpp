// Clocks: item n of queue q has time n there; the rank's thread counts its submits. An access A must know of each
// conflicting access B before it: B's time must not exceed what A's agent has seen of B's agent.
#include "runtime/exec/hazards.h"

#include <algorithm>

#include "runtime/exec/context.h"
#include "runtime/exec/host_queue.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {
std::size_t agent_of(const Queue& queue) { return 1 + static_cast<std::size_t>(queue.index()); }
}  // namespace

HazardChecker::HazardChecker() : outer_(RankContext::current().hazards) {
  RankContext& context = RankContext::current();
  context.drain_queues();  // what came before is not checked
  context.watcher = context.hazards = this;
}

HazardChecker::~HazardChecker() {
  RankContext& context = RankContext::current();
  context.watcher = context.hazards = outer_;
}

bool HazardChecker::looks_before_wait(const Storage& storage, Kind kind) const {
  const QueueEdge edge = kind == Kind::release ? QueueEdge::release : QueueEdge::touch;
  const Event& write = storage.last_write();
  if (write.queue() && is_removed(edge, write.queue()->name(), true)) return true;
  return kind != Kind::read && std::ranges::any_of(storage.last_reads(), [&](const Event& read) {
           return is_removed(edge, read.queue()->name(), false);
         });
}

bool HazardChecker::is_removed(QueueEdge edge, std::string_view queue, std::optional<bool> writes) const {
  return std::any_of(removed_.begin(), removed_.end(), [&](const RemovedEdge& r) {
    return r.edge == edge && r.queue == queue && (!r.writes || r.writes == writes);
  });
}

void HazardChecker::join(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < other.size(); ++i) see(clock, i, other[i]);
}

void HazardChecker::see(Clock& clock, std::size_t agent, std::uint64_t time) {
  if (clock.size() <= agent) clock.resize(agent + 1);
  clock[agent] = std::max(clock[agent], time);
}

HazardChecker::Clock HazardChecker::clock_of(const Queue& queue, std::uint64_t sequence) const {
  if (const auto at = static_cast<std::size_t>(queue.index()); at < items_.size())
    for (const Known& item : items_[at])
      if (item.sequence == sequence) return item.clock;
  return {};  // from before this check, or of no consequence any more
}

HazardChecker::Access HazardChecker::rank_access(bool writes) const {
  const std::string* path = RankContext::current().module_path;
  return {0, rank_[0], writes, path ? "the rank's thread in module " + *path : "the rank's thread"};
}

void HazardChecker::submitted(const Queue& queue, const QueueItem& item, std::span<const Loan> loans) {
  const std::size_t self = agent_of(queue);
  Clock clock{};
  if (!is_removed(QueueEdge::submit, queue.name())) clock = rank_;
  if (!is_removed(QueueEdge::order, queue.name()) && item.sequence > 1) {
    join(clock, clock_of(queue, item.sequence - 1));
    see(clock, self, item.sequence - 1);
  }
  for (const auto& [event, wrote] : item.after) {
    const Queue& other = *event.queue();
    if (is_removed(QueueEdge::depend, other.name())) continue;
    join(clock, clock_of(other, event.sequence()));
    see(clock, agent_of(other), event.sequence());
  }
  if (items_.size() < self) items_.resize(self);
  items_[self - 1].push_back({item.sequence, clock});
  for (const Loan& loan : loans)
    if (const auto hazard = check(*loan.storage, {self, item.sequence, loan.writes, describe(item)}, clock))
      throw Error(*hazard);
  ++rank_[0];
}

void HazardChecker::waited(const Queue& queue, std::uint64_t sequence) {
  join(rank_, clock_of(queue, sequence));
  see(rank_, agent_of(queue), sequence);
  const auto at = static_cast<std::size_t>(queue.index());
  if (at >= items_.size()) return;
  while (!items_[at].empty() && items_[at].front().sequence < sequence) items_[at].pop_front();
}

void HazardChecker::accessed(const Storage& storage, Kind kind) {
  if (const auto hazard = check(storage, rank_access(kind == Kind::write), rank_)) throw Error(*hazard);
}

void HazardChecker::released(const Storage& storage) noexcept { check(storage, rank_access(true), rank_); }

std::optional<std::string> HazardChecker::check(const Storage& storage, Access access, const Clock& clock) {
  ++num_checked_;
  std::optional<std::string> hazard;
  std::vector<Access>& before = accesses_[storage.id()];
  for (const Access& b : before) {
    if ((access.agent == 0 && b.agent == 0) || (!access.writes && !b.writes) ||
        (b.agent < clock.size() && b.time <= clock[b.agent]))
      continue;
    hazard = fmt::format("hazard: nothing orders \"{}\", which {} {}, after \"{}\", which {} it", access.who,
                         access.writes ? "writes or frees" : "reads", describe(storage), b.who,
                         b.writes ? "writes" : "reads");
    found_.push_back(*hazard);
    return hazard;  // as if it had not happened
  }
  const auto same = std::find_if(before.begin(), before.end(),
                                 [&](const Access& b) { return b.agent == access.agent && b.writes == access.writes; });
  if (same == before.end()) before.push_back(std::move(access));
  else *same = std::move(access);
  return hazard;
}

}  // namespace sherd
