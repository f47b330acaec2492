#include "runtime/memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <thread>

#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"

namespace sherd {
namespace {

using enum MemoryCategory;

TEST(SizeClass, HoldsTheRequestAndWastesLessThanAQuarter) {
  for (std::int64_t bytes : {1, 63, 64, 65, 1000, 1024, 1025, 1280, 1281, 4096, 5000, 65'536, 65'537, 1 << 20}) {
    const int index = size_class(bytes);
    EXPECT_GE(size_class_bytes(index), bytes);
    EXPECT_EQ(size_class(size_class_bytes(index)), index) << "a class's own size falls into it";
    if (index > 0) { EXPECT_LT(size_class_bytes(index - 1), bytes) << "the class below would do"; }
    if (bytes > 1024) { EXPECT_LE(static_cast<double>(size_class_bytes(index)), 1.25 * static_cast<double>(bytes)); }
    EXPECT_EQ(size_class_bytes(index) % 64, 0);
  }
  for (int index = 1; index < 120; ++index) EXPECT_LT(size_class_bytes(index - 1), size_class_bytes(index));
}

TEST(Allocator, BlocksAreAlignedDistinctAndReused) {
  RankScope rank;
  Allocator& a = rank.context().allocator();
  for (std::int64_t bytes : {1, 64, 1000, 300'000, 5'000'000}) {
    auto* first = static_cast<std::byte*>(a.allocate(bytes, activations));
    auto* second = static_cast<std::byte*>(a.allocate(bytes, activations));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % CachingAllocator::kAlignment, 0u);
    EXPECT_GE(std::abs(first - second), bytes);
    std::memset(first, 1, static_cast<std::size_t>(bytes));
    std::memset(second, 2, static_cast<std::size_t>(bytes));
    EXPECT_EQ(first[bytes - 1], std::byte{1});
    a.release(first, bytes, activations);
    EXPECT_EQ(a.allocate(bytes, activations), first) << "the block that was freed last comes first";
    a.release(first, bytes, activations);
    a.release(second, bytes, activations);
  }
  EXPECT_EQ(a.accounting().total(), 0);
}

TEST(Allocator, ASteadyStepAsksTheSystemForNothing) {
  RankScope rank;
  Allocator& a = rank.context().allocator();
  const auto step = [] {
    const Tensor x = full({300, 1000}, 0.5), w = full({1000, 700}, 0.25);
    return sum(square(matmul(x, w))).item<float>();
  };
  step();
  const std::int64_t calls = a.system_calls(), reserved = a.reserved_bytes();
  EXPECT_GT(calls, 0);
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(a.system_calls(), calls);
  EXPECT_EQ(a.reserved_bytes(), reserved);
}

TEST(Allocator, AFreedLargePlaceServesAnyRequestThatFits) {
  RankScope rank;
  Allocator& a = rank.context().allocator();
  void* whole = a.allocate(12'000'000, activations);
  a.release(whole, 12'000'000, activations);
  const std::int64_t reserved = a.reserved_bytes();
  void* gradient = a.allocate(5'000'000, gradients);
  void* rest = a.allocate(6'900'000, activations);
  EXPECT_EQ(gradient, whole);
  EXPECT_EQ(a.reserved_bytes(), reserved);
  a.release(gradient, 5'000'000, gradients);
  a.release(rest, 6'900'000, activations);
  EXPECT_EQ(a.allocate(12'000'000, activations), whole) << "the parts have merged";
  a.release(whole, 12'000'000, activations);
}

TEST(Allocator, LastingBlocksDoNotSplitTheMemoryOfASteps) {
  RankScope rank;
  Allocator& a = rank.context().allocator();
  void* before = a.allocate(4'000'000, activations);
  void* state = a.allocate(4'000'000, optimizer);
  void* after = a.allocate(4'000'000, activations);
  a.release(before, 4'000'000, activations);
  a.release(after, 4'000'000, activations);
  const std::int64_t reserved = a.reserved_bytes();
  void* both = a.allocate(8'000'000, activations);
  EXPECT_EQ(both, before);
  EXPECT_EQ(a.reserved_bytes(), reserved);
  a.release(both, 8'000'000, activations);
  a.release(state, 4'000'000, optimizer);
}

TEST(Allocator, ARequestLargerThanARegionGetsOneOfItsOwn) {
  RankScope rank;
  Allocator& a = rank.context().allocator();
  constexpr std::int64_t kBytes = (std::int64_t{1} << 30) + 12345;  // never touched: addresses only
  auto* small = static_cast<std::byte*>(a.allocate(300'000, activations));
  auto* large = static_cast<std::byte*>(a.allocate(kBytes, activations));
  large[0] = large[kBytes - 1] = small[0] = std::byte{1};
  a.release(large, kBytes, activations);
  EXPECT_EQ(a.allocate(kBytes, activations), large);
  a.release(large, kBytes, activations);
  a.release(small, 300'000, activations);
}

TEST(Allocator, WhatTheSystemRefusesIsAnErrorAndChangesNothing) {
  RankScope rank;
  Allocator& a = rank.context().allocator();
  for (const std::int64_t bytes : {std::int64_t{1} << 46, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_THROW(a.allocate(bytes, activations), OutOfMemory);
    EXPECT_EQ(a.accounting().total(), 0);
  }
  a.release(a.allocate(300'000, activations), 300'000, activations);
}

TEST(Allocator, TheLimitIsAnErrorThatListsTheOwnersAndChangesNothing) {
  RankScope rank;
  Allocator& a = rank.context().allocator();
  const Tensor weights = Tensor::empty({2'500'000}, DType::f32, Device::cpu(), parameters);  // 10 MB
  const Tensor grads = Tensor::empty({500'000}, DType::f32, Device::cpu(), gradients);       // 2 MB
  a.set_limit(15'000'000);
  const CategoryBytes before = a.accounting().current();
  try {
    const Tensor more = Tensor::empty({1'000'000}, DType::f32);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("4 MB asked for activations, 12 MB of the limit of 15 MB are in use"), std::string::npos)
        << text;
    EXPECT_NE(text.find("owners  parameters 10 MB, gradients 2 MB"), std::string::npos) << text;
    EXPECT_NE(text.find("peak    12 MB"), std::string::npos) << text;
  }
  EXPECT_EQ(a.accounting().current(), before);
  EXPECT_NO_THROW(Tensor::empty({750'000}, DType::f32)) << "exactly the limit fits";
  a.set_limit(0);
  EXPECT_NO_THROW(Tensor::empty({1'000'000}, DType::f32));
}

TEST(Allocator, OutOfMemoryInAnOpKeepsItsTypeAndNamesTheOp) {
  RankScope rank;
  const Tensor x = full({1000}, 1.0);
  rank.context().allocator().set_limit(6000);
  try {
    const Tensor y = exp(x);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("op      exp"), std::string::npos) << error.what();
  }
}

TEST(Allocator, PoisonShowsUseAfterRelease) {
  RankScope rank;
  Allocator& a = rank.context().allocator();
  a.set_poison(true);
  auto* block = static_cast<unsigned char*>(a.allocate(1000, activations));
  std::memset(block, 7, 1000);
  a.release(block, 1000, activations);
  // The allocator keeps the pages, so reading them here is defined, and what a stale handle would see.
  EXPECT_EQ(block[0], 0xCB);
  EXPECT_EQ(block[999], 0xCB);
}

TEST(Allocator, ABlockReleasedByAnotherThreadComesBack) {
  RankScope rank;
  Allocator& a = rank.context().allocator();
  void* block = a.allocate(5000, communication);
  std::thread([&] { a.release(block, 5000, communication); }).join();
  EXPECT_EQ(a.accounting().current(communication), 5000) << "accounted by the owner's thread only";
  EXPECT_EQ(a.allocate(5000, communication), block) << "the next allocation takes it back first";
  EXPECT_EQ(a.accounting().current(communication), 5000);
  a.release(block, 5000, communication);
}

TEST(Allocator, TensorsMayOutliveTheirRank) {
  Tensor left;
  std::thread([&] {
    RankScope rank;
    left = full({1000}, 3.0);
  }).join();
  EXPECT_EQ(left.to_vector<double>()[999], 3);
  left = Tensor();  // frees the block, and with it the allocator; AddressSanitizer checks both
}

TEST(Allocator, AThreadWithoutARankIsToldToOpenAScope) {
  RankContext::current();  // this thread has one
  std::string message;
  std::thread([&] {
    try {
      Tensor::empty({1}, DType::f32);
    } catch (const Error& error) { message = error.what(); }
  }).join();
  EXPECT_NE(message.find("RankScope"), std::string::npos) << message;
}

// ---- accounting ----

TEST(Accounting, PeaksAndTheBreakdownAtTheTotalPeak) {
  Accounting a;
  a.add(parameters, 100);
  a.add(activations, 50);
  a.add(activations, -50);
  a.add(gradients, 30);
  EXPECT_EQ(a.total(), 130);
  EXPECT_EQ(a.total_peak(), 150);
  EXPECT_EQ(a.peak(activations), 50);
  EXPECT_EQ(a.peak(gradients), 30);
  EXPECT_EQ(a.at_peak()[static_cast<std::size_t>(activations)], 50);
  EXPECT_EQ(a.at_peak()[static_cast<std::size_t>(gradients)], 0);
  a.add(gradients, 30);  // 160: a new peak, of other owners
  EXPECT_EQ(a.at_peak()[static_cast<std::size_t>(activations)], 0);
  EXPECT_EQ(a.at_peak()[static_cast<std::size_t>(gradients)], 60);
  a.add(gradients, -60);
  EXPECT_EQ(a.at_peak()[static_cast<std::size_t>(gradients)], 60);
  a.reset_peaks();
  EXPECT_EQ(a.total_peak(), 100);
  EXPECT_EQ(a.peak(gradients), 0);
  EXPECT_EQ(a.at_peak()[static_cast<std::size_t>(parameters)], 100);
}

TEST(Accounting, RetagMovesBytesWithoutANewTotalPeak) {
  Accounting a;
  a.add(activations, 70);
  a.retag(activations, gradients, 70);
  EXPECT_EQ(a.current(activations), 0);
  EXPECT_EQ(a.current(gradients), 70);
  EXPECT_EQ(a.total(), 70);
  EXPECT_EQ(a.total_peak(), 70);
}

TEST(Accounting, PrintsLargestFirstInDecimalUnits) {
  CategoryBytes bytes{};
  EXPECT_EQ(describe(bytes), "nothing");
  bytes[static_cast<std::size_t>(gradients)] = 1'500'000;
  bytes[static_cast<std::size_t>(activations)] = 300'000;
  bytes[static_cast<std::size_t>(workspace)] = 12;
  EXPECT_EQ(describe(bytes), "gradients 1.5 MB, activations 300 KB, workspace 12 B");
  EXPECT_EQ(format_bytes(43'400'000), "43.4 MB");
  EXPECT_EQ(format_bytes(999'900), "1 MB");
  EXPECT_EQ(format_bytes(0), "0 B");
}

}  // namespace
}  // namespace sherd
