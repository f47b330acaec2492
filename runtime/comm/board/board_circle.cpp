// What ranks tell of themselves so that a circle of waits is seen, and the error that ends it; wait_circle.h has the
// proof. Ranks have their numbers in the root here.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "runtime/comm/board/board.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "runtime/exec/host_queue.h"

namespace sherd::comm {

namespace {
using Queues = std::vector<const HostQueue*>;

int usual_lane_of(const Queue& queue) { return queue.device() == Device::cpu() ? usual_lane(queue.name()) : 0; }

/// Null if it is none of these, or none.
const HostQueue* queue_among(const Queues& queues, const Queue* queue) {
  const auto found = std::ranges::find_if(queues, [&](const Queue* known) { return known == queue; });
  return found == queues.end() ? nullptr : *found;
}

/// What a thread waits for behind queues that meet no other rank, as one that reads a disk after a gather. Busy if one
/// of those does anything but wait.
ThreadState without_own_queues(ThreadState state, const Queues& queues) {
  for (std::size_t i = 0; i < queues.size() && state.kind == ThreadState::Kind::waits; ++i) {
    const HostQueue* const queue = queue_among(queues, state.queue);
    if (queue == nullptr || usual_lane_of(*queue) != 0) break;
    const ThreadState next = queue->state();
    const bool waits = next.kind == ThreadState::Kind::waits;
    state = {waits ? next.kind : ThreadState::Kind::busy, 31 * state.number + next.number, next.queue};
  }
  return state;
}
}  // namespace

/// A thread that does not sleep in a call cannot tell what it does; one of the same rank that sleeps in one asks it.
void Board::tell_between() const {
  RunningOp* const rank = running_op_here();
  if (rank == nullptr) return;
  const std::lock_guard lock(rank->queues_mutex);  // and one teller at a time
  const std::int64_t now = nanoseconds(Clock::now());
  std::array<ThreadState, kNumUsualLanes + 1> states{rank->thread_state()};
  for (int lane = 1; lane <= kNumUsualLanes; ++lane)  // of a queue that is not there yet
    states[static_cast<std::size_t>(lane)].kind = ThreadState::Kind::idle;
  for (const HostQueue* queue : rank->queues)
    if (const int lane = usual_lane_of(*queue); lane != 0) states[static_cast<std::size_t>(lane)] = queue->state();
  for (int lane = 0; lane <= kNumUsualLanes; ++lane) {
    const ThreadState state = without_own_queues(states[static_cast<std::size_t>(lane)], rank->queues);
    const HostQueue* const awaited = queue_among(rank->queues, state.queue);
    const BetweenCalls told{.kind = state.kind, .lane = awaited ? usual_lane_of(*awaited) : 0, .number = state.number};
    RankCell& cell = at_root(root_rank(), lane);
    cell.between.store(told.packed(), std::memory_order_release);
    cell.between_until.store(now, std::memory_order_release);
  }
}

/// Times are read before what they are about: it is at least as new.
std::optional<Hold> Board::hold_of(Place place) const {
  if (place.lane > kNumUsualLanes) return std::nullopt;  // groups may use it for different queues
  const RankCell& cell = at_root(place.rank, place.lane);
  const std::int64_t asleep_until = cell.awaited_until.load(std::memory_order_acquire);
  const std::uint32_t awaited = cell.awaited.load(std::memory_order_acquire);
  if (std::cmp_greater(awaited, root_size())) return std::nullopt;
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

bool Board::leads_back_here(Place place) const {
  const Place here{root_rank(), lane()};
  for (int i = 0; i < root_size() * (kNumUsualLanes + 1) && place != here; ++i) {
    const std::optional<Hold> hold = hold_of(place);
    if (!hold) return false;
    place = hold->to;
  }
  return place == here;
}

/// Chooses whom this rank tells of among the peers that have not come. It waits for all of them at once, so a circle
/// through any is one, and a peer that is held may become part of one.
int Board::peer_to_tell_of(const Wait& wait, int told) const {
  const auto find = [&](const auto& is_it) {
    if (!has_come(wait, told) && is_it(told)) return told;
    for (int peer = 0; peer < size(); ++peer)
      if (!has_come(wait, peer) && is_it(peer)) return peer;
    return -1;
  };
  const auto place_of = [&](int peer) { return Place{root_rank(peer), lane()}; };
  if (const int peer = find([&](int p) { return leads_back_here(place_of(p)); }); peer >= 0) return peer;
  if (const int peer = find([&](int p) { return hold_of(place_of(p)).has_value(); }); peer >= 0) return peer;
  const int any = find([](int) { return true; });
  return any >= 0 ? any : told;
}

/// Groups share their root's cell. Only one thread of a rank tells what it sleeps for in lane 0: the rank's own, or
/// where there is none the first that came.
bool Board::tells_of_its_sleep() const {
  if (lane() != 0) return true;
  std::atomic<std::int32_t>& teller = root_cell(rank(), lane()).teller;
  const auto own = static_cast<std::int32_t>(::gettid());
  const std::int32_t known = teller.load(std::memory_order_relaxed);
  if (known != 0 && known != own && RankContext::current_or_null() == nullptr) return false;
  if (known != own) teller.store(own, std::memory_order_relaxed);
  return true;
}

std::vector<Hold> Board::read_circle() const {
  std::vector<Hold> holds;
  for (Place place{root_rank(), lane()};;) {
    const std::optional<Hold> hold = hold_of(place);
    if (!hold) return {};
    holds.push_back(*hold);
    if (std::ranges::find(holds, hold->to, &Hold::from) != holds.end()) return circle_in(std::move(holds));
    place = hold->to;
  }
}

std::string Board::call_at(Place place) const {
  const RankCell& cell = at_root(place.rank, place.lane);
  return cell.is_in_subgroup.load(std::memory_order_acquire) ? cell.subgroup_call.load() : call_in(cell);
}

void Board::look_for_circle(const Wait& wait) {
  const Clock::time_point now = Clock::now();
  if (options_.look == std::chrono::nanoseconds(0) || now < next_look_) return;
  if (wait.counter != &RankCell::meetings) return;  // reset() ends the calls of those that it waits for
  next_look_ = now + options_.look;
  const std::vector<Hold> circle = read_circle();
  if (!circle_.is_proven(circle, nanoseconds(Clock::now()))) return;

  constexpr std::size_t kMostNamed = 4;
  std::set<int> ranks;
  std::string calls;
  std::size_t num_calls = 0;
  for (const Hold& hold : circle) {
    ranks.insert(hold.from.rank);
    if (!hold.is_call || ++num_calls > kMostNamed) continue;
    calls += fmt::format("{}rank {} waits for rank {} in {}", num_calls == 1 ? "" : ", ", hold.from.rank, hold.to.rank,
                         call_at(hold.from));
  }
  if (ranks.size() < 2) return;
  if (num_calls > kMostNamed) calls += fmt::format(", and {} more", num_calls - kMostNamed);
  fail_group(wait,
             fmt::format("the ranks {} wait for each other, and none can go on: {}; collectives must be called by "
                         "all ranks of their group, in the same order",
                         fmt::join(ranks, ", "), calls));
}

}  // namespace sherd::comm
