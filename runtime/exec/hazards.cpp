// Clocks: item n of queue q has time n there; the rank's thread counts its submits. An access A must know of each
// conflicting access B before it: B's time must not exceed what A's agent has seen of B's agent.
#include "runtime/exec/hazards.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/exec/context.h"
#include "runtime/exec/host_queue.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
std::size_t agent_of(const Queue& queue) { return 1 + static_cast<std::size_t>(queue.index()); }

std::string_view verb_of(bool writes) { return writes ? "writes or frees" : "reads"; }

// From where to where; nothing while it has no memory, or that of somebody else, which others may have mapped too.
std::pair<std::uintptr_t, std::uintptr_t> memory_of(const Storage& storage) {
  const auto first = reinterpret_cast<std::uintptr_t>(storage.address());
  if (first == 0 || storage.is_borrowed()) return {};
  return {first, first + static_cast<std::uintptr_t>(storage.bytes())};
}
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
  for (const std::size_t i : indices(other)) see(clock, i, other[i]);
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
  Clock without_submit{};
  if (!is_removed(QueueEdge::order, queue.name()) && item.sequence > 1) {
    join(without_submit, clock_of(queue, item.sequence - 1));
    see(without_submit, self, item.sequence - 1);
  }
  for (const auto& [event, wrote] : item.after) {
    const Queue& other = *event.queue();
    if (is_removed(QueueEdge::depend, other.name())) continue;
    join(without_submit, clock_of(other, event.sequence()));
    see(without_submit, agent_of(other), event.sequence());
  }
  Clock clock = without_submit;
  if (!is_removed(QueueEdge::submit, queue.name())) join(clock, rank_);
  const Clock& reuse = is_removed(QueueEdge::reuse, queue.name()) ? without_submit : clock;
  if (items_.size() < self) items_.resize(self);
  items_[self - 1].push_back({item.sequence, clock});
  for (const Loan& loan : loans)
    if (const std::string hazard =
            check(*loan.storage, {self, item.sequence, loan.writes, describe(item)}, clock, reuse);
        !hazard.empty())
      throw Error(hazard);
  ++rank_[0];
}

void HazardChecker::waited(const Queue& queue, std::uint64_t sequence) {
  join(rank_, clock_of(queue, sequence));
  see(rank_, agent_of(queue), sequence);
  const auto at = static_cast<std::size_t>(queue.index());
  if (at >= items_.size()) return;
  while (!items_[at].empty() && items_[at].front().sequence < sequence) items_[at].pop_front();
}

// The copy is the rank's thread's, and so is whatever comes after it.
void HazardChecker::let_go(const Queue& queue, const Storage& storage) {
  const auto forget = [agent = agent_of(queue)](std::vector<Access>& accesses) {
    std::erase_if(accesses, [agent](const Access& a) { return a.agent == agent && !a.writes; });
  };
  if (const auto known = accesses_.find(storage.id()); known != accesses_.end()) forget(known->second);
  for (auto& [first, tenant] : tenants_)
    if (tenant.storage == storage.id()) forget(tenant.accesses);
}

void HazardChecker::accessed(const Storage& storage, Kind kind) {
  if (const std::string hazard = check(storage, rank_access(kind == Kind::write), rank_, rank_); !hazard.empty())
    throw Error(hazard);
}

void HazardChecker::released(const Storage& storage) noexcept { check(storage, rank_access(true), rank_, rank_); }

bool HazardChecker::is_ordered(const Access& before, const Access& access, const Clock& clock) {
  return (access.agent == 0 && before.agent == 0) ||
         (before.agent < clock.size() && before.time <= clock[before.agent]);
}

void HazardChecker::note(std::vector<Access>& accesses, const Access& access) {
  const auto same = std::ranges::find_if(
      accesses, [&](const Access& b) { return b.agent == access.agent && b.writes == access.writes; });
  if (same == accesses.end()) accesses.push_back(access);
  else *same = access;
}

std::string HazardChecker::check(const Storage& storage, const Access& access, const Clock& clock, const Clock& reuse) {
  ++num_checked_;
  std::string hazard = find_hazard(storage, access, clock);
  if (hazard.empty()) hazard = find_hazard_of_reuse(storage, access, reuse);
  if (!hazard.empty()) {
    found_.push_back(hazard);
    return hazard;  // as if it had not happened
  }
  note(accesses_[storage.id()], access);
  note_tenant(storage, access);
  return hazard;
}

std::string HazardChecker::find_hazard(const Storage& storage, const Access& access, const Clock& clock) {
  for (const Access& b : accesses_[storage.id()])
    if ((access.writes || b.writes) && !is_ordered(b, access, clock))
      return fmt::format("hazard: nothing orders \"{}\", which {} {}, after \"{}\", which {} it", access.who,
                         verb_of(access.writes), describe(storage), b.who, b.writes ? "writes" : "reads");
  return {};
}

// What is in memory when it is given away is nobody's, so reads are no exception.
std::string HazardChecker::find_hazard_of_reuse(const Storage& storage, const Access& access, const Clock& clock) {
  const auto [first, end] = memory_of(storage);
  for (auto at = first_tenant(first); at != tenants_.end() && at->first < end; ++at) {
    const Tenant& tenant = at->second;
    if (tenant.storage == storage.id()) continue;
    for (const Access& b : tenant.accesses)
      if (!is_ordered(b, access, clock))
        return fmt::format("hazard: nothing orders \"{}\", which {} {}, after \"{}\", which {} {} in the same memory",
                           access.who, verb_of(access.writes), describe(storage), b.who, b.writes ? "writes" : "reads",
                           tenant.text);
  }
  return {};
}

// The first that does not end before this address.
std::map<std::uintptr_t, HazardChecker::Tenant>::iterator HazardChecker::first_tenant(std::uintptr_t first) {
  const auto next = tenants_.upper_bound(first);
  if (next == tenants_.begin()) return next;
  const auto before = std::prev(next);
  return before->second.end > first ? before : next;
}

// Keeps the address ranges of earlier storages that this one does not cover.
void HazardChecker::note_tenant(const Storage& storage, const Access& access) {
  const auto [first, end] = memory_of(storage);
  if (first == end) return;
  auto at = first_tenant(first);
  if (at != tenants_.end() && at->first == first && at->second.end == end && at->second.storage == storage.id())
    return note(at->second.accesses, access);
  while (at != tenants_.end() && at->first < end) {
    auto old = tenants_.extract(at++);
    if (old.mapped().end > end) tenants_.emplace(end, old.mapped());
    old.mapped().end = first;
    if (old.key() < first) tenants_.insert(std::move(old));
  }
  tenants_.emplace(first, Tenant{end, storage.id(), describe(storage), {access}});
}

}  // namespace sherd
