// Meetings on the board. A rank advances its own counter and waits until every peer's counter has come as far. No
// wake-up is lost (board_memory.cpp), and the bounded naps serve only to look for dead peers and the deadline.
#include "runtime/comm/board/board.h"

#include <bit>
#include <cmath>
#include <thread>

#include "runtime/exec/context.h"
#include "runtime/os/allowed_cpus.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

constexpr auto kSpin = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds kNap = std::chrono::milliseconds(100);

// Ranks may be bound to CPUs of their own, so no rank alone knows how many there are.
void add_cpus(BoardHeader& header) {
  constexpr std::size_t kBits = 64;
  for (const int cpu : allowed_cpus().cpus)
    if (const auto bit = static_cast<std::size_t>(cpu); bit / kBits < std::size(header.cpus))
      header.cpus[bit / kBits].fetch_or(std::uint64_t{1} << bit % kBits, std::memory_order_relaxed);
}

// Ranks outside of a subgroup need their CPUs too; and while a queue's thread waits, its rank's computes.
bool may_spin(const BoardMemory& memory) {
  const bool is_rank_thread = memory.lane() == 0 || RankContext::current_or_null();
  return (is_rank_thread ? 1 : 2) * memory.root_size() <= num_cpus(memory);
}

/// Shows how far this rank has come.
void advance(const BoardMemory& memory, std::atomic<std::uint64_t> RankCell::* counter, std::uint64_t value) {
  (memory.own().*counter).store(value, std::memory_order_seq_cst);
  for (const int peer : up_to(memory.size())) memory.ring(peer);
}

}  // namespace

int num_cpus(const BoardMemory& memory) {
  int num_cpus = 0;
  for (const auto& bits : memory.header().cpus) num_cpus += std::popcount(bits.load(std::memory_order_relaxed));
  return static_cast<int>(std::min<double>(num_cpus, std::ceil(allowed_cpus().quota)));
}

void Arrivals::note(const std::atomic<std::int64_t>& arrived) {
  const std::chrono::nanoseconds nanoseconds(arrived.load(std::memory_order_relaxed));
  const BoardClock::time_point time(std::chrono::duration_cast<BoardClock::duration>(nanoseconds));
  first = std::min(first, time);
  last = std::max(last, time);
}

Board::Board(std::shared_ptr<std::byte> memory, BoardOptions options)
    : memory_(std::move(memory), std::move(options)),
      watch_(memory_),
      exit_word_(memory_),
      epoch_(memory_.options.epoch) {
  if (!memory_.options.root && memory_.lane() == 0) add_cpus(memory_.header());
}

Fingerprint Board::open_call(CommOp op) const {
  return Fingerprint(op, static_cast<std::int64_t>(sequence_) + 1, memory_.lane(), memory_.members());
}

void Board::begin(const Fingerprint& call, BoardClock::time_point arrived) {
  call_ = call;
  // Read first: whoever finds no poison because a reset has cleared it must see that reset below.
  const bool is_poisoned = memory_.is_poisoned();
  if (memory_.root_head(rank()).resets > epoch_)
    throw CommError(
        fmt::format("{}: the last reset() of this group did not complete; call reset() again", call.text()));
  if (is_poisoned) raise_poison();
  arrivals_ = {arrived, arrived, arrived, arrivals_.met_at};
}

void Board::enter(const Fingerprint& call, BoardClock::time_point arrived) {
  begin(call, arrived);
  RankCell& own = memory_.own();
  if (suspended_ != 0)
    fail_call(fmt::format("rank {} calls {} and has left {} unfinished", memory_.root_rank(), call.text(),
                          own.notes[sequence_ % 2].text.load()));
  is_compared_ = false;
  ++sequence_;
  RankCell::Note& note = own.notes[sequence_ % 2];
  note.hash.store(call.hash(), std::memory_order_relaxed);
  note.arrived.store(to_nanoseconds(arrived), std::memory_order_relaxed);
  note.text.store(call.text());
  own.calls.store(sequence_, std::memory_order_release);
  own.activity.store(RankCell::Activity::in_call, std::memory_order_relaxed);
  tell_root();
}

// Ranks that wait for this one in another group learn so where it is.
void Board::tell_root() const {
  if (!memory_.options.root) return;
  RankCell& cell = memory_.own_root_cell();
  cell.subgroup_call.store(call_.text());
  cell.is_in_subgroup.store(true, std::memory_order_release);
}

void Board::leave() {
  RankCell& own = memory_.own();
  own.waiting_for.store(0, std::memory_order_relaxed);
  memory_.own_root_cell().awaited.store(0, std::memory_order_relaxed);
  own.activity.store(RankCell::Activity::outside, std::memory_order_release);
  if (memory_.options.root) memory_.own_root_cell().is_in_subgroup.store(false, std::memory_order_relaxed);
}

void Board::come() { advance(memory_, &RankCell::meetings, ++meetings_); }

void Board::meet_others() {
  await({&RankCell::meetings, meetings_});
  if (is_compared_) return;
  if (const std::string text = watch_.disagreement(sequence_); !text.empty()) fail_call(text);
  for (int peer = 0; peer < size(); ++peer) arrivals_.note(memory_.cell(peer).notes[sequence_ % 2].arrived);
  is_compared_ = true;
  arrivals_.met_at = BoardClock::now();
}

void Board::sleep_until(BoardClock::time_point time) {
  RankCell& own = memory_.own();
  for (auto now = BoardClock::now(); now < time; now = BoardClock::now()) {
    const std::uint32_t seen = memory_.own_root_cell().bell.load(std::memory_order_seq_cst);
    own.waiting_for.store(static_cast<std::uint32_t>(rank()) + 1, std::memory_order_seq_cst);
    if (memory_.is_poisoned()) raise_poison();
    memory_.sleep(seen, std::min<std::chrono::nanoseconds>(time - now, kNap));
  }
  own.waiting_for.store(0, std::memory_order_relaxed);
}

void Board::reset(std::span<Board* const> others) {
  for (Board* other : others) await_left(*other);
  memory_.own().activity.store(RankCell::Activity::in_reset, std::memory_order_relaxed);
  const std::uint64_t epoch = epoch_ + 1;
  advance(memory_, &RankCell::resets, epoch);
  // Peers that wait in a call for this rank must learn that it will not arrive there.
  memory_.ring_all();
  await({&RankCell::resets, epoch});

  // All ranks are here, so none reads the poison, a window or another rank's cells.
  if (rank() == 0) memory_.header().poison = BoardHeader::Poison::none;
  restart(epoch);
  for (Board* other : others) other->restart(epoch);
  advance(memory_, &RankCell::resets_done, epoch);
  await({&RankCell::resets_done, epoch});
  epoch_ = epoch;
  for (Board* other : others) other->epoch_ = epoch;
  leave();
}

// A thread of this rank may still be on its way out of a call that the poison has ended. Between the halves of a call
// no thread is inside: either this one takes it, and resume() finds nothing, or it was resumed and is waited for.
void Board::await_left(Board& other) const {
  if (other.suspended_.exchange(0) != 0) other.leave();
  const RankCell& cell = other.memory_.own();
  const auto is_inside = [&] { return cell.activity.load(std::memory_order_acquire) != RankCell::Activity::outside; };
  if (is_inside())
    memory_.poison(fmt::format("rank {} calls reset() while another thread of it is in {}", rank(), call_in(cell)));
  while (is_inside()) std::this_thread::yield();
}

void Board::restart(std::uint64_t epoch) {
  meetings_ = epoch << 32;
  round_ = 0;
  memory_.own().meetings = meetings_;
  for (int peer = 0; peer < size(); ++peer) {
    sequence_ = std::max(sequence_, memory_.cell(peer).calls.load());
    MailCell &out = memory_.mail(rank(), peer), &in = memory_.mail(peer, rank());
    out.sent = 0, out.sends = 0;
    in.taken = 0, in.receives = 0;
  }
}

void Board::await(const Wait& wait) {
  bool is_first = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (memory_.has_come(wait, peer)) continue;
    if (std::exchange(is_first, false)) watch_.begin();
    await_one(peer, wait);
  }
}

void Board::await_one(int peer, const Wait& wait) {
  if (may_spin(memory_)) {
    const auto stop = watch_.since() + kSpin;
    do {
      for (int i = 0; i < 32; ++i) {
        if (memory_.has_come(wait, peer)) return;
        __builtin_ia32_pause();
      }
    } while (BoardClock::now() < stop);
  }
  RankCell& own = memory_.own();
  watch_.circle().sleep(peer);
  for (;;) {
    const BoardClock::time_point looked = BoardClock::now();
    const std::uint32_t seen = memory_.own_root_cell().bell.load(std::memory_order_seq_cst);
    own.waiting_for.store(static_cast<std::uint32_t>(peer) + 1, std::memory_order_seq_cst);
    if (memory_.has_come(wait, peer)) break;
    watch_.circle().tell(wait, looked);
    check_peers(wait);
    watch_.say_missing(wait);
    give_up(wait, watch_.circle().look(wait));
    memory_.sleep(seen, watch_.nap());
  }
  own.waiting_for.store(0, std::memory_order_relaxed);
  watch_.circle().wake();
}

// The reasons to stop waiting, most informative first. A peer that has already arrived may have left since: its part
// is done. So where all have come, whoever aborts or resets the group afterwards no longer ends this call.
void Board::check_peers(const Wait& wait) const {
  if (wait.is_in_call()) {
    const bool poisoned = memory_.is_poisoned();
    int resetting = -1;
    for (int peer = 0; peer < size(); ++peer)
      if (memory_.root_head(peer).resets > epoch_) resetting = peer;
    if ((poisoned || resetting >= 0) && memory_.have_all_come(wait)) return;  // last: they come before they abort
    if (poisoned) raise_poison();
    if (resetting >= 0)
      fail_call(fmt::format("rank {} calls reset(), rank {} calls {}", memory_.root_rank(resetting),
                            memory_.root_rank(), call()));
  }
  give_up(wait, watch_.departed_peer(wait));
  give_up(wait, watch_.overdue(wait));
}

void Board::give_up(const Wait& wait, const std::string& reason) const {
  if (reason.empty()) return;
  if (wait.is_in_call()) fail_call(reason);
  memory_.poison(reason);
  throw CommError(reason);  // a failed reset() tells its own reason, not the one it was to clear
}

void Board::fail_call(const std::string& reason) const {
  memory_.poison(reason);
  raise_poison();
}

void Board::raise_poison() const {
  CommError error(memory_.poison_reason());
  error.add("rank", fmt::format("{} of {}, in {}", memory_.root_rank(), memory_.root_size(),
                                call().empty() ? "no call" : call()));
  throw error;
}

}  // namespace sherd::comm
