#include "runtime/comm/board/board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace sherd::comm {
namespace {

Board handle(const std::shared_ptr<std::byte>& memory, int rank) {
  return Board(memory, {.rank = rank, .size = 2, .is_one_process = true, .has_died = {}});
}

// The order must hold in every run, so a run that is too kind to a broken board is no false alarm.
TEST(Board, ARankThatUnwindsWaitsForItsReaders) {
  const std::shared_ptr<std::byte> memory = Board::heap_memory(2, 0);
  Board reader = handle(memory, 0), owner = handle(memory, 1);
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> has_read = false;
    reader.begin_reading();
    std::thread unwinding([&] {
      owner.poison("stop");
      owner.await_unread();
      EXPECT_TRUE(has_read);
    });
    while (!reader.is_poisoned()) std::this_thread::yield();
    has_read = true;
    reader.end_reading();
    unwinding.join();
    EXPECT_THROW(reader.begin_reading(), CommError) << "reading starts after the owner may have left";
    std::thread peer([&] { owner.reset(); });
    reader.reset();
    peer.join();
  }
}

TEST(Board, TheFirstReasonIsKept) {
  const std::shared_ptr<std::byte> memory = Board::heap_memory(2, 0);
  Board one = handle(memory, 0), other = handle(memory, 1);
  one.poison("first");
  other.poison("second");
  try {
    other.raise_poison();
  } catch (const CommError& error) { EXPECT_EQ(error.message(), "first"); }
}

TEST(Board, WindowsAlternateAndDoNotOverlap) {
  const std::shared_ptr<std::byte> memory = Board::heap_memory(2, 128);
  BoardOptions options{.rank = 0, .size = 2, .window_bytes = 128, .is_one_process = true, .has_died = {}};
  const Board board(memory, options);
  options.channel = 1;
  const Board next(memory, options);
  options.channel = Board::kNumChannels - 1;
  const Board last(memory, options);
  EXPECT_EQ(board.window(0, 1) - board.window(0, 0), 128);
  EXPECT_EQ(board.window(0, 2), board.window(0, 0));
  EXPECT_EQ(board.window(1, 0) - board.mail_window(0), 128);
  EXPECT_EQ(board.mail_window(0) - board.window(0, 1), 128);
  EXPECT_EQ(next.window(0, 0) - board.mail_window(1), 128);
  EXPECT_EQ(last.mail_window(1) + 128 - memory.get(), static_cast<std::ptrdiff_t>(Board::memory_bytes(2, 128)));
}

}  // namespace
}  // namespace sherd::comm
