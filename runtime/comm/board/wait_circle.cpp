// A rank tells of itself so that a circle of waits is seen; the rank that proves one words the error that ends it.
// Ranks have their numbers in the root here.
#include "runtime/comm/board/wait_circle.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <tuple>

#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "runtime/exec/host_queue.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {
using Queues = std::vector<const HostQueue*>;

int queue_lane(const Queue& queue) { return queue.device() == Device::cpu() ? usual_lane(queue.name()) : 0; }

/// Null if it is none of these, or none.
const HostQueue* queue_among(const Queues& queues, const Queue* queue) {
  const auto found = std::ranges::find_if(queues, [&](const Queue* known) { return known == queue; });
  return found == queues.end() ? nullptr : *found;
}

/// Follows a thread's wait through queues that meet no other rank, as one that reads a disk after a gather. Busy if one
/// of those does anything but wait.
ThreadState without_own_queues(ThreadState state, const Queues& queues) {
  for (std::size_t i = 0; i < queues.size() && state.kind == ThreadState::Kind::waits; ++i) {
    const HostQueue* const queue = queue_among(queues, state.queue);
    if (queue == nullptr || queue_lane(*queue) != 0) break;
    const ThreadState next = queue->state();
    const bool waits = next.kind == ThreadState::Kind::waits;
    state = {waits ? next.kind : ThreadState::Kind::busy, 31 * state.number + next.number, next.queue};
  }
  return state;
}

/// A thread that does not sleep in a call cannot tell what it does; one of the same rank that sleeps in one asks it.
void tell_between(const BoardMemory& memory) {
  RunningOp* const rank = running_op_here();
  if (rank == nullptr) return;
  const std::lock_guard lock(rank->queues_mutex);  // and one teller at a time
  const std::int64_t now = to_nanoseconds(BoardClock::now());
  std::array<ThreadState, kNumUsualLanes + 1> states{rank->thread_state()};
  for (int lane = 1; lane <= kNumUsualLanes; ++lane)  // of a queue that is not there yet
    states[static_cast<std::size_t>(lane)].kind = ThreadState::Kind::idle;
  for (const HostQueue* queue : rank->queues)
    if (const int lane = queue_lane(*queue); lane != 0) states[static_cast<std::size_t>(lane)] = queue->state();
  for (int lane = 0; lane <= kNumUsualLanes; ++lane) {
    const ThreadState state = without_own_queues(states[static_cast<std::size_t>(lane)], rank->queues);
    const HostQueue* const awaited = queue_among(rank->queues, state.queue);
    const BetweenCalls told{.kind = state.kind, .lane = awaited ? queue_lane(*awaited) : 0, .number = state.number};
    RankCell& cell = memory.at_root(memory.root_rank(), lane);
    cell.between.store(told.packed(), std::memory_order_release);
    cell.between_until.store(now, std::memory_order_release);
  }
}

Place place_of(const BoardMemory& memory, int rank) { return {memory.root_rank(rank), memory.lane()}; }

void show_awaited(const BoardMemory& memory, int peer) {
  const auto shown = static_cast<std::uint32_t>(memory.root_rank(peer)) + 1;
  memory.own_root_cell().awaited.store(shown, std::memory_order_release);
}

/// Times are read before what they are about: it is at least as new.
std::optional<Hold> hold_of(const BoardMemory& memory, Place place) {
  if (place.lane > kNumUsualLanes) return std::nullopt;  // groups may use it for different queues
  const RankCell& cell = memory.at_root(place.rank, place.lane);
  const std::int64_t asleep_until = cell.awaited_until.load(std::memory_order_acquire);
  const std::uint32_t awaited = cell.awaited.load(std::memory_order_acquire);
  if (std::cmp_greater(awaited, memory.root_size())) return std::nullopt;
  if (awaited != 0)
    return Hold{.from = place,
                .to = {static_cast<int>(awaited) - 1, place.lane},
                .is_call = true,
                .identity = static_cast<std::uint64_t>(cell.awaited_since.load(std::memory_order_acquire)),
                .found_until = asleep_until};

  const std::int64_t told_until = cell.between_until.load(std::memory_order_acquire);
  const std::uint64_t word = cell.between.load(std::memory_order_acquire);
  const auto [kind, lane, number] = BetweenCalls::from(word);
  const bool is_idle = kind == ThreadState::Kind::idle && place.lane != 0;
  const bool waits = kind == ThreadState::Kind::waits && lane != 0 && lane <= kNumUsualLanes;
  if (told_until == 0 || !(is_idle || waits)) return std::nullopt;
  return Hold{.from = place,
              .to = {place.rank, is_idle ? 0 : lane},
              .is_call = false,
              .identity = word,
              .found_until = told_until};
}

bool leads_to(const BoardMemory& memory, Place place, Place here) {
  for (int i = 0; i < memory.root_size() * (kNumUsualLanes + 1) && place != here; ++i) {
    const std::optional<Hold> hold = hold_of(memory, place);
    if (!hold) return false;
    place = hold->to;
  }
  return place == here;
}

/// Chooses whom this rank tells of among the peers that have not come. It waits for all of them at once, so a circle
/// through any is one, and a peer that is held may become part of one.
int peer_to_tell_of(const BoardMemory& memory, const Wait& wait, int told) {
  const auto find = [&](const auto& is_it) {
    if (!memory.has_come(wait, told) && is_it(told)) return told;
    for (const int peer : up_to(memory.size()))
      if (!memory.has_come(wait, peer) && is_it(peer)) return peer;
    return -1;
  };
  if (const int peer =
          find([&](int p) { return leads_to(memory, place_of(memory, p), place_of(memory, memory.rank())); });
      peer >= 0)
    return peer;
  if (const int peer = find([&](int p) { return hold_of(memory, place_of(memory, p)).has_value(); }); peer >= 0)
    return peer;
  const int any = find([](int) { return true; });
  return any >= 0 ? any : told;
}

/// Groups share their root's cell. Only one thread of a rank tells what it sleeps for in lane 0: the rank's own, or
/// where there is none the first that came.
bool tells_of_its_sleep(const BoardMemory& memory) {
  if (memory.lane() != 0) return true;
  std::atomic<std::int32_t>& teller = memory.own_root_cell().teller;
  const auto own = static_cast<std::int32_t>(::gettid());
  const std::int32_t known = teller.load(std::memory_order_relaxed);
  if (known != 0 && known != own && RankContext::current_or_null() == nullptr) return false;
  if (known != own) teller.store(own, std::memory_order_relaxed);
  return true;
}

std::vector<Hold> read_circle(const BoardMemory& memory, Place place) {
  std::vector<Hold> holds;
  for (;;) {
    const std::optional<Hold> hold = hold_of(memory, place);
    if (!hold) return {};
    holds.push_back(*hold);
    if (std::ranges::find(holds, hold->to, &Hold::from) != holds.end()) return circle_in(std::move(holds));
    place = hold->to;
  }
}

std::string call_at(const BoardMemory& memory, Place place) {
  const RankCell& cell = memory.at_root(place.rank, place.lane);
  return cell.is_in_subgroup.load(std::memory_order_acquire) ? cell.subgroup_call.load() : call_in(cell);
}
}  // namespace

std::vector<Hold> circle_in(std::vector<Hold> holds) {
  if (holds.empty()) return {};
  const auto first = std::ranges::find(holds, holds.back().to, &Hold::from);
  holds.erase(holds.begin(), first);
  const auto order = [](const Hold& hold) { return std::tuple(hold.from.rank, hold.from.lane); };
  std::ranges::rotate(holds, std::ranges::min_element(holds, {}, order));
  return holds;
}

bool CircleProof::is_proven(const std::vector<Hold>& circle, std::int64_t end) {
  const bool is_seen = !circle.empty() && std::ranges::equal(circle, seen_, &Hold::is_same);
  if (is_seen) return std::ranges::all_of(circle, [&](const Hold& hold) { return hold.found_until >= seen_at_; });
  seen_ = circle;
  seen_at_ = end;
  return false;
}

std::chrono::nanoseconds WaitCircle::nap() const {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(100);
  const std::chrono::nanoseconds look = memory_.options.look;
  if (look == std::chrono::nanoseconds(0)) return kLongest;
  return std::clamp<std::chrono::nanoseconds>(look / 4, std::chrono::milliseconds(1), kLongest);
}

void WaitCircle::begin(BoardClock::time_point now) {
  since_ = now;
  next_look_ = now + memory_.options.look;
  proof_.forget();
}

void WaitCircle::sleep(int peer) {
  tells_ = tells_of_its_sleep(memory_);
  told_ = peer;
  if (!tells_) return;
  memory_.own_root_cell().awaited_since.store(to_nanoseconds(since_), std::memory_order_relaxed);
  show_awaited(memory_, told_);
}

void WaitCircle::tell(const Wait& wait, BoardClock::time_point now) {
  if (!tells_ || now - since_ < nap()) return;
  if (memory_.options.look > std::chrono::nanoseconds(0)) told_ = peer_to_tell_of(memory_, wait, told_);
  show_awaited(memory_, told_);
  memory_.own_root_cell().awaited_until.store(to_nanoseconds(now), std::memory_order_release);
  tell_between(memory_);
}

std::string WaitCircle::look(const Wait& wait) {
  const auto now = BoardClock::now();
  if (!tells_ || memory_.options.look == std::chrono::nanoseconds(0) || now < next_look_) return {};
  if (!wait.is_in_call()) return {};  // reset() ends the calls of those that it waits for
  next_look_ = now + memory_.options.look;
  const std::vector<Hold> circle = read_circle(memory_, place_of(memory_, memory_.rank()));
  if (!proof_.is_proven(circle, to_nanoseconds(BoardClock::now()))) return {};

  constexpr std::size_t kMostNamed = 4;
  std::set<int> ranks;
  std::string calls;
  std::size_t num_calls = 0;
  for (const Hold& hold : circle) {
    ranks.insert(hold.from.rank);
    if (!hold.is_call || ++num_calls > kMostNamed) continue;
    calls += fmt::format("{}rank {} waits for rank {} in {}", num_calls == 1 ? "" : ", ", hold.from.rank, hold.to.rank,
                         call_at(memory_, hold.from));
  }
  if (ranks.size() < 2) return {};
  if (num_calls > kMostNamed) calls += fmt::format(", and {} more", num_calls - kMostNamed);
  return fmt::format(
      "the ranks {} wait for each other, and none can go on: {}; collectives must be called by all ranks of their "
      "group, in the same order",
      fmt::join(ranks, ", "), calls);
}

}  // namespace sherd::comm
