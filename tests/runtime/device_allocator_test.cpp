// Best fit over segments, on a device that is a counter: what is handed out, split, joined, given back and said.
#include "runtime/memory/device_allocator.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// Addresses without memory behind them.
class Ledger final : public MemorySource {
 public:
  struct State {
    std::int64_t capacity = 0, mapped = 0, next = std::int64_t{1} << 40;
    std::map<std::int64_t, std::int64_t> segments;
    int fills = 0;
  };
  explicit Ledger(State& state) : state_(state) {}
  std::string name() const override { return "cuda:3"; }
  void* map(std::int64_t bytes) override {
    if (state_.mapped + bytes > state_.capacity) return nullptr;
    state_.mapped += bytes;
    const std::int64_t at = state_.next;
    state_.segments[at] = bytes;
    state_.next += bytes + 2 * kMiB;  // a gap: segments never join
    return reinterpret_cast<void*>(at);
  }
  void unmap(void* segment, std::int64_t bytes) noexcept override {
    EXPECT_EQ(state_.segments[reinterpret_cast<std::int64_t>(segment)], bytes);
    state_.segments.erase(reinterpret_cast<std::int64_t>(segment));
    state_.mapped -= bytes;
  }
  void fill(void*, std::uint8_t, std::int64_t) noexcept override { ++state_.fills; }
  std::pair<std::int64_t, std::int64_t> free_and_total() const override {
    return {state_.capacity - state_.mapped, state_.capacity};
  }

 private:
  State& state_;
};

class DeviceMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    state_.capacity = 1024 * kMiB;
    memory_ = new DeviceAllocator(std::make_unique<Ledger>(state_));
  }
  void TearDown() override {
    memory_->abandon();
    EXPECT_EQ(state_.mapped, 0) << "segments were left behind";
  }
  std::byte* take(std::int64_t bytes) {
    return static_cast<std::byte*>(memory_->allocate(bytes, MemoryCategory::activations));
  }
  void give(void* block, std::int64_t bytes) { memory_->release(block, bytes, MemoryCategory::activations); }

  Ledger::State state_;
  DeviceAllocator* memory_ = nullptr;
};

TEST_F(DeviceMemory, ABlockOfOneSizeServesTwoOfHalf) {
  std::byte* whole = take(64 * kMiB);
  give(whole, 64 * kMiB);
  std::byte* left = take(32 * kMiB);
  std::byte* right = take(32 * kMiB);
  EXPECT_EQ(left, whole);
  EXPECT_EQ(right, whole + 32 * kMiB);
  EXPECT_EQ(memory_->system_calls(), 1);
  give(left, 32 * kMiB);
  give(right, 32 * kMiB);
  EXPECT_EQ(take(64 * kMiB), whole) << "freed neighbours join";
  give(whole, 64 * kMiB);
}

TEST_F(DeviceMemory, TheSmallestBlockThatFitsIsTaken) {
  std::byte* large = take(100 * kMiB);
  std::byte* small = take(50 * kMiB);
  give(large, 100 * kMiB);
  give(small, 50 * kMiB);
  EXPECT_EQ(take(40 * kMiB), small);
  give(small, 40 * kMiB);
}

TEST_F(DeviceMemory, SmallBlocksShareSegmentsOfTheirOwn) {
  std::byte* first = take(100);
  std::byte* second = take(300);
  EXPECT_EQ(second, first + 256) << "aligned to 256";
  EXPECT_EQ(memory_->reserved_bytes(), 2 * kMiB);
  give(first, 100);
  give(second, 300);
}

TEST(SeparateDeviceMemory, EveryBlockIsASegmentOfItsLengthUntilItIsReleased) {
  Ledger::State state;
  state.capacity = 1024 * kMiB;
  auto* memory = new DeviceAllocator(std::make_unique<Ledger>(state), {.separate = true});
  std::vector<std::pair<void*, std::int64_t>> blocks;
  for (const std::int64_t bytes : {std::int64_t{5}, std::int64_t{5}, 3 * kMiB + 1})
    blocks.emplace_back(memory->allocate(bytes, MemoryCategory::activations), bytes);
  std::vector<std::int64_t> lengths;
  for (const auto& [at, bytes] : state.segments) lengths.push_back(bytes);
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{5, 5, 3 * kMiB + 1}));
  EXPECT_EQ(memory->reserved_bytes(), 3 * kMiB + 11);
  for (std::size_t left = blocks.size(); const auto& [block, bytes] : blocks) {
    memory->release(block, bytes, MemoryCategory::activations);
    EXPECT_EQ(state.segments.size(), --left);
  }
  memory->abandon();
}

TEST(SeparateDeviceMemory, SegmentsThatAreKeptServeBlocksOfTheirLengthOnly) {
  Ledger::State state;
  state.capacity = 1024 * kMiB;
  auto* memory = new DeviceAllocator(std::make_unique<Ledger>(state), {.keeps_segments = true, .separate = true});
  const auto use = [&](std::int64_t bytes) {
    void* block = memory->allocate(bytes, MemoryCategory::activations);
    memory->release(block, bytes, MemoryCategory::activations);
    return block;
  };
  void* const first = use(1000);
  EXPECT_EQ(use(1000), first);
  EXPECT_NE(use(999), first);
  EXPECT_EQ(state.segments.size(), 2u);
  memory->release_unused();
  EXPECT_TRUE(state.segments.empty());
  memory->abandon();
}

TEST_F(DeviceMemory, ASteadyStepTakesNothingFromTheDevice) {
  const std::int64_t sizes[] = {3 * kMiB, 700, 64 * kMiB, 17 * kMiB, 256, 5 * kMiB};
  std::int64_t calls = 0;
  for (int step = 0; step < 5; ++step) {
    std::vector<std::byte*> blocks;
    for (const std::int64_t bytes : sizes) blocks.push_back(take(bytes));
    for (std::size_t i = 0; i < blocks.size(); ++i) give(blocks[i], sizes[i]);
    if (step > 0) { EXPECT_EQ(memory_->system_calls(), calls); }
    calls = memory_->system_calls();
  }
}

TEST_F(DeviceMemory, UnusedSegmentsGoBackBeforeALackIsReported) {
  give(take(600 * kMiB), 600 * kMiB);
  give(take(300 * kMiB), 300 * kMiB);
  std::byte* block = take(900 * kMiB);
  EXPECT_EQ(state_.segments.size(), 1u);
  give(block, 900 * kMiB);
}

TEST_F(DeviceMemory, ALackOfMemoryNamesTheOwners) {
  std::byte* weights = static_cast<std::byte*>(memory_->allocate(700 * kMiB, MemoryCategory::parameters));
  expect_error([&] { take(500 * kMiB); },
               {"out of memory on cuda:3", "activations asked for 524 MB", "parameters 734 MB", "of 1.07 GB are free"});
  EXPECT_EQ(memory_->accounting().total(), 700 * kMiB);
  memory_->release(weights, 700 * kMiB, MemoryCategory::parameters);
}

TEST_F(DeviceMemory, NoTwoBlocksOverlapWhateverTheOrder) {
  std::mt19937 random(7);
  std::map<std::byte*, std::int64_t> used;
  for (int i = 0; i < 4000; ++i) {
    if (used.size() > 40 || (!used.empty() && random() % 2 == 0)) {
      auto at = used.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random() % used.size()));
      give(at->first, at->second);
      used.erase(at);
      continue;
    }
    const std::int64_t bytes =
        1 + static_cast<std::int64_t>(random() % 4 == 0 ? random() % (12 * kMiB) : random() % 5000);
    std::byte* block = take(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % DeviceAllocator::kAlignment, 0u);
    const auto after = used.upper_bound(block);
    if (after != used.end()) { EXPECT_LE(block + bytes, after->first); }
    if (after != used.begin()) { EXPECT_LE(std::prev(after)->first + std::prev(after)->second, block); }
    used[block] = bytes;
  }
  for (const auto& [block, bytes] : used) give(block, bytes);
  memory_->release_unused();
  EXPECT_EQ(state_.mapped, 0) << "everything joined again";
}

TEST_F(DeviceMemory, PoisonFillsOnTheDevice) {
  memory_->set_poison(true);
  give(take(1000), 1000);
  EXPECT_EQ(state_.fills, 1);
}

}  // namespace
}  // namespace sherd::testing
