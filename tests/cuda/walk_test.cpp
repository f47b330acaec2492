// Walks of strided operands: merged dims, and parts that cover every element once, in order.
#include "runtime/cuda/rows/walk.h"

#include <gtest/gtest.h>

namespace sherd::cuda {
namespace {

// Offsets of an operand, element by element in the walk's order.
void append_offsets(const Walk& walk, int operand, std::vector<std::int64_t>& to) {
  for (std::int64_t i = 0; i < walk.numel(); ++i) {
    std::int64_t rest = i, offset = walk.base[operand];
    for (int d = walk.ndim - 1; d >= 0; --d) {
      offset += rest % walk.size[d] * walk.stride[d][operand];
      rest /= walk.size[d];
    }
    to.push_back(offset);
  }
}

TEST(CudaWalk, DimsMergeWhereAllOperandsAllow) {
  const Shape shape{4, 1, 5, 6};
  const Strides dense = contiguous_strides(shape), by_row{0, 0, 6, 1};
  const Strides both[] = {dense, dense}, broadcast[] = {dense, by_row};
  EXPECT_EQ(make_walk(shape, both).ndim, 1);
  const Walk walk = make_walk(shape, broadcast);
  ASSERT_EQ(walk.ndim, 2);
  EXPECT_EQ(walk.size[0], 4);
  EXPECT_EQ(walk.size[1], 30);
  EXPECT_EQ(walk.stride[0][1], 0);
  EXPECT_EQ(walk.inner_stride(1), 1);
}

TEST(CudaWalk, AWalkAlongAnOperandFollowsItsMemory) {
  const Shape shape{3, 4};
  const Strides strides[] = {Strides{1, 3}, Strides{4, 1}};
  const Walk walk = make_walk_along(shape, strides, 0);
  ASSERT_EQ(walk.ndim, 2);
  EXPECT_EQ(walk.size[1], 3);
  EXPECT_EQ(walk.inner_stride(0), 1);
  EXPECT_EQ(walk.inner_stride(1), 4);
}

TEST(CudaWalk, PartsCoverTheWhole) {
  const Shape shape{3, 5, 7};
  const Strides strides[] = {contiguous_strides(shape), Strides{1, 21, 3}, Strides{0, 0, 2}};
  const Walk whole = make_walk(shape, strides);
  for (const std::int64_t limit : {1, 2, 7, 10, 35, 50, 104, 105, 1000})
    for (int k = 0; k < 3; ++k) {
      std::vector<std::int64_t> expected, offsets;
      append_offsets(whole, k, expected);
      for_each_part(whole, limit, [&](const Walk& part) {
        EXPECT_LE(part.numel(), limit);
        append_offsets(part, k, offsets);
      });
      EXPECT_EQ(offsets, expected) << "limit " << limit << ", operand " << k;
    }
}

TEST(CudaWalk, NothingHasNoParts) {
  const Shape shape{3, 0};
  const Strides strides[] = {contiguous_strides(shape)};
  for_each_part(make_walk(shape, strides), 10, [](const Walk&) { FAIL(); });
}

}  // namespace
}  // namespace sherd::cuda
