#include "nn/parallel/distributed_sink.h"

#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"

namespace sherd::nn {

namespace {

// Whether no other handle shares the bytes, so that the next contribution may be added in place. The global tensor is
// asked whether it is contiguous, so all ranks decide alike.
bool is_exclusive(const Tensor& gradient) {
  if (!gradient.defined() || gradient.impl()->use_count() != 1 || !gradient.is_contiguous()) return false;
  const TensorImpl* local = gradient.impl()->local.get();
  return local && local->use_count() == 1 && local->storage && local->storage->use_count() == 1;
}

const Spec* layout_of(const Slot& slot, const DeviceMesh& mesh) {
  if (!slot.value().is_distributed())
    fail("parameter \"{}\" lies on {}, but its value is the plain tensor {} now; distribute() what is put into it",
         slot.name(), mesh.describe(), slot.value());
  return &Spec::from(slot.value());
}

}  // namespace

DistributedSink::DistributedSink(const DeviceMesh& mesh, const std::vector<Parameter*>& parameters)
    : mesh_(mesh), partial_(PartialGradients::of(mesh)) {
  for (Parameter* p : parameters) {
    p->set_sink(this);
    leaves_.emplace_back(p->leaf());
  }
}

DistributedSink::~DistributedSink() {
  for (const NodeRef& leaf : leaves_)
    if (Slot* slot = static_cast<Leaf*>(leaf.get())->slot; slot && &slot->sink() == this) slot->set_sink(nullptr);
}

// The gradient of a replicated parameter is no destination: a Partial contribution would have to be reduced at once.
GradSink::Destination DistributedSink::destination(Slot& slot) {
  const Tensor& gradient = slot.grad();
  if (layout_of(slot, mesh_)->is_replicated() || !is_exclusive(gradient)) return {};
  return {gradient, true};
}

void DistributedSink::accept(Slot& slot, Tensor gradient) {
  const Spec* layout = layout_of(slot, mesh_);
  check(gradient.is_distributed(),
        "parameter \"{}\" is {}, and its gradient is the plain tensor {}; from_local() gives it a layout", slot.name(),
        slot.value(), gradient);
  const Shape shape = gradient.shape();
  if (layout->is_replicated() && Spec::from(gradient).placement(0).is_partial(ReduceKind::sum))
    return partial_->add(slot, gradient.local().detach(), shape, layout);
  gradient = redistribute(std::move(gradient), layout);
  Tensor local = gradient.local().detach();
  gradient = Tensor();
  add_gradient(slot, std::move(local), shape, layout);
}

void DistributedSink::finish(Slot& slot) {
  if (!partial_->has(slot)) slot.run_grad_hooks();
}

void DistributedSink::abandon(Slot&, std::string_view reason) noexcept {
  partial_->discard();
  if (mesh_.size() > 1) mesh_.group().abort(reason);
}

}  // namespace sherd::nn
