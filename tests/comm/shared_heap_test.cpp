// What moves and is copied of tensors in shared heaps. Oracle: closed forms.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/exec/context.h"
#include "runtime/memory/caching_allocator.h"
#include "tests/comm/backends.h"

namespace sherd::testing {
namespace {

/// Memory of a rank: of its shared heap if the group has one, else its own.
class Shelf {
 public:
  explicit Shelf(HostGroup& group, bool uses_heap = true) : heap_(group.shared_heap()), uses_heap_(uses_heap) {}
  template <class T>
  T* take(std::int64_t count) {
    const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    if (heap_.bytes == 0 || !uses_heap_) return reinterpret_cast<T*>(own_.emplace_back(bytes + 1).data());
    std::byte* block = heap_.memory.get() + used_;
    used_ += bytes;
    return reinterpret_cast<T*>(block);
  }

 private:
  SharedHeap heap_;
  bool uses_heap_;
  std::size_t used_ = 0;
  std::vector<std::vector<std::byte>> own_;
};

class SharedHeaps : public OnAllBackends {};
INSTANTIATE_TEST_SUITE_P(Groups, SharedHeaps, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

/// A unit's shards of f32, gathered as bf16 and summed as f32.
CollectivePart gathered(bf16* full, const std::vector<std::int64_t>& counts, float* shard) {
  return {.in = {shard}, .out = {full}, .counts = counts, .out_dtype = DType::bf16};
}
CollectivePart scattered(bf16* full, float* sum, const std::vector<std::int64_t>& counts) {
  return {
      .in = {full}, .out = {sum}, .dtype = DType::bf16, .counts = counts, .out_dtype = DType::f32, .wire = DType::f32};
}

TEST_P(SharedHeaps, CountsBytesOnTheWire) {
  run(2, [](HostGroup& group) {
    std::vector<float> shard(10), sum(10);
    std::vector<bf16> full(20);
    const std::vector<std::int64_t> counts{10, 10};
    group.all_gather({gathered(full.data(), counts, shard.data())});
    group.reduce_scatter({scattered(full.data(), sum.data(), counts)}, {});
    EXPECT_EQ(group.counts().all_gather.bytes, 40);
    EXPECT_EQ(group.counts().reduce_scatter.bytes, 40) << "a wider wire moves no more bytes";
  });
}

/// Gathers `count` f32 of each of two ranks as bf16 and scatters the sum of as many. `uses_heap`: shards are there.
CommCounts counts_of_unit(HostGroup& group, std::int64_t count, bool uses_heap) {
  Shelf shelf(group, uses_heap);
  float *const shard = shelf.take<float>(count), *const sum = shelf.take<float>(count);
  bf16* const full = shelf.take<bf16>(2 * count);
  std::fill_n(shard, count, static_cast<float>(group.rank() + 1));
  const std::vector<std::int64_t> counts{count, count};
  const CommCounts before = group.counts();
  group.all_gather({gathered(full, counts, shard)});
  // The call has ended, and so have the peers' reads of this rank's shards.
  std::fill_n(shard, count, -1.0f);
  for (std::int64_t i = 0; i < 2 * count; ++i) EXPECT_EQ(convert<float>(full[i]), i < count ? 1 : 2) << i;
  group.reduce_scatter({scattered(full, sum, counts)}, {});
  std::fill_n(full, 2 * count, convert<bf16>(-1.0f));
  EXPECT_EQ(sum[count - 1], group.rank() == 0 ? 2 : 4);
  CommCounts spent = group.counts();
  spent -= before;
  return spent;
}

// Everything is written once where it belongs and in its type; peers read the shards in place.
TEST_P(SharedHeaps, ShardsCostOneCopyByTheReader) {
  run(2, [](HostGroup& group) {
    constexpr std::int64_t kCount = 100'000;
    const CommCounts spent = counts_of_unit(group, kCount, true);
    const bool is_shared = group.kind() == "thread" || group.shared_heap().bytes > 0;
    ASSERT_TRUE(is_shared);
    EXPECT_EQ(spent.all_gather.copied, 2 * kCount * 2);
    EXPECT_EQ(spent.reduce_scatter.copied, kCount * 4);
  });
}

TEST_P(SharedHeaps, WhatIsStagedCostsOneCopyMore) {
  run(2, [](HostGroup& group) {
    const CommCounts small = counts_of_unit(group, 100, true);
    EXPECT_EQ(small.all_gather.copied, (2 + 1) * 100 * 2) << "all parts in place, the own one shown";
    EXPECT_EQ(small.reduce_scatter.copied, 100 * 2 + 100 * 4) << "the peer's part shown";
    if (group.kind() == "thread") return;
    const CommCounts large = counts_of_unit(group, 100'000, false);
    EXPECT_EQ(large.all_gather.copied, 3 * 100'000 * 2);
    EXPECT_EQ(large.reduce_scatter.copied, 100'000 * (2 + 4));
  });
}

// The allocator that a rank with a heap uses: what peers read lies in it, the rest does not.
TEST(SharedHeap, ServesWhatPeersRead) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  const std::shared_ptr<std::byte> heap(static_cast<std::byte*>(std::aligned_alloc(2 << 20, kBytes)), std::free);
  const auto is_in_heap = [&](void* block) { return block >= heap.get() && block < heap.get() + kBytes; };
  RankScope scope;
  Allocator& allocator = scope.context().allocator();
  void* before = allocator.allocate(1000, MemoryCategory::parameters);
  EXPECT_FALSE(is_in_heap(before));
  scope.context().use_shared_heap(heap, kBytes);
  void* parameters = allocator.allocate(1000, MemoryCategory::parameters);
  void* gradients = allocator.allocate(1 << 20, MemoryCategory::gradients);
  void* between = allocator.allocate(1000, MemoryCategory::communication);
  void* activations = allocator.allocate(1000, MemoryCategory::activations);
  EXPECT_TRUE(is_in_heap(parameters));
  EXPECT_TRUE(is_in_heap(gradients));
  EXPECT_TRUE(is_in_heap(between));
  EXPECT_FALSE(is_in_heap(activations));
  EXPECT_NE(activations, before);
  // The heap is used up: other memory serves.
  void* large = allocator.allocate(3 << 20, MemoryCategory::gradients);
  EXPECT_FALSE(is_in_heap(large));
  // Blocks go back where they came from, whatever their category has become.
  allocator.accounting().retag(MemoryCategory::gradients, MemoryCategory::activations, 1 << 20);
  allocator.release(gradients, 1 << 20, MemoryCategory::activations);
  void* other = allocator.allocate(1 << 20, MemoryCategory::activations);
  EXPECT_FALSE(is_in_heap(other));
  EXPECT_EQ(allocator.allocate(1 << 20, MemoryCategory::gradients), gradients);
  allocator.release(gradients, 1 << 20, MemoryCategory::gradients);
  allocator.release(other, 1 << 20, MemoryCategory::activations);
  allocator.release(large, 3 << 20, MemoryCategory::gradients);
  allocator.release(before, 1000, MemoryCategory::parameters);
  allocator.release(activations, 1000, MemoryCategory::activations);
  allocator.release(between, 1000, MemoryCategory::communication);
  allocator.release(parameters, 1000, MemoryCategory::parameters);
  EXPECT_EQ(allocator.accounting().total(), 0);
}

}  // namespace
}  // namespace sherd::testing
