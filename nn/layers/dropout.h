#pragma once
#include "nn/module.h"

namespace sherd::nn {

/// Zeroes elements with probability p while training. The mask depends on (seed, module path, call in this step, step,
/// global element index) only: on the ranks' slices of a batch it is the mask one rank would have drawn.
class Dropout : public Layer<Dropout> {
 public:
  explicit Dropout(double p);
  Tensor forward(const Tensor& x);

 private:
  double p_;
  std::int64_t last_step_ = -1;
  std::uint64_t calls_ = 0;
};

/// The 0-d i64 step that random rows of this rank count with; starts at 0, on the host.
Slot& random_step();
/// The same after it has moved to `device`, where it stays: rows read it there without an upload.
Slot& random_step(Device device);
/// Sets the step for random rows and error messages: once per training step, outside of a captured function. Does not
/// block.
void set_step(std::int64_t step);
/// Seed of random rows during training on this rank; equal on all ranks.
void set_seed(Seed seed);

}  // namespace sherd::nn
