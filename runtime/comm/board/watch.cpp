#include "runtime/comm/board/watch.h"

#include <algorithm>
#include <vector>

#include "runtime/comm/group/call_difference.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

constexpr std::string_view kWaiting = "waiting for rank";

/// "1st", "2nd", "11th".
std::string ordinal(std::int64_t number) {
  const std::int64_t last = number % 100 / 10 == 1 ? 0 : number % 10;
  return fmt::format("{}{}", number, last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th");
}

double seconds_in(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

std::string describe_call(const BoardMemory& memory, int rank, int lane) {
  const std::uint32_t awaited = memory.cell(rank, lane).waiting_for.load(std::memory_order_relaxed);
  const std::string call = call_in(memory.cell(rank, lane));
  // It may also delay for a shaped link. (What others write is no index before it was looked at.)
  const bool is_moving = awaited == 0 || std::cmp_equal(awaited, rank + 1) || std::cmp_greater(awaited, memory.size());
  return is_moving ? fmt::format("in {}, moving data", call)
                   : fmt::format("in {}, {} {}", call, kWaiting, memory.root_rank(static_cast<int>(awaited) - 1));
}

/// Tells what a rank does in other lanes and groups: it shows two ranks that wait for each other.
std::string other_calls(const BoardMemory& memory, int rank) {
  std::string text;
  for (const int other : up_to(BoardMemory::kNumLanes)) {
    const bool is_here = is_in_call(memory.cell(rank, other));
    if (other != memory.lane() && is_here) text += fmt::format(", also {}", describe_call(memory, rank, other));
    const RankCell& root = memory.root_cell(rank, other);
    if (memory.options.root && is_in_call(root)) text += fmt::format(", also in {}", call_in(root));
    if (!root.is_in_subgroup.load(std::memory_order_acquire)) continue;
    const std::string call = root.subgroup_call.load();
    if (!is_here || call != call_in(memory.cell(rank, other))) text += fmt::format(", also in {}", call);
  }
  return text;
}

std::string describe(const BoardMemory& memory, int rank) {
  const RankCell& other = memory.cell(rank);
  if (memory.root_head(rank).activity.load(std::memory_order_relaxed) == RankCell::Activity::in_reset)
    return "in reset()";
  if (is_in_call(other)) return describe_call(memory, rank, memory.lane()) + other_calls(memory, rank);
  const std::string last = other.calls.load(std::memory_order_acquire) == 0 ? "none" : call_in(memory.cell(rank));
  return fmt::format("outside any collective of this {}, its last call: {}{}", memory.lane() == 0 ? "group" : "lane",
                     last, other_calls(memory, rank));
}

std::string own_activity(const BoardMemory& memory, const Wait& wait) {
  return wait.is_in_call() ? call_in(memory.own()) : "reset()";
}

std::string casualty(const BoardMemory& memory, int rank) {
  const std::int32_t process = memory.head(rank).process;
  return process == 0 ? fmt::format("rank {}", memory.root_rank(rank))
                      : fmt::format("rank {} (process {})", memory.root_rank(rank), process);
}

/// "ended (status 0) after its 3rd step", "has left the group".
std::string departure(const BoardMemory& memory, int rank) {
  const RankCell& rank_of_root = memory.root_head(rank);
  const RankCell& cell = rank_of_root.presence == RankCell::Presence::left ? rank_of_root : memory.head(rank);
  const std::int32_t status = cell.exit_status;
  std::string text = status == kStillRuns ? "has left the group" : fmt::format("ended (status {})", status);
  if (const std::int64_t steps = cell.steps; steps > 0) text += fmt::format(" after its {} step", ordinal(steps));
  return text;
}

}  // namespace

void Watch::begin() {
  since_ = BoardClock::now();
  notice_clock_ = {since_, memory_.options.notice.after};
  states_.begin(since_);
  circle_.begin(since_);
}

// After a pause of this process the deadline is later than the clock says.
std::chrono::nanoseconds Watch::nap() const {
  const std::chrono::nanoseconds left = since_ + deadline() - BoardClock::now();
  return left.count() > 0 ? std::min(left, circle_.nap()) : circle_.nap();
}

std::string Watch::departed_peer(const Wait& wait) const {
  const auto has_died = [&](int peer) { return memory_.options.has_died && memory_.options.has_died(peer); };
  for (const int peer : up_to(memory_.size())) {
    if (peer == memory_.rank()) continue;
    // Look first whether the peer is alive, then at its counter: the counter no longer changes once the peer has
    // ended.
    RankCell& other = memory_.head(peer);
    if (other.presence == RankCell::Presence::here && has_died(peer)) other.presence = RankCell::Presence::died;
    const auto presence = std::max(other.presence.load(), memory_.root_head(peer).presence.load());
    if (presence == RankCell::Presence::here || memory_.has_come(wait, peer)) continue;
    std::string others;  // that ended at the same time: which of them was first is not known
    for (const int also : Numbers<int>(peer + 1, memory_.size()))
      if (also != memory_.rank() && has_died(also)) others += fmt::format("; {} died too", casualty(memory_, also));
    return fmt::format("{} {} while rank {} waits for it in {}; {}{}{}", casualty(memory_, peer),
                       presence == RankCell::Presence::died ? "died" : departure(memory_, peer), memory_.root_rank(),
                       own_activity(memory_, wait), describe(memory_, peer), others, others_meanwhile(wait));
  }
  return {};
}

std::string Watch::lost_peer() const {
  const PeerStates::Time now = BoardClock::now().time_since_epoch(), silence = memory_.options.silence;
  const auto beat_is_older = [&](int root, PeerStates::Time limit) {
    const PeerStates::Time beat = states_.last_beat(root);
    return beat != PeerStates::Time(0) && now - beat > limit;
  };
  for (const int peer : up_to(memory_.size())) {
    if (peer == memory_.rank()) continue;
    const RankCell& other = memory_.head(peer);
    const bool has_left = other.presence == RankCell::Presence::left, has_failed = other.exit_status > 0;
    if (memory_.options.has_died && memory_.options.has_died(peer) && (!has_left || has_failed))
      return fmt::format("{} {}", casualty(memory_, peer), has_left ? departure(memory_, peer) : "died");
    const int root = memory_.root_rank(peer);
    if (beat_is_older(root, std::max(silence, states_.patience_with(root))) &&
        !beat_is_older(memory_.root_rank(), states_.patience_with(memory_.root_rank())))
      return fmt::format("{} is frozen: no sign of life for {:.3g} s", casualty(memory_, peer),
                         seconds_in(now - states_.last_beat(root)));
  }
  return {};
}

std::string Watch::overdue(const Wait& wait) const {
  const std::chrono::nanoseconds deadline = deadline_;
  const Silence silence = states_.silence();
  if (!silence.is_known()) return {};
  for (const int peer : up_to(memory_.size())) {
    const int root = memory_.root_rank(peer);
    const auto quiet = silence.of(states_.last_beat(root));
    // However short the deadline: a sign is no sooner missed than it may be late.
    const auto limit = std::max(std::min(memory_.options.silence, deadline), states_.patience_with(root));
    if (peer == memory_.rank() || !quiet || *quiet < limit || memory_.has_come(wait, peer)) continue;
    return fmt::format(
        "{} is frozen: no sign of life for {:.3g} s (limit {:.3g} s) while rank {} waits for it in {}; {}{}",
        casualty(memory_, peer), seconds_in(*quiet), seconds_in(limit), memory_.root_rank(),
        own_activity(memory_, wait), describe(memory_, peer), others_meanwhile(wait));
  }
  const std::chrono::nanoseconds waited = silence.waited();
  const std::string missing = waited < deadline ? std::string() : missing_ranks(wait);
  if (missing.empty()) return {};
  return fmt::format("rank {} waited {:.3g} s in {} (deadline {:.3g} s){}; not there: {}{}", memory_.root_rank(),
                     seconds_in(waited), own_activity(memory_, wait), seconds_in(deadline),
                     other_calls(memory_, memory_.rank()), missing, others_meanwhile(wait));
}

// The ranks that have come wait for the same: the lowest of those that sleep speaks for all.
void Watch::say_missing(const Wait& wait) {
  if (!memory_.options.notice.say || BoardClock::now() < notice_clock_.next()) return;
  for (int peer = 0; peer < memory_.rank() && !wait.mail; ++peer)
    if (memory_.has_come(wait, peer) && memory_.cell(peer).waiting_for.load(std::memory_order_relaxed) != 0 &&
        !states_.frozen_for(memory_.root_rank(peer)))
      return;
  notice_clock_.is_due(BoardClock::now());
  const std::string missing = missing_ranks(wait);
  if (missing.empty()) return;
  memory_.options.notice.say(fmt::format("rank {} has waited {:.1f} s in {}{} (deadline {:.3g} s); not there: {}",
                                         memory_.root_rank(), seconds_in(BoardClock::now() - since_),
                                         own_activity(memory_, wait), other_calls(memory_, memory_.rank()),
                                         seconds_in(deadline()), missing));
}

std::string Watch::missing_ranks(const Wait& wait) const {
  std::string missing;
  for (const int peer : up_to(memory_.size())) {
    if (memory_.has_come(wait, peer)) continue;
    const std::string description = describe(memory_, peer),
                      state = states_.state_of({memory_.root_rank(peer), memory_.lane()});
    const bool is_said = state.empty() || (state.starts_with(kWaiting) && description.find(kWaiting) != state.npos);
    missing += fmt::format("{}rank {} ({}{}{}){}", missing.empty() ? "" : ", ", memory_.root_rank(peer), description,
                           is_said ? "" : "; ", is_said ? "" : state, states_.end_of_chain(memory_.root_rank(peer)));
  }
  return missing;
}

/// Tells, while one rank is given up, what the others do that are not waited for.
std::string Watch::others_meanwhile(const Wait& wait) const {
  constexpr int kMostNamed = 8;
  std::vector<bool> is_told(static_cast<std::size_t>(memory_.root_size()), false);
  is_told[static_cast<std::size_t>(memory_.root_rank())] = true;
  for (const int peer : up_to(memory_.size()))
    if (!memory_.has_come(wait, peer)) is_told[static_cast<std::size_t>(memory_.root_rank(peer))] = true;
  std::string text;
  int named = 0, more = 0;
  for (const int root : up_to(memory_.root_size())) {
    if (is_told[static_cast<std::size_t>(root)]) continue;
    if (memory_.at_root(root, 0).presence.load(std::memory_order_relaxed) != RankCell::Presence::here) continue;
    if (++named > kMostNamed) ++more;
    else text += fmt::format("{} rank {}: {}", text.empty() ? "; meanwhile" : ",", root, states_.activity_of(root));
  }
  return more == 0 ? text : fmt::format("{}, and {} more ranks", text, more);
}

std::string Watch::disagreement(std::uint64_t number) const {
  std::vector<RankCall> calls;
  for (const int peer : up_to(memory_.size()))
    calls.push_back({.rank = memory_.root_rank(peer),
                     .hash = memory_.cell(peer).notes[number % 2].hash.load(std::memory_order_relaxed)});
  const auto differs = [&](const RankCall& call) { return call.hash != calls.front().hash; };
  if (std::ranges::none_of(calls, differs)) return {};
  for (const int peer : up_to(memory_.size())) calls[static_cast<std::size_t>(peer)].text = call_in(memory_.cell(peer));
  return difference_of_calls(calls);
}

}  // namespace sherd::comm
