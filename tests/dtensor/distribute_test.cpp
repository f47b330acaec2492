// distribute and full_tensor: round trips for every small size, dim and number of ranks; what they communicate.
#include <gtest/gtest.h>

#include <numeric>

#include "dtensor/api.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// 1, 2, 3, ... plus `start`; every element is another number in every floating dtype used here.
Tensor counting(const Shape& shape, float start = 0) {
  std::vector<float> values(static_cast<std::size_t>(numel(shape)));
  std::iota(values.begin(), values.end(), start + 1);
  return Tensor::from<float>(values, shape);
}

std::int64_t total_calls(ProcessGroup& group) {
  RankContext::current().drain_queues();  // a collective is counted when it ends
  const CommCounts c = group.host().counts();
  return c.all_gather.calls + c.reduce_scatter.calls + c.all_reduce.calls + c.broadcast.calls + c.barrier.calls;
}

// n rows along each dim of a 3-d tensor; the other dims have 2 and 3 elements.
TEST(Distribute, F112_RoundTripIsBitwiseForEverySizeDimAndNumberOfRanks) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      for (std::int64_t n = 0; n <= 9; ++n)
        for (int dim = -3; dim < 3; ++dim) {
          const int d = dim < 0 ? dim + 3 : dim;
          Shape shape{2, 3, 2};
          shape[d] = n;
          const Tensor whole = counting(shape);
          const Tensor spread = distribute(whole, mesh, Shard(dim));
          EXPECT_EQ(spread.shape(), shape);
          const Spec::Range own = chunk_range(n, group->size(), group->rank());
          EXPECT_TRUE(same_bits(spread.local(), contiguous(narrow(whole, d, own.begin, own.size()))))
              << n << " elements along dim " << dim << ", rank " << group->rank();
          EXPECT_TRUE(spread.local().is_contiguous());
          EXPECT_TRUE(same_bits(full_tensor(spread), whole)) << n << " elements along dim " << dim;
        }
    });
}

TEST(Distribute, F112_RoundTripInEveryDtype) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    for (DType dtype : {DType::f64, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8, DType::boolean})
      for (int dim : {0, 1}) {
        const Tensor whole = cast(counting({4, 5}), dtype);
        EXPECT_TRUE(same_bits(full_tensor(distribute(whole, mesh, Shard(dim))), whole)) << name(dtype);
      }
  });
}

TEST(Distribute, ViewsAreSpreadByTheirElementsNotTheirMemory) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor view = transpose(counting({3, 5}), 0, 1);
    for (int dim : {0, 1}) EXPECT_TRUE(same_bits(full_tensor(distribute(view, mesh, Shard(dim))), contiguous(view)));
  });
}

TEST(Distribute, F113_OnlyTheSourceRanksDataCounts) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor own = counting({7, 2}, 100.0f * static_cast<float>(group->rank()));
    for (int source : {0, 2}) {
      const Tensor expected = counting({7, 2}, 100.0f * static_cast<float>(source));
      for (Placement placement : {Shard(0), Shard(1), Replicate()}) {
        const std::int64_t broadcasts = group->host().counts().broadcast.calls;
        const Tensor spread = distribute(own, mesh, placement, source);
        EXPECT_TRUE(same_bits(full_tensor(spread), expected)) << "source " << source;
        EXPECT_EQ(group->host().counts().broadcast.calls, broadcasts + 1);
      }
    }
  });
}

TEST(Distribute, F113_OwnDataCommunicatesNothing) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor own = counting({7, 2}, 100.0f * static_cast<float>(group->rank()));
    const std::int64_t before = total_calls(*group);
    const Tensor rows = distribute(own, mesh, Shard(0), kOwnData);
    const Tensor copy = distribute(own, mesh, Replicate(), kOwnData);
    EXPECT_EQ(total_calls(*group), before);
    const Spec::Range range = chunk_range(7, 3, group->rank());
    EXPECT_TRUE(same_bits(rows.local(), contiguous(narrow(own, 0, range.begin, range.size()))));
    EXPECT_TRUE(same_bits(copy.local(), own));
  });
}

TEST(Distribute, F117_OneRankCommunicatesNothing) {
  run_ranks(1, [](const Group& group) {
    const DeviceMesh mesh(group);
    for (Placement placement : {Shard(0), Replicate()})
      EXPECT_TRUE(same_bits(full_tensor(distribute(counting({3, 2}), mesh, placement)), counting({3, 2})));
    EXPECT_EQ(total_calls(*group), 0);
  });
}

TEST(Distribute, KeepsACopyOfItsOwn) {
  const DeviceMesh mesh(make_single_group());
  const Tensor whole = counting({2, 2});
  const Tensor spread = distribute(whole, mesh, Shard(0));
  EXPECT_NE(spread.local().raw(), whole.raw());
}

TEST(Distribute, RefusalsNameWhatIsWrong) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor whole = counting({4, 4});
    expect_error([&] { distribute(whole, mesh, Partial()); }, {"distribute", "Partial"});
    expect_error([&] { distribute(whole, mesh, Shard(2)); }, {"2"});
    expect_error([&] { distribute(whole, mesh, Shard(-3)); }, {"-3"});
    expect_error([&] { distribute(Tensor::scalar(1), mesh, Shard(0)); }, {"0-d"});
    expect_error([&] { distribute(whole, mesh, Shard(0), 2); }, {"source 2", "mesh(dp=2)"});
    const Tensor spread = distribute(whole, mesh, Shard(0));
    expect_error([&] { distribute(spread, mesh, Shard(0)); }, {"f32[4,4]{0: dp}", "already", "redistribute()"});
    expect_error([&] { full_tensor(whole); }, {"f32[4,4]", "plain tensor"});
  });
}

TEST(FullTensor, F123_PartialValuesAreReduced) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [=](const Group& group) {
      const DeviceMesh mesh(group);
      const auto rank = static_cast<float>(group->rank());
      const Tensor term = Tensor::from<float>({rank + 1, 1 - rank, 4}, {3});
      const auto reduced = [&](ReduceKind kind) {
        return full_tensor(Tensor::distributed({3}, Spec::of(mesh, Partial(kind)), term));
      };
      const auto n = static_cast<float>(ranks);
      const float first = n * (n + 1) / 2, second = n - n * (n - 1) / 2;
      EXPECT_TRUE(near(reduced(ReduceKind::sum), Tensor::from<float>({first, second, 4 * n}, {3})));
      EXPECT_TRUE(near(reduced(ReduceKind::avg), Tensor::from<float>({first / n, second / n, 4}, {3})));
      EXPECT_TRUE(same_bits(reduced(ReduceKind::max), Tensor::from<float>({n, 1, 4}, {3})));
      EXPECT_TRUE(same_bits(reduced(ReduceKind::min), Tensor::from<float>({1, 2 - n, 4}, {3})));
    });
}

TEST(FullTensor, OfADeadMeshIsANamedError) {
  Tensor spread;
  {
    const DeviceMesh mesh(make_single_group());
    spread = distribute(counting({2, 2}), mesh, Shard(0));
  }
  expect_error([&] { full_tensor(spread); }, {"{0: dp}", "keep the DeviceMesh alive"});
}

}  // namespace
}  // namespace sherd::testing
