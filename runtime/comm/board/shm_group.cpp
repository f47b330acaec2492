#include "runtime/comm/board/shm_group.h"

#include <array>
#include <optional>

#include "runtime/comm/board/board_group.h"
#include "runtime/comm/board/segment.h"
#include "runtime/comm/board/shm_rendezvous.h"

namespace sherd {

namespace {

/// A subgroup's board is a segment of its own. Its descriptor travels from one far end to the near end of each peer.
class SegmentSource final : public comm::BoardSource {
 public:
  explicit SegmentSource(std::shared_ptr<const comm::Segment> segment) : segment_(std::move(segment)) {}

  std::shared_ptr<std::byte> offer(const std::string& tag, std::span<const int> peers, int size,
                                   std::size_t window_bytes) override {
    const std::size_t bytes = segment_bytes(size, window_bytes);
    const Descriptor memory = comm::new_segment(bytes, bytes);
    std::shared_ptr<std::byte> board = comm::map_segment(memory, bytes);
    comm::BoardMemory::format(board.get(), size);
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
    return comm::to_huge_pages(comm::BoardMemory::num_bytes(size, window_bytes));
  }
  std::shared_ptr<const comm::Segment> segment_;
};

}  // namespace

std::shared_ptr<ProcessGroup> make_shm_group(Store& store, int rank, int size, const ShmGroupOptions& options) {
  constexpr auto kMaxRanks = static_cast<int>(comm::kMaxPassedFds) - 1;
  check(size >= 1 && size <= kMaxRanks, "a shm group of {} ranks; give 1..{}", size, kMaxRanks);
  check(rank >= 0 && rank < size, "rank {} of a shm group of {} ranks; give 0..{}", rank, size, size - 1);
  const comm::Meeting meeting{store, rank, size, options};
  auto segment = std::make_shared<comm::Segment>(comm::meet(meeting));
  const comm::SegmentLayout layout(size, *segment);
  std::shared_ptr<std::byte> memory = segment->board;
  segment->memory = Descriptor();

  comm::BoardOptions board{
      .rank = rank,
      .size = size,
      .window_bytes = segment->window_bytes,
      .is_one_process = false,
      .heaps = memory.get() + layout.board_bytes,
      .heap_bytes = segment->heap_bytes,
      .has_died = [segment](int peer) { return comm::is_hung_up(segment->lives[static_cast<std::size_t>(peer)]); },
      .source = std::make_shared<SegmentSource>(segment),
      .notice = options.notice,
      .silence = options.silence,
      .look = options.look};
  return std::make_shared<comm::BoardGroup>("shm", std::move(memory), board);
}

}  // namespace sherd
