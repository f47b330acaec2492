// from_local and to_local only wrap and unwrap local tensors, in backward too; all data movement is a redistribute.
#include "dtensor/api.h"

#include <algorithm>
#include <numeric>

#include "dtensor/below.h"
#include "dtensor/check_parts.h"
#include "dtensor/spec_attr.h"
#include "dtensor/transition/placement_rows.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// ---- from_local ----

struct FromLocalAttrs {
  SpecRef spec, grad;
  Shape shape;
  static constexpr AttrField fields[] = {attr<&FromLocalAttrs::shape>("shape"), attr<&FromLocalAttrs::spec>("as"),
                                         attr<&FromLocalAttrs::grad>("grad")};
};

Tensor run_from_local(OpCall& call) {
  const auto& a = call.attrs.as<FromLocalAttrs>();
  return Tensor::distributed(a.shape, a.spec, call.in[0].detach());
}

// The local tensor of a gradient in layout `as`, which may be Partial. Where the gradient itself is not Partial, the
// first rank of the axis takes its value and the others take zeros.
Tensor local_gradient(Tensor grad, const Spec& as) {
  const Spec& from = Spec::from(grad);
  const Spec* to = gradient_spec(&as);
  bool makes_partial = false, takes_value = true;
  for (const int a : up_to(as.num_axes())) {
    if (!as.placement(a).is_partial()) continue;
    if (from.mesh_id() == as.mesh_id() && from.placement(a) == as.placement(a)) to = to->with(a, as.placement(a));
    else {
      makes_partial = true;
      takes_value &= as.coordinate(a) == 0;
    }
  }
  Tensor local = redistribute(std::move(grad), to).local();
  return makes_partial ? mine_or_zeros(std::move(local), takes_value) : local;
}

void vjp_from_local(VjpCall& call) {
  const auto& attrs = call.attrs.as<FromLocalAttrs>();
  std::int64_t averaged = 1;
  for (const int a : up_to(attrs.spec->num_axes())) {
    const Placement& p = attrs.spec->placement(a);
    if (p.is_partial(ReduceKind::avg)) averaged *= attrs.spec->axis_size(a);
    check(!p.is_partial() || p.is_partial(ReduceKind::sum) || p.is_partial(ReduceKind::avg),
          "from_local of {}: values that reduce by {} have no derivative; detach() the local part", to_string(p),
          name(p.reduce));
  }
  Tensor local = local_gradient(call.take_grad(), *attrs.grad);
  if (averaged > 1) local = mul(std::move(local), 1.0 / static_cast<double>(averaged));
  call.give(0, std::move(local));
}

// The layout of `grad_placements` for a tensor of layout `spec`: only Replicate and Partial may differ.
const Spec* spec_of_gradient(std::string_view what, const Spec& spec, int ndim,
                             const std::optional<std::vector<Placement>>& grad_placements) {
  if (!grad_placements) return gradient_spec(&spec);
  const Spec* grad = Spec::of(spec.mesh(), normalize_placements(*grad_placements, ndim), spec.order());
  for (const int d : up_to(ndim))
    if (!spec.rows_of(d).empty() && std::ranges::equal(spec.axes_of(d), grad->axes_of(d)))
      grad = grad->with_rows(d, spec.rows_of(d));
  for (const int a : up_to(spec.num_axes())) {
    const Placement &x = spec.placement(a), &g = grad->placement(a);
    if (x.is_shard() ? g != x : g.is_shard())
      fail(
          "{} {}: the gradient is said to lie as {}, but its part here has the shape of the tensor's: only "
          "Replicate and Partial may differ",
          what, spec.describe(), grad->describe());
    if (g.is_partial() && !g.is_partial(ReduceKind::sum))
      fail("{} {}: the gradient is said to lie as {}; terms of a gradient are summed: Partial()", what, spec.describe(),
           grad->describe());
  }
  return grad;
}

Shape global_shape(const Tensor& local, const Spec& spec, const LocalOptions& options) {
  constexpr std::int64_t kNone = 0;
  Shape shape = local.shape();
  if (!options.shape) {
    for (const int d : indices(shape)) {
      const std::span<const std::int64_t> rows = spec.rows_of(d);
      shape[d] = rows.empty() ? shape[d] * spec.num_shards(d) : std::accumulate(rows.begin(), rows.end(), kNone);
      const std::int64_t own = spec.local_range(d, shape[d]).size();
      check(rows.empty() || own == local.size(d),
            "from_local: {} has {} rows of dim {}, and placement {} gives this rank {}", local, local.size(d), d,
            spec.describe(), own);
    }
  } else {
    shape = *options.shape;
    if (shape.size() != local.ndim() || spec.local_shape(shape) != local.shape())
      fail("from_local: {} is not this rank's part of shape {} with placement {}: that has shape {}", local, shape,
           spec.describe(), shape.size() == local.ndim() ? to_string(spec.local_shape(shape)) : "of as many dims");
  }
  return shape;
}

void check_dims(const Tensor& local, const Spec& spec) {
  for (const Placement& p : spec.placements())
    if (p.is_shard() && p.dim >= local.ndim())
      fail("from_local: {} has no dim {} to shard: {}", local, p.dim, spec.describe());
}

// All ranks enter the check, also those that already know of an error: otherwise their peers would hang in it.
Shape checked_shape(const Tensor& local, const Spec& spec, const LocalOptions& options) {
  Shape shape = options.shape && options.shape->size() == local.ndim() ? *options.shape : local.shape();
  std::string problem;
  try {
    check_dims(local, spec);
    shape = global_shape(local, spec, options);
  } catch (const Error& error) { problem = error.message(); }
  check_parts("from_local", local, shape, &spec, problem);
  return shape;
}

// ---- to_local ----

struct ToLocalAttrs {
  SpecRef grad;
  bool check = false;
  static constexpr AttrField fields[] = {attr<&ToLocalAttrs::grad>("grad"), attr<&ToLocalAttrs::check>("check")};
};

Tensor run_to_local(OpCall& call) { return call.in[0].local().alias(); }

void vjp_to_local(VjpCall& call) {
  const auto& a = call.attrs.as<ToLocalAttrs>();
  const Tensor grad = call.take_grad();
  if (a.check) check_parts("gradient of to_local", grad, call.in_shape(0), a.grad);
  call.give(0, Tensor::distributed(call.in_shape(0), a.grad, grad));
}

// ---- distribute ----

Tensor broadcast_over(Tensor full, const DeviceMesh& mesh, int source) {
  check(source >= 0 && source < mesh.num_ranks(), "distribute: source {} is not a rank of {}, which has {}", source,
        mesh.describe(), mesh.num_ranks());
  full = contiguous(std::move(full));
  int below = mesh.num_ranks();
  for (const int a : up_to(mesh.ndim())) {  // every group of a later axis then has a rank with the source's data
    below /= mesh.size(a);
    if (mesh.size(a) > 1) full = broadcast_from(std::move(full), mesh.group(a), source / below % mesh.size(a));
  }
  return full;
}

}  // namespace

constinit const PlacementRow op::from_local{
    {
        .name = "from_local",
        .doc = "This rank's part, seen as a tensor over a mesh.",
        .attrs = &attr_kind<FromLocalAttrs>,
        .traits = {.linear = true, .placement = true},
        .vjp = vjp_from_local,
    },
    run_from_local,
};

constinit const PlacementRow op::to_local{
    {
        .name = "to_local",
        .doc = "This rank's part as a plain tensor.",
        .attrs = &attr_kind<ToLocalAttrs>,
        .traits = {.linear = true, .placement = true},
        .vjp = vjp_to_local,
    },
    run_to_local,
};

Tensor from_local(Tensor local, const Spec* spec, const LocalOptions& options) {
  check(!local.is_distributed(), "from_local: {} is distributed already; redistribute() changes its layout", local);
  check(spec != nullptr, "from_local of {} is given no layout: make one with Spec::of()", local);
  if (!options.run_check) check_dims(local, *spec);
  const Shape shape = options.run_check ? checked_shape(local, *spec, options) : global_shape(local, *spec, options);
  const Spec* grad = spec_of_gradient("from_local as", *spec, local.ndim(), options.grad_placements);
  return call(op::from_local, FromLocalAttrs{spec, grad, shape}, std::move(local));
}

Tensor from_local(Tensor local, const DeviceMesh& mesh, std::span<const Placement> placements,
                  const LocalOptions& options) {
  const Spec* spec = nullptr;
  try {
    spec = Spec::of(mesh, normalize_placements(placements, local.ndim()));
  } catch (const Error& error) {  // the other ranks are in the check
    if (options.run_check) check_parts("from_local", local, local.shape(), Spec::replicate(mesh), error.message());
    throw;
  }
  return from_local(std::move(local), spec, options);
}

Tensor to_local(Tensor x, const LocalOptions& options) {
  const Spec& spec = Spec::from(x);
  check(!options.shape, "to_local: a shape is for from_local(); {} has its own", x);
  const Spec* grad = spec_of_gradient("to_local of", spec, x.ndim(), options.grad_placements);
  const ToLocalAttrs attrs{grad, options.run_check};
  return call(op::to_local, attrs, std::move(x));
}

Tensor mean_over(const Tensor& x, const DeviceMesh& mesh) {
  const PurposeScope purpose("mean_over");
  std::vector<int> axes(static_cast<std::size_t>(mesh.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  return all_reduce(x.local().detach(), mesh.ndim() == 1 ? mesh.group() : *mesh.joint_group(axes), ReduceKind::avg);
}

Tensor full_tensor(Tensor x, const LocalOptions& options) {
  const PurposeScope purpose("full_tensor");
  const Spec* replicated = Spec::replicate(Spec::from(x).mesh());
  return to_local(redistribute(std::move(x), replicated), options);
}

Tensor distribute(const Tensor& tensor, const Spec* spec, int source) {
  check(!tensor.is_distributed(), "distribute: {} is distributed already; redistribute() changes its layout", tensor);
  check(spec != nullptr, "distribute of {} is given no layout: make one with Spec::of()", tensor);
  check(!spec->is_partial(), "distribute: a tensor cannot be made Partial, {}; ops produce partial values",
        spec->describe());
  const Shape shape = spec->local_shape(tensor.shape());
  const Dims offset = spec->local_offset(tensor.shape());
  const GradMode off(false);
  Tensor data = tensor.detach();
  if (source != kOwnData) data = broadcast_over(std::move(data), spec->mesh(), source);
  for (const int d : indices(shape))
    if (shape[d] != data.size(d)) data = narrow(data, d, offset[d], shape[d]);
  const Tensor local = Tensor::empty(shape, data.dtype(), data.device());
  if (!local.is_meta()) copy_into(local, data);
  return Tensor::distributed(tensor.shape(), spec, local);
}

Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, std::span<const Placement> placements, int source) {
  return distribute(tensor, Spec::of(mesh, normalize_placements(placements, tensor.ndim())), source);
}

}  // namespace sherd
