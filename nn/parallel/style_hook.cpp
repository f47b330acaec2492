#include "nn/parallel/style_hook.h"

#include "dtensor/api.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"

namespace sherd::nn {

LayoutTable::LayoutTable(const DeviceMesh& mesh, Style::Layouts layouts)
    : mesh_(mesh), layouts_(std::move(layouts)), known_(layouts_.size()) {}

const Spec* LayoutTable::at(std::size_t index, int ndim) {
  const std::optional<Placement> placement = layouts_[index];
  if (!placement) return nullptr;
  const Spec*& spec = known_[index][static_cast<std::size_t>(ndim)];
  if (!spec) spec = Spec::of(mesh_, normalize_placements({&*placement, 1}, ndim));
  return spec;
}

namespace {

void check_entries(const std::string& style, const Module& module, const char* what, const Style::Layouts& layouts,
                   std::size_t count) {
  const bool fits = layouts.is_open() ? layouts.size() <= count : layouts.size() == count;
  if (fits) return;
  fail(
      "style {} of module \"{}\" has {} {} layouts for {} {}{}; give one per {}, or none (std::nullopt) to let "
      "it pass",
      style, module.label(), layouts.size(), what, count, what, count == 1 ? "" : "s", what);
}

// The vjp of such a row redistributes the accumulated gradient itself.
bool is_from_placement_row(const Tensor& x) {
  const Node* maker = x.grad_node();
  return maker && maker->kind == Node::Kind::op && static_cast<const OpNode*>(maker)->op->traits.placement;
}

}  // namespace

StyleHook::StyleHook(std::string style, const DeviceMesh& mesh, const Style::Layout& layout)
    : style_(std::move(style)),
      mesh_(mesh),
      from_(mesh, layout.from),
      inputs_(mesh, layout.inputs),
      outputs_from_(mesh, layout.outputs_from),
      outputs_(mesh, layout.outputs),
      is_local_(layout.local_outputs) {}

void StyleHook::map(const Module& module, const Side& side, Tensor& x, TensorPlace place) const {
  check_entries(style_, module, side.what, side.from.layouts(), place.count);
  check_entries(style_, module, side.what, side.to.layouts(), place.count);
  const Spec* to = side.to.at(place.index, x.ndim());
  if (!x.is_distributed()) {
    const Spec* from = side.from.at(place.index, x.ndim());
    if (!from && !to) return;
    if (!from)
      fail(
          "{} {} of module \"{}\" is the plain tensor {}, and style {} gives it no layout on {}: set `{}` for it, or "
          "pass a distributed tensor",
          side.what, place.index, module.label(), x, style_, mesh_.describe(), side.from_key);
    x = from_local(std::move(x), from);
  } else if (Spec::from(x).mesh_id() != mesh_.id()) {
    if (!to) return;
    fail("{} {} of module \"{}\" is on {}, its style {} is for {}; move it there with full_tensor() and distribute()",
         side.what, place.index, module.label(), Spec::from(x).mesh().describe(), style_, mesh_.describe());
  }
  if (!to) return;
  if (x.layout() != to) x = redistribute(std::move(x), to);
  else if (to->is_replicated() && !is_from_placement_row(x)) x = align_gradient(std::move(x));
}

void StyleHook::map_input(Module& module, Tensor& tensor, TensorPlace place) {
  map(module, {"input", "from", from_, inputs_}, tensor, place);
}

void StyleHook::map_output(Module& module, Tensor& tensor, TensorPlace place) {
  map(module, {"output", "from", outputs_from_, outputs_}, tensor, place);
  if (is_local_ && tensor.is_distributed()) tensor = to_local(std::move(tensor));
}

}  // namespace sherd::nn
