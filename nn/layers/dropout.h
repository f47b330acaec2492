#pragma once
#include "nn/module.h"
#include "nn/random_rows.h"

namespace sherd::nn {

/// Zeroes elements with probability p while training. The mask depends on (seed, module path, step, call in this step,
/// size of the whole batch's tensor, element of it) only: for equal parts of a batch it is the mask that one rank
/// draws, and unlike ones share none (batch_part.h). Step and call are counted in slots, so a captured step draws the
/// same masks as the eager one.
class Dropout : public Layer<Dropout> {
 public:
  explicit Dropout(double p);
  Tensor forward(const Tensor& x);

 private:
  const double p_;
  RandomCalls calls_;
};

}  // namespace sherd::nn
