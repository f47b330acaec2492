#include "runtime/comm/board/peer_states.h"

#include <algorithm>
#include <ranges>
#include <vector>

#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

using Time = std::chrono::nanoseconds;

double seconds(Time time) { return std::chrono::duration<double>(time).count(); }

Time clock_time() { return Time(to_nanoseconds(BoardClock::now())); }

Time time_in(const std::atomic<std::int64_t>& cell) { return Time(cell.load(std::memory_order_acquire)); }

/// A thread's sleep for another one.
struct Sleep {
  Place awaited;
  Time since;
};

std::optional<Sleep> sleep_in(const BoardMemory& memory, Place place) {
  const RankCell& cell = memory.at_root(place.rank, place.lane);
  const std::uint32_t awaited = cell.awaited.load(std::memory_order_relaxed);
  if (awaited == 0 || std::cmp_greater(awaited, memory.root_size())) return std::nullopt;
  return Sleep{{static_cast<int>(awaited) - 1, place.lane}, time_in(cell.awaited_since)};
}

/// Finds the sleep that keeps a thread from coming to a call: its own wait for other ranks, or that of the rank's
/// thread, which gives it work; and the rank's thread may wait for a queue that waits for other ranks. What queues wait
/// for beside a rank's thread that computes holds up nobody.
std::optional<Sleep> sleep_that_holds_up(const BoardMemory& memory, Place place) {
  if (const auto own = sleep_in(memory, place)) return own;
  const RankCell& cell = memory.at_root(place.rank, place.lane);
  const bool is_told = cell.between_until.load(std::memory_order_acquire) != 0;
  const auto told = BetweenCalls::from(cell.between.load(std::memory_order_acquire));
  if (place.lane != 0 && is_told && told.kind == ThreadState::Kind::busy) return std::nullopt;  // it reads a disk
  if (const auto main = sleep_in(memory, {place.rank, 0})) return main;
  if (memory.life(place.rank).waits_for_queue.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::optional<Sleep> only;
  for (const int lane : Numbers<int>(1, BoardMemory::kNumLanes)) {
    const std::optional<Sleep> sleep = sleep_in(memory, {place.rank, lane});
    if (sleep && only) return std::nullopt;  // which of the two is waited for is not known
    if (sleep) only = sleep;
  }
  return only;
}

}  // namespace

void PeerStates::begin(BoardClock::time_point now) {
  waiting_since_ = Time(to_nanoseconds(now));
  lost_before_ = Time(memory_.life(memory_.root_rank()).lost.load(std::memory_order_relaxed));
}

Silence PeerStates::silence() const {
  const LifeCell& own = memory_.life(memory_.root_rank());
  return {.now = clock_time(),
          .waiting_since = waiting_since_,
          .own_beat = time_in(own.beat),
          .lost = time_in(own.lost) - lost_before_,
          .pause_end = time_in(own.pause_end),
          .patience = quiet_after(memory_.options.silence)};
}

Time PeerStates::last_beat(int root) const { return time_in(memory_.life(root).beat); }

Time PeerStates::patience_with(int root) const {
  return std::max(4 * time_in(memory_.life(root).interval), quiet_after(memory_.options.silence));
}

std::optional<Time> PeerStates::frozen_for(int root) const {
  const std::optional<Time> quiet = silence().of(last_beat(root));
  return quiet && *quiet > patience_with(root) ? quiet : std::nullopt;
}

std::string PeerStates::state_of(Place place) const {
  if (const auto quiet = frozen_for(place.rank))
    return fmt::format("frozen: no sign of life for {:.1f} s", seconds(*quiet));
  const auto age = [](Time begin) { return seconds(clock_time() - begin); };
  if (const auto sleep = sleep_that_holds_up(memory_, place))
    return fmt::format("waiting for rank {} for {:.1f} s", sleep->awaited.rank, age(sleep->since));
  const LifeCell& life = memory_.life(place.rank);
  if (life.waits_for_queue.load(std::memory_order_relaxed) != 0) return "waiting for a queue of its own";
  const std::string stage = life.stage.load();
  const std::string in_stage = stage.empty() ? "" : fmt::format(" ({})", stage);
  if (const Time since = time_in(life.kernel_since); since != Time(0))
    return fmt::format("busy in {} for {:.1f} s{}", life.kernel.load(), age(since), in_stage);
  if (time_in(life.beat) == Time(0)) return "";
  return fmt::format("alive, in no kernel{}", in_stage);
}

std::string PeerStates::activity_of(int root) const {
  const RankCell& cell = memory_.at_root(root, 0);
  std::string call;
  if (cell.is_in_subgroup.load(std::memory_order_acquire)) call = cell.subgroup_call.load();
  else if (is_in_call(cell)) call = call_in(cell);
  const std::string state = state_of({root, 0});
  if (call.empty()) return state.empty() ? "outside any collective" : state;
  return state.empty() ? "in " + call : fmt::format("in {}, {}", call, state);
}

std::string PeerStates::end_of_chain(int root) const {
  constexpr Time kSettled = std::chrono::milliseconds(100);
  Time last_begin{0};
  for (std::vector<Place> chain{{root, memory_.lane()}};;) {
    const Place last = chain.back();
    const auto sleep = frozen_for(last.rank) ? std::nullopt : sleep_that_holds_up(memory_, last);
    if (!sleep && chain.size() == 1) return "";
    if (!sleep) return fmt::format(", held up by rank {}: {}", last.rank, activity_of(last.rank));
    last_begin = std::max(last_begin, sleep->since);
    const auto seen = std::ranges::find(chain, sleep->awaited);
    if (seen == chain.end()) {
      chain.push_back(sleep->awaited);
      continue;
    }
    // Ranks are looked at one after the other: a wait that has just begun may be the answer to one that is ending.
    if (clock_time() - last_begin < kSettled) return "";
    const auto circle = std::ranges::subrange(seen, chain.end()) | std::views::transform(&Place::rank);
    return fmt::format(", held up in a circle: the ranks {} wait for each other", fmt::join(circle, ", "));
  }
}

}  // namespace sherd::comm
