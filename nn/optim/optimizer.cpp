#include "nn/optim/optimizer.h"

#include <algorithm>

#include "nn/optim/check_options.h"
#include "nn/optim/dense_copies.h"
#include "nn/optim/optimizer_slots.h"
#include "nn/optim/step_in_pieces.h"
#include "nn/random_rows.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {
// This rank's, or null. Takes no handle, because a step asks for the bytes of every parameter.
const Storage* bytes_of(const Tensor& t) {
  return t.is_distributed() ? t.impl()->local->storage.get() : t.storage().get();
}
}  // namespace

Optimizer::Optimizer(std::vector<Parameter*> parameters, double lr)
    : slots_(std::make_unique<OptimizerSlots>(std::move(parameters), lr, static_cast<UpdateRule&>(*this))),
      pieces_(std::make_unique<StepInPieces>(*slots_)) {
  rows_that_draw();  // which a program of a step names, and a rank that reads one looks for
}
Optimizer::~Optimizer() = default;

std::vector<Optimizer*> Optimizer::living(RankRegister* of) { return Registered<Optimizer>::living(of); }

void Optimizer::offload(const OffloadOptions& options) { slots_->offload(options); }
const OffloadedState* Optimizer::offloaded() const { return slots_->offloaded(); }
const Tensor& Optimizer::gradient_scale() const { return slots_->scale.value(); }
const std::vector<Parameter*>& Optimizer::parameters() const { return slots_->parameters; }
std::string Optimizer::torn() const { return slots_->torn(); }
void Optimizer::mark_torn(std::string_view reason) { slots_->mark_torn(reason); }
void Optimizer::abandon(std::string_view reason) noexcept { slots_->abandon(reason); }
std::vector<OptimizerState> Optimizer::state() { return slots_->state(); }
Slot& Optimizer::step_slot() { return slots_->step; }
std::vector<OptimizerState> Optimizer::counts() { return slots_->counts(); }
void Optimizer::prepare_steps_in_backward() { pieces_->add_hooks(); }
void Optimizer::step_in_backward(const StepInBackward& options) { pieces_->ask(options); }

void Optimizer::set_lr(double lr) {
  check_not_negative("set_lr: the learning rate", lr);
  slots_->lr.assign(Tensor::scalar(lr));
}

void Optimizer::set_gradient_scale(const Tensor& scale) {
  pieces_->forget_step_that_was_left();
  check(!pieces_->has_begun(),
        "the gradient scale is set after backward has updated parameters: clip, or call step_in_backward(), not both");
  slots_->move_scalars(update_device(*parameters()[0]));
  slots_->scale.assign(to(scale.detach(), gradient_scale().device()));
}

// Finds parameters with a gradient. Waits for reductions in flight, so that what failed there leaves the state whole.
std::vector<std::size_t> Optimizer::ready_parameters() {
  std::vector<std::size_t> active;
  active.reserve(parameters().size());
  const bool is_in_backward = in_backward(), some_are_updated = pieces_->has_begun();
  for (const std::size_t i : indices(parameters())) {
    const Parameter& p = slots_->parameter(i);
    if (!is_in_backward && p.sink().holds_more(p))
      fail(
          "parameter \"{}\": gradients of earlier backward passes are not reduced yet: run the last one of the step "
          "with set_requires_gradient_sync(true) and set_requires_all_reduce(true) of units(model), or call "
          "finalize_backward(model) with both on, before step()",
          p.name());
    const Tensor& grad = p.grad();
    if (!grad.defined()) {
      if (pieces_->is_updated(i)) active.push_back(i);  // and cleared
      continue;
    }
    if (grad.layout() != p.sharded_value().layout())
      fail("parameter \"{}\" is {} but its gradient is {}: {}", p.name(), p.sharded_value(), grad,
           p.sharded_value().is_distributed()
               ? "call step() after backward, or redistribute() the gradient"
               : "it is plain and was used among distributed tensors; parallelize() its module too, or use it by "
                 "from_local(), as replicated");
    slots_->make_ready(i);
    active.push_back(i);
  }
  for (const std::size_t i : active) {
    if (some_are_updated && pieces_->is_updated(i)) continue;
    if (const Storage* const gradient = bytes_of(slots_->parameter(i).grad())) gradient->wait_to_read();
    const Storage* const value = bytes_of(slots_->parameter(i).sharded_value());
    if (!value) continue;
    if (home_of(*value)) value->wait_to_read();  // evict writes it, on a queue that waits for its readers
    else value->wait_to_write();
  }
  return active;
}

void Optimizer::step() {
  GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  pieces_->forget_step_that_was_left();
  if (const std::string reason = torn(); !reason.empty() && !pieces_->has_begun())
    fail("optimizer.step() is refused: {}; load a checkpoint of the model and the optimizer first", reason);
  const std::vector<std::size_t> active = ready_parameters();
  pieces_->or_tear([&] {
    apply(active);
    pieces_->end_in_backward();
  });
}

void Optimizer::apply(const std::vector<std::size_t>& active) {
  pieces_->finish();
  const bool in_pieces = pieces_->are_needed();
  for (auto& [count, updated, idle] : slots_->count(active)) {
    if (pieces_->has_begun()) std::erase_if(updated, [this](std::size_t i) { return pieces_->is_updated(i); });
    if (updated.empty()) continue;
    if (in_pieces) pieces_->update(updated, count);
    else update_whole(updated, count);
  }
  fill_into(gradient_scale(), 1);
  keep_random_calls();
  // What is gathered of the old values is stale. A backward that runs, whose hook has called this, is still to read it.
  if (in_backward()) return;
  for (const std::size_t i : active) slots_->parameter(i).reshard();
}

void Optimizer::update_whole(const std::vector<std::size_t>& updated, const Tensor& count) {
  DenseCopies copies;
  std::vector<UpdatedPart> parts;
  parts.reserve(updated.size());
  for (const std::size_t i : updated) {
    const Parameter& p = slots_->parameter(i);
    UpdatedPart& part =
        parts.emplace_back(UpdatedPart{.parameter = i, .value = copies.of(p.sharded_value()), .gradient = p.grad()});
    for (const auto& slot : slots_->state_of(i)) part.state.push_back(slot->value());
  }
  slots_->update(std::move(parts), count);
  copies.store();
}

void Optimizer::clear_gradients() {
  for (Parameter* p : parameters()) p->clear_grad();
  pieces_->drop();  // of a step that was left, or that has not begun
}

void Optimizer::forget_step() {
  pieces_->drop();
  fill_into(gradient_scale(), 1);
}

}  // namespace sherd::nn
