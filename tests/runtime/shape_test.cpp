// Oracles: closed form and NumPy's rules.
#include "runtime/tensor/shape.h"

#include <gtest/gtest.h>

#include "runtime/tensor/error.h"

namespace sherd {
namespace {

TEST(Shape, NumelOfEmptyAndScalarShapes) {
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({3, 0, 2}), 0);
  EXPECT_EQ(numel({3, 4}), 12);
}

TEST(Shape, InsertAndEraseKeepTheOthers) {
  Dims d{2, 3, 4};
  d.insert(1, 9);
  EXPECT_EQ(d, (Dims{2, 9, 3, 4}));
  d.erase(0);
  EXPECT_EQ(d, (Dims{9, 3, 4}));
  EXPECT_EQ(d.back(), 4);
  EXPECT_EQ(to_string(d), "[9,3,4]");
}

TEST(Shape, MoreThanEightDimsAreRefused) {
  EXPECT_THROW((Dims{1, 2, 3, 4, 5, 6, 7, 8, 9}), Error);
  Dims d{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_THROW(d.push_back(9), Error);
}

TEST(Shape, BroadcastFollowsNumPy) {
  EXPECT_EQ(broadcast({4, 1, 3}, {5, 1}), (Shape{4, 5, 3}));
  EXPECT_EQ(broadcast({}, {2, 3}), (Shape{2, 3}));
  EXPECT_EQ(broadcast({0, 3}, {1, 3}), (Shape{0, 3}));
  EXPECT_EQ(broadcast({2, 3}, {3}), (Shape{2, 3}));
}

TEST(Shape, BroadcastErrorNamesBothShapesAndTheDim) {
  try {
    broadcast({2, 3}, {4});
    FAIL();
  } catch (const Error& e) { EXPECT_EQ(e.message(), "shapes [2,3] and [4] do not broadcast: 3 and 4 at dim -1"); }
  EXPECT_THROW(broadcast({0}, {2}), Error);
}

TEST(Shape, BroadcastStridesAreZeroAlongNewAndSizeOneDims) {
  EXPECT_EQ(broadcast_strides({3, 1}, {7, 1}, {2, 3, 5}), (Strides{0, 7, 0}));
}

TEST(Shape, ContiguityIgnoresSizeOneDimsAndEmptyTensors) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_TRUE(is_contiguous({2, 1, 4}, {4, 99, 1}));
  EXPECT_TRUE(is_contiguous({0, 4}, {1, 7}));
  EXPECT_TRUE(is_contiguous({}, {}));
  EXPECT_FALSE(is_contiguous({2, 3}, {1, 2}));
  EXPECT_FALSE(is_contiguous({2, 3}, {0, 1}));
}

TEST(Shape, NormalizeDimCountsFromTheBack) {
  EXPECT_EQ(normalize_dim(-1, 3), 2);
  EXPECT_EQ(normalize_dim(2, 3), 2);
  EXPECT_EQ(normalize_dim(-1, 0), 0);
  EXPECT_THROW(normalize_dim(3, 3), Error);
  EXPECT_THROW(normalize_dim(-4, 3), Error);
}

}  // namespace
}  // namespace sherd
