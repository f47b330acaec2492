// Collectives as op rows: values and gradients on 1 to 4 ranks, uneven and empty chunks. The oracle is the sum or the
// concatenation of what every rank is known to hold.
#include <gtest/gtest.h>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/draw.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

// What rank r holds: known to all, so that every rank can compute the expected result.
Tensor of_rank(int r, const Shape& shape) { return draw(normal(shape), DType::f64, 500 + static_cast<unsigned>(r)); }

std::int64_t chunk_begin(std::int64_t n, int ranks, int r) {
  const std::int64_t c = (n + ranks - 1) / ranks;
  return std::min(n, r * c);
}

Tensor chunk_of(const Tensor& t, int ranks, int r) {
  const std::int64_t begin = chunk_begin(t.size(0), ranks, r), end = chunk_begin(t.size(0), ranks, r + 1);
  return dense_copy(narrow(t, 0, begin, end - begin));
}

Tensor sum_over_ranks(int ranks, const Shape& shape) {
  Tensor total = zeros(shape, DType::f64);
  for (int r = 0; r < ranks; ++r) total = add(total, of_rank(r, shape));
  return total;
}

class CollectiveRows : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveRows, ::testing::Values(1, 2, 3, 4));

TEST_P(CollectiveRows, ValuesWithUnevenAndEmptyChunks) {
  const int W = GetParam();
  run_ranks(W, [W](const std::shared_ptr<ProcessGroup>& group) {
    const int r = group->rank();
    for (std::int64_t n : {7, 2, 1, 0}) {
      const Shape shape = {n, 3};
      const Tensor x = of_rank(r, shape), total = sum_over_ranks(W, shape);
      EXPECT_TRUE(near(all_reduce(x, *group), total));
      EXPECT_TRUE(near(all_reduce(with_gaps(x), *group), total)) << "strided";
      EXPECT_TRUE(near(all_reduce(x, *group, ReduceKind::avg), mul(total, 1.0 / W)));
      EXPECT_TRUE(near(reduce_scatter(x, *group), chunk_of(total, W, r)));
      EXPECT_TRUE(near(reduce_scatter(with_reversed_strides(x), *group), chunk_of(total, W, r))) << "strided";
      EXPECT_TRUE(same_bits(all_gather(chunk_of(of_rank(9, shape), W, r), *group, n), of_rank(9, shape)));
      for (int root = 0; root < W; ++root)
        EXPECT_TRUE(same_bits(broadcast_from(x, *group, root), of_rank(root, shape)));
      EXPECT_TRUE(same_bits(x, of_rank(r, shape))) << "the input was written";
    }
    Tensor largest = of_rank(0, {5});
    for (int other = 1; other < W; ++other) largest = maximum(largest, of_rank(other, {5}));
    EXPECT_TRUE(same_bits(all_reduce(of_rank(r, {5}), *group, ReduceKind::max), largest));
  });
}

// The differentiated quantity is the sum of the ranks' roots; the cotangent of rank r is of_rank(100 + r).
TEST_P(CollectiveRows, Gradients) {
  const int W = GetParam();
  run_ranks(W, [W](const std::shared_ptr<ProcessGroup>& group) {
    const int r = group->rank();
    const Shape shape = {5, 2};
    const auto cotangents = [&] {
      Tensor total = zeros(shape, DType::f64);
      for (int s = 0; s < W; ++s) total = add(total, of_rank(100 + s, shape));
      return total;
    };
    const auto gradient = [&](const Tensor& value, const Tensor& cotangent, const auto& fn) {
      Slot slot("x", true);
      slot.set(value);
      backward(fn(slot.value()), {.grad = cotangent});
      return slot.grad();
    };
    const Tensor own = of_rank(100 + r, shape);
    const Tensor mine = chunk_of(of_rank(9, shape), W, r);
    EXPECT_TRUE(
        near(gradient(of_rank(r, shape), own, [&](const Tensor& x) { return all_reduce(x, *group); }), cotangents()));
    EXPECT_TRUE(
        near(gradient(of_rank(r, shape), own, [&](const Tensor& x) { return all_reduce(x, *group, ReduceKind::avg); }),
             mul(cotangents(), 1.0 / W)));
    EXPECT_TRUE(near(gradient(mine, own, [&](const Tensor& x) { return all_gather(x, *group, 5); }),
                     chunk_of(cotangents(), W, r)));
    // Every rank's x enters chunk s of rank s alone: its gradient joins the ranks' cotangents.
    const Tensor whole = of_rank(77, shape);
    EXPECT_TRUE(same_bits(
        gradient(of_rank(r, shape), chunk_of(whole, W, r), [&](const Tensor& x) { return reduce_scatter(x, *group); }),
        whole));
    EXPECT_TRUE(near(gradient(of_rank(r, shape), chunk_of(whole, W, r),
                              [&](const Tensor& x) { return reduce_scatter(x, *group, ReduceKind::avg); }),
                     mul(whole, 1.0 / W)));
  });
}

// Donation: an input that was moved in and has no other handle is overwritten. The special case are shapes of which
// rank 0's chunk is the full tensor.
TEST(CollectiveRows, AMovedInputGivesItsMemoryToTheResult) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const int r = group->rank();
    for (const Shape& shape : {Shape{3, 2}, Shape{9000}}) {
      Tensor x = of_rank(r, shape);
      const std::uint64_t memory = x.storage()->id();
      Tensor y = all_reduce(std::move(x), *group);
      EXPECT_EQ(y.storage()->id(), memory);
      y = all_reduce(std::move(y), *group, ReduceKind::avg);  // while the first may still run
      EXPECT_EQ(y.storage()->id(), memory);
      EXPECT_TRUE(near(y, sum_over_ranks(2, shape)));
      y = broadcast_from(r == 0 ? dense_copy(y) : of_rank(1, shape), *group, 0);
      EXPECT_TRUE(near(y, sum_over_ranks(2, shape)));
    }
    for (const std::int64_t inner : {2, 1000}) {
      const Shape one = {1, 1, inner};
      const Tensor whole = of_rank(9, one);
      EXPECT_TRUE(same_bits(all_gather(chunk_of(whole, 2, r), *group, 1), whole));
      EXPECT_TRUE(near(reduce_scatter(of_rank(r, one), *group), chunk_of(sum_over_ranks(2, one), 2, r)));
      const Tensor swapped = all_to_all(chunk_of(whole, 2, r), *group, 0, 1, 1);
      EXPECT_TRUE(same_bits(swapped, r == 0 ? whole : dense_copy(narrow(whole, 1, 0, 0))));
    }
  });
}

TEST(CollectiveRows, OneCallIsOneCollectiveAndTheMetaDeviceIsNone) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor x = of_rank(group->rank(), {4, 2});
    all_reduce(x, *group);
    reduce_scatter(x, *group);
    all_gather(chunk_of(x, 2, group->rank()), *group, 4);
    broadcast_from(x, *group, 1);
    const Tensor meta = Tensor::empty({5, 2}, DType::f32, Device::meta());
    EXPECT_EQ(reduce_scatter(meta, *group).shape(), (Shape{group->rank() == 0 ? 3 : 2, 2}));
    EXPECT_TRUE(all_reduce(meta, *group).is_meta());
    EXPECT_EQ(group->host().counts().all_reduce.calls, 1);
    EXPECT_EQ(group->host().counts().reduce_scatter.calls, 1);
    EXPECT_EQ(group->host().counts().all_gather.calls, 1);
    EXPECT_EQ(group->host().counts().broadcast.calls, 1);
  });
}

// A wrong shape is an Error before anything is sent: no rank hangs and the group stays usable.
TEST(CollectiveRows, WrongCallsAreErrorsOnEveryRankBeforeCommunication) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto message = [](const auto& fn) -> std::string {
      try {
        fn();
      } catch (const CommError&) { return "comm error"; } catch (const Error& error) {
        return error.what();
      }
      return "no error";
    };
    const Tensor three = of_rank(0, {3, 2});
    const std::string gather = message([&] { all_gather(three, *group, 4); });
    EXPECT_NE(gather.find("all_gather of 4 elements along dim 0 over 2 ranks takes 2 of them from rank"),
              std::string::npos)
        << gather;
    EXPECT_NE(gather.find("f64[3,2]"), std::string::npos) << gather;
    EXPECT_NE(message([&] { reduce_scatter(Tensor::scalar(1), *group); }).find("has 0 dims"), std::string::npos);
    EXPECT_NE(message([&] { broadcast_from(three, *group, 2); }).find("root 2 is not a rank"), std::string::npos);
    Slot slot("x", true);
    slot.set(three);
    const std::string max = message([&] { backward(sum(all_reduce(slot.value(), *group, ReduceKind::max))); });
    EXPECT_NE(max.find("reduces by max has no derivative"), std::string::npos) << max;
    EXPECT_EQ(all_reduce(Tensor::scalar(1), *group).item<float>(), 2);
  });
}

}  // namespace
}  // namespace sherd::testing
