#include "dtensor/transition/redistribute.h"

#include "dtensor/below.h"
#include "dtensor/spec_attr.h"
#include "dtensor/transition/placement_rows.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/pointwise_attrs.h"

namespace sherd {

namespace {

struct RedistributeAttrs {
  SpecRef from, to;
  DType forward = DType::f32, backward = DType::f32;  // in which values and gradients travel
  static constexpr AttrField fields[] = {attr<&RedistributeAttrs::from>("from"), attr<&RedistributeAttrs::to>("to"),
                                         attr<&RedistributeAttrs::forward>("forward"),
                                         attr<&RedistributeAttrs::backward>("backward")};
};

Tensor cast_below(Tensor local, DType dtype) {
  return local.dtype() == dtype ? local : below(op::cast, CastAttrs{dtype}, std::move(local));
}

Tensor run_redistribute(OpCall& call) {
  const auto& a = call.attrs.as<RedistributeAttrs>();
  const Shape shape = call.in[0].shape();
  const Transition& plan = plan_transition(a.from, a.to, shape, a.forward);
  Tensor local = take_local(call.in[0]);
  if (local.grad_node()) local = local.detach();
  try {
    // What is sent has its type before; of what is only sliced the slice is cast.
    if (!plan.is_free()) local = cast_below(std::move(local), a.forward);
    local = cast_below(run_transition(std::move(local), shape, plan), a.forward);
    return Tensor::distributed(shape, a.to, local);
  } catch (...) {
    abort_peers(*a.to);
    throw;
  }
}

// A new handle, so that autograd records it as a value of its own.
Tensor run_align(OpCall& call) { return call.in[0].alias(); }

void vjp_to_source(VjpCall& call) {
  const auto& a = call.attrs.as<RedistributeAttrs>();
  call.give(
      0, cast(redistribute(call.take_grad(), gradient_spec(a.from), {.forward_dtype = a.backward}), call.in_dtype(0)));
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
  for (int a = 0; a < spec->num_axes(); ++a)
    if (spec->placement(a).is_partial()) spec = spec->with(a, Replicate());
  return spec;
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

Tensor redistribute(Tensor x, const Spec* to, const RedistributeOptions& options) {
  const PurposeScope purpose("redistribute");
  const Spec* from = &Spec::from(x);
  check(to != nullptr, "redistribute of {} is given no layout: make one with Spec::of()", x);
  for (const std::optional<DType>& dtype : {options.forward_dtype, options.backward_dtype})
    check(!dtype || (is_floating(*dtype) && is_floating(x.dtype())),
          "redistribute: {} is to travel as {}; types of travel are for floats, cast() it first", x,
          dtype ? name(*dtype) : "");
  const DType forward = options.forward_dtype.value_or(x.dtype()),
              backward = options.backward_dtype.value_or(x.dtype());
  if (from == to && forward == x.dtype()) return x;
  return call(op::redistribute, RedistributeAttrs{from, to, forward, backward}, std::move(x));
}

Tensor redistribute(Tensor x, std::span<const Placement> placements, const RedistributeOptions& options) {
  const Spec* to = Spec::of(Spec::from(x).mesh(), normalize_placements(placements, x.ndim()));
  return redistribute(std::move(x), to, options);
}

Tensor align_gradient(Tensor x) {
  const Spec* spec = &Spec::from(x);
  if (!x.requires_grad()) return x;
  return call(op::align_gradient, RedistributeAttrs{spec, spec, x.dtype(), x.dtype()}, std::move(x));
}

Tensors run_placement_row(OpCall& call) {
  check(call.into.empty(), "{} writes to no destination: assign its result", call.op.name);
  Tensors out;
  out.push_back(static_cast<const PlacementRow&>(call.op).run(call));  // all rows with the trait are PlacementRows
  return out;
}

}  // namespace sherd
