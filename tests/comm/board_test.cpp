#include "runtime/comm/board/board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "runtime/comm/board/exchange.h"
#include "runtime/os/allowed_cpus.h"

namespace sherd::comm {
namespace {

Board handle(const std::shared_ptr<std::byte>& memory, int rank) {
  return Board(memory, {.rank = rank, .size = 2, .is_one_process = true, .has_died = {}});
}

/// Whether `owner` may leave, which otherwise waits for `reader` until this ends its reading.
bool is_unread(const Board& owner, Board& reader) {
  auto leaving = std::async(std::launch::async, [&] { await_unread(owner); });
  const bool is_ready = leaving.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  end_reading(reader);
  return is_ready;
}

// The order must hold in every run, so a run that is too kind to a broken board is no false alarm.
TEST(Board, ARankThatUnwindsWaitsForItsReaders) {
  const std::shared_ptr<std::byte> memory = BoardMemory::on_heap(2, 0);
  Board reader = handle(memory, 0), owner = handle(memory, 1);
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> has_read = false;
    begin_reading(reader);
    std::thread unwinding([&] {
      owner.memory().poison("stop");
      await_unread(owner);
      EXPECT_TRUE(has_read);
    });
    while (!reader.memory().is_poisoned()) std::this_thread::yield();
    has_read = true;
    end_reading(reader);
    unwinding.join();
    EXPECT_THROW(begin_reading(reader), CommError) << "reading starts after the owner may have left";
    ASSERT_TRUE(is_unread(owner, reader)) << "a reader that was turned away does not read";
    std::thread peer([&] { owner.reset(); });
    reader.reset();
    peer.join();
  }
}

// An all-reduce in place that an error leaves while this rank reads the tensors of its peer.
TEST(Board, AnExchangeThatIsLeftReadsNoLonger) {
  const std::shared_ptr<std::byte> memory = BoardMemory::on_heap(2, 0);
  Board one = handle(memory, 0), other = handle(memory, 1);
  const auto leave = [](Board& board) {
    std::vector<float> data(kSmallBytes);
    Shares shares(2);
    shares.add_even(data.data(), DType::f32, std::ssize(data));
    board.enter(board.open_call(CommOp::all_reduce), BoardClock::now());
    {
      Exchange exchange(board, shares, shares.num_shares());
      EXPECT_TRUE(exchange.is_in_place());
      EXPECT_TRUE(exchange.next());
      exchange.meet();
    }
    board.leave();
  };
  std::thread peer([&] { leave(other); });
  leave(one);
  peer.join();
  EXPECT_TRUE(is_unread(one, other));
  EXPECT_TRUE(is_unread(other, one));
}

// Two lanes of a group of one rank.
TEST(Board, AResetEndsACallBetweenItsHalves) {
  const std::shared_ptr<std::byte> memory = BoardMemory::on_heap(1, 0);
  BoardOptions options{.rank = 0, .size = 1, .is_one_process = true, .has_died = {}};
  Board group(memory, options);
  options.lane = 1;
  Board lane(memory, options);
  Board* const lanes[] = {&lane};
  const auto begin = [&] {
    Fingerprint call = lane.open_call(CommOp::barrier);
    lane.enter(call, BoardClock::now());
    lane.come();
    return lane.suspend();
  };
  const std::uint64_t first = begin();
  group.reset(lanes);
  EXPECT_FALSE(lane.resume(first)) << "the reset has ended it";
  const std::uint64_t second = begin();
  EXPECT_FALSE(lane.resume(first)) << "another call is open";
  ASSERT_TRUE(lane.resume(second));
  // Whoever resets waits for the thread that is in the call, and tells it.
  std::atomic<bool> has_left = false;
  std::thread resetting([&] {
    group.reset(lanes);
    EXPECT_TRUE(has_left);
  });
  while (!lane.memory().is_poisoned()) std::this_thread::yield();
  has_left = true;
  lane.leave();
  resetting.join();
  EXPECT_TRUE(lane.resume(begin())) << "and the group can be used again";
  lane.leave();
}

TEST(Board, TheFirstReasonIsKept) {
  const std::shared_ptr<std::byte> memory = BoardMemory::on_heap(2, 0);
  Board one = handle(memory, 0), other = handle(memory, 1);
  one.memory().poison("first");
  other.memory().poison("second");
  try {
    other.raise_poison();
  } catch (const CommError& error) { EXPECT_EQ(error.message(), "first"); }
}

TEST(Board, WindowsAlternateAndDoNotOverlap) {
  const std::shared_ptr<std::byte> memory = BoardMemory::on_heap(2, 128);
  BoardOptions options{.rank = 0, .size = 2, .window_bytes = 128, .is_one_process = true, .has_died = {}};
  const BoardMemory board(memory, options);
  options.lane = 1;
  const BoardMemory next(memory, options);
  options.lane = BoardMemory::kNumLanes - 1;
  const BoardMemory last(memory, options);
  EXPECT_EQ(board.window(0, 1) - board.window(0, 0), 128);
  EXPECT_EQ(board.window(0, 2), board.window(0, 0));
  EXPECT_EQ(board.window(1, 0) - board.mail_window(0), 128);
  EXPECT_EQ(board.mail_window(0) - board.window(0, 1), 128);
  EXPECT_EQ(next.window(0, 0) - board.mail_window(1), 128);
  EXPECT_EQ(last.mail_window(1) + 128 - memory.get(), static_cast<std::ptrdiff_t>(BoardMemory::num_bytes(2, 128)));
}

TEST(Board, RanksCountTheCpusThatTheyMayUse) {
  const std::shared_ptr<std::byte> memory = BoardMemory::on_heap(2, 0);
  const Board one = handle(memory, 0), other = handle(memory, 1);
  EXPECT_EQ(num_cpus(one.memory()), allowed_cpus().count()) << "both may use the same";
  EXPECT_EQ(num_cpus(other.memory()), num_cpus(one.memory()));
}

}  // namespace
}  // namespace sherd::comm
