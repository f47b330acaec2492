#include "nn/layers/dropout.h"

#include "runtime/exec/context.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

Dropout::Dropout(double p) : p_(p) { check(p >= 0 && p < 1, "dropout probability must be in [0, 1), got {}", p); }

Tensor Dropout::forward(const Tensor& x) {
  if (!training() || p_ == 0) return x;
  const RankContext& context = RankContext::current();
  if (context.step != last_step_) {
    last_step_ = context.step;
    calls_ = 0;
  }
  const std::uint64_t key = random_key(context.seed, path(), "dropout", calls_++);
  return dropout(x, p_, key, random_step(x.device()).value(), context.data_coordinate * x.numel());
}

Slot& random_step() {
  RankContext& context = RankContext::current();
  if (!context.random_step) {
    context.random_step = std::make_shared<Slot>("random_step");
    context.random_step->set(Tensor::scalar(0, DType::i64));
  }
  return *context.random_step;
}

Slot& random_step(Device device) {
  Slot& slot = random_step();
  if (slot.value().device() != device && !device.is_meta()) slot.set(to(slot.value(), device));
  return slot;
}

void set_step(std::int64_t step) {
  RankContext::current().step = step;
  random_step().assign(Tensor::scalar(static_cast<double>(step), DType::i64));
}

void set_seed(Seed seed) { RankContext::current().seed = seed.value; }

}  // namespace sherd::nn
