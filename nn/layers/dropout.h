#pragma once
#include <memory>

#include "nn/module.h"

namespace sherd::nn {

/// Zeroes elements with probability p while training. The mask depends on (seed, module path, step, call in this step,
/// global element index) only: for shards of a batch it is the mask that one rank draws. Step and call are counted in
/// slots, so a captured step draws the same masks as the eager one.
class Dropout : public Layer<Dropout> {
 public:
  explicit Dropout(double p);
  ~Dropout() override;
  Tensor forward(const Tensor& x);

 private:
  double p_;
  std::weak_ptr<Slot> counters_;  // of the rank it draws on
  std::int64_t place_ = -1;       // its number there
};

/// The 0-d i64 step that random rows of this rank count with; starts at 0, on the host.
Slot& random_step();
/// The same, moved to `device` for good: rows read it there without an upload.
Slot& random_step(Device device);
/// Sets the step for random rows and error messages: once per training step, outside of a captured function. Another
/// step than before starts the counts of calls again. Does not block.
void set_step(std::int64_t step);
/// Seed of random rows during training on this rank; equal on all ranks.
void set_seed(Seed seed);

}  // namespace sherd::nn
