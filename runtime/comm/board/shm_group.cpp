// Rendezvous of a segment. Rank 0 makes a sealed memfd and a listening socket with a random abstract name, and
// publishes name and token in the store. Every rank makes a pair of sockets, keeps the near end to itself and hands
// the far end to rank 0, which collects all far ends and sends them to everyone along with the memfd:
//
//   rank r -> rank 0:   Hello{token, rank}    + far end of r
//   rank 0 -> rank r:   Welcome{size, window} + memfd + far ends of all ranks
//
// The near end of r exists in process r only, so its far ends hang up when r ends, for whatever reason. The listening
// socket is closed before the group is used; then no name exists any more.
#include "runtime/comm/board/shm_group.h"

#include <unistd.h>

#include <cstring>
#include <optional>
#include <vector>

#include "runtime/comm/board/board_group.h"
#include "runtime/comm/board/segment.h"
#include "runtime/comm/store/hmac.h"
#include "runtime/comm/store/unix_socket.h"

namespace sherd {

namespace {

constexpr std::size_t kTokenSize = 32;
constexpr std::uint32_t kVersion = 2;

struct Hello {
  std::uint32_t version = kVersion;
  std::int32_t rank = 0;
  std::array<char, kTokenSize> token{};
};

struct Welcome {
  std::uint32_t version = kVersion;
  std::int32_t size = 0;
  std::uint64_t window_bytes = 0;
  std::uint64_t heap_bytes = 0;
};

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

template <class T>
std::optional<T> value_of(std::string_view bytes) {
  if (bytes.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value.version == kVersion ? std::optional(value) : std::nullopt;
}

struct Segment {
  Descriptor memory;
  std::size_t window_bytes = 0;
  std::size_t heap_bytes = 0;     // of each rank; heaps follow the board at a huge page
  std::vector<Descriptor> lives;  // far ends, by rank
  Descriptor near_end;
};

struct Meeting {
  Store& store;
  int rank;
  int size;
  const ShmGroupOptions& options;
  comm::SocketTime until;
  std::string key() const { return "shm_group/" + options.name; }
};

/// Board and heaps in the segment.
struct Layout {
  Layout(int size, const Segment& segment)
      : board_bytes(comm::to_huge_pages(comm::Board::memory_bytes(size, segment.window_bytes))),
        bytes(board_bytes + static_cast<std::size_t>(size) * segment.heap_bytes) {}
  std::size_t board_bytes;
  std::size_t bytes;
};

/// As much as the memory of this host: only pages that a rank touches in its heap take memory.
std::size_t default_heap_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::string missing_ranks(const std::vector<Descriptor>& lives) {
  std::string text;
  for (std::size_t rank = 0; rank < lives.size(); ++rank)
    if (!lives[rank]) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  return text;
}

/// One connection's first message, or nothing if it is not from a rank of this job.
std::optional<int> read_hello(const Descriptor& connection, std::string_view token, std::vector<Descriptor>& lives,
                              comm::SocketTime until) {
  std::optional<comm::Message> message = comm::receive_message(connection, until);
  if (!message || message->fds.size() != 1) return std::nullopt;
  const std::optional<Hello> hello = value_of<Hello>(message->bytes);
  if (!hello || std::string_view(hello->token.data(), kTokenSize) != token) return std::nullopt;
  if (hello->rank < 1 || std::cmp_greater_equal(hello->rank, lives.size()))
    throw CommError(
        fmt::format("shm_group: a process says it is rank {} of a group of {} ranks", hello->rank, lives.size()));
  Descriptor& life = lives[static_cast<std::size_t>(hello->rank)];
  if (life) throw CommError(fmt::format("shm_group: two processes say they are rank {}", hello->rank));
  life = std::move(message->fds[0]);
  return hello->rank;
}

Segment host(const Meeting& meeting) {
  Segment segment;
  const auto size = static_cast<std::size_t>(meeting.size);
  segment.window_bytes = std::max(meeting.options.window_bytes / 64, size) * 64;
  const std::size_t heap_bytes = meeting.options.heap_bytes.value_or(default_heap_bytes());
  segment.heap_bytes = size == 1 ? 0 : comm::to_huge_pages(heap_bytes);
  const Layout layout(meeting.size, segment);
  segment.memory = comm::new_segment(layout.bytes, layout.board_bytes);
  comm::Board::format(comm::map_segment(segment.memory, layout.bytes).get(), meeting.size);
  segment.lives.resize(size);
  std::tie(segment.near_end, segment.lives[0]) = comm::socket_pair();
  if (size == 1) return segment;

  const std::string name = "sherd-" + random_hex(16);
  const std::string token = random_hex(static_cast<int>(kTokenSize / 2));
  const Descriptor listener = comm::listen_abstract(name);
  meeting.store.set(meeting.key(), name + " " + token);

  std::vector<Descriptor> connections(size);
  for (std::size_t num_come = 1; num_come < size;) {
    if (comm::SocketTime::clock::now() >= meeting.until) {
      throw CommError(fmt::format("shm_group {}: ranks {} have not come within {:.3g} s", meeting.options.name,
                                  missing_ranks(segment.lives),
                                  std::chrono::duration<double>(meeting.options.rendezvous_deadline).count()));
    }
    std::vector<int> sockets{listener.get()};
    for (std::size_t rank = 1; rank < size; ++rank) {
      if (!segment.lives[rank]) continue;
      sockets.push_back(segment.lives[rank].get());
      if (comm::is_hung_up(segment.lives[rank]))
        throw CommError(
            fmt::format("shm_group {}: rank {} died before all ranks had come", meeting.options.name, rank));
    }
    comm::wait_readable(sockets, meeting.until);
    std::optional<Descriptor> connection = comm::accept_same_user(listener);
    if (!connection) continue;
    const std::optional<int> rank = read_hello(*connection, token, segment.lives, meeting.until);
    if (!rank) continue;
    connections[static_cast<std::size_t>(*rank)] = std::move(*connection);
    ++num_come;
  }

  std::vector<int> fds{segment.memory.get()};
  for (const Descriptor& life : segment.lives) fds.push_back(life.get());
  const Welcome welcome{.size = meeting.size, .window_bytes = segment.window_bytes, .heap_bytes = segment.heap_bytes};
  for (std::size_t rank = 1; rank < size; ++rank) comm::send_message(connections[rank], bytes_of(welcome), fds);
  return segment;
}

Segment join(const Meeting& meeting) {
  const std::string entry = meeting.store.get(meeting.key(), meeting.options.rendezvous_deadline);
  const std::size_t space = entry.find(' ');
  if (space == std::string::npos || entry.size() != space + 1 + kTokenSize)
    throw CommError(fmt::format("shm_group: the store's entry {} is not a rendezvous", meeting.key()));
  const Descriptor connection = comm::connect_abstract(std::string_view(entry).substr(0, space));
  if (!comm::is_same_user(connection)) throw CommError("shm_group: rank 0 runs as another user");

  Segment segment;
  Hello hello{.rank = meeting.rank};
  std::memcpy(hello.token.data(), entry.data() + space + 1, kTokenSize);
  {
    auto [near_end, far_end] = comm::socket_pair();
    const std::array<int, 1> far_number{far_end.get()};
    comm::send_message(connection, bytes_of(hello), far_number);
    segment.near_end = std::move(near_end);
  }
  std::optional<comm::Message> message = comm::receive_message(connection, meeting.until);
  if (!message)
    throw CommError(
        fmt::format("shm_group {}: rank 0 gave up or died before all ranks had come", meeting.options.name));
  const std::optional<Welcome> welcome = value_of<Welcome>(message->bytes);
  if (!welcome || welcome->size != meeting.size || !std::cmp_equal(message->fds.size(), meeting.size + 1))
    throw CommError(fmt::format("shm_group {}: rank 0 has a group of {} ranks, rank {} one of {}", meeting.options.name,
                                welcome ? welcome->size : 0, meeting.rank, meeting.size));
  segment.window_bytes = welcome->window_bytes;
  segment.heap_bytes = welcome->heap_bytes;
  segment.memory = std::move(message->fds[0]);
  for (std::size_t i = 1; i < message->fds.size(); ++i) segment.lives.push_back(std::move(message->fds[i]));
  return segment;
}

/// A subgroup's board is a segment of its own. Its descriptor travels from one far end to the near end of each peer.
class SegmentSource final : public comm::BoardSource {
 public:
  explicit SegmentSource(std::shared_ptr<const Segment> segment) : segment_(std::move(segment)) {}

  std::shared_ptr<std::byte> offer(const std::string& tag, std::span<const int> peers, int size,
                                   std::size_t window_bytes) override {
    const std::size_t bytes = segment_bytes(size, window_bytes);
    const Descriptor memory = comm::new_segment(bytes, bytes);
    std::shared_ptr<std::byte> board = comm::map_segment(memory, bytes);
    comm::Board::format(board.get(), size);
    const std::array<int, 1> number{memory.get()};
    for (const int peer : peers) comm::send_message(segment_->lives[static_cast<std::size_t>(peer)], tag, number);
    return board;
  }

  // Other messages may come before it: of an earlier attempt that failed.
  std::shared_ptr<std::byte> take(const std::string& tag, int size, std::size_t window_bytes) override {
    for (;;) {
      std::optional<comm::Message> message = comm::receive_message(segment_->near_end, comm::SocketTime::clock::now());
      check(message.has_value(), "subgroup: the first rank's memory has not come");
      if (message->bytes == tag && message->fds.size() == 1)
        return comm::map_segment(message->fds[0], segment_bytes(size, window_bytes));
    }
  }

 private:
  static std::size_t segment_bytes(int size, std::size_t window_bytes) {
    return comm::to_huge_pages(comm::Board::memory_bytes(size, window_bytes));
  }
  std::shared_ptr<const Segment> segment_;
};

}  // namespace

std::shared_ptr<ProcessGroup> make_shm_group(Store& store, int rank, int size, const ShmGroupOptions& options) {
  constexpr auto kMaxRanks = static_cast<int>(comm::kMaxPassedFds) - 1;
  check(size >= 1 && size <= kMaxRanks, "a shm group of {} ranks; give 1..{}", size, kMaxRanks);
  check(rank >= 0 && rank < size, "rank {} of a shm group of {} ranks; give 0..{}", rank, size, size - 1);
  const Meeting meeting{store, rank, size, options, comm::SocketTime::clock::now() + options.rendezvous_deadline};
  auto segment = std::make_shared<Segment>(rank == 0 ? host(meeting) : join(meeting));
  const Layout layout(size, *segment);
  std::shared_ptr<std::byte> memory = comm::map_segment(segment->memory, layout.bytes);
  segment->memory = Descriptor();

  comm::BoardOptions board{
      .rank = rank,
      .size = size,
      .window_bytes = segment->window_bytes,
      .is_one_process = false,
      .heaps = memory.get() + layout.board_bytes,
      .heap_bytes = segment->heap_bytes,
      .has_died = [segment](int peer) { return comm::is_hung_up(segment->lives[static_cast<std::size_t>(peer)]); },
      .source = std::make_shared<SegmentSource>(segment)};
  return std::make_shared<comm::BoardGroup>("shm", std::move(memory), board);
}

}  // namespace sherd
