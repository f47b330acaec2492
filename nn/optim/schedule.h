#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace sherd::nn {

/// Linear warmup to `lr`, then a cosine down to `min_lr` at step `decay_steps`, constant after. Steps count from 0:
/// step s of the warmup has lr x (s + 1) / (warmup + 1), as in nanoGPT.
struct CosineSchedule {
  double lr = 1e-3, min_lr = 1e-4;
  std::int64_t warmup = 0, decay_steps = 0;

  double at(std::int64_t step) const {
    if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
    if (step > decay_steps) return min_lr;
    const double span = static_cast<double>(std::max<std::int64_t>(decay_steps - warmup, 1));
    const double progress = static_cast<double>(step - warmup) / span;
    return min_lr + 0.5 * (1 + std::cos(std::numbers::pi * progress)) * (lr - min_lr);
  }
};

}  // namespace sherd::nn
