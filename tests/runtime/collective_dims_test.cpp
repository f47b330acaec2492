// Collectives along any dim, and all_to_all. Oracle: the full tensor, which every rank can draw, narrowed to the chunk
// of ceil(n / ranks); sums in the order of the tree, rounded once. Bits must match: rows may move their data as lists
// or packed.
#include <gtest/gtest.h>

#include <functional>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/tree_sum.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

Tensor whole_of(std::uint64_t seed, const Shape& shape, DType dtype = DType::f64) {
  return draw(is_floating(dtype) ? normal(shape) : ids(shape, 1000), dtype, 300 + seed);
}

Tensor chunk_along(const Tensor& t, int dim, int ranks, int r) {
  const std::int64_t n = t.size(dim), chunk = (n + ranks - 1) / ranks;
  const std::int64_t begin = std::min(n, r * chunk), end = std::min(n, (r + 1) * chunk);
  return dense_copy(narrow(t, dim, begin, end - begin));
}

/// Sum of the ranks' tensors, in the order of the tree; 16-bit floats are added in f32 and rounded once.
Tensor sum_of(int ranks, std::uint64_t seed, const Shape& shape, DType dtype = DType::f64) {
  const DType wide = dtype == DType::bf16 ? DType::f32 : dtype;
  std::vector<Tensor> all;
  for (int r = 0; r < ranks; ++r)
    all.push_back(converted(whole_of(seed + static_cast<std::uint64_t>(r), shape, dtype), wide));
  return converted(tree_sum(all, [](const Tensor& a, const Tensor& b) { return add(a, b); }), dtype);
}

/// Shapes whose dim has n elements. The inner sizes make lines of a few bytes and lines of several kilobytes.
std::vector<Shape> shapes_with(int dim, std::int64_t n) {
  std::vector<Shape> shapes;
  for (const std::int64_t inner : {3, 1100}) {
    Shape shape = {2, 3, inner};
    shape[dim] = n;
    shapes.push_back(shape);
  }
  return shapes;
}

class CollectiveDims : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveDims, ::testing::Values(1, 2, 3, 4));

TEST_P(CollectiveDims, GatherAndReduceScatterAreChunksOfTheWhole) {
  const int W = GetParam();
  run_ranks(W, [W](const Group& group) {
    const int r = group->rank();
    for (const int dim : {0, 1, 2})
      for (const std::int64_t n : {0, 1, 4, 5, 7})
        for (const Shape& shape : shapes_with(dim, n))
          for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
            SCOPED_TRACE(fmt::format("{}{} along {}", name(dtype), shape, dim));
            const Tensor whole = whole_of(9, shape, dtype);
            EXPECT_TRUE(same_bits(all_gather(chunk_along(whole, dim, W, r), *group, n, dim), whole));
            const Tensor mine = whole_of(20 + static_cast<std::uint64_t>(r), shape, dtype);
            EXPECT_TRUE(same_bits(reduce_scatter(mine, *group, ReduceKind::sum, dim),
                                  chunk_along(sum_of(W, 20, shape, dtype), dim, W, r)));
          }
  });
}

TEST_P(CollectiveDims, AllToAllMovesTheCutFromOneDimToAnother) {
  const int W = GetParam();
  run_ranks(W, [W](const Group& group) {
    const int r = group->rank();
    for (const int joined : {0, 1, 2})
      for (const int split : {0, 1, 2}) {
        if (joined == split) continue;
        for (const std::int64_t n : {0, 1, 5})
          for (const std::int64_t m : {0, 4, 7})
            for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
              Shape shape = {2, 2, 2};
              shape[joined] = n;
              shape[split] = m;
              SCOPED_TRACE(fmt::format("{}{} from {} to {}", name(dtype), shape, joined, split));
              const Tensor whole = whole_of(9, shape, dtype);
              const Tensor cut = chunk_along(whole, joined, W, r), expected = chunk_along(whole, split, W, r);
              EXPECT_TRUE(same_bits(all_to_all(cut, *group, joined, n, split), expected));
              EXPECT_TRUE(same_bits(all_to_all(with_reversed_strides(cut), *group, joined - 3, n, split - 3), expected))
                  << "strided, dims from the end";
            }
      }
  });
}

TEST_P(CollectiveDims, OtherReductionsKeepTheirKind) {
  const int W = GetParam();
  run_ranks(W, [W](const Group& group) {
    const Shape shape = {3, 5, 2};
    const Tensor mine = whole_of(static_cast<std::uint64_t>(group->rank()), shape);
    Tensor largest = whole_of(0, shape);
    for (int r = 1; r < W; ++r) largest = maximum(largest, whole_of(static_cast<std::uint64_t>(r), shape));
    EXPECT_TRUE(same_bits(reduce_scatter(mine, *group, ReduceKind::max, 1), chunk_along(largest, 1, W, group->rank())));
    EXPECT_TRUE(near(reduce_scatter(mine, *group, ReduceKind::avg, -1),
                     chunk_along(mul(sum_of(W, 0, shape), 1.0 / W), 2, W, group->rank())));
  });
}

// What is differentiated is the sum over ranks of <y, cotangent of the rank>.
TEST_P(CollectiveDims, Gradients) {
  const int W = GetParam();
  run_ranks(W, [W](const Group& group) {
    const int r = group->rank();
    const auto gradient = [](const Tensor& value, const Tensor& cotangent, const auto& fn) {
      Slot slot("x", true);
      slot.set(value);
      backward(fn(slot.value()), {.grad = cotangent});
      return slot.grad();
    };
    const Shape shape = {2, 5, 3};
    const Tensor whole = whole_of(9, shape), cotangent = whole_of(40 + static_cast<std::uint64_t>(r), shape);
    for (const int dim : {1, 2}) {
      const std::int64_t n = shape[dim];
      EXPECT_TRUE(near(gradient(chunk_along(whole, dim, W, r), cotangent,
                                [&](const Tensor& x) { return all_gather(x, *group, n, dim); }),
                       chunk_along(sum_of(W, 40, shape), dim, W, r)));
      EXPECT_TRUE(same_bits(gradient(cotangent, chunk_along(whole, dim, W, r),
                                     [&](const Tensor& x) { return reduce_scatter(x, *group, ReduceKind::sum, dim); }),
                            whole));
      EXPECT_TRUE(near(gradient(cotangent, chunk_along(whole, dim, W, r),
                                [&](const Tensor& x) { return reduce_scatter(x, *group, ReduceKind::avg, dim); }),
                       mul(whole, 1.0 / W)));
    }
    EXPECT_TRUE(same_bits(gradient(chunk_along(cotangent, 1, W, r), chunk_along(whole, 2, W, r),
                                   [&](const Tensor& x) { return all_to_all(x, *group, 1, 5, 2); }),
                          chunk_along(whole, 1, W, r)));
  });
}

TEST(CollectiveDims, OneCallIsOneLaunchWhateverTheDim) {
  run_ranks(2, [](const Group& group) {
    for (const std::int64_t inner : {2, 1000}) {
      const Tensor x = whole_of(1, {4, 6, inner}, DType::f32);
      const CommCounts before = group->host().counts();
      Tensor y = all_gather(x, *group, 12, 1);
      y = reduce_scatter(std::move(y), *group, ReduceKind::sum, 1);
      y = all_to_all(std::move(y), *group, 1, 12, 2);
      (void)y.to_vector<float>();
      const CommCounts after = group->host().counts();
      EXPECT_EQ(after.all_gather.calls - before.all_gather.calls, 1);
      EXPECT_EQ(after.reduce_scatter.calls - before.reduce_scatter.calls, 1);
      EXPECT_EQ(after.all_to_all.calls - before.all_to_all.calls, 1);
      EXPECT_EQ(after.all_gather.bytes - before.all_gather.bytes, 4 * 12 * inner * 4);
    }
    const Tensor meta = Tensor::empty({5, 4, 3}, DType::f32, Device::meta());
    const bool is_first = group->rank() == 0;
    EXPECT_EQ(reduce_scatter(meta, *group, ReduceKind::sum, 2).shape(), (Shape{5, 4, is_first ? 2 : 1}));
    EXPECT_EQ(all_gather(meta, *group, 8, 1).shape(), (Shape{5, 8, 3}));
    EXPECT_EQ(all_to_all(meta, *group, 1, 8, 2).shape(), (Shape{5, 8, is_first ? 2 : 1}));
  });
}

TEST(CollectiveDims, WrongCallsAreErrorsOnEveryRankBeforeCommunication) {
  run_ranks(2, [](const Group& group) {
    const Tensor x = whole_of(1, {3, 4});
    expect_error([&] { all_gather(x, *group, 20, 1); },
                 {"all_gather of 20 elements along dim 1 over 2 ranks", "f64[3,4]"});
    expect_error([&] { all_gather(x, *group, 8, 2); }, {"dim 2", "2 dims"});
    expect_error([&] { all_gather(x, *group, -1, 1); }, {"-1 elements"});
    expect_error([&] { reduce_scatter(x, *group, ReduceKind::sum, -3); }, {"dim -3", "2 dims"});
    expect_error([&] { all_to_all(x, *group, 1, 8, 1); }, {"joins and cuts dim 1"});
    expect_error([&] { all_to_all(x, *group, 1, 19, 0); }, {"all_to_all of 19 elements along dim 1", "from rank"});
    EXPECT_EQ(all_reduce(Tensor::scalar(1), *group).item<float>(), 2) << "the group stays usable";
  });
}

}  // namespace
}  // namespace sherd::testing
