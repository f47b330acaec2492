#include "runtime/autograd/slot.h"

#include "runtime/exec/context.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/core/host_state.h"
#include "runtime/op/rows/ops.h"

namespace sherd {

namespace {

// Gradients stay in slot.grad(). The second contribution is added in place when nobody else holds the tensor.
class DefaultSink final : public GradSink {
 public:
  Destination destination(Slot& slot) override {
    const Tensor& grad = slot.grad();
    // A gradient may be a broadcast view (of sum's, say): its elements share bytes, so it takes no writes.
    const bool ours = grad.defined() && grad.impl()->use_count() == 1 && grad.storage() &&
                      grad.storage()->use_count() == 1 && grad.is_contiguous();
    return ours ? Destination{grad, true} : Destination{};
  }
  void wrote(Slot&) override {}
  void accept(Slot& slot, Tensor gradient) override {
    if (slot.grad().defined()) {
      const Distributed* layout = slot.has_value() ? slot.value().layout() : nullptr;
      slot.set_grad(sum_of_gradients(slot.grad(), std::move(gradient), layout));
    } else {
      if (gradient.storage() && gradient.storage()->use_count() == 1)
        gradient.storage()->retag(MemoryCategory::gradients);
      slot.set_grad(std::move(gradient));
    }
  }
  void finish(Slot& slot) override { slot.run_grad_hooks(); }
};

GradSink* default_sink() {
  static DefaultSink sink;  // stateless
  return &sink;
}

bool is_captured() {
  const RankContext* context = RankContext::current_or_null();
  return context && context->capture;
}

// Out of line, so that reading a slot outside of a recording is a few instructions.
[[gnu::noinline, gnu::cold]] const Tensor& value_used(const Slot& slot, const Tensor& value) {
  RankContext::current().capture->value_used(slot);
  return value;
}

[[gnu::noinline, gnu::cold]] const Tensor& grad_used(const Slot& slot, const Tensor& grad) {
  RankContext::current().capture->grad_used(slot);
  return grad;
}

[[gnu::noinline, gnu::cold]] void fail_without_value(const Slot& slot) { fail("\"{}\" has no value yet", slot.name()); }

}  // namespace

std::vector<Slot*> living_slots() { return Registered<Slot>::living(); }

Slot::Slot(std::string name, bool requires_grad)
    : name_(std::move(name)), leaf_(new Leaf(this)), sink_(default_sink()), requires_grad_(requires_grad) {}

Slot::~Slot() {
  static_cast<Leaf*>(leaf_.get())->slot = nullptr;
  registered_.note_change();
}

const Tensor& Slot::value() const {
  if (!value_.defined()) [[unlikely]]
    fail_without_value(*this);
  if (is_captured()) [[unlikely]]
    return value_used(*this, value_);
  return value_;
}

Tensor Slot::attach(const Tensor& tensor) const {
  Tensor fresh = tensor.alias();
  if (requires_grad_) fresh.set_grad_node(leaf_, 0);
  return fresh;
}

const Tensor& Slot::kept_value() const {
  if (!kept_.defined()) return value();
  if (is_captured()) [[unlikely]]
    return value_used(*this, kept_);
  return kept_;
}

void Slot::set(const Tensor& tensor) {
  if (is_captured()) value_used(*this, value_);
  present(attach(tensor));
  mark_whole();
  if (CaptureSink* capture = RankContext::current().capture) capture->slot_assigned(*this);
}

void Slot::present(Tensor tensor) {
  value_ = std::move(tensor);
  registered_.note_change();
}

void Slot::keep(Tensor tensor) {
  kept_ = std::move(tensor);
  registered_.note_change();
}

void Slot::assign(const Tensor& values) {
  const Tensor target = value().local().detach();
  check(!values.is_distributed() || values.layout() == value_.layout(),
        "assign to \"{}\": {} lies otherwise than {}: redistribute() it first", name_, values, value_);
  const Tensor source = values.local();
  check(target.shape() == source.shape(), "assign to \"{}\": {} does not fit {}", name_, values, value_);
  copy_into(target, source.dtype() == target.dtype() ? source.detach() : cast(source.detach(), target.dtype()));
  mark_whole();
}

void Slot::set_requires_grad(bool on) {
  if (requires_grad_ == on) return;
  if (is_captured()) value_used(*this, value_);
  requires_grad_ = on;
  registered_.note_change();
  if (value_.defined()) value_ = attach(value_);
}

const Tensor& Slot::grad() const {
  if (is_captured()) [[unlikely]]
    return grad_used(*this, grad_);
  return grad_;
}

void Slot::set_grad(Tensor grad) {
  if (is_captured()) grad_used(*this, grad_);
  if (!grad.defined() && !grad_.defined()) return;
  grad_ = std::move(grad);
  registered_.note_change();
}

void Slot::clear_grad() {
  sink_->cleared(*this);
  set_grad({});
}

void Slot::set_sink(GradSink* sink, std::size_t place) {
  sink_ = sink ? sink : default_sink();
  sink_place_ = place;
  ++num_told_;
  registered_.note_change();
}

namespace {

struct RankGradHooks {
  HostState<GradHooks> state{[](const void*) { return std::string("gradient hooks"); }, this};
};
HostState<GradHooks>& grad_hooks() { return RankContext::current().state<RankGradHooks>().state; }
const MadeOnAsking hooks_of_rank([] { grad_hooks(); });

void note_hooks_read() {
  if (RankContext::current().capture) [[unlikely]]
    grad_hooks().get<&GradHooks::added>();
}

}  // namespace

void Slot::on_grad_accumulated(std::function<void(Slot&)> hook, HookOptions options) {
  HostState<GradHooks>& of_rank = grad_hooks();  // an Error where this thread has no rank
  hooks_.push_back({std::move(hook), options});
  ++num_told_;
  registered_.note_change();
  of_rank.set<&GradHooks::added>(of_rank.all().added + 1);
}

bool Slot::has_grad_hooks() const {
  note_hooks_read();
  return !hooks_.empty();
}

void Slot::run_grad_hooks() {
  note_hooks_read();
  auto next = hooks_.begin();
  for (std::size_t left = hooks_.size(); left > 0; --left, ++next) {  // those that are added meanwhile run later
    const Hook& hook = *next;
    check(hook.options.capturable || !RankContext::current().capture,
          "a gradient hook of \"{}\" is not marked capturable, and a replayed step would not run it: register it with "
          "{{.capturable = true}} if all it does goes through ops and slots, or take it out of the captured step",
          name_);
    hook.function(*this);
  }
}

}  // namespace sherd
