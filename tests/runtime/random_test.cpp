// Oracles: Random123's published vectors through the rows' definition, moments in closed form, bits under any
// sharding.
#include <gtest/gtest.h>

#include <set>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/rows/element_runs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/philox.h"
#include "runtime/op/rows/random_attrs.h"
#include "tests/support/boxes.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd {
namespace {

using testing::same_bits;
using Doubles = std::vector<double>;

Tensor step_of(std::int64_t value) { return Tensor::from<std::int64_t>({value}, {}); }

TEST(Random, UniformIsTheTopBitsOfPhiloxWords) {
  // Random123 kat_vectors: counter 0, key 0 gives 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  const auto v = random_uniform({4}, 0).to_vector<double>();
  const Doubles expected = {0x6627e8 / 16777216.0, 0xe169c5 / 16777216.0, 0xbc57ac / 16777216.0, 0x9b00db / 16777216.0};
  EXPECT_EQ(v, expected);
}

TEST(Random, CounterAndKeyTakeAllTheirBits) {
  const std::int64_t block = 0x123456789a, step = 0x7766554433221100;
  const std::uint64_t key = 0xfedcba9876543210;
  const auto words = philox4x32({0x3456789a, 0x12, 0x33221100, 0x77665544}, {0x76543210, 0xfedcba98});
  const auto v = random_uniform({4}, key, 0, 1, 4 * block, DType::f32, step_of(step)).to_vector<double>();
  for (std::size_t w = 0; w < 4; ++w) EXPECT_EQ(v[w], (words[w] >> 8) / 16777216.0);
}

TEST(Random, NormalIsBoxMullerOnWordPairs) {
  const auto v = random_normal({4}, 0).to_vector<double>();
  const double words[4] = {0x6627e8, 0xe169c5, 0xbc57ac, 0x9b00db};
  for (int pair = 0; pair < 4; pair += 2) {
    const double radius = std::sqrt(-2 * std::log((words[pair] + 1) / 16777216));
    const double angle = 2 * M_PI * words[pair + 1] / 16777216;
    EXPECT_NEAR(v[static_cast<std::size_t>(pair)], radius * std::cos(angle), 1e-6);
    EXPECT_NEAR(v[static_cast<std::size_t>(pair) + 1], radius * std::sin(angle), 1e-6);
  }
}

TEST(Random, ValuesDependOnTheGlobalIndexOnly) {
  const Tensor whole = random_normal({10'000}, 42);
  EXPECT_TRUE(same_bits(random_normal({100, 100}, 42), view(whole, {100, 100})));
  for (std::int64_t first : {1, 2, 3, 4, 511, 512, 4097})
    for (std::int64_t n : {1, 2, 5, 600, 3000}) {
      EXPECT_TRUE(same_bits(random_normal({n}, 42, 0, 1, first), narrow(whole, 0, first, n))) << first << " " << n;
      EXPECT_TRUE(same_bits(random_uniform({n}, 42, 0, 1, first), narrow(random_uniform({10'000}, 42), 0, first, n)));
    }
  const Tensor many = random_normal({200'003}, 1);
  set_threads(4);
  const Tensor threaded = random_normal({200'003}, 1);
  set_threads(1);
  EXPECT_TRUE(same_bits(threaded, many));
}

TEST(Random, KeysAndStepsGiveOtherStreams) {
  const Tensor a = random_uniform({1000}, 1);
  const auto same = [&](const Tensor& b) { return sum(equal(a, b)).item<std::int64_t>(); };
  EXPECT_LE(same(random_uniform({1000}, 2)), 2);
  EXPECT_LE(same(random_uniform({1000}, std::uint64_t{1} << 32)), 2) << "the key's high half counts";
  EXPECT_LE(same(random_uniform({1000}, 1, 0, 1, 0, DType::f32, step_of(1))), 2);
  EXPECT_EQ(same(random_uniform({1000}, 1, 0, 1, 0, DType::f32, step_of(0))), 1000) << "no step is step 0";
}

TEST(Random, MomentsAndRange) {
  const std::int64_t n = 1 << 20;
  const Tensor z = cast(random_normal({n}, 9, 1.5, 2), DType::f64);
  const double m = mean(z).item<double>();
  EXPECT_NEAR(m, 1.5, 5 * 2 / std::sqrt(n));
  const Tensor centred = sub(z, Tensor::scalar(1.5, DType::f64));
  EXPECT_NEAR(mean(square(centred)).item<double>(), 4, 5 * 4 * std::sqrt(2.0 / n));
  EXPECT_NEAR(mean(pow(centred, 4)).item<double>(), 48, 5 * 16 * std::sqrt(96.0 / n));
  const Tensor u = random_uniform({n}, 9, -1, 3);
  EXPECT_GE(min(u).item<double>(), -1);
  EXPECT_LT(max(u).item<double>(), 3);
  EXPECT_NEAR(mean(u).item<double>(), 1, 5 * 4 / std::sqrt(12.0 * n));
  // Neighbours, which share a block and a pair, are uncorrelated.
  const double lag = mean(mul(narrow(centred, 0, 0, n - 1), narrow(centred, 0, 1, n - 1))).item<double>();
  EXPECT_NEAR(lag, 0, 5 * 4 / std::sqrt(n));
}

TEST(Random, UniformStaysBelowItsHighEnd) {
  // 1 + u 2^-20 in f32 has 8 values and would round up to the end for the largest u.
  const Tensor u = random_uniform({1 << 16}, 3, 1, 1 + 0x1p-20);
  EXPECT_LT(max(u).item<double>(), 1 + 0x1p-20);
}

TEST(Random, OtherDtypesAreTheSameNumbersRounded) {
  const Tensor x = random_normal({1000}, 5);
  EXPECT_TRUE(same_bits(random_normal({1000}, 5, 0, 1, 0, DType::bf16), cast(x, DType::bf16)));
  EXPECT_TRUE(same_bits(random_normal({1000}, 5, 0, 1, 0, DType::f64), cast(x, DType::f64)));
  EXPECT_THROW(random_normal({2}, 1, 0, 1, 0, DType::i64), Error);
  EXPECT_THROW(random_normal({2}, 1, 0, 1, -1), Error);
  EXPECT_THROW(random_normal({2}, 1, 0, 1, 0, DType::f32, zeros({2}, DType::i64)), Error);
}

using testing::Box;
using testing::boxes;
using testing::expect_error;

TEST(ElementRuns, SaysWhereEveryElementOfABoxLies) {
  for (const Box& box : boxes()) {
    SCOPED_TRACE(box.text());
    std::int64_t first = -1;
    const ElementRuns runs = element_runs(box.global, box.local, box.offset, first);
    const auto places = box.of(reshape(arange(numel(box.global)), box.global)).to_vector<std::int64_t>();
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t by_definition = runs.run == 0 ? first + at
                                                       : first + at / runs.run / runs.count * runs.outer_stride +
                                                             at / runs.run % runs.count * runs.stride + at % runs.run;
      ASSERT_EQ(by_definition, places[i]) << i;
      ASSERT_EQ(RunCursor(first, runs, at).place(), places[i]) << i;
    }
    if (places.empty()) continue;
    RunCursor cursor(first, runs, 0);
    for (std::size_t i = 0; i < places.size(); ++i, cursor.advance(1)) ASSERT_EQ(cursor.place(), places[i]) << i;
  }
}

TEST(ElementRuns, WhatIsNotCutMerges) {
  std::int64_t first = 0;
  EXPECT_EQ(element_runs({4, 6, 8}, {2, 6, 8}, {1, 0, 0}, first).run, 0);
  EXPECT_EQ(first, 48);
  const ElementRuns middle = element_runs({4, 6, 8}, {4, 2, 8}, {0, 3, 0}, first);
  EXPECT_EQ(middle.run, 16);
  EXPECT_EQ(middle.count, 4);
  EXPECT_EQ(middle.stride, 48);
  EXPECT_EQ(first, 24);
  EXPECT_EQ(element_runs({0, 6}, {0, 2}, {0, 3}, first).run, 0);
}

TEST(ElementRuns, ErrorsNameThePart) {
  std::int64_t first = 0;
  expect_error([&] { element_runs({4, 6}, {2, 4}, {0, 3}, first); }, {"[2,4]", "[0,3]", "[4,6]"});
  expect_error([&] { element_runs({4, 6}, {2}, {0}, first); }, {"[2]", "[4,6]"});
  expect_error([&] { element_runs({2, 4, 4, 4}, {2, 2, 2, 2}, {0, 0, 0, 0}, first); },
               {"[2,2,2,2]", "[2,4,4,4]", "3 levels", "at most 2"});
  const auto draw = [](const ElementRuns& runs) { call(op::random_uniform, RandomAttrs{.shape = {4}, .runs = runs}); };
  expect_error([&] { draw({.run = -2}); }, {"runs of -2", "random_uniform"});
  expect_error([&] { draw({.run = 2, .count = 0}); }, {"0 runs of 2"});
  expect_error([&] { draw({.run = 2, .count = 2, .stride = -8}); }, {"-8 apart"});
}

TEST(Random, ABoxIsTheSliceOfTheWhole) {
  for (const Box& box : boxes()) {
    SCOPED_TRACE(box.text());
    std::int64_t first = 0;
    const ElementRuns runs = element_runs(box.global, box.local, box.offset, first);
    for (const char* op : {"random_normal", "random_uniform"}) {
      const RandomAttrs whole{.shape = box.global, .key = 42, .a = -1, .b = 2};
      RandomAttrs part = whole;
      part.shape = box.local;
      part.first = first;
      part.runs = runs;
      EXPECT_TRUE(same_bits(call(find_op(op), part), box.of(call(find_op(op), whole)))) << op;
    }
    const Tensor x = random_normal(box.global, 3);
    const DropoutAttrs part{.p = 0.4f, .key = 7, .first = first, .runs = runs};
    EXPECT_TRUE(same_bits(call(op::dropout, part, box.of(x), Tensor()), box.of(dropout(x, 0.4, 7))));
  }
}

TEST(Random, ManyShortRunsHaveTheSameBitsOnTwoThreads) {
  // Runs of 7 over several chunks, which begin inside of runs.
  const RandomAttrs part{.shape = {10'000, 7}, .key = 5, .first = 3, .runs = {.run = 7, .count = 10'000, .stride = 11}};
  const Tensor whole = random_normal({10'000, 11}, 5), one = call(op::random_normal, part);
  EXPECT_TRUE(same_bits(one, contiguous(narrow(whole, 1, 3, 7))));
  set_threads(2);
  const Tensor two = call(op::random_normal, part);
  set_threads(1);
  EXPECT_TRUE(same_bits(two, one));
}

TEST(RandomKey, SeparatesWhatItHashes) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed : {0, 1})
    for (const char* path : {"", "a", "ab", "layers.0", "layers.1"})
      for (const char* purpose : {"", "b", "init", "dropout"})
        for (std::uint64_t call : {0, 1, 2}) keys.insert(random_key(seed, path, purpose, call));
  EXPECT_EQ(keys.size(), 2u * 5 * 4 * 3);
  EXPECT_NE(random_key(0, "ab", "c"), random_key(0, "a", "bc"));
  EXPECT_EQ(random_key(1, "w", "init"), random_key(1, "w", "init"));
}

TEST(RandomKey, IsFrozen) {
  // Oracle: the documented mix, computed apart. Initial weights of existing runs depend on it.
  EXPECT_EQ(random_key(1, "layers.0.wq", "init", 2), 0x604f964e75187ca4u);
}

TEST(Dropout, KeepsScalesAndDrops) {
  const Tensor x = ones({100'000});
  const Tensor y = dropout(x, 0.25, 7);
  const std::int64_t dropped = sum(equal(y, Tensor::scalar(0))).item<std::int64_t>();
  EXPECT_NEAR(static_cast<double>(dropped) / 1e5, 0.25, 0.01);
  EXPECT_EQ(sum(equal(y, Tensor::scalar(1 / 0.75))).item<std::int64_t>(), 100'000 - dropped);
  EXPECT_EQ(dropout(x, 0, 7).impl(), x.impl());
  EXPECT_EQ(sum(dropout(x, 1, 7)).item<double>(), 0);
  EXPECT_THROW(dropout(x, 1.5, 7), Error);
}

TEST(Dropout, DropsByGlobalIndexOnAnySliceAndStride) {
  const Tensor x = random_normal({64, 33}, 1);
  const Tensor y = dropout(x, 0.5, 7, step_of(3));
  EXPECT_TRUE(same_bits(dropout(narrow(x, 0, 10, 5), 0.5, 7, step_of(3), 330), narrow(y, 0, 10, 5)));
  const Tensor strided = transpose(contiguous(transpose(x, 0, 1)), 0, 1);
  EXPECT_TRUE(same_bits(dropout(strided, 0.5, 7, step_of(3)), y));
  EXPECT_FALSE(same_bits(dropout(x, 0.5, 7, step_of(4)), y));
}

// Parts of one whole are disjoint pieces of one mask, parts of others are of other masks wherever they begin.
TEST(Dropout, TheSizeOfTheWholeSelectsTheMask) {
  const Tensor x = ones({64});
  const Tensor whole = dropout(x, 0.5, 7, {}, 0, 64);
  EXPECT_TRUE(same_bits(dropout(narrow(x, 0, 16, 16), 0.5, 7, {}, 16, 64), narrow(whole, 0, 16, 16)));
  for (const std::int64_t all : {0, 63, 65, 128}) EXPECT_FALSE(same_bits(dropout(x, 0.5, 7, {}, 0, all), whole)) << all;
  EXPECT_TRUE(same_bits(dropout(x, 0.5, 7, {}, 0, 0), dropout(x, 0.5, 7)));
  EXPECT_THROW(dropout(x, 0.5, 7, {}, 0, -1), Error);
}

TEST(Dropout, GradientHasTheSameMask) {
  for (const Tensor& step : {Tensor(), step_of(5)}) {
    Slot x("x", true);
    x.set(ones({1000}));
    const Tensor y = dropout(x.value(), 0.5, 9, step);
    backward(sum(y));
    EXPECT_TRUE(same_bits(x.grad(), y.detach()));
  }
}

}  // namespace
}  // namespace sherd
