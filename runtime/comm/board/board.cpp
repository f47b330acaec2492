// Meetings on the board. A rank advances its own counter and waits until every peer's counter has come as far.
// Sleeping follows Dekker: the sleeper writes which peer it waits for, then looks at the counter again; the other side
// writes the counter, then looks which ranks wait for it. Both orders are sequentially consistent, so no wake-up is
// lost, and the bounded naps serve only to look for dead peers and the deadline.
#include "runtime/comm/board/board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <limits>
#include <thread>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/os/allowed_cpus.h"

namespace sherd::comm {

namespace {

constexpr auto kSpin = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds kNap = std::chrono::milliseconds(100);

// The futexes are not private: the same page may be mapped by several processes.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds nap) {
  timespec time{};
  time.tv_sec = static_cast<std::time_t>(nap.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(nap.count() % 1'000'000'000);
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

std::string name_members(const BoardRoot* root) {
  if (root == nullptr) return {};
  constexpr std::size_t kMaxNamed = 8;
  const std::span<const int> ranks(root->ranks);
  std::string text = fmt::format("ranks {}", fmt::join(ranks.first(std::min(ranks.size(), kMaxNamed)), ","));
  if (ranks.size() > kMaxNamed) text += fmt::format(",... ({} in all)", ranks.size());
  return text;
}

}  // namespace

std::size_t Board::memory_bytes(int size, std::size_t window_bytes) {
  const auto ranks = static_cast<std::size_t>(size);
  return sizeof(BoardHeader) + kNumLanes * ranks * (sizeof(RankCell) + ranks * sizeof(Mail) + 3 * window_bytes);
}

void Board::format(std::byte* memory, int size) {
  std::construct_at(reinterpret_cast<BoardHeader*>(memory));
  auto* cells = reinterpret_cast<RankCell*>(memory + sizeof(BoardHeader));
  for (int i = 0; i < size * kNumLanes; ++i) std::construct_at(cells + i);
  auto* mails = reinterpret_cast<Mail*>(cells + size * kNumLanes);
  for (int i = 0; i < size * size * kNumLanes; ++i) std::construct_at(mails + i);
}

std::shared_ptr<std::byte> Board::heap_memory(int size, std::size_t window_bytes) {
  const auto lines = std::make_shared<std::vector<CacheLine>>(memory_bytes(size, window_bytes) / sizeof(CacheLine) + 1);
  std::shared_ptr<std::byte> memory(lines, lines->data()->bytes);
  format(memory.get(), size);
  return memory;
}

Board::Board(std::shared_ptr<std::byte> memory, BoardOptions options)
    : memory_(std::move(memory)),
      options_(std::move(options)),
      members_(name_members(options_.root.get())),
      exceptions_at_start_(std::uncaught_exceptions()),
      epoch_(options_.epoch),
      sends_(static_cast<std::size_t>(options_.size)),
      receives_(static_cast<std::size_t>(options_.size)) {
  if (options_.has_died && lane() == 0) own().process = getpid();
  if (!options_.root && lane() == 0) add_cpus();
  if (options_.has_died && !options_.root && lane() == 0) exit_word_.emplace(*this);
}

// A rank of a subgroup that unwinds gives its reason by abort(), or by leaving the root: a better reason than this
// departure.
Board::~Board() {
  if (options_.has_died && lane() == 0 && own().process != ::getpid()) return;  // a forked child leaves nothing
  if (lane() != 0 || (options_.root && std::uncaught_exceptions() > exceptions_at_start_)) return;
  exit_word_.reset();
  if (own().presence == Presence::here) tell_departure(kStillRuns);  // or this is the end of the process
}

void Board::tell_departure(std::int32_t exit_status) const {
  const RankContext* const context = RankContext::current_or_null();
  if (context) own().steps = context->step + 1;
  own().exit_status = exit_status;
  own().presence = Presence::left;
  ring_all();
}

void Board::tell_exit(int status) const {
  if (own().process == ::getpid()) tell_departure(status);
}

LifeCell& Board::life_cell(std::byte* memory, int rank) {
  return reinterpret_cast<RankCell*>(memory + sizeof(BoardHeader))[rank].life;  // lane 0 comes first
}

RankCell& Board::cell(int rank, int lane) const {
  return reinterpret_cast<RankCell*>(memory_.get() + sizeof(BoardHeader))[lane * size() + rank];
}

RankCell& Board::root_cell(int rank, int lane) const {
  return reinterpret_cast<RankCell*>(root_memory() + sizeof(BoardHeader))[lane * root_size() + root_rank(rank)];
}

Mail& Board::mail(int from, int to) const {
  auto* mails = reinterpret_cast<Mail*>(&cell(0, kNumLanes));  // behind the last cell
  return mails[(lane() * size() + from) * size() + to];
}

std::byte* Board::window(int rank, std::uint64_t round) const { return window_at(rank, round % 2); }

std::byte* Board::window_at(int rank, std::size_t index) const {
  std::byte* windows = memory_.get() + memory_bytes(size(), 0);
  const auto owner = static_cast<std::size_t>(lane() * size() + rank);
  return windows + (3 * owner + index) * options_.window_bytes;
}

void Board::check_usable(const Fingerprint& call) {
  call_ = call;
  // Read first: whoever finds no poison because a reset has cleared it must see that reset below.
  const bool is_poisoned = this->is_poisoned();
  if (root_head(rank()).resets > epoch_)
    throw CommError(
        fmt::format("{}: the last reset() of this group did not complete; call reset() again", call.text()));
  if (is_poisoned) raise_poison();
}

void Board::enter(const Fingerprint& call, Clock::time_point arrived) {
  check_usable(call);
  first_arrival_ = last_arrival_ = own_arrival_ = arrived;
  if (suspended_ != 0)
    fail_call(fmt::format("rank {} calls {} and has left {} unfinished", root_rank(), call.text(),
                          own().notes[sequence_ % 2].text.load()));
  is_compared_ = false;
  ++sequence_;
  CallNote& note = own().notes[sequence_ % 2];
  note.hash.store(call.hash(), std::memory_order_relaxed);
  note.arrived.store(nanoseconds(arrived), std::memory_order_relaxed);
  note.text.store(call.text());
  own().calls.store(sequence_, std::memory_order_release);
  own().activity.store(Activity::in_call, std::memory_order_relaxed);
  tell_root();
}

// So that ranks that wait for this one in another group learn where it is.
void Board::tell_root() {
  if (!options_.root) return;
  RankCell& cell = root_cell(rank(), lane());
  cell.subgroup_call.store(call_.text());
  cell.is_in_subgroup.store(true, std::memory_order_release);
}

void Board::leave() {
  own().waiting_for.store(0, std::memory_order_relaxed);
  root_cell(rank(), lane()).awaited.store(0, std::memory_order_relaxed);
  own().activity.store(Activity::outside, std::memory_order_release);
  if (options_.root) root_cell(rank(), lane()).is_in_subgroup.store(false, std::memory_order_relaxed);
}

void Board::meet() {
  come();
  meet_others();
}

void Board::come() { advance(&RankCell::meetings, ++meetings_); }

void Board::meet_others() {
  await({&RankCell::meetings, meetings_});
  if (is_compared_) return;
  compare_calls();
  for (int peer = 0; peer < size(); ++peer) note_arrival(cell(peer).notes[sequence_ % 2].arrived);
  is_compared_ = true;
  met_at_ = Clock::now();
}

bool Board::have_all_come() const {
  if (is_poisoned()) return true;
  for (int peer = 0; peer < size(); ++peer)
    if (!has_come({&RankCell::meetings, meetings_}, peer)) return false;
  return true;
}

void Board::note_arrival(const std::atomic<std::int64_t>& arrived) {
  const std::chrono::nanoseconds nanoseconds(arrived.load(std::memory_order_relaxed));
  const Clock::time_point time(std::chrono::duration_cast<Clock::duration>(nanoseconds));
  first_arrival_ = std::min(first_arrival_, time);
  last_arrival_ = std::max(last_arrival_, time);
}

void Board::sleep_until(Clock::time_point time) {
  for (auto now = Clock::now(); now < time; now = Clock::now()) {
    const std::atomic<std::uint32_t>& bell = root_cell(rank(), lane()).bell;
    const std::uint32_t seen = bell.load(std::memory_order_seq_cst);
    own().waiting_for.store(static_cast<std::uint32_t>(rank()) + 1, std::memory_order_seq_cst);
    if (is_poisoned()) raise_poison();
    futex_wait(bell, seen, std::min<std::chrono::nanoseconds>(time - now, kNap));
  }
  own().waiting_for.store(0, std::memory_order_relaxed);
}

void Board::reset(std::span<Board* const> others) {
  for (Board* other : others) await_left(*other);
  own().activity.store(Activity::in_reset, std::memory_order_relaxed);
  const std::uint64_t epoch = epoch_ + 1;
  advance(&RankCell::resets, epoch);
  // Peers that wait in a call for this rank must learn that it will not arrive there.
  ring_all();
  await({&RankCell::resets, epoch});

  // All ranks are here, so none reads the poison, a window or another rank's cells.
  if (rank() == 0) header().poison = Poison::none;
  restart(epoch);
  for (Board* other : others) other->restart(epoch);
  advance(&RankCell::resets_done, epoch);
  await({&RankCell::resets_done, epoch});
  epoch_ = epoch;
  for (Board* other : others) other->epoch_ = epoch;
  leave();
}

// A thread of this rank may still be on its way out of a call that the poison has ended. Between the halves of a call
// no thread is inside: either this one takes it, and resume() finds nothing, or it was resumed and is waited for.
void Board::await_left(Board& other) {
  if (other.suspended_.exchange(0) != 0) other.leave();
  const auto is_inside = [&] { return other.own().activity.load(std::memory_order_acquire) != Activity::outside; };
  if (is_inside())
    poison(fmt::format("rank {} calls reset() while another thread of it is in {}", rank(),
                       other.call_of(other.rank(), other.lane())));
  while (is_inside()) std::this_thread::yield();
}

void Board::restart(std::uint64_t epoch) {
  meetings_ = epoch << 32;
  round_ = 0;
  own().meetings = meetings_;
  for (int peer = 0; peer < size(); ++peer) {
    sequence_ = std::max(sequence_, cell(peer).calls.load());
    mail(rank(), peer).sent = 0;
    mail(peer, rank()).taken = 0;
  }
  std::ranges::fill(sends_, MailCount{});
  std::ranges::fill(receives_, MailCount{});
}

void Board::advance(Counter counter, std::uint64_t value) {
  (own().*counter).store(value, std::memory_order_seq_cst);
  const auto me = static_cast<std::uint32_t>(rank()) + 1;
  for (int peer = 0; peer < size(); ++peer)
    if (cell(peer).waiting_for.load(std::memory_order_seq_cst) == me) ring(peer, lane());
}

void Board::ring(int rank, int lane) const {
  std::atomic<std::uint32_t>& bell = root_cell(rank, lane).bell;
  bell.fetch_add(1, std::memory_order_seq_cst);
  if (cell(rank, lane).waiting_for.load(std::memory_order_seq_cst) != 0) futex_wake_all(bell);
}

// Wakes all ranks of the root, because no rank here knows all subgroups in which they may wait.
void Board::ring_all() const {
  auto* cells = reinterpret_cast<RankCell*>(root_memory() + sizeof(BoardHeader));
  for (int i = 0; i < root_size() * kNumLanes; ++i) {
    cells[i].bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(cells[i].bell);
  }
}

bool Board::has_come(const Wait& wait, int peer) const {
  if (wait.mail) return peer != wait.mail_peer || wait.mail->load(std::memory_order_seq_cst) >= wait.target;
  return (cell(peer).*wait.counter).load(std::memory_order_seq_cst) >= wait.target;
}

bool Board::have_all_come(const Wait& wait) const {
  for (int peer = 0; peer < size(); ++peer)
    if (!has_come(wait, peer)) return false;
  return true;
}

// Ranks may be bound to CPUs of their own, so no rank alone knows how many there are.
void Board::add_cpus() {
  constexpr std::size_t kBits = 64;
  for (const int cpu : allowed_cpus().cpus)
    if (const auto bit = static_cast<std::size_t>(cpu); bit / kBits < std::size(header().cpus))
      header().cpus[bit / kBits].fetch_or(std::uint64_t{1} << bit % kBits, std::memory_order_relaxed);
}

int Board::num_cpus() const {
  int num_cpus = 0;
  for (const auto& bits : header().cpus) num_cpus += std::popcount(bits.load(std::memory_order_relaxed));
  return static_cast<int>(std::min<double>(num_cpus, std::ceil(allowed_cpus().quota)));
}

// Ranks outside of a subgroup need their CPUs too; and while a queue's thread waits, its rank's computes.
bool Board::may_spin() const {
  const bool is_rank_thread = lane() == 0 || RankContext::current_or_null();
  return (is_rank_thread ? 1 : 2) * root_size() <= num_cpus();
}

void Board::await(const Wait& wait) {
  bool is_first = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (has_come(wait, peer)) continue;
    if (std::exchange(is_first, false)) {
      waiting_since_ = Clock::now();
      notice_clock_ = {waiting_since_, options_.notice.after};
      next_look_ = waiting_since_ + options_.look;
      circle_.forget();
      lost_before_ = life(root_rank()).lost.load(std::memory_order_relaxed);
    }
    await_one(peer, wait);
  }
}

/// Often enough that who looks twice finds what this rank has found in between.
std::chrono::nanoseconds Board::nap() const {
  if (options_.look == std::chrono::nanoseconds(0)) return kNap;
  return std::clamp<std::chrono::nanoseconds>(options_.look / 4, std::chrono::milliseconds(1), kNap);
}

void Board::await_one(int peer, const Wait& wait) {
  if (may_spin()) {
    const auto stop = waiting_since_ + kSpin;
    do {
      for (int i = 0; i < 32; ++i) {
        if (has_come(wait, peer)) return;
        __builtin_ia32_pause();
      }
    } while (Clock::now() < stop);
  }
  RankCell& shown = root_cell(rank(), lane());
  const bool tells = tells_of_its_sleep();
  int told = peer;
  const auto tell = [&] {
    shown.awaited.store(static_cast<std::uint32_t>(root_rank(told)) + 1, std::memory_order_release);
  };
  if (tells) {
    shown.awaited_since.store(nanoseconds(waiting_since_), std::memory_order_relaxed);
    tell();
  }
  for (;;) {
    const Clock::time_point looked = Clock::now();
    const std::atomic<std::uint32_t>& bell = shown.bell;
    const std::uint32_t seen = bell.load(std::memory_order_seq_cst);
    own().waiting_for.store(static_cast<std::uint32_t>(peer) + 1, std::memory_order_seq_cst);
    if (has_come(wait, peer)) break;
    if (tells && looked - waiting_since_ >= nap()) {
      if (options_.look > std::chrono::nanoseconds(0)) told = peer_to_tell_of(wait, told);
      tell();
      shown.awaited_until.store(nanoseconds(looked), std::memory_order_release);
      tell_between();
    }
    check_peers(wait);
    say_missing(wait);
    if (tells) look_for_circle(wait);
    // After a pause of this process the deadline is later than the clock says.
    const std::chrono::nanoseconds left = waiting_since_ + deadline_.load() - Clock::now();
    futex_wait(bell, seen, left.count() > 0 ? std::min(left, nap()) : nap());
  }
  own().waiting_for.store(0, std::memory_order_relaxed);
  if (tells) shown.awaited.store(0, std::memory_order_relaxed);
}

// The reasons to stop waiting, most informative first. A peer that has already arrived may have left since: its part
// is done. So where all have come, whoever aborts or resets the group afterwards no longer ends this call.
void Board::check_peers(const Wait& wait) {
  if (wait.counter == &RankCell::meetings) {
    const bool poisoned = is_poisoned();
    int resetting = -1;
    for (int peer = 0; peer < size(); ++peer)
      if (root_head(peer).resets > epoch_) resetting = peer;
    if ((poisoned || resetting >= 0) && have_all_come(wait)) return;  // looked at last: they come before they abort
    if (poisoned) raise_poison();
    if (resetting >= 0)
      fail_group(wait,
                 fmt::format("rank {} calls reset(), rank {} calls {}", root_rank(resetting), root_rank(), call()));
  }
  check_presence(wait);
  check_deadlines(wait);
}

void Board::check_presence(const Wait& wait) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    // Look first whether the peer is alive, then at its counter: the counter no longer changes once the peer has
    // ended.
    RankCell& other = head(peer);
    if (other.presence == Presence::here && options_.has_died && options_.has_died(peer))
      other.presence = Presence::died;
    const Presence presence = std::max(other.presence.load(), root_head(peer).presence.load());
    if (presence == Presence::here || has_come(wait, peer)) continue;
    std::string others;  // that ended at the same time: which of them was first is not known
    for (int also = peer + 1; also < size(); ++also)
      if (also != rank() && options_.has_died && options_.has_died(also))
        others += fmt::format("; {} died too", casualty(also));
    fail_group(wait, fmt::format("{} {} while rank {} waits for it in {}; {}{}{}", casualty(peer),
                                 presence == Presence::died ? "died" : departure(peer), root_rank(), own_activity(wait),
                                 describe(peer), others, others_meanwhile(wait)));
  }
}

}  // namespace sherd::comm
