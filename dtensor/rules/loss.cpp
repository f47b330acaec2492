// Cross entropy over sharded rows and over a sharded vocabulary; full logits never exist on a rank.
//
//   logits [N, V]   targets [N]      ->  loss   lse     count
//   S0              S0                   R      S0      R        rows: one all-reduce of two numbers
//   S1              R                    R      R       R        classes: per row, one all-reduce of a maximum, one of
//                                                                a sum of exponentials and the target's logit
//
//   linear_cross_entropy_backward
//   x [N, K]   weight [V, K]   targets [N]   lse [N]   ->   dx    dweight
//   S0         R               S0            S0             S0    P          chunk by chunk, on each rank's own rows
//   R          S0              R             R              P     S0
//
// The mean over the targets that count is right however unevenly the rows are sharded.
#include <limits>

#include "dtensor/rule.h"
#include "runtime/comm/group/sum_order.h"
#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/loss.h"
#include "runtime/op/rows/loss_attrs.h"
#include "runtime/op/rows/loss_gradient.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/pointwise_attrs.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

constexpr std::size_t kX = 0;  // logits, or the input of the linear layer that makes them

// Sharded along every leading dim, and along the classes, which are dim `class_dim` of input `class_input`.
void add_loss_signatures(const RuleCall& call, std::size_t first, std::size_t targets, std::size_t class_input,
                         int class_dim, Signatures& signatures) {
  for (const int d : up_to(call.ndim(targets))) {
    Signature s{all(call.in.size(), Replicate()), {Replicate(), Shard(d), Replicate()}, 0};
    s.in[first] = s.in[targets] = Shard(d);
    signatures.push_back(std::move(s));
  }
  Signature s{all(call.in.size(), Replicate()), all<2>(3, Replicate()), 0};
  s.in[class_input] = Shard(class_dim);
  signatures.push_back(std::move(s));
}

void cross_entropy_signatures(const RuleCall& call, Signatures& signatures) {
  add_loss_signatures(call, kX, 1, kX, call.ndim(kX) - 1, signatures);
}

void linear_cross_entropy_signatures(const RuleCall& call, Signatures& signatures) {
  add_loss_signatures(call, kX, 2, 1, 0, signatures);
}

// grad [], x [..., K], weight [V, K], targets [...], lse [...], count []
void loss_gradient_signatures(const RuleCall& call, Signatures& signatures) {
  const auto& a = call.attrs.as<LossGradientAttrs>();
  const auto gradients = [&](Placement x, Placement weight) {
    SmallVec<Placement, 2> out;
    if (a.of_x) out.push_back(x);
    if (a.of_weight) out.push_back(weight);
    return out;
  };
  for (const int d : up_to(call.ndim(3)))
    signatures.push_back(
        {{Replicate(), Shard(d), Replicate(), Shard(d), Shard(d), Replicate()}, gradients(Shard(d), Partial()), 0});
  signatures.push_back(
      {{Replicate(), Replicate(), Shard(0), Replicate(), Replicate(), Replicate()}, gradients(Partial(), Shard(0)), 0});
  add_linear_signatures(call, 0, signatures);
}

VocabularyPart part_of(const LocalCall& local, std::size_t input, int dim) {
  const Spec& spec = *local.in[input];
  const std::int64_t classes = local.call.shape(input)[dim];
  if (spec.num_shards(dim) == 1) return {};
  return {.first = spec.local_range(dim, classes).begin, .total = classes};
}
CrossEntropyAttrs part_attrs(const LocalCall& local, std::size_t input, int dim) {
  auto attrs = local.call.attrs.as<CrossEntropyAttrs>();
  attrs.part = part_of(local, input, dim);
  return attrs;
}
Attrs cross_entropy_attrs(const LocalCall& local) { return part_attrs(local, kX, local.call.ndim(kX) - 1); }
Attrs linear_cross_entropy_attrs(const LocalCall& local) { return part_attrs(local, 1, 0); }
Attrs cross_entropy_backward_attrs(const LocalCall& local) { return part_attrs(local, 1, local.call.ndim(1) - 1); }
Attrs loss_gradient_attrs(const LocalCall& local) {
  auto attrs = local.call.attrs.as<LossGradientAttrs>();
  attrs.loss.part = part_of(local, 2, 0);
  return attrs;
}

std::vector<int> axes_cutting(const Spec& spec, int dim) {
  return {spec.axes_of(dim).begin(), spec.axes_of(dim).end()};
}

// Joins `a` and `b`, which have one shape, in one tensor [2, ...], so that one collective reduces both.
Tensor pair(Tensor a, Tensor b) {
  Shape shape = a.shape();
  shape.insert(0, 1);
  a = below(op::view, ShapeAttrs{shape}, std::move(a));
  b = below(op::view, ShapeAttrs{shape}, std::move(b));
  return below(op::cat, DimAttrs{0}, std::move(a), std::move(b));
}

Tensor part_of_pair(const Tensor& both, std::int64_t i) {
  Shape shape = both.shape();
  shape.erase(0);
  return below(op::view, ShapeAttrs{shape}, below(op::narrow, NarrowAttrs{0, i, 1}, both));
}

Tensor constant(double value, DType dtype, Device device) {
  return std::move(below(op::full, FullAttrs{{}, value, dtype, device}, std::span<Tensor>{})[0]);
}

// 0-d tensors in one; a single one stays as it is.
Tensor joined(std::vector<Tensor> all) {
  if (all.size() == 1) return all[0];
  for (Tensor& t : all) t = below(op::view, ShapeAttrs{Shape{1}}, std::move(t));
  return std::move(below(op::cat, DimAttrs{0}, std::span<Tensor>(all))[0]);
}

struct Rows {
  Tensor lse;                        // [...] per row
  std::vector<Tensor> sums, counts;  // 0-d, of each leaf: of the negative log likelihoods, of the targets that count
};

// From max, sum of exp(x - max) and the target's logit of this rank's classes to the result over the classes of all
// ranks:
//   M = max over ranks,   S = sum over ranks of s exp(m - M),   lse = M + log S
//   loss of a row = (M - target's logit) + log S, as on one rank: large logits cancel before anything small is added
Rows combine_classes(const LocalCall& local, const CrossEntropyAttrs& attrs, Tensors parts, const Tensor& targets,
                     std::span<const int> axes) {
  const DeviceMesh mesh = local.in[kX]->mesh();
  const Tensor most = reduce_over(parts[0], mesh, axes, ReduceKind::max);
  Tensor sums =
      below(op::mul, {}, std::move(parts[1]), below(op::exp, {}, below(op::sub, {}, std::move(parts[0]), most)));
  const Tensor both = reduce_over(pair(std::move(sums), std::move(parts[2])), mesh, axes, ReduceKind::sum);
  Rows rows;
  const Tensor log_sum = below(op::log, {}, part_of_pair(both, 0));
  const Tensor lse = below(op::add, {}, most, log_sum);
  const DType dtype = lse.dtype();
  const Tensor ignored = constant(static_cast<double>(attrs.ignore_index), targets.dtype(), targets.device());
  const Tensor zero = constant(0, dtype, targets.device());
  const Tensor counts = below(op::not_equal, {}, targets, ignored);
  const Tensor below_most = below(op::sub, {}, most, part_of_pair(both, 1));
  const Tensor losses = below(op::where, {}, counts, below(op::add, {}, below_most, log_sum), zero);
  rows.lse = below(op::where, {}, counts, lse, zero);
  const ReduceAttrs every{(std::uint64_t{1} << targets.ndim()) - 1, false};
  const auto of_leaf = [&](const Tensor& all, std::int64_t leaf) {
    if (attrs.leaves == 1) return all;
    const std::int64_t own = all.size(0) / attrs.leaves;
    return below(op::narrow, NarrowAttrs{0, leaf * own, own}, all);
  };
  for (std::int64_t leaf = 0; leaf < attrs.leaves; ++leaf) {
    rows.sums.push_back(below(op::sum, every, of_leaf(losses, leaf)));
    rows.counts.push_back(below(op::sum, every, below(op::cast, CastAttrs{dtype}, of_leaf(counts, leaf))));
  }
  return rows;
}

// The loss of this rank's inputs: by the row itself where the classes are replicated, by `parts_row` where they are
// sharded.
Tensors run_loss(const LocalCall& local, AttrsView attrs, std::span<Tensor> in, std::size_t targets_input,
                 std::size_t class_input, int class_dim, const Op& parts_row) {
  const std::vector<int> class_axes = axes_cutting(*local.in[class_input], class_dim);
  std::vector<int> row_axes;
  for (const int d : up_to(local.call.ndim(targets_input)))
    for (int axis : local.in[targets_input]->axes_of(d)) row_axes.push_back(axis);
  const std::int64_t leaves = attrs.as<CrossEntropyAttrs>().leaves;
  const bool cuts_leaves =
      class_axes.empty() ? !row_axes.empty() : !local.in[targets_input]->axes_of(0).empty();  // parts of dim 0
  check(leaves == 1 || !cuts_leaves,
        "{}: rows of {} leaves that ranks share out have no mean of each leaf; train leaves one after the other",
        local.call.op.name, leaves);
  Rows rows;
  if (class_axes.empty()) {
    Tensors whole = below(local.call.op, attrs, in);
    if (row_axes.empty()) return whole;
    rows = {whole[1], {below(op::mul, {}, whole[0], whole[2])}, {whole[2]}};
  } else {
    const Tensor targets = in[targets_input];
    rows = combine_classes(local, attrs.as<CrossEntropyAttrs>(), below(parts_row, attrs, in), targets, class_axes);
  }
  std::vector<Tensor> means;
  for (const std::size_t leaf : indices(rows.sums)) {
    Tensor &sum = rows.sums[leaf], &count = rows.counts[leaf];
    if (!row_axes.empty()) {
      const Tensor both = reduce_over(pair(sum, count), local.in[kX]->mesh(), row_axes, ReduceKind::sum);
      sum = part_of_pair(both, 0);
      count = part_of_pair(both, 1);
    }
    // If no target counts, the sum is 0 and so is the mean.
    const Tensor divisor = below(op::clamp, ClampAttrs{1, std::numeric_limits<double>::infinity()}, Tensor(count));
    means.push_back(below(op::div, {}, sum, divisor));
  }
  Tensors out;
  out.push_back(sum_in_tree(std::span<const Tensor>(means),
                            [](const Tensor& a, const Tensor& b) { return below(op::add, {}, a, b); }));
  out.push_back(rows.lse);
  out.push_back(joined(rows.counts));
  return out;
}

Tensors run_cross_entropy(const LocalCall& local, AttrsView attrs, std::span<Tensor> in) {
  return run_loss(local, attrs, in, 1, kX, local.call.ndim(kX) - 1, op::cross_entropy_parts);
}

Tensors run_linear_cross_entropy(const LocalCall& local, AttrsView attrs, std::span<Tensor> in) {
  return run_loss(local, attrs, in, 2, 1, 0, op::linear_cross_entropy_parts);
}

// The local shape on the first rank, whose shards are the largest.
Shape largest_part(const LocalCall& local, std::size_t input) {
  const Spec& spec = *local.in[input];
  const std::vector<int> first(static_cast<std::size_t>(spec.num_axes()), 0);
  Shape shape = local.call.shape(input);
  for (const int d : indices(shape)) shape[d] = spec.range_at(d, shape[d], first).size();
  return shape;
}

// Chunks are counted by the largest shard, so that all ranks make the same calls: they capture one program.
Tensors run_loss_gradient_row(const LocalCall& local, AttrsView attrs, std::span<Tensor> in) {
  const auto& a = attrs.as<LossGradientAttrs>();
  const LossChunks chunks{numel(largest_part(local, 3)),
                          loss_chunk_rows(largest_part(local, 2)[0], in[2].device().kind)};
  Tensor weight_sum;
  std::function<void(Tensor, Tensor)> to_weight;
  if (a.of_weight)
    to_weight = [&](Tensor d, Tensor x) {
      if (weight_sum.defined()) call_into(op::linear_weight_grad, {}, weight_sum, true, std::move(d), std::move(x));
      else weight_sum = call(op::linear_weight_grad, {}, std::move(d), std::move(x));
    };
  Tensor x_grad = run_loss_gradient(a.loss,
                                    {.grad = std::move(in[0]),
                                     .x = dense_below(std::move(in[1])),
                                     .weight = std::move(in[2]),
                                     .targets = dense_below(std::move(in[3])),
                                     .lse = dense_below(std::move(in[4])),
                                     .count = std::move(in[5])},
                                    chunks, a.of_x, to_weight);
  Tensors out;
  if (a.of_x) out.push_back(std::move(x_grad));
  if (a.of_weight) out.push_back(std::move(weight_sum));
  return out;
}

}  // namespace

void register_loss_rules(AddRule add) {
  add(op::cross_entropy,
      {.signatures = cross_entropy_signatures, .attrs = cross_entropy_attrs, .run = run_cross_entropy});
  add(op::linear_cross_entropy, {.signatures = linear_cross_entropy_signatures,
                                 .attrs = linear_cross_entropy_attrs,
                                 .run = run_linear_cross_entropy});
  add(op::cross_entropy_backward, {.attrs = cross_entropy_backward_attrs, .derived = true});
  add(op::linear_cross_entropy_backward,
      {.signatures = loss_gradient_signatures, .attrs = loss_gradient_attrs, .run = run_loss_gradient_row});
}

}  // namespace sherd
