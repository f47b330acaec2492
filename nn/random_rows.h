#pragma once
// What random rows of modules draw by: a seed, the step, how often each row was called in it, and which elements of the
// whole batch a tensor of this rank is. All of it is this rank's, and the same on all ranks but for the last.
#include <cstdint>
#include <memory>

#include "nn/init.h"
#include "runtime/autograd/slot.h"

namespace sherd::nn {

/// The 0-d i64 step that random rows of this rank count with; starts at 0, on the host.
Slot& random_step();
/// The same, moved to `device` for good: rows read it there without an upload.
Slot& random_step(Device device);
/// Sets the step for random rows and error messages: once per training step, outside of a captured function. Another
/// step than before starts the counts of calls again. Does not block.
void set_step(std::int64_t step);
/// Seed of random rows during training on this rank; equal on all ranks.
void set_seed(Seed seed);

/// How often one random row of a module was called within the step. It counts in a slot, so a captured step draws what
/// the eager one does.
class RandomCalls {
 public:
  RandomCalls() = default;
  ~RandomCalls();
  RandomCalls(const RandomCalls&) = delete;
  RandomCalls& operator=(const RandomCalls&) = delete;
  /// 0-d i64 on `device`: what the next call puts into its row's counter, made of the step and the calls before it. On
  /// the meta device nothing is counted.
  Tensor next(Device device);

 private:
  std::weak_ptr<Slot> counters_;  // of the rank it draws on
  std::int64_t place_ = -1;       // its number there
};

}  // namespace sherd::nn
