// CosineSchedule against nanoGPT's get_lr (train.py), its values worked out by hand:
//   it < warmup:  lr (it + 1) / (warmup + 1)
//   it > decay:   min_lr
//   else          min_lr + (1 + cos(pi (it - warmup) / (decay - warmup))) / 2 (lr - min_lr)
#include "nn/optim/schedule.h"

#include <gtest/gtest.h>

namespace sherd::nn {
namespace {

// config/train_shakespeare_char.py: lr 1e-3 to 1e-4, warmup 100; 2000 steps.
constexpr CosineSchedule kShakespeare{1e-3, 1e-4, 100, 2000};

TEST(CosineSchedule, WarmsUpFromOneShareOfTheRate) {
  EXPECT_DOUBLE_EQ(kShakespeare.at(0), 1e-3 / 101);
  EXPECT_DOUBLE_EQ(kShakespeare.at(49), 1e-3 * 50 / 101);
  EXPECT_DOUBLE_EQ(kShakespeare.at(99), 1e-3 * 100 / 101);
}

TEST(CosineSchedule, FallsAlongHalfACosine) {
  EXPECT_DOUBLE_EQ(kShakespeare.at(100), 1e-3);
  EXPECT_NEAR(kShakespeare.at(575), 1e-4 + 0.5 * (1 + 0.70710678118654752) * 9e-4, 1e-15);   // cos(pi/4)
  EXPECT_NEAR(kShakespeare.at(860), 1e-4 + 0.5 * (1 + 0.30901699437494742) * 9e-4, 1e-15);   // cos(2 pi/5)
  EXPECT_NEAR(kShakespeare.at(1050), 5.5e-4, 1e-15);                                         // cos(pi/2) = 0
  EXPECT_NEAR(kShakespeare.at(1525), 1e-4 + 0.5 * (1 - 0.70710678118654752) * 9e-4, 1e-15);  // cos(3 pi/4)
  EXPECT_NEAR(kShakespeare.at(2000), 1e-4, 1e-15);
}

TEST(CosineSchedule, StaysAtItsEnd) {
  EXPECT_DOUBLE_EQ(kShakespeare.at(2001), 1e-4);
  EXPECT_DOUBLE_EQ(kShakespeare.at(1'000'000), 1e-4);
}

TEST(CosineSchedule, WithoutWarmupOrDecayIsDefined) {
  const CosineSchedule no_warmup{1.0, 0.0, 0, 10};
  EXPECT_DOUBLE_EQ(no_warmup.at(0), 1.0);
  EXPECT_NEAR(no_warmup.at(5), 0.5, 1e-15);
  EXPECT_NEAR(no_warmup.at(10), 0.0, 1e-15);
  // The warmup ends where the cosine would: no division by zero, and never outside of [min_lr, lr].
  const CosineSchedule degenerate{1.0, 0.25, 10, 10};
  EXPECT_DOUBLE_EQ(degenerate.at(10), 1.0);
  EXPECT_DOUBLE_EQ(degenerate.at(11), 0.25);
}

}  // namespace
}  // namespace sherd::nn
