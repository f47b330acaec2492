#include "nn/optim/optimizer_slots.h"

#include <algorithm>
#include <utility>

#include "nn/optim/check_options.h"
#include "nn/optim/dense_copies.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

void check_value(const Parameter& p, const UpdateRule& rule) {
  const Tensor& value = p.sharded_value();
  if (!rule.updates(value.dtype()))
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
void check_state_fits(const Parameter& p, const std::vector<std::unique_ptr<Slot>>& slots) {
  const Tensor& value = p.sharded_value();
  for (const auto& slot : slots)
    if (const Tensor& state = slot->value(); state.layout() != value.layout() || state.dtype() != value.dtype())
      fail(
          "parameter \"{}\" is {} but its state \"{}\" is {}, as the parameter was when the state was made: make the "
          "optimizer after fully_shard and cast_to()",
          p.name(), value, slot->name(), state);
}

}  // namespace

OptimizerSlots::OptimizerSlots(std::vector<Parameter*> list, double rate, UpdateRule& rule)
    : parameters(std::move(list)),
      lr("optimizer.lr"),
      step("optimizer.step"),
      scale("optimizer.scale"),
      rule_(rule),
      state_(parameters.size()),
      counts_(parameters.size()) {
  check(!parameters.empty(), "an optimizer needs at least one parameter");
  check_each_once(parameters, "an optimizer, which would move it twice a step");
  lr.set(Tensor::scalar(rate));
  step.set(Tensor::scalar(0));
  scale.set(Tensor::scalar(1));
  scale.set_of_step();
  move_scalars(update_device(*parameters[0]));
}

void OptimizerSlots::move_scalars(Device device) {
  if (device.is_meta()) return;
  for (Slot* slot : {&lr, &step, &scale})
    if (slot->value().device() != device) slot->set(to(slot->value(), device));
}

void OptimizerSlots::offload(const OffloadOptions& options) {
  for (const std::size_t i : indices(parameters))
    check(state_[i].empty(),
          "the state of parameter \"{}\" is in memory already: offload an optimizer before its first step, its first "
          "state() and a load of a checkpoint",
          parameters[i]->name());
  const Device device = update_device(*parameters[0]);
  check(!device.is_meta(), "parameter \"{}\" has no values; materialize the model before offload()",
        parameters[0]->name());
  const std::vector<std::string> kinds = rule_.state_kinds();
  std::vector<std::int64_t> bytes;
  for (const Parameter* p : parameters) bytes.push_back(most_bytes_of_a_rank(p->sharded_value()) * std::ssize(kinds));
  offloaded_ = std::make_unique<OffloadedState>(device, options, bytes);
}

void OptimizerSlots::ensure_state(std::size_t i) {
  if (!state_[i].empty()) return;
  const Parameter& p = *parameters[i];
  const Tensor value = p.sharded_value();
  const Tensor local = value.local();
  check(!local.is_meta(), "parameter \"{}\" has no values; materialize the model before the first step", p.name());
  move_scalars(update_device(p));
  std::vector<std::unique_ptr<Slot>> slots;  // kept when all are made: the memory for one of them may be refused
  for (const std::string& kind : rule_.state_kinds()) {
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

void OptimizerSlots::make_ready(std::size_t i) {
  check_value(*parameters[i], rule_);
  ensure_state(i);
  check_state_fits(*parameters[i], state_[i]);
}

// Parameters whose state is new share a count: step_slot()'s as long as no step was missed.
void OptimizerSlots::ensure_counts() {
  if (!rule_.counts_updates()) return;
  Tensor none;
  for (const std::size_t i : indices(parameters)) {
    if (counts_[i] || state_[i].empty()) continue;
    if (!none.defined()) none = has_stepped_ ? zeros({}, DType::f32, step.value().device()) : step.value();
    counts_[i] = std::make_unique<Slot>(parameters[i]->name() + ".step");
    counts_[i]->set(none);
  }
}

// The first is that of step_slot(), which counts all steps.
std::vector<OptimizerSlots::Cohort> OptimizerSlots::cohorts_of(const std::vector<std::size_t>& active) const {
  std::vector<Cohort> cohorts(1);
  cohorts[0].count = step.value();
  if (!rule_.counts_updates()) {
    cohorts[0].active = active;
    return cohorts;
  }
  auto next = active.begin();
  for (const std::size_t i : indices(parameters)) {
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
std::vector<OptimizerSlots::Cohort> OptimizerSlots::count(const std::vector<std::size_t>& active) {
  ensure_counts();
  has_stepped_ = true;
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
  count_step(increased, scale.value());
  std::erase_if(cohorts, [](const Cohort& cohort) { return cohort.active.empty(); });
  return cohorts;
}

const Tensor& OptimizerSlots::count_of(std::size_t i) {
  ensure_counts();
  return counts_[i] ? counts_[i]->value() : step.value();
}

void OptimizerSlots::update(std::vector<UpdatedPart> parts, const Tensor& count) {
  rule_.update(std::move(parts), lr.value(), count, scale.value());
}

void OptimizerSlots::for_each_slot(const std::function<void(Slot&)>& visit) {
  visit(step);
  for (Parameter* p : parameters) visit(*p);
  for (const auto& kinds : state_)
    for (const auto& slot : kinds) visit(*slot);
  for (const auto& count : counts_)
    if (count) visit(*count);
}

std::string OptimizerSlots::torn() {
  std::string reason = step.torn().empty() ? "" : fmt::format("the count of steps is torn: {}", step.torn());
  for_each_slot([&](const Slot& slot) {
    if (reason.empty() && !slot.torn().empty()) reason = fmt::format("\"{}\" is torn: {}", slot.name(), slot.torn());
  });
  return reason;
}

void OptimizerSlots::mark_torn(std::string_view reason) {
  for_each_slot([&](Slot& slot) { slot.mark_torn(reason); });
}

void OptimizerSlots::abandon(std::string_view reason) noexcept {
  for (Parameter* p : parameters) p->sink().abandon(*p, reason);
}

void OptimizerSlots::mark_whole() {
  for_each_slot([](Slot& slot) { slot.mark_whole(); });
}

std::vector<OptimizerState> OptimizerSlots::state() {
  std::vector<OptimizerState> result;
  const std::vector<std::string> kinds = rule_.state_kinds();
  for (const std::size_t i : indices(parameters)) {
    ensure_state(i);
    for (const std::size_t k : indices(kinds))
      result.push_back({parameters[i]->name(), kinds[k], state_[i][k].get(), parameters[i]});
  }
  ensure_counts();
  return result;
}

std::vector<OptimizerState> OptimizerSlots::counts() {
  state();
  std::vector<OptimizerState> result;
  for (const std::size_t i : indices(parameters))
    if (counts_[i]) result.push_back({parameters[i]->name(), "step", counts_[i].get(), parameters[i]});
  return result;
}

}  // namespace sherd::nn
