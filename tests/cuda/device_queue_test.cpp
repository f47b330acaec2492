// Queues of a device: order, waits between its streams and with queues of the host, borrowed memory, failures, ends.
// Host work is held back by promises, so what would block the rank's thread would not end.
#include "runtime/exec/device_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/exec/hazards.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "runtime/os/settings.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using DeviceQueues = cuda::CudaTest;

constexpr std::int64_t kCount = 1000;

RankContext& rank() { return RankContext::current(); }
DeviceQueue& queue(std::string_view name = "offload") { return static_cast<DeviceQueue&>(rank().queue(name, kCuda)); }
Tensor filled(double value) { return full({kCount}, value, DType::f32, kCuda); }
void* address(const Tensor& t) { return t.storage()->address(); }

/// Floats of pinned memory.
struct Pinned {
  std::shared_ptr<std::byte> memory = rank().device(kCuda).pinned(kCount * 4);
  float* data() const { return reinterpret_cast<float*>(memory.get()); }
  Pinned& fill(float value) {
    std::fill_n(data(), kCount, value);
    return *this;
  }
};

Event read_to(const Pinned& to, const Tensor& from, DeviceQueue& by = queue()) {
  const Loan loan{from.storage(), false};
  return by.submit({.name = "evict",
                    .run = [&by, to = to.data(), at = address(from)] { by.stream().to_host(to, at, kCount * 4); },
                    .loans = {&loan, 1}});
}

Event write_from(const Pinned& from, const Tensor& to, DeviceQueue& by = queue()) {
  const Loan loan{to.storage(), true};
  return by.submit({.name = "fetch",
                    .run = [&by, from = from.data(), at = address(to)] { by.stream().to_device(at, from, kCount * 4); },
                    .loans = {&loan, 1}});
}

// Work of the host that does not end before open() is called.
class Gate {
 public:
  std::function<void()> then(std::function<void()> run = [] {}) {
    return [opened = opened_.get_future().share(), run = std::move(run)] {
      opened.wait();
      run();
    };
  }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

TEST_F(DeviceQueues, HaveNamesAndOneComputeOfTheDevice) {
  EXPECT_EQ(&queue(), &queue(std::string("off") + "load"));
  EXPECT_NE(&rank().queue("offload"), &queue());
  EXPECT_EQ(queue().device(), kCuda);
  EXPECT_EQ(rank().queue("offload").device(), Device::cpu());
  EXPECT_EQ(rank().find_queue("fetch", kCuda), nullptr);
  EXPECT_NE(rank().find_queue(kComputeQueue, kCuda), nullptr);
  expect_error([] { rank().queue(kComputeQueue); }, {"the host has no queue \"compute\"", "the rank's thread"});
}

TEST_F(DeviceQueues, ReadersDelayReadersNeverAndWritersAlways) {
  Tensor x = filled(2);
  const Pinned before;
  const Event read = read_to(before, x);
  EXPECT_TRUE(x.storage()->is_lent());
  const Tensor sum = add(x, x);  // does not wait
  EXPECT_TRUE(x.storage()->is_lent());
  fill_into(x, 7);
  EXPECT_FALSE(x.storage()->is_lent());
  read.wait();
  EXPECT_EQ(std::count(before.data(), before.data() + kCount, 2.0f), kCount) << "overwritten before it was read";
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(kCount, 7));
  EXPECT_EQ(sum.to_vector<float>(), std::vector<float>(kCount, 4));
}

TEST_F(DeviceQueues, ComputeWaitsForWhatAQueueWrites) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Tensor x = filled(1);
    const Tensor before = add(x, 0.5);  // queued before: the queue comes after it
    const Pinned from = Pinned().fill(static_cast<float>(repeat));
    write_from(from, x);
    const Tensor after = add(x, 0.5);
    EXPECT_EQ(before.to_vector<float>(), std::vector<float>(kCount, 1.5f));
    EXPECT_EQ(after.to_vector<float>(), std::vector<float>(kCount, static_cast<float>(repeat) + 0.5f));
  }
}

TEST_F(DeviceQueues, WorkOfTwoQueuesOnTheSameBytesComesInOrder) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Tensor x = filled(0);
    const Pinned first = Pinned().fill(1), second = Pinned().fill(2), seen;
    write_from(first, x, queue("gather"));
    const Event read = read_to(seen, x, queue("offload"));
    write_from(second, x, queue("gather"));
    read.wait();
    EXPECT_EQ(seen.data()[kCount - 1], 1);
    EXPECT_EQ(x.to_vector<float>().back(), 2);
  }
}

TEST_F(DeviceQueues, MemoryThatIsReadGoesBackWhenComputeHasWaited) {
  const Accounting& memory = rank().device(kCuda).allocator().accounting();
  const Pinned to;
  queue();
  const std::int64_t before = memory.total();
  Event event;
  std::int64_t with = 0;
  {
    const Tensor x = filled(3);
    with = memory.total();
    event = read_to(to, x);
  }
  EXPECT_EQ(memory.total(), with) << "given back while it is read";
  event.outlast(kCuda);  // the device waits
  EXPECT_EQ(memory.total(), before);
  const Tensor other = filled(9);  // in the same place
  event.wait();
  EXPECT_EQ(to.data()[0], 3);
}

TEST_F(DeviceQueues, LimitOfItemsInFlightIsKeptByTheDevice) {
  const Accounting& memory = rank().device(kCuda).allocator().accounting();
  queue();
  const std::int64_t before = memory.total();
  const Pinned to;
  for (int i = 0; i < 10; ++i) {
    const Tensor x = filled(i);
    const Loan loan{x.storage(), false};
    queue().submit({.name = "evict",
                    .run = [&to, at = address(x)] { queue().stream().to_host(to.data(), at, kCount * 4); },
                    .loans = {&loan, 1},
                    .max_in_flight = 2});
    EXPECT_LE(memory.total(), before + 3 * 4096);
  }
  queue().record().wait();
  EXPECT_EQ(to.data()[0], 9);
  EXPECT_EQ(memory.total(), before);
}

// Everything is queued while the host's work cannot end.
TEST_F(DeviceQueues, ADeviceWaitsForTheHostAndTheRankDoesNot) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    Gate disk;
    const Pinned from = Pinned().fill(-1);
    const Tensor x = filled(0);
    const Event loaded =
        rank().queue("disk").submit({.name = "load", .run = disk.then([from] { Pinned(from).fill(5); })});
    queue().wait(loaded);
    write_from(from, x);
    const Tensor y = add(x, 1.0);
    const Pinned to;
    const Event back = read_to(to, y);
    EXPECT_FALSE(back.is_reached());
    disk.open();
    back.wait();
    EXPECT_EQ(to.data()[kCount - 1], 6);
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>(kCount, 5));
  }
}

TEST_F(DeviceQueues, TheHostWaitsForADeviceOnItsOwnThread) {
  const Tensor x = filled(4);
  const Pinned to;
  Queue& disk = rank().queue("disk");
  disk.wait(read_to(to, x));
  float saved = 0;
  const Event written = disk.submit({.name = "save", .run = [&saved, to] { saved = to.data()[kCount / 2]; }});
  fill_into(x, 8);  // goes on
  written.wait();
  EXPECT_EQ(saved, 4);
}

// A checkpoint that is slow to read the parameters. The one thread that could end its read does everything else first.
TEST_F(DeviceQueues, ASlowReadDelaysNeitherAGatherNorANormButAdamw) {
  if (requested_device_memory() == "separate") GTEST_SKIP() << "each block is given back to the device, which waits";
  const auto there = [](double value) { return filled(value); };
  const Tensor w = there(2), m = there(0), v = there(0), grad = there(1);
  const Pinned saved, gathered;
  Gate disk;
  queue("disk").wait(rank().queue("disk").submit({.name = "open", .run = disk.then()}));
  const Event save = read_to(saved, w, queue("disk"));
  const Event gather = read_to(gathered, w, queue("gather"));
  gather.wait();
  EXPECT_EQ(gathered.data()[kCount - 1], 2);
  EXPECT_EQ(power_sum(std::array{w}, 2).item<double>(), 4 * kCount);
  EXPECT_FALSE(save.is_reached());
  adamw_step(std::array{w}, std::array{m}, std::array{v}, std::array{grad}, full({}, 0.5), full({}, 1.0), full({}, 1.0),
             {.count = 1});
  EXPECT_FALSE(save.is_reached());
  disk.open();
  EXPECT_LT(w.to_vector<float>()[0], 2);
  save.wait();
  EXPECT_EQ(std::count(saved.data(), saved.data() + kCount, 2.0f), kCount) << "written while it was read";
}

// A chain over both, as a staged collective is, many times and without a wait in between.
TEST_F(DeviceQueues, AlternateWithTheHost) {
  Tensor x = filled(0);
  Queue& host = rank().queue("collective");
  DeviceQueue& device = queue("collective");
  std::vector<Pinned> staging(30);
  for (const Pinned& memory : staging) {
    host.wait(read_to(memory, x, device));
    device.wait(host.submit({.name = "add", .run = [memory] {
                               for (int i = 0; i < kCount; ++i) memory.data()[i] += 1;
                             }}));
    write_from(memory, x, device);
    x = add(std::move(x), 1.0);
  }
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(kCount, 60));
}

TEST_F(DeviceQueues, FailuresOfTheHostAreThrownWhereTheHostWaitsForTheDevice) {
  const Tensor x = filled(0);
  const Pinned from = Pinned().fill(1);
  queue().wait(rank().queue("disk").submit({.name = "load", .run = [] { fail("the disk is empty"); }}));
  write_from(from, x);
  const Tensor y = add(x, 1.0);
  expect_error([&] { (void)y.to_vector<float>(); }, {"the disk is empty"});
  EXPECT_EQ(filled(2).to_vector<float>()[0], 2) << "once";
  bool ran = false;
  rank().queue("disk").submit({.name = "load", .run = [&ran] { ran = true; }}).wait();
  EXPECT_TRUE(ran) << "new work runs again";
}

// One failure skips the work behind it, and the device waits for all of that too.
TEST_F(DeviceQueues, AFailureIsToldOnceAndForgottenByADrain) {
  const Pinned from = Pinned().fill(1);
  const Tensor x = filled(0);
  const auto load_twenty = [&] {
    for (int i = 0; i < 20; ++i) {
      queue().wait(rank().queue("disk").submit({.name = "load", .run = [i] { check(i != 3, "the disk is empty"); }}));
      write_from(from, x);
    }
  };
  load_twenty();
  expect_error([&] { (void)x.to_vector<float>(); }, {"the disk is empty"});
  EXPECT_EQ(filled(2).to_vector<float>()[0], 2);
  load_twenty();
  rank().drain_queues();
  EXPECT_EQ(filled(2).to_vector<float>()[0], 2);
  queue().record().wait();
  queue().wait(rank().queue("disk").submit({.name = "load", .run = [] {}}));
  write_from(from, x).wait();
  EXPECT_EQ(x.to_vector<float>()[0], 1);
}

// What kernels found wrong in a step that was given up is not the next one's.
TEST_F(DeviceQueues, ADrainForgetsWhatKernelsFound) {
  const Tensor table = full({kCount, 1}, 1.0, DType::f32, kCuda), ids = to(full({3}, 2.0 * kCount, DType::i64), kCuda);
  queue();
  (void)embedding(table, ids);
  rank().drain_queues();
  EXPECT_EQ(filled(2).to_vector<float>()[0], 2);
}

// As a program of hours would have it: words have 32 bits.
TEST_F(DeviceQueues, WordsPassTheEndOfTheirNumbers) {
  DeviceContext& context = rank().device(kCuda);
  const std::unique_ptr<DeviceStream> stream = context.open_stream(/*is_compute=*/false);
  std::atomic<std::uint32_t>& word = context.progress(Queue::kMaxPerRank - 1);
  word = 0xfffffffe;
  stream->wait(word, 1);
  const auto mark = stream->mark();
  for (const std::uint32_t early : {0xffffffffu, 0u}) {
    EXPECT_FALSE(mark->is_reached());
    word = early;
  }
  EXPECT_FALSE(mark->is_reached());
  word = 1;
  mark->await();
  EXPECT_TRUE(mark->is_reached());
  stream->wait(word, 0xffffffff);  // has passed
  stream->mark()->await();
}

TEST_F(DeviceQueues, WaitForThoseOfOtherDevices) {
  const Device other = cuda::device_of_rank(1);
  if (other == kCuda) GTEST_SKIP() << "one device";
  for (int repeat = 0; repeat < 10; ++repeat) {
    const Accounting& memory = rank().device(kCuda).allocator().accounting();
    queue();
    const std::int64_t before = memory.total();
    const Pinned between;
    const Tensor y = full({kCount}, 0.0, DType::f32, other);
    Event read;
    {
      const Tensor x = filled(repeat);
      read = read_to(between, x);
    }
    auto& there = static_cast<DeviceQueue&>(rank().queue("offload", other));
    there.wait(read);
    write_from(between, y, there);
    rank().queue(kComputeQueue, other).wait(read);
    EXPECT_GT(memory.total(), before) << "the allocator's order is that of its own device's compute";
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(kCount, static_cast<float>(repeat)));
    read.outlast(kCuda);
    EXPECT_EQ(memory.total(), before);
  }
}

// Its peers wait for what it will not come to: all is told to give up, and nothing is waited for that does not.
TEST_F(DeviceQueues, ARankThatEndsByAnExceptionAbortsWhatIsInFlight) {
  if (requested_device_memory() == "separate") GTEST_SKIP() << "each block is given back to the device, which waits";
  std::promise<void> entered, gives_up;
  std::vector<std::string> reasons;
  std::mutex mutex;
  const auto told = [&](std::string_view reason) {
    const std::lock_guard lock(mutex);
    reasons.emplace_back(reason);
  };
  const auto step = [&] {
    RankScope scope("rank 7");
    const Tensor x = filled(1);
    queue().wait(rank().queue("disk").submit({.name = "meet",
                                              .run =
                                                  [&] {
                                                    entered.set_value();
                                                    gives_up.get_future().wait();
                                                    fail("given up");
                                                  },
                                              .abort =
                                                  [&](std::string_view reason) {
                                                    told(reason);
                                                    gives_up.set_value();
                                                  }}));
    queue().submit({.name = "behind it", .run = [] {}, .abort = told});
    const Loan loan{x.storage(), true};
    queue().submit(
        {.name = "fetch",
         .run = [from = Pinned(), to = address(x)] { queue().stream().to_device(to, from.data(), kCount * 4); },
         .loans = {&loan, 1}});
    (void)add(x, 1.0);  // compute waits too
    entered.get_future().wait();
    fail("out of luck");
  };
  expect_error(step, {"out of luck"});
  ASSERT_EQ(reasons.size(), 2u);
  for (const std::string& reason : reasons) EXPECT_EQ(reason, "rank 7 ended by an exception");
}

TEST_F(DeviceQueues, AskForManyQueuesOfTheHardware) {
  rank().device(kCuda);
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  ASSERT_NE(connections, nullptr);
  EXPECT_STRNE(connections, "");
}

TEST_F(DeviceQueues, EndWithTheirRank) {
  Gate disk;
  auto opener = std::async(std::launch::async, [] {});
  Event event;
  {
    RankScope scope;
    const Tensor x = filled(1);
    const Pinned memory;
    read_to(memory, x);
    queue().wait(rank().queue("disk").submit({.name = "load", .run = disk.then()}));
    event = write_from(memory, x);
    opener = std::async(std::launch::async, [&disk] { disk.open(); });
  }
  EXPECT_TRUE(event.is_reached()) << "events outlive their rank";
  event.wait();
}

TEST_F(DeviceQueues, AreCheckedForHazards) {
  HazardChecker checker;
  const Pinned memory = Pinned().fill(1);
  {
    Tensor x = filled(0);
    write_from(memory, x, queue("gather"));
    read_to(memory, x);
    fill_into(x, 1);
    read_to(memory, x);
  }
  EXPECT_TRUE(checker.found().empty());
  EXPECT_GT(checker.num_checked(), 0);
  checker.remove({QueueEdge::touch, "gather", true});
  const Tensor y = filled(0);
  write_from(memory, y, queue("gather"));
  expect_error([&] { (void)add(y, 1.0); }, {"hazard", "gather fetch", "writes"});
  checker.remove({QueueEdge::depend, "offload"});
  const Tensor z = filled(0);
  read_to(memory, z);
  expect_error([&] { write_from(memory, z, queue("gather")); }, {"hazard", "gather fetch", "offload evict"});
}

TEST_F(DeviceQueues, RefuseARecordedGraph) {
  const Tensor x = filled(1);
  const Pinned memory;
  queue();
  DeviceContext& context = rank().device(kCuda);
  expect_error([&] { (void)context.record([&] { read_to(memory, x); }); }, {"\"evict\"", "recorded graph"});
  // What was lent before is joined before the recording, and before each launch.
  for (int repeat = 0; repeat < 3; ++repeat) {
    read_to(memory, x);
    const auto graph = context.record([&] { fill_into(x, 5); });
    graph->launch();
    queue().record().wait();
    EXPECT_EQ(memory.data()[0], repeat == 0 ? 1 : 5);
  }
}

}  // namespace
}  // namespace sherd::testing
