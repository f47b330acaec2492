#include "nn/optim/optimizer.h"

#include <algorithm>

#include "nn/optim/check_options.h"
#include "nn/optim/dense_copies.h"
#include "nn/optim/step_in_pieces.h"
#include "nn/random_rows.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {
// This rank's, or null. Takes no handle, because a step asks for the bytes of every parameter.
const Storage* bytes_of(const Tensor& t) {
  return t.is_distributed() ? t.impl()->local->storage.get() : t.storage().get();
}
}  // namespace

Optimizer::Optimizer(std::vector<Parameter*> parameters, double lr)
    : parameters_(std::move(parameters)),
      state_(parameters_.size()),
      counts_(parameters_.size()),
      asked_([](const void*) { return std::string("optimizer"); }, this),
      lr_("optimizer.lr"),
      step_("optimizer.step"),
      scale_("optimizer.scale") {
  check(!parameters_.empty(), "an optimizer needs at least one parameter");
  check_each_once(parameters_, "an optimizer, which would move it twice a step");
  lr_.set(Tensor::scalar(lr));
  step_.set(Tensor::scalar(0));
  scale_.set(Tensor::scalar(1));
  scale_.set_of_step();
  move_scalars(update_device(*parameters_[0]));
  rows_that_draw();  // which a program of a step names, and a rank that reads one looks for
}

std::vector<Optimizer*> Optimizer::living(RankRegister* of) { return Registered<Optimizer>::living(of); }

void Optimizer::move_scalars(Device device) {
  if (device.is_meta()) return;
  for (Slot* slot : {&lr_, &step_, &scale_})
    if (slot->value().device() != device) slot->set(to(slot->value(), device));
}

void Optimizer::set_lr(double lr) {
  check_not_negative("set_lr: the learning rate", lr);
  lr_.assign(Tensor::scalar(lr));
}

void Optimizer::set_gradient_scale(const Tensor& scale) {
  forget_step_that_was_left();
  check(!has_begun(),
        "the gradient scale is set after backward has updated parameters: clip, or call step_in_backward(), not both");
  move_scalars(update_device(*parameters_[0]));
  scale_.assign(to(scale.detach(), scale_.value().device()));
}

void Optimizer::ensure_state(std::size_t i) {
  if (!state_[i].empty()) return;
  const Parameter& p = *parameters_[i];
  const Tensor value = p.sharded_value();
  const Tensor local = value.local();
  check(!local.is_meta(), "parameter \"{}\" has no values; materialize the model before the first step", p.name());
  move_scalars(update_device(p));
  std::vector<std::unique_ptr<Slot>> slots;  // kept when all are made: the memory for one of them may be refused
  for (const std::string& kind : state_kinds()) {
    auto slot = std::make_unique<Slot>(p.name() + "." + kind);
    Tensor zero;
    if (offloaded_ && offloaded_->has(i)) {
      zero = offloaded_->allocate(local.shape(), local.dtype());
    } else {
      zero = Tensor::empty(local.shape(), local.dtype(), update_device(p), MemoryCategory::optimizer);
      fill_into(zero, 0);
    }
    slot->set(value.is_distributed() ? Tensor::distributed(value.shape(), value.layout(), zero) : zero);
    slots.push_back(std::move(slot));
  }
  state_[i] = std::move(slots);
}

void Optimizer::check_value(std::size_t i) const {
  const Parameter& p = *parameters_[i];
  const Tensor& value = p.sharded_value();
  if (!updates(value.dtype()))
    fail(
        "parameter \"{}\" is {}, which the optimizer does not update: its sums would be lost in rounding. Keep f32 and "
        "compute in 16 bits by MixedPrecision{{.param_dtype = ..}} of fully_shard, or cast_to() f32",
        p.name(), value);
  if (is_dense(value)) return;
  if (const Tensor local = value.local(); shares_bytes(local))
    fail(
        "parameter \"{}\" is {} with strides {}: elements of it share bytes, so that there is no room for an update of "
        "each; set() a contiguous() copy",
        p.name(), local, local.strides());
}

// State is made once, in the layout and the type that the parameter then had.
void Optimizer::check_state_fits(std::size_t i) const {
  const Tensor& value = parameters_[i]->sharded_value();
  for (const auto& slot : state_[i])
    if (const Tensor& state = slot->value(); state.layout() != value.layout() || state.dtype() != value.dtype())
      fail(
          "parameter \"{}\" is {} but its state \"{}\" is {}, as the parameter was when the state was made: make the "
          "optimizer after fully_shard and cast_to()",
          parameters_[i]->name(), value, slot->name(), state);
}

// Parameters whose state is new share a count: step_slot()'s as long as no step was missed.
void Optimizer::ensure_counts() {
  if (!counts_updates()) return;
  Tensor none;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (counts_[i] || state_[i].empty()) continue;
    if (!none.defined()) none = has_stepped_ ? zeros({}, DType::f32, step_.value().device()) : step_.value();
    counts_[i] = std::make_unique<Slot>(parameters_[i]->name() + ".step");
    counts_[i]->set(none);
  }
}

// The first is that of step_slot(), which counts all steps.
std::vector<Optimizer::Cohort> Optimizer::cohorts_of(const std::vector<std::size_t>& active) const {
  std::vector<Cohort> cohorts(1);
  cohorts[0].count = step_.value();
  if (!counts_updates()) {
    cohorts[0].active = active;
    return cohorts;
  }
  auto next = active.begin();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_active = next != active.end() && *next == i;
    if (is_active) ++next;
    if (!counts_[i]) continue;
    const Tensor& count = counts_[i]->value();
    auto cohort = std::find_if(cohorts.begin(), cohorts.end(),
                               [&](const Cohort& c) { return c.count.storage() == count.storage(); });
    if (cohort == cohorts.end()) cohort = cohorts.insert(cohort, {count, {}, {}});
    (is_active ? cohort->active : cohort->idle).push_back(i);
  }
  return cohorts;
}

// Counts go up in place by one, or by nothing if the gradient scale is not finite: one row for all of them. A parameter
// that misses a step gets a copy first; a captured step notices by the storage that its slots share.
std::vector<Optimizer::Cohort> Optimizer::count(const std::vector<std::size_t>& active) {
  std::vector<Cohort> cohorts = cohorts_of(active);
  std::vector<Tensor> increased;
  for (const Cohort& cohort : cohorts) {
    if (cohort.active.empty() && &cohort != &cohorts[0]) continue;
    if (!cohort.idle.empty()) {
      const Tensor kept = add(cohort.count, 0);
      for (const std::size_t i : cohort.idle) counts_[i]->set(kept);
    }
    increased.push_back(cohort.count);
  }
  count_step(increased, scale_.value());
  std::erase_if(cohorts, [](const Cohort& cohort) { return cohort.active.empty(); });
  return cohorts;
}

// Those with a gradient. Reductions in flight are waited for here, so that what failed there leaves the state whole.
std::vector<std::size_t> Optimizer::ready_parameters() {
  std::vector<std::size_t> active;
  active.reserve(parameters_.size());
  const bool is_in_backward = in_backward(), some_are_updated = has_begun();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = *parameters_[i];
    if (!is_in_backward && p.sink().holds_more(p))
      fail(
          "parameter \"{}\": gradients of earlier backward passes are not reduced yet: run the last one of the step "
          "with set_requires_gradient_sync(model, true) and set_requires_all_reduce(model, true), or call "
          "finalize_backward(model) with both on, before step()",
          p.name());
    const Tensor& grad = p.grad();
    if (!grad.defined()) {
      if (is_updated(i)) active.push_back(i);  // and cleared
      continue;
    }
    if (grad.layout() != p.sharded_value().layout())
      fail("parameter \"{}\" is {} but its gradient is {}: {}", p.name(), p.sharded_value(), grad,
           p.sharded_value().is_distributed()
               ? "call step() after backward, or redistribute() the gradient"
               : "it is plain and was used among distributed tensors; parallelize() its module too, or use it by "
                 "from_local(), as replicated");
    check_value(i);
    ensure_state(i);
    check_state_fits(i);
    active.push_back(i);
  }
  for (const std::size_t i : active) {
    if (some_are_updated && is_updated(i)) continue;
    if (const Storage* const gradient = bytes_of(parameters_[i]->grad())) gradient->wait_to_read();
    const Storage* const value = bytes_of(parameters_[i]->sharded_value());
    if (!value) continue;
    if (home_of(*value)) value->wait_to_read();  // evict writes it, on a queue that waits for its readers
    else value->wait_to_write();
  }
  return active;
}

void Optimizer::step() {
  GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  forget_step_that_was_left();
  if (const std::string reason = torn(); !reason.empty() && !has_begun())
    fail("optimizer.step() is refused: {}; load a checkpoint of the model and the optimizer first", reason);
  const std::vector<std::size_t> active = ready_parameters();
  or_tear([&] {
    apply(active);
    end_in_backward();
  });
}

void Optimizer::or_tear(const std::function<void()>& change) {
  try {
    change();
  } catch (...) {
    const std::string reason = current_exception_text();
    mark_torn(fmt::format("a step of the optimizer was left half done: {}", reason));
    abandon(torn());
    drop_pieces();
    throw;
  }
}

void Optimizer::apply(const std::vector<std::size_t>& active) {
  finish_pieces();
  ensure_counts();
  const bool in_pieces = offloaded_ || has_homes();
  has_stepped_ = true;
  for (Cohort& cohort : count(active)) {
    if (has_begun()) std::erase_if(cohort.active, [this](std::size_t i) { return is_updated(i); });
    if (cohort.active.empty()) continue;
    if (in_pieces) update_in_pieces(cohort);
    else update_all(cohort);
  }
  fill_into(scale_.value(), 1);
  keep_random_calls();
  // What is gathered of the old values is stale. A backward that runs, whose hook has called this, is still to read it.
  if (in_backward()) return;
  for (const std::size_t i : active) parameters_[i]->reshard();
}

void Optimizer::update_all(const Cohort& cohort) {
  DenseCopies copies;
  std::vector<UpdatedPart> parts;
  parts.reserve(cohort.active.size());
  for (const std::size_t i : cohort.active) {
    UpdatedPart& part = parts.emplace_back(UpdatedPart{
        .parameter = i, .value = copies.of(parameters_[i]->sharded_value()), .gradient = parameters_[i]->grad()});
    for (const auto& slot : state_[i]) part.state.push_back(slot->value());
  }
  update(std::move(parts), lr_.value(), cohort.count, scale_.value());
  copies.store();
}

// ---- steps that are left ----

void Optimizer::for_each_slot(const std::function<void(Slot&)>& visit) const {
  for (Parameter* p : parameters_) visit(*p);
  for (const auto& kinds : state_)
    for (const auto& slot : kinds) visit(*slot);
  for (const auto& count : counts_)
    if (count) visit(*count);
}

std::string Optimizer::torn() const {
  std::string reason = step_.torn().empty() ? "" : fmt::format("the count of steps is torn: {}", step_.torn());
  for_each_slot([&](const Slot& slot) {
    if (reason.empty() && !slot.torn().empty()) reason = fmt::format("\"{}\" is torn: {}", slot.name(), slot.torn());
  });
  return reason;
}

void Optimizer::mark_torn(std::string_view reason) {
  step_.mark_torn(reason);
  for_each_slot([&](Slot& slot) { slot.mark_torn(reason); });
}

void Optimizer::abandon(std::string_view reason) noexcept {
  for (Parameter* p : parameters_) p->sink().abandon(*p, reason);
}

void Optimizer::forget_step() {
  drop_pieces();
  fill_into(scale_.value(), 1);
}

std::vector<OptimizerState> Optimizer::state() {
  std::vector<OptimizerState> result;
  const std::vector<std::string> kinds = state_kinds();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ensure_state(i);
    for (std::size_t k = 0; k < kinds.size(); ++k)
      result.push_back({parameters_[i]->name(), kinds[k], state_[i][k].get(), parameters_[i]});
  }
  ensure_counts();
  return result;
}

std::vector<OptimizerState> Optimizer::counts() {
  state();
  std::vector<OptimizerState> result;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (counts_[i]) result.push_back({parameters_[i]->name(), "step", counts_[i].get(), parameters_[i]});
  return result;
}

}  // namespace sherd::nn
