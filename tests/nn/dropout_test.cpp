// Dropout: a mask that depends on module, call, step and global element only.
#include "nn/layers/dropout.h"

#include <gtest/gtest.h>

#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::nn {
namespace {

using testing::expect_error;
using testing::run_ranks;
using testing::same_bits;
using Group = std::shared_ptr<ProcessGroup>;

// Two dropouts, so that the path matters; the first is used twice, as a transformer block does.
struct Net : Layer<Net> {
  Dropout &first, &second;
  Net() : first(add<Dropout>("first", 0.25)), second(add<Dropout>("second", 0.5)) {}
  std::vector<Tensor> forward(const Tensor& x) { return {first(x), first(x), second(x)}; }
};

constexpr std::int64_t kRows = 12, kWidth = 50;

std::vector<Tensor> masks_at(Net& net, std::int64_t step, std::int64_t rows = kRows) {
  set_step(step);
  return net(ones({rows, kWidth}));
}

TEST(Dropout, KeepsTheExpectedShareAndScale) {
  const RankScope rank;
  set_seed({5});
  Dropout dropout(0.25);
  set_step(0);
  const auto values = dropout(ones({100, 100})).to_vector<float>();
  std::size_t kept = 0;
  for (float v : values) {
    EXPECT_TRUE(v == 0 || v == 1 / 0.75f);
    kept += v != 0;
  }
  EXPECT_NEAR(static_cast<double>(kept) / 10000, 0.75, 0.02);  // 4.6 standard deviations, of a fixed seed
}

TEST(Dropout, AnotherStepCallOrPathIsAnotherMaskTheSameIsTheSame) {
  const RankScope rank;
  set_seed({5});
  Net net;
  const auto step0 = masks_at(net, 0), step1 = masks_at(net, 1);
  EXPECT_FALSE(same_bits(step0[0], step0[1])) << "two calls in a step";
  EXPECT_FALSE(same_bits(greater(step0[0], zeros({1})), greater(step0[2], zeros({1})))) << "two modules";
  EXPECT_FALSE(same_bits(step0[0], step1[0])) << "two steps";
  Net again;
  const auto repeated = masks_at(again, 1);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(repeated[i], step1[i])) << "a resumed run, call " << i;
  set_seed({6});
  Net other;
  EXPECT_FALSE(same_bits(masks_at(other, 1)[0], step1[0])) << "two seeds";
}

TEST(Dropout, AStepThatBeginsAgainDrawsItsMasksAgain) {
  const RankScope rank;
  set_seed({5});
  Net net;
  const auto first = masks_at(net, 7), second = net(ones({kRows, kWidth})), again = masks_at(net, 7);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(again[i], first[i])) << "call " << i;
    EXPECT_FALSE(same_bits(second[i], first[i])) << "the next micro-batch, call " << i;
  }
}

std::vector<Tensor> next_masks(Net& net) { return net(ones({kRows, kWidth})); }

void expect_masks(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << "call " << i;
}

// To the update, or to the set_step() after it; to the set_step() where another rank has made no update.
TEST(Dropout, AStepThatIsLeftGoesBackToWhatCameLast) {
  const RankScope rank;
  set_seed({5});
  Net net;
  masks_at(net, 1);
  keep_random_calls();
  const auto second = next_masks(net);
  take_back_random_calls(true);
  expect_masks(next_masks(net), second);
  const auto first_of_next = masks_at(net, 2);
  take_back_random_calls(true);
  expect_masks(next_masks(net), first_of_next);
  keep_random_calls();
  next_masks(net);
  take_back_random_calls(false);
  expect_masks(next_masks(net), first_of_next);
}

// The counts of more rows than there was room for, and of one in the place of another that is gone.
TEST(Dropout, WhatAStepGoesBackToIsKeptForEachRow) {
  const RankScope rank;
  set_seed({5});
  set_step(1);
  Net net;
  next_masks(net);
  keep_random_calls();
  const auto second = next_masks(net);
  std::vector<std::unique_ptr<Dropout>> many;
  for (int i = 0; i < 100; ++i) (*many.emplace_back(std::make_unique<Dropout>(0.5)))(ones({4}));
  take_back_random_calls(true);
  expect_masks(next_masks(net), second);

  auto old = std::make_unique<Dropout>(0.5);
  const Tensor x = ones({kRows, kWidth});
  const Tensor first = (*old)(x);
  keep_random_calls();
  old = nullptr;
  Dropout young(0.5);
  EXPECT_TRUE(same_bits(young(x), first)) << "it has not been called";
  take_back_random_calls(true);
  EXPECT_TRUE(same_bits(young(x), first));
}

TEST(Dropout, F143_RanksDrawTheMaskOfTheWholeBatch) {
  std::vector<Tensor> whole[2];
  const RankScope rank;
  set_seed({5});
  Net reference;
  for (std::int64_t step : {0, 1}) whole[step] = masks_at(reference, step);
  std::vector<std::vector<float>> expected[2];
  for (int step : {0, 1})
    for (const Tensor& mask : whole[step]) expected[step].push_back(mask.to_vector<float>());
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [&](const Group& group) {
      set_batch_part(BatchPart{group->rank(), 1, group->size()});
      set_seed({5});
      Net net;
      const std::int64_t rows = kRows / group->size();
      for (int step : {0, 1}) {
        const auto own = masks_at(net, step, rows);
        for (std::size_t i = 0; i < own.size(); ++i) {
          const auto first = expected[step][i].begin() + group->rank() * rows * kWidth;
          EXPECT_EQ(own[i].to_vector<float>(), std::vector<float>(first, first + rows * kWidth))
              << "call " << i << " of step " << step << " on " << ranks << " ranks";
        }
      }
    });
}

TEST(Dropout, EvaluationAndZeroProbabilityChangeNothing) {
  const RankScope rank;
  set_step(0);
  const Tensor x = ones({4, 4});
  Dropout dropout(0.5), none(0);
  EXPECT_FALSE(same_bits(dropout(x), x));
  dropout.train(false);
  EXPECT_TRUE(same_bits(dropout(x), x));
  EXPECT_TRUE(same_bits(none(x), x));
}

TEST(Dropout, EvaluationDoesNotShiftTheMasksOfTraining) {
  const RankScope rank;
  set_seed({5});
  Net net, other;
  set_step(3);
  net.train(false);
  net(ones({2, 3}));
  net.train(true);
  const auto after = net(ones({2, 3})), expected = other(ones({2, 3}));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(after[i], expected[i]));
}

TEST(Dropout, ProbabilityIsChecked) {
  expect_error([] { Dropout(1.0); }, {"[0, 1)", "got 1"});
  expect_error([] { Dropout(-0.1); }, {"got -0.1"});
}

}  // namespace
}  // namespace sherd::nn
