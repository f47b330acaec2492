// Oracle: a count per element, on grids small enough to count.
#include "nn/checkpoint/format/cover.h"

#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace sherd {
namespace {

using namespace ckpt;

/// first_miscount() by counting.
std::optional<Miscount> count(const std::vector<Box>& boxes, const Shape& shape) {
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    Dims element = shape;
    std::int64_t rest = i;
    for (int d = shape.size() - 1; d >= 0; --d) {
      element[d] = rest % shape[d];
      rest /= shape[d];
    }
    const auto holders = std::count_if(boxes.begin(), boxes.end(), [&](const Box& box) { return holds(box, element); });
    if (holders != 1) return Miscount{element, holders};
  }
  return std::nullopt;
}

std::optional<Miscount> miscount(const std::vector<Box>& boxes, const Shape& shape) {
  std::vector<const Box*> pointers;
  for (const Box& box : boxes) pointers.push_back(&box);
  return first_miscount(pointers, shape);
}

void expect_as_counted(const std::vector<Box>& boxes, const Shape& shape) {
  const auto found = miscount(boxes, shape), counted = count(boxes, shape);
  ASSERT_EQ(found.has_value(), counted.has_value());
  if (!found) return;
  EXPECT_EQ(found->element, counted->element);
  EXPECT_EQ(found->boxes, counted->boxes);
}

TEST(Cover, ScalarsAndEmptyTensors) {
  EXPECT_FALSE(miscount({Box{}}, {}));
  EXPECT_EQ(miscount({}, {})->boxes, 0);
  EXPECT_EQ(miscount({Box{}, Box{}, Box{}}, {})->boxes, 3);
  EXPECT_FALSE(miscount({}, {0, 4}));
  EXPECT_FALSE(miscount({{{0, 0}, {0, 4}}, {{0, 1}, {0, 2}}}, {0, 4}));
  EXPECT_FALSE(miscount({{{0, 0}, {3, 4}}, {{2, 1}, {0, 2}}}, {3, 4})) << "a box without elements";
}

TEST(Box, IsPrintedWhateverItsNumbersAre) {
  EXPECT_EQ(to_string(Box{{2, 0}, {3, 4}}), "[2:5, 0:4]");
  EXPECT_EQ(to_string(Box{{7}, {std::numeric_limits<std::int64_t>::max()}}), "[7:9223372036854775807]");
}

// Four arms around a middle: no straight line separates them.
TEST(Cover, PinwheelIsACover) {
  const std::vector<Box> good = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  expect_as_counted(good, {3, 3});
  EXPECT_FALSE(miscount(good, {3, 3}));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<Box> bad = good;
    bad.erase(bad.begin() + static_cast<std::ptrdiff_t>(i));
    expect_as_counted(bad, {3, 3});
    bad.push_back(good[(i + 1) % good.size()]);
    expect_as_counted(bad, {3, 3});
  }
}

// As many elements as the tensor has, one of them twice and one not at all.
TEST(Cover, VolumeAloneIsNotEnough) {
  const auto wrong = miscount({{{0, 0}, {2, 2}}, {{1, 1}, {1, 2}}, {{0, 2}, {1, 1}}, {{2, 0}, {1, 2}}}, {3, 3});
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->element, (Dims{1, 1}));
  EXPECT_EQ(wrong->boxes, 2);
}

TEST(Cover, AnyBoxesAreCounted) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit));
  };
  int covers = 0;
  for (int round = 0; round < 4000; ++round) {
    // A tensor is split again and again; then, mostly, a box of the result is moved, dropped or doubled.
    Shape shape;
    for (std::int64_t d = below(4); d >= 0; --d) shape.push_back(1 + below(5));
    std::vector<Box> boxes = {whole_box(shape)};
    for (std::int64_t cuts = below(12); cuts > 0; --cuts) {
      Box& box = boxes[static_cast<std::size_t>(below(static_cast<std::int64_t>(boxes.size())))];
      const int d = static_cast<int>(below(shape.size()));
      Box rest = box;
      const std::int64_t kept = below(box.shape[d] + 1);
      box.shape[d] = kept;
      rest.offset[d] += kept;
      rest.shape[d] -= kept;
      boxes.push_back(rest);
    }
    const std::size_t at = static_cast<std::size_t>(below(static_cast<std::int64_t>(boxes.size())));
    const std::int64_t damage = below(4);
    if (damage == 1) boxes[at].offset = Dims::filled(shape.size(), 0);
    if (damage == 2) boxes.push_back(boxes[at]);
    if (damage == 3) boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(at));
    expect_as_counted(boxes, shape);
    covers += miscount(boxes, shape) ? 0 : 1;
  }
  EXPECT_GT(covers, 1000);
  EXPECT_LT(covers, 3000);
}

// Comparing each with each would be 10^11 comparisons.
TEST(Cover, ManyBoxes) {
  constexpr std::int64_t kSide = 512;
  std::vector<Box> boxes;
  for (std::int64_t row = 0; row < kSide; ++row)
    for (std::int64_t column = 0; column < kSide; ++column) boxes.push_back({{3 * row, 2 * column}, {3, 2}});
  EXPECT_FALSE(miscount(boxes, {3 * kSide, 2 * kSide}));
  boxes.back().shape[1] = 1;
  EXPECT_EQ(miscount(boxes, {3 * kSide, 2 * kSide})->element, (Dims{3 * kSide - 3, 2 * kSide - 1}));
  for (Box& box : boxes) box = whole_box({1, 1});
  EXPECT_EQ(miscount(boxes, {1, 1})->boxes, kSide * kSide);
}

}  // namespace
}  // namespace sherd
