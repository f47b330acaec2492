// Tensors in shared heaps, sources that are cast on their way, and reductions between types. Oracle: casts and sums by
// hand, in the order of the tree, compared bit by bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "runtime/comm/board/elements.h"
#include "runtime/exec/context.h"
#include "runtime/memory/caching_allocator.h"
#include "tests/comm/backends.h"
#include "tests/support/tree_sum.h"

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
  void skip(std::size_t bytes) { used_ += bytes; }

 private:
  SharedHeap heap_;
  bool uses_heap_;
  std::size_t used_ = 0;
  std::vector<std::vector<std::byte>> own_;
};

float value(int rank, std::int64_t i) {
  auto h = static_cast<std::uint64_t>(i * 7 + rank * 1000003 + 1) * 0x9e3779b97f4a7c15u;
  h ^= h >> 29;
  return static_cast<float>(static_cast<int>(h % 60001) - 30000) / 977.0f;
}

std::int64_t start_of(const std::vector<std::int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

template <class T>
std::string differs(const T* got, const std::vector<T>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (std::memcmp(got + i, &expected[i], sizeof(T)) != 0)
      return fmt::format("element {} is {}, not {}", i, static_cast<double>(convert<float>(got[i])),
                         static_cast<double>(convert<float>(expected[i])));
  return "";
}

/// Gathers shards of S as T from a source.
template <class T, class S>
void check_gather(HostGroup& group, const std::vector<std::int64_t>& counts, bool uses_heap = true) {
  const int me = group.rank();
  const std::int64_t total = start_of(counts, group.size()), own = counts[static_cast<std::size_t>(me)];
  Shelf shelf(group, uses_heap);
  shelf.skip(static_cast<std::size_t>(me) * 4160);  // ranks have their tensors at different offsets
  S* source = shelf.take<S>(own);
  for (std::int64_t i = 0; i < own; ++i) source[i] = convert<S>(value(me, i));
  std::vector<T> full(static_cast<std::size_t>(total)), expected;
  for (int r = 0; r < group.size(); ++r)
    for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i)
      expected.push_back(convert<T>(convert<S>(value(r, i))));
  const CollectivePart part{
      .in = {source}, .out = {full.data()}, .dtype = dtype_of<S>, .counts = counts, .out_dtype = dtype_of<T>};
  group.all_gather({part});
  EXPECT_EQ(differs(full.data(), expected), "")
      << name(dtype_of<T>) << " from " << name(dtype_of<S>) << ", " << total << " elements, rank " << me;
}

/// Reduces inputs of T through W to U.
template <class T, class W, class U>
void check_scatter(HostGroup& group, const std::vector<std::int64_t>& counts, bool accumulate, double scale) {
  const int me = group.rank();
  const std::int64_t total = start_of(counts, group.size()), own = counts[static_cast<std::size_t>(me)];
  Shelf shelf(group);
  shelf.skip(static_cast<std::size_t>(group.size() - me) * 8256);
  T* in = shelf.take<T>(total);
  for (std::int64_t i = 0; i < total; ++i) in[i] = convert<T>(value(me, i));
  std::vector<U> out(static_cast<std::size_t>(own), convert<U>(100.0f)), expected;
  for (std::int64_t i = start_of(counts, me); i < start_of(counts, me) + own; ++i) {
    std::vector<float> leaves;
    for (int r = 0; r < group.size(); ++r) {
      // A wire that is wider than the inputs loses nothing.
      float x = convert<float>(convert<T>(value(r, i)));
      if (sizeof(W) < sizeof(T)) x = convert<float>(convert<W>(x));
      leaves.push_back(x);
    }
    float sum = tree_sum(leaves, std::plus<float>());
    if (scale != 1) sum *= static_cast<float>(scale);
    if (!std::is_same_v<W, U>) sum = convert<float>(convert<W>(sum));
    expected.push_back(convert<U>(accumulate ? 100.0f + sum : sum));
  }
  const CollectivePart part{.in = {in},
                            .out = {out.data()},
                            .dtype = dtype_of<T>,
                            .counts = counts,
                            .out_dtype = dtype_of<U>,
                            .wire = dtype_of<W>,
                            .accumulate = accumulate};
  group.reduce_scatter({part}, {.scale = scale});
  EXPECT_EQ(differs(out.data(), expected), "") << name(dtype_of<T>) << " as " << name(dtype_of<W>) << " to "
                                               << name(dtype_of<U>) << ", " << total << " elements, rank " << me;
}

class SharedHeaps : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int ranks, const RankBody& body) const {
    for (const std::string& message : GetParam().run(ranks, body)) EXPECT_EQ(message, "") << ranks << " ranks";
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, SharedHeaps, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

// Below and above the size that is staged, and above the size that is streamed.
std::vector<std::vector<std::int64_t>> splits(int ranks) {
  const auto even = [ranks](std::int64_t count) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), count);
  };
  std::vector<std::vector<std::int64_t>> all{even(0), even(3), even(5001), even(0), even(5001)};
  all[3].back() = 20'003;
  all[4].front() = 0;
  return all;
}

TEST_P(SharedHeaps, GathersSourcesAndCastsThem) {
  for (const int ranks : {1, 2, 3, 4}) {
    run(ranks, [](HostGroup& group) {
      for (const std::vector<std::int64_t>& counts : splits(group.size())) {
        check_gather<float, float>(group, counts);
        check_gather<bf16, float>(group, counts);
        check_gather<float, bf16>(group, counts);
        check_gather<f16, double>(group, counts);
        check_gather<bf16, bf16>(group, counts);
        check_gather<bf16, float>(group, counts, group.rank() != 1);  // one rank has its tensor elsewhere
      }
    });
  }
}

TEST_P(SharedHeaps, ReducesBetweenTypes) {
  for (const int ranks : {1, 2, 4}) {
    run(ranks, [](HostGroup& group) {
      for (const std::vector<std::int64_t>& counts : splits(group.size()))
        for (const bool accumulate : {false, true})
          for (const double scale : {1.0, 0.25, 1.0 / 3}) {
            check_scatter<float, float, float>(group, counts, accumulate, scale);
            check_scatter<bf16, float, float>(group, counts, accumulate, scale);
            check_scatter<bf16, bf16, float>(group, counts, accumulate, scale);
            check_scatter<float, bf16, float>(group, counts, accumulate, scale);
            check_scatter<f16, float, f16>(group, counts, accumulate, scale);
          }
    });
  }
}

TEST_P(SharedHeaps, LargeTransfersPastTheCachesAreTheSame) {
  run(2, [](HostGroup& group) {
    const std::int64_t count = comm::kStreamBytes / 2 / 2 + 37;
    const std::vector<std::int64_t> counts{count, count - 5};
    check_gather<bf16, float>(group, counts);
    check_gather<float, float>(group, counts);
    check_scatter<float, float, float>(group, counts, false, 0.5);
    check_scatter<bf16, float, float>(group, counts, false, 1);
    check_scatter<float, float, float>(group, counts, true, 1);
  });
}

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

TEST_P(SharedHeaps, IntegersAreNotCast) {
  run(2, [](HostGroup& group) {
    std::vector<std::int32_t> data(4);
    float source = 0;
    const std::vector<std::int64_t> counts{1, 1};
    const CollectivePart part{.in = {&source}, .out = {data.data()}, .counts = counts, .out_dtype = DType::i32};
    try {
      group.all_gather({part});
      FAIL() << "f32 was gathered as i32";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("f32 cannot be gathered as i32"), std::string::npos) << error.what();
    }
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
