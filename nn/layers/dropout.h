#pragma once
#include "nn/module.h"
#include "nn/random_rows.h"

namespace sherd::nn {

/// Zeroes elements with probability p while training. The mask depends on (seed, module path, step, call in this step,
/// global element index) only: for shards of a batch it is the mask that one rank draws. Step and call are counted in
/// slots, so a captured step draws the same masks as the eager one.
class Dropout : public Layer<Dropout> {
 public:
  explicit Dropout(double p);
  Tensor forward(const Tensor& x);

 private:
  double p_;
  RandomCalls calls_;
};

}  // namespace sherd::nn
