#include "nn/optim/optimizer.h"

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

Optimizer::Optimizer(std::vector<Parameter*> parameters, double lr)
    : parameters_(std::move(parameters)),
      state_(parameters_.size()),
      lr_("optimizer.lr"),
      step_("optimizer.step"),
      scale_("optimizer.scale") {
  check(!parameters_.empty(), "an optimizer needs at least one parameter");
  lr_.set(Tensor::scalar(lr));
  step_.set(Tensor::scalar(0));
  scale_.set(Tensor::scalar(1));
  move_scalars(parameters_[0]->value().local().device());
}

void Optimizer::move_scalars(Device device) {
  if (device.is_meta()) return;
  for (Slot* slot : {&lr_, &step_, &scale_})
    if (slot->value().device() != device) slot->set(to(slot->value(), device));
}

void Optimizer::set_lr(double lr) { lr_.assign(Tensor::scalar(lr)); }

void Optimizer::set_gradient_scale(const Tensor& scale) {
  move_scalars(parameters_[0]->value().local().device());
  scale_.assign(to(scale.detach(), scale_.value().device()));
}

void Optimizer::ensure_state(std::size_t i) {
  if (!state_[i].empty()) return;
  const Parameter& p = *parameters_[i];
  const Tensor value = p.value();
  const Tensor local = value.local();
  check(!local.is_meta(), "parameter \"{}\" has no values; materialize the model before the first step", p.name());
  move_scalars(local.device());
  for (const std::string& kind : state_kinds()) {
    auto slot = std::make_unique<Slot>(p.name() + "." + kind);
    Tensor zero = Tensor::empty(local.shape(), local.dtype(), local.device(), MemoryCategory::optimizer);
    fill_into(zero, 0);
    slot->set(value.is_distributed() ? Tensor::distributed(value.shape(), value.layout(), zero) : zero);
    state_[i].push_back(std::move(slot));
  }
}

void Optimizer::step() {
  GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  std::vector<std::size_t> active;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = *parameters_[i];
    if (!p.grad().defined()) continue;
    if (p.grad().layout() != p.value().layout())
      fail("parameter \"{}\" is {} but its gradient is {}: call step() in the sharded state, after backward", p.name(),
           describe(p.value()), describe(p.grad()));
    ensure_state(i);
    active.push_back(i);
  }
  step_.set(add(step_.value(), 1));
  update(active, lr_.value(), step_.value(), scale_.value());
  fill_into(scale_.value(), 1);
}

void Optimizer::clear_gradients() {
  for (Parameter* p : parameters_) p->clear_grad();
}

std::vector<OptimizerState> Optimizer::state() {
  std::vector<OptimizerState> result;
  const std::vector<std::string> kinds = state_kinds();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ensure_state(i);
    for (std::size_t k = 0; k < kinds.size(); ++k)
      result.push_back({parameters_[i]->name(), kinds[k], state_[i][k].get()});
  }
  return result;
}

}  // namespace sherd::nn
