#include "dtensor/redistribute.h"

#include "dtensor/below.h"
#include "dtensor/spec_attr.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/vjp_call.h"

namespace sherd {

namespace {

struct RedistributeAttrs {
  const Spec* from = nullptr;
  const Spec* to = nullptr;
  static constexpr AttrField fields[] = {attr<&RedistributeAttrs::from>("from"), attr<&RedistributeAttrs::to>("to")};
};

Tensor run_redistribute(OpCall& call) {
  const auto& a = call.attrs.as<RedistributeAttrs>();
  const Shape shape = call.in[0].shape();
  const Transition& plan = plan_transition(a.from, a.to, shape, call.in[0].dtype());
  Tensor local = take_local(call.in[0]);
  if (local.grad_node()) local = local.detach();
  try {
    return Tensor::distributed(shape, a.to, run_transition(std::move(local), shape, plan));
  } catch (...) {
    abort_peers(*a.to);
    throw;
  }
}

// A new handle, so that autograd records it as a value of its own.
Tensor run_align(OpCall& call) { return call.in[0].alias(); }

void vjp_to_source(VjpCall& call) {
  call.give(0, redistribute(call.take_grad(), gradient_spec(call.attrs.as<RedistributeAttrs>().from)));
}

}  // namespace

constinit const PlacementRow op::redistribute{
    {
        .name = "redistribute",
        .doc = "x in another layout of its mesh.",
        .attrs = &attr_kind<RedistributeAttrs>,
        .traits = {.linear = true, .placement = true},
        .vjp = vjp_to_source,
    },
    run_redistribute,
};

constinit const PlacementRow op::align_gradient{
    {
        .name = "align_gradient",
        .doc = "x; its gradient is brought to x's layout.",
        .attrs = &attr_kind<RedistributeAttrs>,
        .traits = {.linear = true, .placement = true},
        .vjp = vjp_to_source,
    },
    run_align,
};

void add_placement_rows() {
  add_rows([](OpTable& table) { table.add({&op::redistribute, &op::align_gradient, &op::from_local, &op::to_local}); });
}

const Spec* gradient_spec(const Spec* spec) {
  if (!spec->is_partial()) return spec;
  std::vector<Placement> placements(spec->placements().begin(), spec->placements().end());
  for (Placement& p : placements)
    if (p.is_partial()) p = Replicate();
  return Spec::of(spec->mesh(), placements, spec->order());
}

std::vector<Placement> normalize_placements(std::span<const Placement> placements, int ndim) {
  std::vector<Placement> result(placements.begin(), placements.end());
  for (Placement& p : result) {
    if (!p.is_shard()) continue;
    check(ndim > 0, "Shard({}): a 0-d tensor has no dim to shard", p.dim);
    p.dim = normalize_dim(p.dim, ndim);
  }
  return result;
}

Tensor redistribute(Tensor x, const Spec* to) {
  const Spec* from = &Spec::from(x);
  if (from == to) return x;
  return call(op::redistribute, RedistributeAttrs{from, to}, std::move(x));
}

Tensor redistribute(Tensor x, std::span<const Placement> placements) {
  const Spec* to = Spec::of(Spec::from(x).mesh(), normalize_placements(placements, x.ndim()));
  return redistribute(std::move(x), to);
}

Tensor align_gradient(Tensor x) {
  const Spec* spec = &Spec::from(x);
  if (!x.requires_grad()) return x;
  return call(op::align_gradient, RedistributeAttrs{spec, spec}, std::move(x));
}

Tensors run_placement_row(OpCall& call) {
  check(call.into.empty(), "{} writes to no destination: assign its result", call.op.name);
  Tensors out;
  out.push_back(static_cast<const PlacementRow&>(call.op).run(call));  // all rows with the trait are PlacementRows
  return out;
}

}  // namespace sherd
