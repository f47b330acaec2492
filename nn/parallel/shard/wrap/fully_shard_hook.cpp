#include "nn/parallel/shard/wrap/fully_shard_hook.h"

#include <algorithm>

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"

namespace sherd::nn {

namespace {

/// A forward call, as its outputs remember it.
struct ForwardCall {
  std::weak_ptr<Wrap> wrap;
  UnitSchedule::Call call;
  std::uint64_t begun;               // nodes of its own have larger numbers
  std::optional<DeviceMesh> mesh{};  // of the root: there for backward, whatever has become of the model
  std::uint64_t pass = 0;            // the backward that has reached it last
};

void before_backward(const Wrap& wrap, ForwardCall& call) {
  ShardTree& tree = *wrap.tree();
  tree.end->expect();
  if (std::exchange(call.pass, backward_pass()) == backward_pass()) return;  // another output was reached before
  wrap.knobs.read_all();
  const UnitSchedule::Backward plan = tree.schedule.begin_backward(wrap.id(), call.call);
  for (const UnitId over : plan.over)
    if (const Wrap* other = tree.wraps[static_cast<std::size_t>(over)])
      for (const auto& unit : other->units)
        if (!wrap.use.borrows(*unit)) unit->leave_backward();  // else this call is its next user
  wrap.use.unshard();
  wrap.prefetch(StepPhase::backward, plan.next);
}

// Tells when the backward of a call begins. Gathers are rows: replay issues them without the hook.
struct OutputHook final : TensorHook {
  OutputHook(int output, std::shared_ptr<ForwardCall> of)
      : TensorHook(output, {.capturable = true}), call(std::move(of)) {}
  Tensor run(const Tensor&) override {
    if (const auto wrap = call->wrap.lock()) before_backward(*wrap, *call);
    return {};
  }
  const std::shared_ptr<ForwardCall> call;
};

// Hooks the outputs that this call has made: one that was an input too is reached when the call's backward is over.
void hook_outputs(Wrap& wrap, UnitSchedule::Call call, std::uint64_t begun,
                  const std::function<void(const TensorVisitor&)>& visit_outputs) {
  const auto shared = std::make_shared<ForwardCall>(ForwardCall{wrap.weak_from_this(), call, begun});
  if (wrap.is_root()) shared->mesh = wrap.data().mesh();
  visit_outputs([&shared](const Tensor& t) {
    if (!t.requires_grad() || t.grad_node()->kind != Node::Kind::op || t.grad_node()->sequence < shared->begun) return;
    register_grad_hook(t, std::make_unique<OutputHook>(t.output_index(), shared));
  });
}

}  // namespace

void FullyShardHook::before_cast(Module&, DType dtype) {
  check(!wrap->tree(), "module \"{}\" ran already, and its dtype changes before the first forward only", wrap->name());
  for (const auto& unit : wrap->units) unit->cast_to(dtype);
}

bool FullyShardHook::is_running(const Module& module) const {
  return std::ranges::find(running_, &module, &Running::module) != running_.end();
}

void FullyShardHook::before_forward(Module& module) {
  const bool joins = !wrap->tree() || (wrap->tree()->depth == 0 && wrap->tree()->has_news());
  if (joins) ShardTree::enter(*wrap, module);
  ShardTree& tree = *wrap->tree();
  const bool begins = !wrap->use.is_open();
  try {
    // A model whose forward communicates nothing may run on one rank alone, until a backward reduces.
    if ((joins || tree.depth == 0) && tree.gathers()) tree.agree();
    enter_forward(begins);
  } catch (...) {
    if (tree.depth == 0) tree.abandon(current_exception_text());
    throw;
  }
  ++tree.depth;
  running_.push_back({&module, RankContext::current().next_id()});
  if (begins) wrap->use.begin();
}

void FullyShardHook::enter_forward(bool begins) {
  ShardTree& tree = *wrap->tree();
  wrap->knobs.read_all();
  if (begins && wrap->is_root() && !in_backward()) tree.begin_forward();
  wrap->use.unshard();
  if (!begins) return;
  forward_call_ = tree.schedule.begin();
  wrap->prefetch(StepPhase::forward, wrap->use.is_none() ? kNoUnit : tree.schedule.enter(wrap->id()));
}

void FullyShardHook::after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) {
  ShardTree& tree = *wrap->tree();
  --tree.depth;
  const std::uint64_t begun = running_.back().begun;
  running_.pop_back();
  try {
    const UnitSchedule::Call call = leave_forward(module);
    if (RankContext::current().grad_enabled) hook_outputs(*wrap, call, begun, visit_outputs);
  } catch (...) {
    if (tree.depth == 0) tree.abandon(current_exception_text());
    throw;
  }
}

UnitSchedule::Call FullyShardHook::leave_forward(Module& module) {
  if (is_running(module)) return {};  // it called itself
  if (!wrap->use.ends_with(module)) return {};
  ShardTree& tree = *wrap->tree();
  wrap->use.close();
  if (wrap->is_root() && !in_backward()) tree.end_forward();
  if (wrap->use.is_none() || !RankContext::current().grad_enabled) return {};
  return tree.schedule.leave(wrap->id(), forward_call_);
}

// An exception that leaves the outermost forward ends the step, for all ranks. One that leaves an inner forward may be
// handled by the model.
void FullyShardHook::abandon_forward(Module& module, std::string_view reason) noexcept {
  if (!wrap->tree()) return;
  running_.pop_back();
  if (--wrap->tree()->depth == 0) return wrap->tree()->abandon(reason);
  if (!is_running(module)) wrap->use.abandon();  // else it called itself
}

}  // namespace sherd::nn
