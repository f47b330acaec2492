// Who is frozen, who computes, who waits for whom: what ranks that wait tell of those that do not come, and when they
// give them up. Ranks have their numbers in the root here.
#include <algorithm>
#include <vector>

#include "runtime/comm/board/board.h"

namespace sherd::comm {

namespace {

using Time = std::chrono::nanoseconds;

double seconds(Time time) { return std::chrono::duration<double>(time).count(); }

Time clock_time() { return Time(Board::nanoseconds(Board::Clock::now())); }

Time time_in(const std::atomic<std::int64_t>& nanoseconds) { return Time(nanoseconds.load(std::memory_order_acquire)); }

}  // namespace

RankCell& Board::at_root(int root, int lane) const {
  return reinterpret_cast<RankCell*>(root_memory() + sizeof(BoardHeader))[lane * root_size() + root];
}

Silence Board::silence() const {
  const LifeCell& own = life(root_rank());
  return {.now = clock_time(),
          .waiting_since = Time(nanoseconds(waiting_since_)),
          .own_beat = time_in(own.beat),
          .lost = time_in(own.lost) - Time(lost_before_),
          .pause_end = time_in(own.pause_end),
          .patience = quiet_after(options_.silence)};
}

/// How late its sign of life may be: by its own interval and by this rank's.
Time Board::patience_with(int root) const {
  return std::max(4 * time_in(life(root).interval), quiet_after(options_.silence));
}

/// How long it has given no sign of life in this wait; nothing if that is not long, or not known.
std::optional<Time> Board::frozen_for(int root) const {
  const std::optional<Time> quiet = silence().of(time_in(life(root).beat));
  return quiet && *quiet > patience_with(root) ? quiet : std::nullopt;
}

std::optional<Board::Sleep> Board::sleep_in(Place place) const {
  const RankCell& cell = at_root(place.rank, place.lane);
  const std::uint32_t awaited = cell.awaited.load(std::memory_order_relaxed);
  if (awaited == 0 || std::cmp_greater(awaited, root_size())) return std::nullopt;
  return Sleep{{static_cast<int>(awaited) - 1, place.lane}, time_in(cell.awaited_since)};
}

/// What keeps a thread from coming to a call: its own wait for other ranks, or that of the rank's thread, which gives
/// it work; and the rank's thread may wait for a queue that waits for other ranks. What queues wait for beside a rank's
/// thread that computes holds up nobody.
std::optional<Board::Sleep> Board::sleep_that_holds_up(Place place) const {
  if (const auto own = sleep_in(place)) return own;
  const RankCell& cell = at_root(place.rank, place.lane);
  const bool is_told = cell.between_until.load(std::memory_order_acquire) != 0;
  const auto told = BetweenCalls::from(cell.between.load(std::memory_order_acquire));
  if (place.lane != 0 && is_told && told.kind == ThreadState::Kind::busy) return std::nullopt;  // it reads a disk
  if (const auto main = sleep_in({place.rank, 0})) return main;
  if (life(place.rank).waits_for_queue.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::optional<Sleep> only;
  for (int lane = 1; lane < kNumLanes; ++lane) {
    const std::optional<Sleep> sleep = sleep_in({place.rank, lane});
    if (sleep && only) return std::nullopt;  // which of the two is waited for is not known
    if (sleep) only = sleep;
  }
  return only;
}

/// "frozen: ...", "waiting for rank 3 for 4.2 s", "busy in matmul for 4.2 s", ...; empty if nothing is known, as of
/// threads that are in no call.
std::string Board::state_of(Place place) const {
  if (const auto quiet = frozen_for(place.rank))
    return fmt::format("frozen: no sign of life for {:.1f} s", seconds(*quiet));
  const auto age = [](Time begin) { return seconds(clock_time() - begin); };
  if (const auto sleep = sleep_that_holds_up(place))
    return fmt::format("waiting for rank {} for {:.1f} s", sleep->awaited.rank, age(sleep->since));
  const LifeCell& life = this->life(place.rank);
  if (life.waits_for_queue.load(std::memory_order_relaxed) != 0) return "waiting for a queue of its own";
  const std::string stage = life.stage.load();
  const std::string in_stage = stage.empty() ? "" : fmt::format(" ({})", stage);
  if (const Time since = time_in(life.kernel_since); since != Time(0))
    return fmt::format("busy in {} for {:.1f} s{}", life.kernel.load(), age(since), in_stage);
  if (time_in(life.beat) == Time(0)) return "";
  return fmt::format("alive, in no kernel{}", in_stage);
}

/// In which call its own thread is, and its state.
std::string Board::activity_of(int root) const {
  const RankCell& cell = at_root(root, 0);
  std::string call;
  if (cell.is_in_subgroup.load(std::memory_order_acquire)) call = cell.subgroup_call.load();
  else if (is_in_call(cell)) call = call_in(cell);
  const std::string state = state_of({root, 0});
  if (call.empty()) return state.empty() ? "outside any collective" : state;
  return state.empty() ? "in " + call : fmt::format("in {}, {}", call, state);
}

Board::Chain Board::chain_from(int root) const {
  Chain chain{.places = {{root, lane()}}, .circle = {}};
  for (;;) {
    const Place last = chain.places.back();
    const auto sleep = frozen_for(last.rank) ? std::nullopt : sleep_that_holds_up(last);
    if (!sleep) return chain;
    chain.last_begin = std::max(chain.last_begin, sleep->since);
    const auto seen = std::ranges::find(chain.places, sleep->awaited);
    for (auto place = seen; place != chain.places.end(); ++place) chain.circle.push_back(place->rank);
    if (!chain.circle.empty()) return chain;
    chain.places.push_back(sleep->awaited);
  }
}

/// Who holds up a rank that this one waits for, and so this one. Empty if that is the rank itself.
std::string Board::end_of_chain(int root) const {
  constexpr Time kSettled = std::chrono::milliseconds(100);
  const Chain chain = chain_from(root);
  if (!chain.circle.empty()) {
    // Ranks are looked at one after the other: a wait that has just begun may be the answer to one that is ending.
    if (clock_time() - chain.last_begin < kSettled) return "";
    return fmt::format(", held up in a circle: the ranks {} wait for each other", fmt::join(chain.circle, ", "));
  }
  if (chain.places.size() == 1) return "";
  const int last = chain.places.back().rank;
  return fmt::format(", held up by rank {}: {}", last, activity_of(last));
}

/// What the other ranks do while one is given up: those that are not waited for.
std::string Board::others_meanwhile(const Wait& wait) const {
  constexpr int kMostNamed = 8;
  std::vector<bool> is_told(static_cast<std::size_t>(root_size()), false);
  is_told[static_cast<std::size_t>(root_rank())] = true;
  for (int peer = 0; peer < size(); ++peer)
    if (!has_come(wait, peer)) is_told[static_cast<std::size_t>(root_rank(peer))] = true;
  std::string text;
  int named = 0, more = 0;
  for (int root = 0; root < root_size(); ++root) {
    if (is_told[static_cast<std::size_t>(root)]) continue;
    if (at_root(root, 0).presence.load(std::memory_order_relaxed) != Presence::here) continue;
    if (++named > kMostNamed) ++more;
    else text += fmt::format("{} rank {}: {}", text.empty() ? "; meanwhile" : ",", root, activity_of(root));
  }
  return more == 0 ? text : fmt::format("{}, and {} more ranks", text, more);
}

void Board::check_deadlines(const Wait& wait) {
  const Time deadline = deadline_;
  const Silence silence = this->silence();
  if (!silence.is_known()) return;
  for (int peer = 0; peer < size(); ++peer) {
    const int root = root_rank(peer);
    const std::optional<Time> quiet = silence.of(time_in(life(root).beat));
    // However short the deadline: a sign is no sooner missed than it may be late.
    const Time limit = std::max(std::min(options_.silence, deadline), patience_with(root));
    if (peer == rank() || !quiet || *quiet < limit || has_come(wait, peer)) continue;
    fail_group(wait,
               fmt::format("{} is frozen: no sign of life for {:.3g} s (limit {:.3g} s) while rank {} waits for it "
                           "in {}; {}{}",
                           casualty(peer), seconds(*quiet), seconds(limit), root_rank(), own_activity(wait),
                           describe(peer), others_meanwhile(wait)));
  }
  const Time waited = silence.waited();
  if (waited < deadline) return;
  const std::string missing = missing_ranks(wait);
  if (missing.empty()) return;
  fail_group(wait, fmt::format("rank {} waited {:.3g} s in {} (deadline {:.3g} s){}; not there: {}{}", root_rank(),
                               seconds(waited), own_activity(wait), seconds(deadline), other_calls(rank()), missing,
                               others_meanwhile(wait)));
}

}  // namespace sherd::comm
