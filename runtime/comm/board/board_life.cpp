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

bool is_asleep(const RankCell& cell) { return cell.awaited.load(std::memory_order_relaxed) != 0; }

int awaited_by(const RankCell& cell) { return static_cast<int>(cell.awaited.load(std::memory_order_relaxed)) - 1; }

}  // namespace

RankCell& Board::at_root(int root, int channel) const {
  return reinterpret_cast<RankCell*>(root_memory() + sizeof(BoardHeader))[channel * root_size() + root];
}

Silence Board::silence() const {
  const LifeCell& own = at_root(root_rank(), 0).life;
  return {.now = clock_time(),
          .waiting_since = Time(nanoseconds(waiting_since_)),
          .own_beat = time_in(own.beat),
          .own_revived = time_in(own.revived),
          .patience = quiet_after(options_.silence)};
}

/// Since the last sign of life; 0 if ranks give none.
Time Board::silence_of(int root) const {
  const Time beat = time_in(at_root(root, 0).life.beat);
  return beat == Time(0) ? beat : std::max(clock_time() - beat, Time(0));
}

bool Board::is_frozen(int root) const { return silence_of(root) > quiet_after(options_.silence); }

/// Of the channel on which the rank's thread waits: by a call of its own, or by a queue that it waits for. Null if it
/// does not wait for other ranks. What queues wait for beside a rank that computes is not what holds it up.
const RankCell* Board::sleeping_cell(int root) const {
  const RankCell& first = at_root(root, 0);
  if (is_asleep(first)) return &first;
  if (first.life.waits_for_queue.load(std::memory_order_relaxed) == 0) return nullptr;
  const RankCell* longest = nullptr;
  for (int channel = 1; channel < kNumChannels; ++channel) {
    const RankCell& cell = at_root(root, channel);
    if (is_asleep(cell) && (!longest || time_in(cell.awaited_since) < time_in(longest->awaited_since))) longest = &cell;
  }
  return longest;
}

/// "frozen: ...", "waiting for rank 3 for 4.2 s", "busy in matmul for 4.2 s", ...; empty if nothing is known, as of
/// threads that are in no call.
std::string Board::state_of(int root) const {
  if (is_frozen(root)) return fmt::format("frozen: no sign of life for {:.1f} s", seconds(silence_of(root)));
  const auto since = [](const std::atomic<std::int64_t>& begin) { return seconds(clock_time() - time_in(begin)); };
  if (const RankCell* cell = sleeping_cell(root))
    return fmt::format("waiting for rank {} for {:.1f} s", awaited_by(*cell), since(cell->awaited_since));
  const LifeCell& life = at_root(root, 0).life;
  if (life.waits_for_queue.load(std::memory_order_relaxed) != 0) return "waiting for a queue of its own";
  const std::string stage = life.stage.load();
  const std::string in_stage = stage.empty() ? "" : fmt::format(" ({})", stage);
  if (time_in(life.kernel_since) != Time(0))
    return fmt::format("busy in {} for {:.1f} s{}", life.kernel.load(), since(life.kernel_since), in_stage);
  if (time_in(life.beat) == Time(0)) return "";
  return fmt::format("alive, in no kernel{}", in_stage);
}

/// In which call it is, and its state.
std::string Board::activity_of(int root) const {
  const RankCell& cell = at_root(root, 0);
  std::string call;
  if (cell.is_in_subgroup.load(std::memory_order_acquire)) call = cell.subgroup_call.load();
  else if (is_in_call(cell)) call = call_in(cell);
  const std::string state = state_of(root);
  if (call.empty()) return state.empty() ? "outside any collective" : state;
  return state.empty() ? "in " + call : fmt::format("in {}, {}", call, state);
}

/// For whom a rank that this one waits for waits itself, and so on: who holds up all of them. Empty if that is the
/// rank itself.
std::string Board::end_of_chain(int root) const {
  std::vector<int> chain{root_rank(), root};
  for (;;) {
    const RankCell* cell = is_frozen(chain.back()) ? nullptr : sleeping_cell(chain.back());
    const int next = cell ? awaited_by(*cell) : -1;
    if (next < 0) break;
    const auto seen = std::ranges::find(chain, next);
    if (seen != chain.end())
      return fmt::format(", held up in a circle: the ranks {} wait for each other",
                         fmt::join(std::span(chain).subspan(static_cast<std::size_t>(seen - chain.begin())), ", "));
    chain.push_back(next);
  }
  if (chain.size() == 2) return "";
  return fmt::format(", held up by rank {}: {}", chain.back(), activity_of(chain.back()));
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
  // However short the deadline: a sign is no sooner missed than it may be late.
  const Time deadline = deadline_;
  const Time limit = std::max(std::min(options_.silence, deadline), quiet_after(options_.silence));
  const Silence silence = this->silence();
  for (int peer = 0; peer < size(); ++peer) {
    const std::optional<Time> quiet = silence.of(time_in(at_root(root_rank(peer), 0).life.beat));
    if (peer == rank() || !quiet || *quiet < limit || has_come(wait, peer)) continue;
    fail_group(wait,
               fmt::format("{} is frozen: no sign of life for {:.3g} s (limit {:.3g} s) while rank {} waits for it "
                           "in {}; {}{}",
                           casualty(peer), seconds(silence_of(root_rank(peer))), seconds(limit), root_rank(),
                           own_activity(wait), describe(peer), others_meanwhile(wait)));
  }
  const Time waited = silence.now - silence.awake_since();
  if (waited < deadline) return;
  const std::string missing = missing_ranks(wait);
  if (missing.empty()) return;
  fail_group(wait, fmt::format("rank {} waited {:.3g} s in {} (deadline {:.3g} s){}; not there: {}{}", root_rank(),
                               seconds(waited), own_activity(wait), seconds(deadline), other_calls(rank()), missing,
                               others_meanwhile(wait)));
}

}  // namespace sherd::comm
