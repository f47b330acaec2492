// Whoever connects to rank 0 is a stranger until its hello shows the token: strangers are few, the oldest gives way to
// the next, and none is waited for.
#include "runtime/comm/board/shm_rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/comm/board/board.h"
#include "runtime/comm/board/segment.h"
#include "runtime/comm/store/hmac.h"
#include "runtime/tensor/error.h"

namespace sherd::comm {

namespace {

using Clock = SocketTime::clock;

constexpr std::size_t kTokenSize = 32;
constexpr std::size_t kMaxStrangers = 32;
constexpr std::uint32_t kVersion = 3;
constexpr auto kLate = std::chrono::seconds(1);  // rank 0, which knows who is missing, is to give up first
constexpr std::string_view kRefused = "refused: ";

struct Hello {
  std::uint32_t version = kVersion;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t process = 0;
  std::array<char, kTokenSize> token{};
};

struct Welcome {
  std::uint32_t version = kVersion;
  std::int32_t size = 0;
  std::uint64_t window_bytes = 0;
  std::uint64_t heap_bytes = 0;
};

template <class T>
std::string packed(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

template <class T>
std::optional<T> unpacked(std::string_view bytes) {
  if (bytes.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value.version == kVersion ? std::optional(value) : std::nullopt;
}

double in_seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

/// Wakes a wait of the rendezvous in time to say that it is long.
class LongWait {
 public:
  explicit LongWait(const Meeting& meeting)
      : meeting_(meeting), start_(Clock::now()), clock_(start_, meeting.options.notice.after) {}
  /// The deadline, or before it the next moment to speak.
  SocketTime until() const {
    return meeting_.options.notice.say ? std::min(meeting_.until, clock_.next()) : meeting_.until;
  }
  /// Lets a moment to speak pass.
  void skip() { clock_.is_due(Clock::now()); }
  /// `what` for: "rank 0 to open the rendezvous".
  void say_if_due(const std::string& what) {
    if (!meeting_.options.notice.say || !clock_.is_due(Clock::now())) return;
    meeting_.options.notice.say(fmt::format("rank {} has waited {:.1f} s at the start for {} (deadline {:.3g} s)",
                                            meeting_.rank, in_seconds(Clock::now() - start_), what,
                                            in_seconds(meeting_.options.rendezvous_deadline)));
  }

 private:
  const Meeting& meeting_;
  SocketTime start_;
  NoticeClock clock_;
};

/// Rank 0's part.
class Host {
 public:
  explicit Host(const Meeting& meeting);
  Segment run();

 private:
  void gather();
  void wait_for_events(const LongWait& wait);
  void check_lives() const;
  void hear_strangers();
  void admit(const Hello& hello, Descriptor life);
  std::string missing_ranks() const;
  void send_welcome();
  void refuse(const std::string& reason);
  [[noreturn]] void fail(const std::string& reason) const {
    throw CommError(fmt::format("shm_group {}: {}", meeting_.options.name, reason));
  }

  const Meeting& meeting_;
  const std::size_t size_;
  const std::string token_ = random_hex(static_cast<int>(kTokenSize / 2));
  Segment segment_;
  Descriptor listener_;
  std::vector<Descriptor> strangers_;  // the oldest first
  std::vector<Descriptor> peers_;      // whose hello has come, in that order
  std::vector<int> processes_;         // by rank
};

Host::Host(const Meeting& meeting) : meeting_(meeting), size_(static_cast<std::size_t>(meeting.size)) {
  segment_.window_bytes = std::max(meeting.options.window_bytes / 64, size_) * 64;
  const std::size_t heap_bytes = meeting.options.heap_bytes.value_or(default_heap_bytes(meeting.size));
  segment_.heap_bytes = size_ == 1 ? 0 : to_huge_pages(heap_bytes);
  const SegmentLayout layout(meeting.size, segment_);
  segment_.memory = new_segment(layout.bytes, layout.board_bytes);
  Board::format(map_segment(segment_.memory, layout.bytes).get(), meeting.size);
  segment_.lives.resize(size_);
  std::tie(segment_.near_end, segment_.lives[0]) = socket_pair();
  processes_.resize(size_);
  processes_[0] = ::getpid();
}

Segment Host::run() {
  if (size_ == 1) return std::move(segment_);
  const std::string name = "sherd-" + random_hex(16);
  listener_ = listen_abstract(name);
  meeting_.store.set(meeting_.key(), name + " " + token_);
  try {
    gather();
    send_welcome();
  } catch (const CommError& error) {
    refuse(error.message());
    throw;
  }
  return std::move(segment_);
}

void Host::gather() {
  LongWait wait(meeting_);
  while (peers_.size() + 1 < size_) {
    if (Clock::now() >= meeting_.until)
      fail(fmt::format("ranks {} have not come within {:.3g} s", missing_ranks(),
                       in_seconds(meeting_.options.rendezvous_deadline)));
    check_lives();
    wait.say_if_due(fmt::format("ranks {} to come", missing_ranks()));
    wait_for_events(wait);
    if (std::optional<Descriptor> connection = accept_same_user(listener_))
      strangers_.push_back(*std::move(connection));
    if (strangers_.size() > kMaxStrangers) strangers_.erase(strangers_.begin());
    hear_strangers();
  }
}

void Host::wait_for_events(const LongWait& wait) {
  std::vector<int> sockets{listener_.get()};
  for (std::size_t rank = 1; rank < size_; ++rank)
    if (segment_.lives[rank]) sockets.push_back(segment_.lives[rank].get());
  for (const Descriptor& stranger : strangers_) sockets.push_back(stranger.get());
  wait_readable(sockets, wait.until());
}

void Host::check_lives() const {
  for (std::size_t rank = 1; rank < size_; ++rank)
    if (segment_.lives[rank] && is_hung_up(segment_.lives[rank]))
      fail(fmt::format("rank {} died before all ranks had come", rank));
}

void Host::hear_strangers() {
  std::vector<Descriptor> silent;
  for (Descriptor& stranger : std::exchange(strangers_, {})) {
    if (!is_readable(stranger)) {
      silent.push_back(std::move(stranger));
      continue;
    }
    std::optional<Message> message = receive_message(stranger, Clock::now());
    if (!message || message->fds.size() != 1) continue;
    const std::optional<Hello> hello = unpacked<Hello>(message->bytes);
    if (!hello || std::string_view(hello->token.data(), kTokenSize) != token_) continue;
    peers_.push_back(std::move(stranger));  // before it may be refused: it is told too
    admit(*hello, std::move(message->fds[0]));
  }
  strangers_ = std::move(silent);
}

void Host::admit(const Hello& hello, Descriptor life) {
  if (hello.size != meeting_.size)
    fail(
        fmt::format("rank 0 has a group of {} ranks, rank {} (process {}) one of {}; start all ranks with the same "
                    "number of ranks",
                    meeting_.size, hello.rank, hello.process, hello.size));
  if (hello.rank < 0 || std::cmp_greater_equal(hello.rank, size_))
    fail(fmt::format("process {} says it is rank {} of {} ranks", hello.process, hello.rank, size_));
  const auto rank = static_cast<std::size_t>(hello.rank);
  if (segment_.lives[rank])
    fail(fmt::format("two processes say they are rank {}: {} and {}; give each rank a number of its own", rank,
                     processes_[rank], hello.process));
  segment_.lives[rank] = std::move(life);
  processes_[rank] = hello.process;
}

std::string Host::missing_ranks() const {
  std::string text;
  for (std::size_t rank = 0; rank < size_; ++rank)
    if (!segment_.lives[rank]) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  return text;
}

void Host::send_welcome() {
  std::vector<int> fds{segment_.memory.get()};
  for (const Descriptor& life : segment_.lives) fds.push_back(life.get());
  const Welcome welcome{
      .size = meeting_.size, .window_bytes = segment_.window_bytes, .heap_bytes = segment_.heap_bytes};
  for (const Descriptor& peer : peers_) send_message(peer, packed(welcome), fds);
}

void Host::refuse(const std::string& reason) {
  for (const Descriptor& peer : peers_) {
    try {
      send_message(peer, std::string(kRefused) + reason.substr(0, 2000), {});
    } catch (const CommError&) {  // It has gone, and needs no reason.
    }
  }
}

/// What rank 0 has published.
std::string await_entry(const Meeting& meeting) {
  for (LongWait wait(meeting);;) {
    const SocketTime until = wait.until();
    try {
      return meeting.store.get(meeting.key(), std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()));
    } catch (const CommError&) {
      if (until == meeting.until || Clock::now() < until) throw;  // the last part, or no matter of time
    }
    wait.say_if_due("rank 0 to open the rendezvous");
  }
}

Descriptor say_hello(const Meeting& meeting, const Descriptor& connection, std::string_view token) {
  if (!is_same_user(connection)) throw CommError("shm_group: rank 0 runs as another user");
  Hello hello{.rank = meeting.rank, .size = meeting.size, .process = ::getpid()};
  std::memcpy(hello.token.data(), token.data(), kTokenSize);
  auto [near_end, far_end] = socket_pair();
  const std::array<int, 1> far_number{far_end.get()};
  send_message(connection, packed(hello), far_number);
  return std::move(near_end);
}

/// Rank 0's answer; nothing if it has gone.
std::optional<Message> await_answer(const Meeting& meeting, const Descriptor& connection) {
  for (LongWait wait(meeting);;) {
    const SocketTime until = std::min(wait.until(), meeting.until + kLate);
    const int number = connection.get();
    wait_readable(std::span(&number, 1), until);
    if (is_readable(connection)) return receive_message(connection, Clock::now());
    if (Clock::now() >= meeting.until + kLate)
      throw CommError(fmt::format("shm_group {}: rank 0 has not said within {:.3g} s that all ranks have come",
                                  meeting.options.name, in_seconds(meeting.options.rendezvous_deadline)));
    // Rank 0 tells for whom it waits. That rank 0 itself is stuck one rank tells for all.
    if (meeting.rank == 1) wait.say_if_due("rank 0 to say that all ranks have come");
    else if (Clock::now() >= until) wait.skip();
  }
}

Segment join(const Meeting& meeting, const std::string& entry) {
  const std::size_t space = entry.find(' ');
  if (space == std::string::npos || entry.size() != space + 1 + kTokenSize)
    throw CommError(fmt::format("shm_group: the store's entry {} is not a rendezvous", meeting.key()));
  const Descriptor connection = connect_abstract(std::string_view(entry).substr(0, space));
  Segment segment;
  segment.near_end = say_hello(meeting, connection, std::string_view(entry).substr(space + 1));
  std::optional<Message> message = await_answer(meeting, connection);
  if (!message)
    throw CommError(
        fmt::format("shm_group {}: rank 0 gave up or died before all ranks had come", meeting.options.name));
  if (message->bytes.starts_with(kRefused)) throw CommError(message->bytes.substr(kRefused.size()));
  const std::optional<Welcome> welcome = unpacked<Welcome>(message->bytes);
  if (!welcome || welcome->size != meeting.size || !std::cmp_equal(message->fds.size(), meeting.size + 1))
    throw CommError(fmt::format("shm_group {}: rank 0 runs another version of Sherd", meeting.options.name));
  segment.window_bytes = welcome->window_bytes;
  segment.heap_bytes = welcome->heap_bytes;
  segment.memory = std::move(message->fds[0]);
  for (std::size_t i = 1; i < message->fds.size(); ++i) segment.lives.push_back(std::move(message->fds[i]));
  return segment;
}

/// Whether a process of this rank listens at the rendezvous: not where an earlier program of the rank has met there.
bool is_open(const std::string& entry) {
  try {
    connect_abstract(std::string_view(entry).substr(0, entry.find(' ')));
    return true;
  } catch (const CommError&) { return false; }
}

}  // namespace

SegmentLayout::SegmentLayout(int size, const Segment& segment)
    : board_bytes(to_huge_pages(Board::memory_bytes(size, segment.window_bytes))),
      bytes(board_bytes + static_cast<std::size_t>(size) * segment.heap_bytes) {}

Segment meet(const Meeting& meeting) {
  if (meeting.rank != 0) return join(meeting, await_entry(meeting));
  // A second process that is rank 0 says hello to the first, which tells all that there are two.
  if (meeting.size > 1 && meeting.store.add(meeting.key() + "/hosts", 1) > 1)
    if (const std::string entry = await_entry(meeting); is_open(entry)) return join(meeting, entry);
  return Host(meeting).run();
}

}  // namespace sherd::comm
