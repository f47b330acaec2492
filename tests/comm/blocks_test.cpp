// Gathers and reductions of tensors that are sharded along an inner dim: blocks with a run of every rank in each.
// Oracle: where every element lies, from its indices; sums by hand, in the order of the tree. Bit by bit.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <numeric>

#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "tests/comm/backends.h"
#include "tests/support/expect_error.h"
#include "tests/support/tree_sum.h"

namespace sherd::testing {
namespace {

using comm::CommOp;

float value(int rank, std::int64_t i) {
  auto h = static_cast<std::uint64_t>(i * 7 + rank * 1000003 + 1) * 0x9e3779b97f4a7c15u;
  h ^= h >> 29;
  return static_cast<float>(static_cast<int>(h % 60001) - 30000) / 977.0f;
}

/// A tensor [blocks, sum of rows, inner] of which rank r has rows[r] in each block.
struct Cut {
  std::int64_t blocks, inner;
  std::vector<std::int64_t> rows;

  std::int64_t start(int rank) const { return std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0}); }
  std::int64_t run(int rank) const { return rows[static_cast<std::size_t>(rank)] * inner; }
  std::int64_t block() const { return start(static_cast<int>(rows.size())) * inner; }
  /// Place of a rank's element i in the full tensor.
  std::int64_t place(int rank, std::int64_t i) const {
    return i / run(rank) * block() + start(rank) * inner + i % run(rank);
  }
  std::vector<std::int64_t> counts() const {
    std::vector<std::int64_t> list;
    for (const std::int64_t r : rows) list.push_back(blocks * r * inner);
    return list;
  }
};

std::vector<Cut> cuts_of(int ranks) {
  const std::vector<std::vector<std::int64_t>> rows{{2, 2, 2, 2}, {3, 0, 1, 5}, {0, 0, 0, 4}};
  std::vector<Cut> cuts;
  for (const std::vector<std::int64_t>& all : rows)
    for (const std::int64_t blocks : {1, 3, 513})
      for (const std::int64_t inner : {1, 29}) cuts.push_back({blocks, inner, {all.end() - ranks, all.end()}});
  return cuts;
}

/// `count` elements that peers may read where they lie, if the group has such memory.
template <class T>
std::span<T> take(HostGroup& group, std::vector<T>& own, std::int64_t count, std::size_t offset) {
  const SharedHeap heap = group.shared_heap();
  const auto n = static_cast<std::size_t>(count);
  if (heap.bytes > 0) return {reinterpret_cast<T*>(heap.memory.get() + offset), n};
  own.resize(n + 1);
  return {own.data(), n};
}

template <class T>
void check_gather(HostGroup& group, const Cut& cut) {
  const int me = group.rank();
  std::vector<float> memory;
  const std::span<float> source = take(group, memory, cut.blocks * cut.run(me), static_cast<std::size_t>(me) * 4160);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = value(me, static_cast<std::int64_t>(i));
  const auto total = static_cast<std::size_t>(cut.blocks * cut.block());
  std::vector<T> full(total + 1, T(-1)), expected(total + 1, T(-1));
  for (int r = 0; r < group.size(); ++r)
    for (std::int64_t i = 0; i < cut.blocks * cut.run(r); ++i)
      expected[static_cast<std::size_t>(cut.place(r, i))] = static_cast<T>(value(r, i));
  const CollectivePart part{.in = {source.data()},
                            .out = {full.data()},
                            .counts = cut.counts(),
                            .out_dtype = dtype_of<T>,
                            .blocks = cut.blocks};
  group.all_gather({part});
  EXPECT_EQ(full, expected) << cut.blocks << " blocks of " << cut.block() << " on rank " << me << " of "
                            << group.size();
}

void check_scatter(HostGroup& group, const Cut& cut, bool accumulate) {
  const int me = group.rank();
  std::vector<float> memory;
  const std::span<float> in = take(group, memory, cut.blocks * cut.block(), static_cast<std::size_t>(me) * 4160);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = value(me, static_cast<std::int64_t>(i));
  std::vector<float> out(static_cast<std::size_t>(cut.blocks * cut.run(me)), 100.0f), expected = out;
  for (std::int64_t i = 0; i < std::ssize(out); ++i) {
    std::vector<float> leaves;
    for (int r = 0; r < group.size(); ++r) leaves.push_back(value(r, cut.place(me, i)));
    const float sum = tree_sum(leaves, std::plus<float>());
    float& to = expected[static_cast<std::size_t>(i)];
    to = accumulate ? to + sum * 0.5f : sum * 0.5f;
  }
  const CollectivePart part{
      .in = {in.data()}, .out = {out.data()}, .counts = cut.counts(), .accumulate = accumulate, .blocks = cut.blocks};
  group.reduce_scatter({part}, {.scale = 0.5});
  EXPECT_EQ(out, expected) << cut.blocks << " blocks of " << cut.block() << " on rank " << me << " of " << group.size();
}

class Blocks : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int ranks, const RankBody& body) const {
    const RankBody with_context = [&](HostGroup& group) {
      RankScope scope;
      body(group);
    };
    for (const std::string& message : GetParam().run(ranks, with_context)) EXPECT_EQ(message, "") << ranks << " ranks";
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, Blocks, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Blocks, AreGatheredToTheirPlaces) {
  for (const int ranks : {1, 2, 3, 4})
    run(ranks, [](HostGroup& group) {
      for (const Cut& cut : cuts_of(group.size())) {
        check_gather<float>(group, cut);
        check_gather<double>(group, cut);
      }
    });
}

TEST_P(Blocks, AreReducedFromTheirPlaces) {
  for (const int ranks : {1, 2, 3, 4})
    run(ranks, [](HostGroup& group) {
      for (const Cut& cut : cuts_of(group.size()))
        for (const bool accumulate : {false, true}) check_scatter(group, cut, accumulate);
    });
}

// Beside tensors of one block, small enough to be split and large; every element is written once where it ends.
TEST_P(Blocks, AreQueuedLikeOthers) {
  for (const std::int64_t inner : {std::int64_t{2}, std::int64_t{700}})
    run(2, [=](HostGroup& group) {
      const int me = group.rank();
      const Cut cut{6, inner, {1, 2}};
      const std::vector<std::int64_t> counts = cut.counts(), plain{inner, inner};
      std::vector<float> shard(static_cast<std::size_t>(counts[static_cast<std::size_t>(me)])),
          full(static_cast<std::size_t>(cut.blocks * cut.block()), -1), again(shard.size(), -1),
          own(static_cast<std::size_t>(inner), static_cast<float>(me)), all(2 * own.size(), -1);
      for (std::size_t i = 0; i < shard.size(); ++i) shard[i] = value(me, static_cast<std::int64_t>(i));
      const auto buffer = [](std::vector<float>& v) {
        return Buffer{v.data(), static_cast<std::int64_t>(v.size() * sizeof(float)), Device::cpu()};
      };
      Queue& gathers = RankContext::current().queue(kGatherQueue);
      group.issue({.op = CommOp::all_gather,
                   .parts = {{.in = buffer(shard), .out = buffer(full), .counts = counts, .blocks = cut.blocks},
                             {.in = buffer(own), .out = buffer(all), .counts = plain}}},
                  {.queue = gathers, .name = "gather"});
      gathers.record().wait();
      for (int r = 0; r < 2; ++r) {
        for (std::int64_t i = 0; i < cut.blocks * cut.run(r); ++i)
          ASSERT_EQ(full[static_cast<std::size_t>(cut.place(r, i))], value(r, i))
              << "element " << i << " of rank " << r;
        EXPECT_EQ(all[static_cast<std::size_t>(r * inner)], static_cast<float>(r));
      }
      Queue& reduces = RankContext::current().queue(kReduceQueue);
      group.issue({.op = CommOp::reduce_scatter,
                   .parts = {{.in = buffer(full), .out = buffer(again), .counts = counts, .blocks = cut.blocks}},
                   .reduction = {.scale = 0.5}},
                  {.queue = reduces, .name = "reduce"});
      reduces.record().wait();
      EXPECT_EQ(again, shard) << "half the sum of two copies";
      EXPECT_EQ(group.counts().all_gather.calls, 1);
      EXPECT_EQ(group.counts().all_gather.bytes, 4 * (cut.blocks * cut.block() + 2 * inner));
    });
}

TEST_P(Blocks, RanksThatDisagreeAreTold) {
  const std::vector<std::string> messages = GetParam().run(2, [](HostGroup& group) {
    std::vector<float> source(4), full(8);
    const CollectivePart part{
        .in = {source.data()}, .out = {full.data()}, .counts = {4, 4}, .blocks = group.rank() == 0 ? 2 : 4};
    group.all_gather({part});
  });
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("f32 in 2 blocks x 4,4"), std::string::npos) << message;
    EXPECT_NE(message.find("f32 in 4 blocks x 4,4"), std::string::npos) << message;
  }
}

TEST_P(Blocks, MistakesAreNamed) {
  run(1, [](HostGroup& group) {
    std::vector<float> values(12);
    const Buffer all{values.data(), 48, Device::cpu()}, apart{values.data() + 6, 24, Device::cpu()};
    Queue& gathers = RankContext::current().queue(kGatherQueue);
    const auto refuse = [&](Collective call, std::initializer_list<std::string_view> parts) {
      expect_error([&] { group.issue(call, {.queue = gathers, .name = "gather"}); }, parts);
    };
    refuse({.op = CommOp::all_gather, .parts = {{.in = apart, .out = all, .counts = {6}, .blocks = 4}}},
           {"all_gather", "tensor 0", "count of 6", "4 blocks"});
    refuse({.op = CommOp::all_gather, .parts = {{.in = apart, .out = all, .counts = {6}, .blocks = 0}}},
           {"tensor 0 is of 0 blocks"});
    refuse({.op = CommOp::all_gather, .parts = {{.in = all, .out = all, .counts = {6}, .blocks = 2}}},
           {"in 2 blocks", "its input lies in its output"});
    refuse({.op = CommOp::all_reduce, .parts = {{.in = all, .out = all, .counts = {6}, .blocks = 2}}},
           {"all_reduce", "is of 2 blocks"});
  });
}

}  // namespace
}  // namespace sherd::testing
