// Clocks: item n of stream s has time n there; the rank's thread counts its submits. An access A must know of each
// conflicting access B before it: B's time must not exceed what A's agent has seen of B's agent.
#include "runtime/exec/hazards.h"

#include <algorithm>

#include "runtime/exec/context.h"
#include "runtime/exec/stream.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {
std::size_t agent_of(StreamKind stream) { return 1 + static_cast<std::size_t>(stream); }
}  // namespace

HazardChecker::HazardChecker() : outer_(RankContext::current().hazards) {
  RankContext& context = RankContext::current();
  context.drain_streams();  // what came before is not checked
  context.watcher = context.hazards = this;
}

HazardChecker::~HazardChecker() {
  RankContext& context = RankContext::current();
  context.watcher = context.hazards = outer_;
}

bool HazardChecker::looks_before_wait(const Storage& storage, Kind kind) const {
  const StreamEdge edge = kind == Kind::touch ? StreamEdge::touch : StreamEdge::release;
  return is_removed(edge, storage.lent_to().stream()->kind(), storage.is_lent_for_writing());
}

bool HazardChecker::is_removed(StreamEdge edge, StreamKind stream, std::optional<bool> writes) const {
  return std::any_of(removed_.begin(), removed_.end(), [&](const RemovedEdge& r) {
    return r.edge == edge && r.stream == stream && (!r.writes || r.writes == writes);
  });
}

void HazardChecker::join(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

HazardChecker::Clock HazardChecker::clock_of(StreamKind stream, std::uint64_t sequence) const {
  for (const Known& item : items_[static_cast<std::size_t>(stream)])
    if (item.sequence == sequence) return item.clock;
  return {};  // from before this check, or of no consequence any more
}

HazardChecker::Access HazardChecker::rank_access() const {
  const std::string* path = RankContext::current().module_path;
  return {0, rank_[0], true, path ? "the rank's thread in module " + *path : "the rank's thread"};
}

void HazardChecker::submitted(StreamKind stream, const StreamItem& item, std::span<const Loan> loans) {
  const std::size_t self = agent_of(stream);
  Clock clock{};
  if (!is_removed(StreamEdge::submit, stream)) clock = rank_;
  if (!is_removed(StreamEdge::order, stream) && item.sequence > 1) {
    join(clock, clock_of(stream, item.sequence - 1));
    clock[self] = std::max(clock[self], item.sequence - 1);
  }
  for (const auto& [event, wrote] : item.after) {
    const StreamKind other = event.stream()->kind();
    if (is_removed(StreamEdge::depend, other)) continue;
    join(clock, clock_of(other, event.sequence()));
    clock[agent_of(other)] = std::max(clock[agent_of(other)], event.sequence());
  }
  items_[static_cast<std::size_t>(stream)].push_back({item.sequence, clock});
  for (const Loan& loan : loans)
    if (const auto hazard = check(*loan.storage, {self, item.sequence, loan.writes, describe(item)}, clock))
      throw Error(*hazard);
  ++rank_[0];
}

void HazardChecker::waited(StreamKind stream, std::uint64_t sequence) {
  join(rank_, clock_of(stream, sequence));
  std::uint64_t& seen = rank_[agent_of(stream)];
  seen = std::max(seen, sequence);
  auto& items = items_[static_cast<std::size_t>(stream)];
  while (!items.empty() && items.front().sequence < sequence) items.pop_front();
}

void HazardChecker::touched(const Storage& storage) {
  if (const auto hazard = check(storage, rank_access(), rank_)) throw Error(*hazard);
}

void HazardChecker::released(const Storage& storage) noexcept { check(storage, rank_access(), rank_); }

std::optional<std::string> HazardChecker::check(const Storage& storage, Access access, const Clock& clock) {
  ++num_checked_;
  std::optional<std::string> hazard;
  std::vector<Access>& before = accesses_[storage.id()];
  for (const Access& b : before) {
    if ((access.agent == 0 && b.agent == 0) || (!access.writes && !b.writes) || b.time <= clock[b.agent]) continue;
    hazard = fmt::format("hazard: nothing orders \"{}\", which {} storage {} ({} of {}), after \"{}\", which {} it",
                         access.who, access.writes ? "writes or frees" : "reads", storage.id(),
                         format_bytes(storage.bytes()), name(storage.category()), b.who, b.writes ? "writes" : "reads");
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
