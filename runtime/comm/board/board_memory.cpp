// Sleeping follows Dekker: the sleeper writes which peer it waits for, then looks at the counter again; the other side
// writes the counter, then looks which ranks wait for it. Both orders are sequentially consistent, so no wake-up is
// lost.
#include "runtime/comm/board/board_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits>
#include <thread>

#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

// The futexes are not private: the same page may be mapped by several processes.
void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

}  // namespace

std::size_t BoardMemory::num_bytes(int size, std::size_t window_bytes) {
  const auto ranks = static_cast<std::size_t>(size);
  return sizeof(BoardHeader) + kNumLanes * ranks * (sizeof(RankCell) + ranks * sizeof(MailCell) + 3 * window_bytes);
}

void BoardMemory::format(std::byte* bytes, int size) {
  std::construct_at(reinterpret_cast<BoardHeader*>(bytes));
  RankCell* const cells = cells_of(bytes);
  for (const int i : up_to(size * kNumLanes)) std::construct_at(cells + i);
  auto* mails = reinterpret_cast<MailCell*>(cells + size * kNumLanes);
  for (const int i : up_to(size * size * kNumLanes)) std::construct_at(mails + i);
}

std::shared_ptr<std::byte> BoardMemory::on_heap(int size, std::size_t window_bytes) {
  const auto lines = std::make_shared<std::vector<CacheLine>>(num_bytes(size, window_bytes) / sizeof(CacheLine) + 1);
  std::shared_ptr<std::byte> bytes(lines, lines->data()->bytes);
  format(bytes.get(), size);
  return bytes;
}

MailCell& BoardMemory::mail(int from, int to) const {
  auto* mails = reinterpret_cast<MailCell*>(&cell(0, kNumLanes));  // behind the last cell
  return mails[(lane() * size() + from) * size() + to];
}

std::byte* BoardMemory::window_at(int rank, std::size_t index) const {
  std::byte* windows = bytes.get() + num_bytes(size(), 0);
  const auto owner = static_cast<std::size_t>(lane() * size() + rank);
  return windows + (3 * owner + index) * options.window_bytes;
}

void BoardMemory::sleep(std::uint32_t seen, std::chrono::nanoseconds nap) const {
  timespec time{};
  time.tv_sec = static_cast<std::time_t>(nap.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(nap.count() % 1'000'000'000);
  syscall(SYS_futex, &own_root_cell().bell, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void BoardMemory::ring(int peer) const {
  const std::atomic<std::uint32_t>& awaited = cell(peer).waiting_for;
  if (awaited.load(std::memory_order_seq_cst) != static_cast<std::uint32_t>(rank()) + 1) return;
  std::atomic<std::uint32_t>& bell = root_cell(peer, lane()).bell;
  bell.fetch_add(1, std::memory_order_seq_cst);
  if (awaited.load(std::memory_order_seq_cst) != 0) futex_wake_all(bell);
}

void BoardMemory::ring_all() const {
  RankCell* const cells = cells_of(root_bytes());
  for (int i = 0; i < root_size() * kNumLanes; ++i) {
    cells[i].bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(cells[i].bell);
  }
}

void BoardMemory::poison(std::string_view reason) const {
  auto expected = BoardHeader::Poison::none;
  if (!header().poison.compare_exchange_strong(expected, BoardHeader::Poison::being_written)) return;
  header().reason.store(reason);
  header().poison = BoardHeader::Poison::set;
  ring_all();
}

std::string BoardMemory::poison_reason() const {
  // Writing the reason takes a microsecond, unless its writer was killed in the middle.
  const auto stop = BoardClock::now() + std::chrono::milliseconds(100);
  while (header().poison.load() == BoardHeader::Poison::being_written && BoardClock::now() < stop)
    std::this_thread::yield();
  return header().poison.load() == BoardHeader::Poison::set ? header().reason.load()
                                                            : "the group has failed; the rank that knew why was killed";
}

}  // namespace sherd::comm
