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
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/comm/board/board.h"
#include "runtime/comm/board/segment.h"
#include "runtime/comm/store/hmac.h"
#include "runtime/exec/context.h"
#include "runtime/exec/running_op.h"
#include "runtime/os/host_name.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

using Clock = SocketTime::clock;

constexpr std::size_t kTokenSize = 32;
constexpr std::size_t kMaxStrangers = 32;
constexpr std::uint32_t kVersion = 4;
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr auto kLate = std::chrono::seconds(1);  // rank 0, which knows who is missing, is to give up first
constexpr std::string_view kRefused = "refused: ";
constexpr std::string_view kComplete = "complete";

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

/// What the store knows of ranks that cannot come, as "; ..."; empty if nothing.
std::string trouble_of(const Meeting& meeting) {
  try {
    return "; " + meeting.store.get(kStartTrouble, std::chrono::milliseconds(0));
  } catch (const CommError&) { return {}; }
}

/// Wakes a wait of the rendezvous in time to say that it is long.
class LongWait {
 public:
  LongWait(const Meeting& meeting, SocketTime deadline)
      : meeting_(meeting), deadline_(deadline), start_(Clock::now()), clock_(start_, meeting.options.notice.after) {}
  /// The deadline, or before it the next moment to speak.
  SocketTime until() const { return meeting_.options.notice.say ? std::min(deadline_, clock_.next()) : deadline_; }
  bool is_due() { return clock_.is_due(Clock::now()); }
  /// `what` for: "rank 0 to open the rendezvous".
  void say(const std::string& what) const {
    if (!meeting_.options.notice.say) return;
    meeting_.options.notice.say(fmt::format("rank {} has waited {:.1f} s at the start for {} (deadline {:.3g} s){}",
                                            meeting_.rank, in_seconds(Clock::now() - start_), what,
                                            in_seconds(deadline_ - meeting_.start), trouble_of(meeting_)));
  }
  void say_if_due(const std::string& what) {
    if (is_due()) say(what);
  }

 private:
  const Meeting& meeting_;
  const SocketTime deadline_;
  SocketTime start_;
  NoticeClock clock_;
};

/// Maps the segment and gives signs of life of this rank on it from now on.
void begin_to_live(const Meeting& meeting, Segment* segment, bool is_new) {
  segment->board = map_segment(segment->memory, SegmentLayout(meeting.size, *segment).bytes);
  if (is_new) BoardMemory::format(segment->board.get(), meeting.size);
  std::shared_ptr<const RunningOp> running;
  if (RankContext::current_or_null()) running = running_op();
  segment->heartbeat = std::make_unique<Heartbeat>(BoardMemory::life_cell(segment->board.get(), meeting.rank), running,
                                                   beat_interval(meeting.options.silence));
}

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
  void admit(const Descriptor& peer, const Hello& hello, Descriptor life);
  void note_first_sign(int rank);
  std::string missing_ranks() const;
  void complete();
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
  struct Peer {
    int rank;
    Descriptor connection;
  };
  std::vector<Peer> peers_;     // whose hello has come, in that order
  std::vector<int> processes_;  // by rank
};

Host::Host(const Meeting& meeting) : meeting_(meeting), size_(static_cast<std::size_t>(meeting.size)) {
  segment_.window_bytes = std::max(meeting.options.window_bytes / 64, size_) * 64;
  const std::size_t heap_bytes = meeting.options.heap_bytes.value_or(default_heap_bytes(meeting.size));
  segment_.heap_bytes = size_ == 1 ? 0 : to_huge_pages(heap_bytes);
  const SegmentLayout layout(meeting.size, segment_);
  segment_.memory = new_segment(layout.bytes, layout.board_bytes);
  begin_to_live(meeting, &segment_, true);
  segment_.lives.resize(size_);
  std::tie(segment_.near_end, segment_.lives[0]) = socket_pair();
  processes_.resize(size_);
  processes_[0] = ::getpid();
}

Segment Host::run() {
  if (size_ == 1) return std::move(segment_);
  const std::string name = "sherd-" + random_hex(16);
  listener_ = listen_abstract(name);
  meeting_.store.set(meeting_.key(), fmt::format("{} {} {}", name, token_, host_name()));
  try {
    gather();
    complete();
  } catch (const CommError& error) {
    refuse(error.message());
    throw;
  }
  return std::move(segment_);
}

void Host::gather() {
  LongWait wait(meeting_, meeting_.until_without_sign);
  while (peers_.size() + 1 < size_) {
    if (Clock::now() >= meeting_.until_without_sign)
      fail(fmt::format("ranks {} have not come within {:.3g} s, and given no sign of life{}", missing_ranks(),
                       in_seconds(meeting_.silence), trouble_of(meeting_)));
    check_lives();
    meeting_.check_given_up();
    wait.say_if_due(fmt::format("ranks {} to come, which have given no sign of life yet", missing_ranks()));
    wait_for_events(wait);
    if (std::optional<Descriptor> connection = accept_same_user(listener_))
      strangers_.push_back(*std::move(connection));
    if (strangers_.size() > kMaxStrangers) strangers_.erase(strangers_.begin());
    hear_strangers();
  }
}

void Host::wait_for_events(const LongWait& wait) {
  std::vector<int> sockets{listener_.get()};
  for (const std::size_t rank : Numbers<std::size_t>(1, size_))
    if (segment_.lives[rank]) sockets.push_back(segment_.lives[rank].get());
  for (const Descriptor& stranger : strangers_) sockets.push_back(stranger.get());
  wait_readable(sockets, meeting_.next_look(wait.until()));
}

void Host::check_lives() const {
  for (const std::size_t rank : Numbers<std::size_t>(1, size_))
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
    peers_.push_back({hello->rank, std::move(stranger)});  // before it may be refused: it is told too
    admit(peers_.back().connection, *hello, std::move(message->fds[0]));
  }
  strangers_ = std::move(silent);
}

void Host::admit(const Descriptor& peer, const Hello& hello, Descriptor life) {
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
  note_first_sign(hello.rank);
  const Welcome welcome{
      .size = meeting_.size, .window_bytes = segment_.window_bytes, .heap_bytes = segment_.heap_bytes};
  const std::array<int, 1> memory{segment_.memory.get()};
  try {
    send_message(peer, packed(welcome), memory);
  } catch (const CommError&) {  // It has gone meanwhile, and its life line says so.
  }
}

// A rank without any sign would never be called frozen, and it may be stopped before it can give one. Its own heart
// beats later: it has not been welcomed yet.
void Host::note_first_sign(int rank) {
  LifeCell& cell = BoardMemory::life_cell(segment_.board.get(), rank);
  cell.interval = beat_interval(meeting_.options.silence).count();
  cell.beat = to_nanoseconds(Clock::now());
}

std::string Host::missing_ranks() const {
  std::string text;
  for (const std::size_t rank : up_to(size_))
    if (!segment_.lives[rank]) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  return text;
}

void Host::complete() {
  std::vector<int> fds;
  for (const Descriptor& life : segment_.lives) fds.push_back(life.get());
  for (const Peer& peer : peers_) {
    try {
      send_message(peer.connection, kComplete, fds);
    } catch (const SocketError& error) {
      fail(fmt::format("rank {} (process {}) has gone before all ranks had come: {}", peer.rank,
                       processes_[static_cast<std::size_t>(peer.rank)], error.message()));
    }
  }
}

void Host::refuse(const std::string& reason) {
  for (const Peer& peer : peers_) {
    try {
      send_message(peer.connection, std::string(kRefused) + reason.substr(0, 2000), {});
    } catch (const CommError&) {  // It has gone, and needs no reason.
    }
  }
}

/// What rank 0 has published.
std::string await_entry(const Meeting& meeting) {
  for (LongWait wait(meeting, meeting.until_without_sign);;) {
    const SocketTime until = meeting.next_look(wait.until());
    try {
      return meeting.store.get(meeting.key(), std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()));
    } catch (const KeyNotSet&) {
      if (until == meeting.until_without_sign)
        throw CommError(fmt::format("shm_group {}: rank 0 has not come within {:.3g} s, and given no sign of life{}",
                                    meeting.options.name, in_seconds(meeting.silence), trouble_of(meeting)));
    }
    meeting.check_given_up();
    wait.say_if_due("rank 0 to open the rendezvous, which has given no sign of life yet");
  }
}

Descriptor say_hello(const Meeting& meeting, const Descriptor& connection, std::string_view token) {
  if (!is_same_user(connection)) throw CommError("shm_group: rank 0 runs as another user");
  Hello hello{.rank = meeting.rank, .size = meeting.size, .process = ::getpid()};
  std::memcpy(hello.token.data(), token.data(), kTokenSize);
  auto [near_end, far_end] = socket_pair();
  const std::array<int, 1> far_number{far_end.get()};
  try {
    send_message(connection, packed(hello), far_number);
  } catch (const SocketError& error) {
    throw CommError(fmt::format("shm_group {}: rank 0 has gone before all ranks had come: {}", meeting.options.name,
                                error.message()));
  }
  return std::move(near_end);
}

/// Whether rank 0, which has welcomed this one, still gives signs of life: frozen it tells nobody what it waits for.
class HostWatch {
 public:
  HostWatch(const Meeting& meeting, const Segment& segment)
      : meeting_(meeting),
        host_(BoardMemory::life_cell(segment.board.get(), 0)),
        own_(BoardMemory::life_cell(segment.board.get(), meeting.rank)) {}

  std::chrono::nanoseconds silence() const {
    const auto read_time = [](const std::atomic<std::int64_t>& time) { return std::chrono::nanoseconds(time.load()); };
    const auto nanoseconds = [](SocketTime time) { return std::chrono::nanoseconds(to_nanoseconds(time)); };
    const Silence silence{.now = nanoseconds(Clock::now()),
                          .waiting_since = nanoseconds(start_),
                          .own_beat = read_time(own_.beat),
                          .lost = read_time(own_.lost) - lost_before_,
                          .pause_end = read_time(own_.pause_end),
                          .patience = quiet_after(meeting_.options.silence)};
    return silence.of(read_time(host_.beat)).value_or(std::chrono::nanoseconds(0));
  }
  /// How late rank 0's signs may be: by its own interval and by this rank's.
  std::chrono::nanoseconds patience() const {
    return std::max(4 * std::chrono::nanoseconds(host_.interval.load()), quiet_after(meeting_.options.silence));
  }
  bool is_frozen() const { return silence() > patience(); }
  void check() const {
    const std::chrono::nanoseconds silence = this->silence();
    const std::chrono::nanoseconds limit = std::max(std::chrono::nanoseconds(meeting_.silence), patience());
    if (silence >= limit)
      throw CommError(
          fmt::format("shm_group {}: rank 0 is frozen: no sign of life for {:.3g} s (limit {:.3g} s), before "
                      "all ranks had come",
                      meeting_.options.name, in_seconds(silence), in_seconds(limit)));
  }

 private:
  const Meeting& meeting_;
  const LifeCell &host_, &own_;
  const SocketTime start_ = Clock::now();
  const std::chrono::nanoseconds lost_before_{own_.lost.load()};
};

/// Rank 0's next message, before `deadline`; nothing if it has gone.
std::optional<Message> await_message(const Meeting& meeting, const Descriptor& connection, SocketTime deadline,
                                     const HostWatch* watch) {
  for (LongWait wait(meeting, deadline);;) {
    SocketTime until = meeting.next_look(wait.until());
    if (watch) until = std::min(until, Clock::now() + kLook);
    const int number = connection.get();
    wait_readable(std::span(&number, 1), until);
    if (is_readable(connection)) return receive_message(connection, Clock::now());
    meeting.check_given_up();
    if (watch) watch->check();
    if (Clock::now() >= deadline)
      throw CommError(fmt::format("shm_group {}: rank 0 has not {} within {:.3g} s{}", meeting.options.name,
                                  watch ? "said that all ranks have come" : "answered",
                                  in_seconds(deadline - meeting.start), watch ? "" : ", and given no sign of life"));
    if (!wait.is_due()) continue;
    // Rank 0 reports whom it waits for. If rank 0 hangs, every rank not yet admitted reports it, and one of the
    // admitted.
    if (!watch) wait.say("rank 0 to answer, which has given no sign of life yet");
    else if (meeting.rank == 1 && watch->is_frozen())
      wait.say(fmt::format("rank 0, which waits for all ranks to come and is frozen: no sign of life for {:.1f} s",
                           in_seconds(watch->silence())));
  }
}

/// The same, of an expected number of descriptors.
Message expect_message(const Meeting& meeting, std::optional<Message> message, std::size_t num_fds) {
  if (!message)
    throw CommError(
        fmt::format("shm_group {}: rank 0 gave up or died before all ranks had come", meeting.options.name));
  if (message->bytes.starts_with(kRefused)) throw CommError(message->bytes.substr(kRefused.size()));
  if (message->fds.size() != num_fds)
    throw CommError(fmt::format("shm_group {}: rank 0 runs another version of Sherd", meeting.options.name));
  return *std::move(message);
}

Descriptor connect_to_rank_zero(int rank, const std::string& name, const std::string& host) {
  try {
    return connect_abstract(name);
  } catch (const CommError& error) {
    if (host == host_name()) throw;  // it has gone
    throw CommError(fmt::format("{}: rank 0 runs on host {}, rank {} on {}; ranks that share memory run on one host",
                                error.message(), host, rank, host_name()));
  }
}

Segment join(const Meeting& meeting, const std::string& entry) {
  std::istringstream words(entry);
  std::string name, token, host;
  words >> name >> token >> host;
  if (!words || token.size() != kTokenSize)
    throw CommError(fmt::format("shm_group: the store's entry {} is not a rendezvous", meeting.key()));
  const Descriptor connection = connect_to_rank_zero(meeting.rank, name, host);
  Segment segment;
  segment.near_end = say_hello(meeting, connection, token);
  Message message =
      expect_message(meeting, await_message(meeting, connection, meeting.until_without_sign + kLate, nullptr), 1);
  const std::optional<Welcome> welcome = unpacked<Welcome>(message.bytes);
  if (!welcome || welcome->size != meeting.size)
    throw CommError(fmt::format("shm_group {}: rank 0 runs another version of Sherd", meeting.options.name));
  segment.window_bytes = welcome->window_bytes;
  segment.heap_bytes = welcome->heap_bytes;
  segment.memory = std::move(message.fds[0]);
  begin_to_live(meeting, &segment, false);

  const HostWatch watch(meeting, segment);
  message = expect_message(meeting, await_message(meeting, connection, meeting.until + kLate, &watch),
                           static_cast<std::size_t>(meeting.size));
  segment.lives = std::move(message.fds);
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

SocketTime Meeting::next_look(SocketTime limit) const {
  return options.gives_up ? std::min(limit, Clock::now() + kLook) : limit;
}

void Meeting::check_given_up() const {
  if (!options.gives_up) return;
  if (const std::string reason = options.gives_up(); !reason.empty())
    throw CommError(fmt::format("shm_group {}: {}", options.name, reason));
}

SegmentLayout::SegmentLayout(int size, const Segment& segment)
    : board_bytes(to_huge_pages(BoardMemory::num_bytes(size, segment.window_bytes))),
      bytes(board_bytes + static_cast<std::size_t>(size) * segment.heap_bytes) {}

namespace {

Segment come_together(const Meeting& meeting) {
  if (meeting.rank != 0) return join(meeting, await_entry(meeting));
  // A second process that is rank 0 says hello to the first, which tells all that there are two.
  if (meeting.size > 1 && meeting.store.add(meeting.key() + "/hosts", 1) > 1)
    if (const std::string entry = await_entry(meeting); is_open(entry)) return join(meeting, entry);
  return Host(meeting).run();
}

}  // namespace

// What the system says of a socket does not tell of which group, and a peer that has gone meanwhile shows as a broken
// pipe.
Segment meet(const Meeting& meeting) {
  try {
    return come_together(meeting);
  } catch (const SocketError& error) {
    throw CommError(fmt::format("shm_group {}: rank {} of {} cannot meet the others: {}{}", meeting.options.name,
                                meeting.rank, meeting.size, error.message(), trouble_of(meeting)));
  }
}

}  // namespace sherd::comm
