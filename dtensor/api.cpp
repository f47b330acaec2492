// Between plain and distributed tensors. from_local and to_local only put a label on or take it off, in backward too;
// whatever moves is a redistribute.
#include "dtensor/api.h"

#include "dtensor/below.h"
#include "dtensor/check_parts.h"
#include "dtensor/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/ops.h"
#include "runtime/op/vjp_call.h"

namespace sherd {

namespace {

// ---- from_local ----

struct FromLocalAttrs {
  const Spec* spec = nullptr;
  const Spec* grad = nullptr;
  Shape shape;
  void visit(AttrVisitor& v) const {
    v.field("shape", shape);
    v.field("as", spec->describe().c_str());
    v.field("grad", grad->describe().c_str());
    v.local_field("mesh", static_cast<std::int64_t>(spec->mesh_id()));
  }
};

Tensor run_from_local(OpCall& call) {
  const auto& a = call.attrs.as<FromLocalAttrs>();
  return Tensor::distributed(a.shape, a.spec, call.in[0].detach());
}

// A gradient may be asked for as terms. Where it has none it is counted once: on the first rank of the axis.
Tensor part_of_gradient(Tensor grad, const Spec& as) {
  const Spec& lies = Spec::from(grad);
  const Spec* to = gradient_spec(&as);
  bool is_term = false, counts = true;
  for (int a = 0; a < as.num_axes(); ++a) {
    if (!as.placement(a).is_partial()) continue;
    if (lies.mesh_id() == as.mesh_id() && lies.placement(a) == as.placement(a)) to = to->with(a, as.placement(a));
    else {
      is_term = true;
      counts &= as.coordinate(a) == 0;
    }
  }
  Tensor part = redistribute(std::move(grad), to).local();
  return is_term ? mine_or_zeros(std::move(part), counts) : part;
}

void vjp_from_local(VjpCall& call) {
  const auto& attrs = call.attrs.as<FromLocalAttrs>();
  std::int64_t averaged = 1;
  for (int a = 0; a < attrs.spec->num_axes(); ++a) {
    const Placement& p = attrs.spec->placement(a);
    if (p.is_partial(ReduceKind::avg)) averaged *= attrs.spec->axis_size(a);
    check(!p.is_partial() || p.is_partial(ReduceKind::sum) || p.is_partial(ReduceKind::avg),
          "from_local of {}: values that reduce by {} have no derivative; detach() the local part", to_string(p),
          name(p.reduce));
  }
  Tensor part = part_of_gradient(call.take_grad(), *attrs.grad);
  if (averaged > 1) part = mul(std::move(part), 1.0 / static_cast<double>(averaged));
  call.give(0, std::move(part));
}

// The layout a gradient is said to have, of a tensor that lies as `spec`: only Replicate and Partial may differ.
const Spec* spec_of_gradient(std::string_view what, const Spec& spec, int ndim,
                             const std::optional<std::vector<Placement>>& said) {
  if (!said) return gradient_spec(&spec);
  const Spec* grad = Spec::of(spec.mesh(), normalize_placements(*said, ndim), spec.order());
  for (int a = 0; a < spec.num_axes(); ++a) {
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

Shape whole_shape(const Tensor& local, const Spec& spec, const FromLocalOptions& options) {
  Shape shape = local.shape();
  if (!options.shape) {
    for (int d = 0; d < shape.size(); ++d) shape[d] *= spec.num_shards(d);
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
      fail("from_local: {} has no dim {} to be cut: {}", local, p.dim, spec.describe());
}

// All ranks come to the check, also those that see already that they are wrong: none waits in vain.
Shape checked_shape(const Tensor& local, const Spec& spec, const FromLocalOptions& options) {
  Shape shape = options.shape && options.shape->size() == local.ndim() ? *options.shape : local.shape();
  std::string problem;
  try {
    check_dims(local, spec);
    shape = whole_shape(local, spec, options);
  } catch (const Error& error) { problem = error.message(); }
  check_parts("from_local", local, shape, &spec, problem);
  return shape;
}

// ---- to_local ----

struct ToLocalAttrs {
  const Spec* grad = nullptr;
  bool check = false;
  void visit(AttrVisitor& v) const {
    v.field("grad", grad->describe().c_str());
    v.field("check", check);
    v.local_field("mesh", static_cast<std::int64_t>(grad->mesh_id()));
  }
};

Tensor run_to_local(OpCall& call) { return call.in[0].local().alias(); }

void vjp_to_local(VjpCall& call) {
  const auto& a = call.attrs.as<ToLocalAttrs>();
  const Tensor grad = call.take_grad();
  if (a.check) check_parts("gradient of to_local", grad, call.in_shape(0), a.grad);
  call.give(0, Tensor::distributed(call.in_shape(0), a.grad, grad));
}

// ---- distribute ----

Tensor brought_from(Tensor whole, const DeviceMesh& mesh, int source) {
  check(source >= 0 && source < mesh.num_ranks(), "distribute: source {} is not a rank of {}, which has {}", source,
        mesh.describe(), mesh.num_ranks());
  whole = contiguous(std::move(whole));
  int below = mesh.num_ranks();
  for (int a = 0; a < mesh.ndim(); ++a) {  // the slowest axis first: then each later one has a rank that knows
    below /= mesh.size(a);
    if (mesh.size(a) > 1) whole = broadcast_from(std::move(whole), mesh.group(a), source / below % mesh.size(a));
  }
  return whole;
}

}  // namespace

Tensor from_local(Tensor local, const Spec* spec, const FromLocalOptions& options) {
  static const PlacementRow row{{.name = "from_local",
                                 .doc = "This rank's part, seen as a tensor over a mesh.",
                                 .traits = {.linear = true, .placement = true},
                                 .vjp = vjp_from_local},
                                run_from_local};
  check(!local.is_distributed(), "from_local: {} is distributed already; redistribute() changes how it lies", local);
  if (!options.run_check) check_dims(local, *spec);
  const Shape shape = options.run_check ? checked_shape(local, *spec, options) : whole_shape(local, *spec, options);
  const Spec* grad = spec_of_gradient("from_local as", *spec, local.ndim(), options.grad_placements);
  return call(row, FromLocalAttrs{spec, grad, shape}, std::move(local));
}

Tensor from_local(Tensor local, const DeviceMesh& mesh, std::span<const Placement> placements,
                  const FromLocalOptions& options) {
  const Spec* spec = nullptr;
  try {
    spec = Spec::of(mesh, normalize_placements(placements, local.ndim()));
  } catch (const Error& error) {  // the others come to the check
    if (options.run_check) check_parts("from_local", local, local.shape(), Spec::replicate(mesh), error.message());
    throw;
  }
  return from_local(std::move(local), spec, options);
}

Tensor to_local(Tensor x, const ToLocalOptions& options) {
  static const PlacementRow row{{.name = "to_local",
                                 .doc = "This rank's part as a plain tensor.",
                                 .traits = {.linear = true, .placement = true},
                                 .vjp = vjp_to_local},
                                run_to_local};
  const Spec& spec = Spec::from(x);
  const Spec* grad = spec_of_gradient("to_local of", spec, x.ndim(), options.grad_placements);
  const ToLocalAttrs attrs{grad, options.check_gradient};
  return call(row, attrs, std::move(x));
}

Tensor full_tensor(Tensor x, const ToLocalOptions& options) {
  const Spec* whole = Spec::replicate(Spec::from(x).mesh());
  return to_local(redistribute(std::move(x), whole), options);
}

Tensor distribute(const Tensor& tensor, const Spec* spec, const DistributeOptions& options) {
  check(!tensor.is_distributed(), "distribute: {} is distributed already; redistribute() changes how it lies", tensor);
  check(!spec->is_partial(), "distribute: a tensor cannot be made Partial, {}; ops produce partial values",
        spec->describe());
  const Shape shape = spec->local_shape(tensor.shape());
  const Dims offset = spec->local_offset(tensor.shape());
  const GradMode off(false);
  Tensor part = tensor.detach();
  if (options.source != DistributeOptions::kOwnData) part = brought_from(std::move(part), spec->mesh(), options.source);
  for (int d = 0; d < shape.size(); ++d)
    if (shape[d] != part.size(d)) part = narrow(part, d, offset[d], shape[d]);
  const Tensor local = Tensor::empty(shape, part.dtype(), part.device());
  if (!local.is_meta()) copy_into(local, part);
  return Tensor::distributed(tensor.shape(), spec, local);
}

Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, std::span<const Placement> placements,
                  const DistributeOptions& options) {
  return distribute(tensor, Spec::of(mesh, normalize_placements(placements, tensor.ndim())), options);
}

}  // namespace sherd
