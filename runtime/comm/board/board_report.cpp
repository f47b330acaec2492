// The board's reports: which ranks disagree, which are missing and what they do, and the poison that carries the first
// reason to all ranks.
#include <algorithm>
#include <map>
#include <thread>

#include "runtime/comm/board/board.h"

namespace sherd::comm {

namespace {

constexpr std::string_view kWaiting = "waiting for rank";

/// "1st", "2nd", "11th".
std::string ordinal(std::int64_t number) {
  const std::int64_t last = number % 100 / 10 == 1 ? 0 : number % 10;
  return fmt::format("{}{}", number, last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th");
}

}  // namespace

void Board::compare_calls() {
  const auto hash_of = [this](int peer) {
    return cell(peer).notes[sequence_ % 2].hash.load(std::memory_order_relaxed);
  };
  bool is_same = true;
  for (int peer = 0; peer < size(); ++peer) is_same = is_same && hash_of(peer) == call_.hash();
  if (is_same) return;

  struct Side {
    std::string ranks;
    std::string text;
  };
  std::map<std::uint64_t, std::size_t> index;
  std::vector<Side> sides;
  for (int peer = 0; peer < size(); ++peer) {
    const auto [entry, is_new] = index.try_emplace(hash_of(peer), sides.size());
    if (is_new) {
      sides.push_back({fmt::format("rank {}", root_rank(peer)), call_of(peer, lane())});
    } else {
      std::string& ranks = sides[entry->second].ranks;
      if (ranks.find(',') == std::string::npos) ranks = fmt::format("ranks{}", ranks.substr(4));
      ranks += fmt::format(", {}", root_rank(peer));
    }
  }
  std::string text;
  bool is_hidden = false, differ_in_size = true;
  const auto without_size = [](const Side& side) { return side.text.substr(0, side.text.find('[')); };
  for (const Side& side : sides) {
    const bool is_plural = side.ranks.find(',') != std::string::npos;
    text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", side.ranks, is_plural ? "call" : "calls", side.text);
    is_hidden = is_hidden || (&side != &sides.front() && side.text == sides.front().text);
    differ_in_size = differ_in_size && without_size(side) == without_size(sides.front());
  }
  if (is_hidden) text += " (they differ in the part of the list that is not shown)";
  text += "; all ranks of a group must make the same calls in the same order";
  if (differ_in_size && !is_hidden) text += kUnlikeSizes;
  fail_call(text);
}

std::string Board::call_of(int rank, int lane) const { return call_in(cell(rank, lane)); }

std::string Board::describe_call(int rank, int lane) const {
  const std::uint32_t awaited = cell(rank, lane).waiting_for.load(std::memory_order_relaxed);
  const std::string call = call_of(rank, lane);
  // Or delaying for a shaped link. (What others write is no index before it was looked at.)
  const bool is_moving = awaited == 0 || std::cmp_equal(awaited, rank + 1) || std::cmp_greater(awaited, size());
  return is_moving ? fmt::format("in {}, moving data", call)
                   : fmt::format("in {}, {} {}", call, kWaiting, root_rank(static_cast<int>(awaited) - 1));
}

/// What a rank does in other lanes and groups: shows two ranks that wait for each other.
std::string Board::other_calls(int rank) const {
  std::string text;
  for (int other = 0; other < kNumLanes; ++other) {
    const bool is_here = is_in_call(cell(rank, other));
    if (other != lane() && is_here) text += fmt::format(", also {}", describe_call(rank, other));
    const RankCell& root = root_cell(rank, other);
    if (options_.root && is_in_call(root)) text += fmt::format(", also in {}", call_in(root));
    if (!root.is_in_subgroup.load(std::memory_order_acquire)) continue;
    const std::string call = root.subgroup_call.load();
    if (!is_here || call != call_of(rank, other)) text += fmt::format(", also in {}", call);
  }
  return text;
}

std::string Board::describe(int rank) const {
  const RankCell& other = cell(rank);
  if (root_head(rank).activity.load(std::memory_order_relaxed) == Activity::in_reset) return "in reset()";
  if (is_in_call(other)) return describe_call(rank, lane()) + other_calls(rank);
  const std::string last = other.calls.load(std::memory_order_acquire) == 0 ? "none" : call_of(rank, lane());
  return fmt::format("outside any collective of this {}, its last call: {}{}", lane() == 0 ? "group" : "lane", last,
                     other_calls(rank));
}

std::string Board::casualty(int rank) const {
  const std::int32_t process = head(rank).process;
  return process == 0 ? fmt::format("rank {}", root_rank(rank))
                      : fmt::format("rank {} (process {})", root_rank(rank), process);
}

/// "ended (status 0) after its 3rd step", "has left the group".
std::string Board::departure(int rank) const {
  const RankCell& rank_of_root = root_head(rank);
  const RankCell& cell = rank_of_root.presence == Presence::left ? rank_of_root : head(rank);
  const std::int32_t status = cell.exit_status;
  std::string text = status == kStillRuns ? "has left the group" : fmt::format("ended (status {})", status);
  if (const std::int64_t steps = cell.steps; steps > 0) text += fmt::format(" after its {} step", ordinal(steps));
  return text;
}

std::string Board::missing_ranks(const Wait& wait) const {
  std::string missing;
  for (int peer = 0; peer < size(); ++peer) {
    if (has_come(wait, peer)) continue;
    const std::string description = describe(peer), state = state_of({root_rank(peer), lane()});
    const bool is_said = state.empty() || (state.starts_with(kWaiting) && description.find(kWaiting) != state.npos);
    missing += fmt::format("{}rank {} ({}{}{}){}", missing.empty() ? "" : ", ", root_rank(peer), description,
                           is_said ? "" : "; ", is_said ? "" : state, end_of_chain(root_rank(peer)));
  }
  return missing;
}

// All ranks that have come wait for the same: the lowest of those that sleep speaks for them.
void Board::say_missing(const Wait& wait) {
  if (!options_.notice.say || Clock::now() < notice_clock_.next()) return;
  for (int peer = 0; peer < rank() && !wait.mail; ++peer)
    if (has_come(wait, peer) && cell(peer).waiting_for.load(std::memory_order_relaxed) != 0 &&
        !frozen_for(root_rank(peer)))
      return;
  notice_clock_.is_due(Clock::now());
  const std::string missing = missing_ranks(wait);
  if (missing.empty()) return;
  options_.notice.say(fmt::format("rank {} has waited {:.1f} s in {}{} (deadline {:.3g} s); not there: {}", root_rank(),
                                  std::chrono::duration<double>(Clock::now() - waiting_since_).count(),
                                  own_activity(wait), other_calls(rank()),
                                  std::chrono::duration<double>(deadline()).count(), missing));
}

std::string Board::own_activity(const Wait& wait) const {
  return wait.counter == &RankCell::meetings ? std::string(call()) : std::string("reset()");
}

void Board::poison(std::string_view reason) {
  Poison expected = Poison::none;
  if (!header().poison.compare_exchange_strong(expected, Poison::being_written)) return;
  header().reason.store(reason);
  header().poison = Poison::set;
  ring_all();
}

bool Board::is_poisoned() const { return header().poison.load() != Poison::none; }

void Board::raise_poison() const {
  // Writing the reason takes a microsecond, unless its writer was killed in the middle.
  const auto stop = Clock::now() + std::chrono::milliseconds(100);
  while (header().poison.load() == Poison::being_written && Clock::now() < stop) std::this_thread::yield();
  CommError error(header().poison.load() == Poison::set ? header().reason.load()
                                                        : "the group has failed; the rank that knew why was killed");
  error.add("rank", fmt::format("{} of {}, in {}", root_rank(), root_size(), call().empty() ? "no call" : call()));
  throw error;
}

void Board::fail_call(const std::string& reason) {
  poison(reason);
  raise_poison();
}

void Board::fail_group(const Wait& wait, const std::string& reason) {
  if (wait.counter == &RankCell::meetings) fail_call(reason);
  poison(reason);
  throw CommError(reason);  // a failed reset() tells its own reason, not the one it was to clear
}

void Board::show_strips(const void* strips) { own().strips.store(strips, std::memory_order_release); }

const void* Board::strips(int rank) const { return cell(rank).strips.load(std::memory_order_acquire); }

// Reading and poison follow Dekker too: either the reader sees the poison and stays away, or the rank that
// unwinds sees the reader and waits until it is done.
void Board::begin_reading() {
  own().is_reading.store(1, std::memory_order_seq_cst);
  if (!is_poisoned()) return;
  end_reading();
  raise_poison();
}

void Board::end_reading() { own().is_reading.store(0, std::memory_order_seq_cst); }

void Board::await_unread() const {
  for (int peer = 0; peer < size(); ++peer)
    while (peer != rank() && cell(peer).is_reading.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

}  // namespace sherd::comm
