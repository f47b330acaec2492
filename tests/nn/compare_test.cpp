// Differences between saves that were written by hand, in other pieces.
#include "nn/checkpoint/full/compare.h"

#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace ckpt;

using Values = std::vector<float>;

/// A tensor [rows, 3], or [3] for no rows, in as many pieces of rows as there are ranks.
struct Stored {
  std::string name;
  Shape shape;
  Values values;
  DType dtype = DType::f32;
};

std::string write_save(const std::string& dir, int ranks, const std::vector<Stored>& tensors) {
  Manifest manifest;
  manifest.step = 1;
  manifest.world_size = ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Piece> pieces;
    for (const Stored& t : tensors) {
      const std::int64_t rows = t.shape[0], part = (rows + ranks - 1) / ranks, row = std::min(rows, rank * part);
      Piece piece;
      piece.name = t.name;
      piece.dtype = t.dtype;
      piece.shape = t.shape;
      piece.box = rows_box(t.shape, row, std::min(part, rows - row));
      const std::int64_t per_row = numel(t.shape) / rows;
      piece.bytes = std::as_bytes(std::span(t.values).subspan(static_cast<std::size_t>(row * per_row),
                                                              static_cast<std::size_t>(numel(piece.box))));
      if (numel(piece.box) > 0) pieces.push_back(piece);
    }
    add(manifest, write_rank_file(dir, "step-000001", rank, pieces));
  }
  commit(dir, "step-000001", manifest);
  return dir;
}

std::map<std::string, TensorDifference> differences(const std::string& a, const std::string& b) {
  std::map<std::string, TensorDifference> found;
  compare_saves(CheckpointReader(a), CheckpointReader(b), [&](const TensorDifference& d) { found[d.name] = d; });
  return found;
}

TEST(CompareSaves, TensorsAreEqualHoweverTheyAreCut) {
  const TempDir one, three;
  const std::vector<Stored> tensors = {{"a", {5, 3}, Values(15, 2.5F)}, {"b", {4}, {1, 2, 3, 4}}};
  write_save(one.path(), 1, tensors);
  write_save(three.path(), 3, tensors);
  for (const auto& [name, d] : differences(one.path(), three.path())) {
    EXPECT_EQ(d.likeness, Likeness::equal) << name;
    EXPECT_EQ(d.different, 0) << name;
  }
}

TEST(CompareSaves, WhatDiffersIsCountedAndMeasured) {
  const TempDir first, second;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  write_save(first.path(), 2,
             {{"w", {2, 3}, {1, 2, 3, 4, 5, 6}},
              {"nan", {2}, {nan, nan}},
              {"zero", {1}, {0.0F}},
              {"form", {2, 3}, Values(6)},
              {"old", {2}, {1, 2}}});
  write_save(second.path(), 1,
             {{"w", {2, 3}, {1, 2, 3.5F, 4, 5, 5.75F}},
              {"nan", {2}, {nan, 1}},
              {"zero", {1}, {-0.0F}},
              {"form", {3, 2}, Values(6)},
              {"new", {2}, {1, 2}}});
  const auto found = differences(first.path(), second.path());
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found.at("w").likeness, Likeness::values);
  EXPECT_EQ(found.at("w").different, 2);
  EXPECT_EQ(found.at("w").elements, 6);
  EXPECT_EQ(found.at("w").largest, 0.5);
  EXPECT_EQ(found.at("nan").different, 1);
  EXPECT_EQ(found.at("nan").largest, std::numeric_limits<double>::infinity());
  EXPECT_EQ(found.at("zero").different, 1) << "other bits";
  EXPECT_EQ(found.at("zero").largest, 0);
  EXPECT_EQ(found.at("form").likeness, Likeness::form);
  EXPECT_EQ(found.at("form").forms, "f32[2,3] and f32[3,2]");
  EXPECT_EQ(found.at("old").likeness, Likeness::only_first);
  EXPECT_EQ(found.at("new").likeness, Likeness::only_second);
}

}  // namespace
}  // namespace sherd::testing
