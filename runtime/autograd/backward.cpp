// The backward pass. A max-heap on sequence numbers replaces dependency counting for op nodes: everything that can
// feed a node was created after it, so when a node is on top of the heap its gradients are complete. Only leaves need
// counts (how many recorded uses are still to come), because sinks must know when the last contribution is in.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/leaves.h"
#include "runtime/autograd/recomputed.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/tape_modes.h"
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/matmul_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/reduce_attrs.h"

namespace sherd {

namespace {
bool is_distributed(const Tensor& t) { return t.defined() && t.is_distributed(); }

// Only the sink knows what a distributed gradient is to a plain buffer: its accept() gets it.
bool takes(const Tensor& buffer, std::span<const Tensor> from) {
  return buffer.defined() && (buffer.is_distributed() || std::ranges::none_of(from, is_distributed));
}

std::string_view name_of(const Node& node) {
  return node.kind == Node::Kind::op ? static_cast<const OpNode&>(node).op->name : "a parameter";
}

void check_has_leaves(const Tensor& root, std::int64_t leaves) {
  const Tensor& loss = tape_modes().loss_of_leaves;
  check(loss.defined() && loss.grad_node() == root.grad_node(),
        "backward over {} leaves from {}, which {} has made: only linear_cross_entropy gives each leaf a loss of its "
        "own; train leaves one after the other",
        leaves, root, name_of(*root.grad_node()));
}
}  // namespace

class BackwardPass {
 public:
  explicit BackwardPass(const BackwardOptions& options)
      : context_(RankContext::current()),
        outer_path_(context_.module_path),
        id_(context_.next_id()),
        options_(options),
        of_leaves_(tape_modes().leaves),
        recording_off_(false),
        phase_(StepPhase::backward) {
    check(!in_backward(), "backward() inside backward() is not supported: gradients are not recorded");
    tape_modes().backward = this;
  }
  ~BackwardPass() {
    tape_modes().backward = nullptr;
    context_.module_path = outer_path_;
    // After an error nodes and leaves must not remember half a pass.
    if (current_) static_cast<OpNode*>(current_.get())->pending.clear();
    for (OpNode* node : heap_) {
      node->pending.clear();
      node->queued = false;
    }
    for (const NodeRef& leaf : leaves_) reset(*static_cast<Leaf*>(leaf.get()));
  }

  void run(const Tensor& root, Tensor grad) {
    start_ = NodeRef(root.grad_node());
    if (leaves() > 1) check_has_leaves(root, leaves());
    count_leaf_uses(start_.get());
    deliver(start_.get(), root.output_index(), std::move(grad));
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), by_sequence);
      current_ = NodeRef(heap_.back());
      heap_.pop_back();
      auto& op_node = *static_cast<OpNode*>(current_.get());
      op_node.queued = false;
      context_.module_path = op_node.module_path;
      apply(op_node);
      context_.module_path = outer_path_;
      finish_leaves(op_node);
    }
    current_ = NodeRef();
    // A leaf whose last uses got no gradient (a vjp that gives none) is complete now.
    for (const NodeRef& leaf : leaves_)
      if (auto& l = *static_cast<Leaf*>(leaf.get()); l.received) finish(l);
    while (!callbacks_.empty()) {
      const auto callbacks = std::exchange(callbacks_, {});
      for (const auto& callback : callbacks) callback();
    }
  }

  /// Tells everybody who waits for the rest of the pass that it will not come.
  void abandon(std::string_view reason) noexcept {
    bool has_orphans = false;
    for (const NodeRef& leaf : leaves_)
      if (Slot* slot = static_cast<Leaf*>(leaf.get())->slot) slot->sink().abandon(*slot, reason);
      else has_orphans = true;
    if (has_orphans) abandon_orphans(reason);
  }

  void deliver(Node* node, int index, Tensor gradient) {
    if (node->kind == Node::Kind::leaf) {
      auto* leaf = static_cast<Leaf*>(node);
      check_apart(*leaf);
      leaf->received = true;
      if (leaf->slot && has_turn_of_leaf()) return of_leaves_.add(leaf_, *leaf, std::move(gradient));
      if (leaf->slot) leaf->slot->sink().accept(*leaf->slot, std::move(gradient));
      return;
    }
    auto* op_node = static_cast<OpNode*>(node);
    const auto at = static_cast<std::size_t>(index);
    if (op_node->pending.size() <= at) op_node->pending.resize(op_node->output_metas.size());
    Tensor& sum = op_node->pending[at];
    sum = sum.defined() ? sum_of_gradients(std::move(sum), std::move(gradient), op_node->output_metas[at].layout)
                        : std::move(gradient);
    if (op_node->queued) return;
    op_node->queued = true;
    heap_.push_back(op_node);
    std::push_heap(heap_.begin(), heap_.end(), by_sequence);
  }

  RecomputedValues& recomputed() { return recomputed_; }
  bool retains_graph() const { return options_.retain_graph; }
  std::uint64_t id() const { return id_; }
  std::int64_t leaves() const { return of_leaves_.count(); }
  bool has_turn_of_leaf() const { return leaf_ >= 0; }
  bool is_last_turn() const { return leaf_ < 0 || leaf_ == leaves() - 1; }

  /// What is given while it lives is of one leaf.
  class LeafTurn {
   public:
    LeafTurn(BackwardPass& pass, std::int64_t leaf) : pass_(pass), outer_(pass.leaf_) {
      if (outer_ < 0 && pass.leaves() > 1) pass.leaf_ = leaf;
    }
    ~LeafTurn() { pass_.leaf_ = outer_; }
    LeafTurn(const LeafTurn&) = delete;
    LeafTurn& operator=(const LeafTurn&) = delete;

   private:
    BackwardPass& pass_;
    const std::int64_t outer_;
  };

  /// Puts the gradients that a call got of this leaf in place of those that it got of all rows, while it lives.
  class LeafPending {
   public:
    LeafPending(BackwardPass& pass, const Edge& edge) {
      if (!pass.has_turn_of_leaf() || edge.node.get()->kind != Node::Kind::op) return;
      to_ = static_cast<OpNode*>(edge.node.get());
      auto& all = pass.by_leaf_[to_];
      all.resize(static_cast<std::size_t>(pass.leaves()));
      of_leaf_ = &all[static_cast<std::size_t>(pass.leaf_)];
      std::swap(to_->pending, *of_leaf_);
    }
    ~LeafPending() {
      if (to_) std::swap(to_->pending, *of_leaf_);
    }
    LeafPending(const LeafPending&) = delete;
    LeafPending& operator=(const LeafPending&) = delete;

   private:
    OpNode* to_ = nullptr;
    SmallVec<Tensor, 1>* of_leaf_ = nullptr;
  };

  /// Where a slot's next contribution, of this meta, is written.
  GradSink::Destination destination(Leaf& leaf, const TensorMeta& meta) {
    if (leaves() == 1) return leaf.slot->sink().destination(*leaf.slot);
    check_apart(leaf);
    return of_leaves_.place_of(leaf_, leaf, meta);
  }
  void wrote(Leaf& leaf) {
    leaf.received = true;
    if (!has_turn_of_leaf()) leaf.slot->sink().wrote(*leaf.slot);
  }
  /// The slot to which a call that gives its only gradient may give the sum over all leaves; else null.
  Leaf* takes_sum(const Edge& edge) const {
    if (has_turn_of_leaf() || edge.node.get()->kind != Node::Kind::leaf) return nullptr;
    auto* leaf = static_cast<Leaf*>(edge.node.get());
    return leaf->slot && leaf->expected == 1 && !of_leaves_.has(*leaf) ? leaf : nullptr;
  }

  void add_callback(std::function<void()> callback) { callbacks_.push_back(std::move(callback)); }

 private:
  static bool by_sequence(const OpNode* a, const OpNode* b) { return a->sequence < b->sequence; }

  void count_leaf_uses(Node* start) {
    std::vector<Node*> stack{start};
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      if (node->kind == Node::Kind::leaf) {
        if (node->visited != id_) {
          node->visited = id_;
          leaves_.emplace_back(node);
        }
        ++static_cast<Leaf*>(node)->expected;
        continue;
      }
      if (node->visited == id_) continue;
      node->visited = id_;
      const auto* op_node = static_cast<const OpNode*>(node);
      recomputed_.count(*op_node);
      for (const Edge& edge : op_node->next)
        if (edge.node) stack.push_back(edge.node.get());
    }
  }

  // Units whose slots are gone are known by what the tape keeps of them alone.
  void abandon_orphans(std::string_view reason) noexcept try {
    std::map<StorageOwner*, Storage*> owners;
    std::vector<Node*> stack{start_.get()};
    const std::uint64_t mark = context_.next_id();
    while (!stack.empty()) {
      Node* const node = stack.back();
      stack.pop_back();
      if (node->kind == Node::Kind::leaf || std::exchange(node->visited, mark) == mark) continue;
      auto& op_node = *static_cast<OpNode*>(node);
      for (const SavedTensor& saved : op_node.saved_inputs)
        if (StorageOwner* const owner = saved.owner()) owners.emplace(owner, saved.bytes().get());
      for (const Edge& edge : op_node.next)
        if (edge.node) stack.push_back(edge.node.get());
    }
    for (const auto& [owner, storage] : owners) owner->abandon_replay(*storage, reason);
  } catch (...) {  // out of memory: peers wait for their deadline
  }

  void check_apart(const Leaf& leaf) const {
    if (leaves() == 1 || has_turn_of_leaf()) return;
    fail(
        "\"{}\" gets a gradient by {}, whose vjp sums over the rows of {} leaves together; train leaves one after the "
        "other, or give_rows() in its vjp",
        leaf.slot ? leaf.slot->name() : "a parameter", name_of(*current_), leaves());
  }

  void apply(OpNode& node) {
    check_not_freed(node);
    recomputed_.begin_turn(node);
    const bool has_leaves = !by_leaf_.empty() && by_leaf_.contains(&node);
    const std::uint32_t taken = has_leaves ? run_by_leaf(node) : run_vjp(node);
    recomputed_.end_turn(node, taken);
    if (options_.retain_graph) return;
    node.freed = true;
    node.saved_inputs.clear();
    node.saved_outputs.clear();
  }

  std::uint32_t run_by_leaf(OpNode& node) {
    auto of_leaves = by_leaf_.extract(&node);
    check(node.pending.empty(),
          "{} gets gradients both of all rows and of single leaves, so it mixes rows of {} leaves; train leaves one "
          "after the other",
          node.op->name, leaves());
    std::uint32_t taken = 0;
    for (std::int64_t leaf = 0; leaf < leaves(); ++leaf) {
      const LeafTurn turn(*this, leaf);
      node.pending = std::move(of_leaves.mapped()[static_cast<std::size_t>(leaf)]);
      taken = run_vjp(node);
    }
    return taken;
  }

  // Returns the inputs that take_in() gave.
  std::uint32_t run_vjp(OpNode& node) {
    run_hooks(node);
    VjpCall call(node, *this);
    try {
      node.op->vjp(call);
    } catch (Error& error) {
      if (!error.has("backward")) {
        error.add("backward", fmt::format("of {} {}", node.op->name, node.attrs.print()));
        if (node.module_path && !error.has("module")) error.add("module", *node.module_path);
      }
      throw;
    }
    node.pending.clear();
    return call.taken_;
  }

  void run_hooks(OpNode& node) {
    for (TensorHook* hook = node.hooks.get(); hook; hook = hook->next.get()) {
      const auto at = static_cast<std::size_t>(hook->index);
      if (at >= node.pending.size() || !node.pending[at].defined()) continue;
      check(hook->options.capturable || !context_.capture,
            "a gradient hook on the result of {} is not marked capturable, and a replayed step would not run it: "
            "use register_capturable_grad_hook() if all it does goes through ops and slots",
            node.op->name);
      Tensor replaced = hook->run(node.pending[at]);
      if (!replaced.defined()) continue;
      check(replaced.shape() == node.pending[at].shape() && replaced.dtype() == node.pending[at].dtype(),
            "a gradient hook on the result of {} was given {} and returned {}", node.op->name, node.pending[at],
            replaced);
      node.pending[at] = std::move(replaced);
    }
  }

  // Only after the whole vjp has run: the sink may release what the vjp still reads.
  void finish_leaves(OpNode& node) {
    for (const Edge& edge : node.next) {
      if (!edge.node || edge.node.get()->kind != Node::Kind::leaf) continue;
      auto& leaf = *static_cast<Leaf*>(edge.node.get());
      if (--leaf.expected == 0 && leaf.received) finish(leaf);
    }
  }

  static void reset(Leaf& leaf) {
    leaf.expected = 0;
    leaf.received = false;
  }
  void finish(Leaf& leaf) {
    reset(leaf);
    if (!leaf.slot) return;
    of_leaves_.put_sum(leaf);
    leaf.slot->sink().finish(*leaf.slot);
  }

  RankContext& context_;
  const std::string* const outer_path_;
  const std::uint64_t id_;
  const BackwardOptions& options_;
  LeafGradients of_leaves_;
  std::int64_t leaf_ = -1;  // whose gradients are given; -1: those of all rows
  GradMode recording_off_;
  PhaseScope phase_;
  NodeRef start_, current_;
  std::vector<OpNode*> heap_;  // kept alive by the nodes that point to them, ultimately by start_
  std::vector<NodeRef> leaves_;
  RecomputedValues recomputed_;
  std::unordered_map<const OpNode*, std::vector<SmallVec<Tensor, 1>>> by_leaf_;  // pending, of calls not of the batch
  std::vector<std::function<void()>> callbacks_;
};

namespace {

// A cotangent lies on the ranks that its root lies on, in any way; one number is the same on all of them.
Tensor on_ranks_of(const Tensor& root, Tensor grad) {
  if (!root.is_distributed() || grad.is_distributed()) {
    const auto ranks = [](const Tensor& t) { return t.is_distributed() ? t.layout()->replicated() : nullptr; };
    check(ranks(grad) == ranks(root), "the cotangent {} lies on other ranks than the root {}", grad, root);
    return grad;
  }
  check(grad.numel() == 1,
        "the cotangent {} is a plain tensor, the root {} is not: distribute() it, or say with from_local() how it lies",
        grad, root);
  return Tensor::distributed(root.shape(), root.layout()->replicated(), std::move(grad));
}

}  // namespace

Tensor sum_of_gradients(Tensor a, Tensor b, const Distributed* layout) {
  Tensor in[] = {std::move(a), std::move(b)};
  return std::move(call_op(op::add, in, {}, {.layout = layout})[0]);
}

void backward(const Tensor& root, const BackwardOptions& options) {
  check(root.defined() && root.requires_grad(),
        "backward: {} was not computed from anything that requires a gradient (is recording off, or was it detached?)",
        root);
  Tensor grad = options.grad;
  if (!grad.defined()) {
    check(root.numel() == 1, "backward from {} needs a cotangent: only a one-element root has a default", root);
    // A value that lies on ranks is one value: its cotangent is 1 once, on all of them, also where it is a sum of
    // parts.
    grad = full(root.shape(), 1.0, root.dtype(), root.device());
  }
  check(grad.shape() == root.shape() && grad.dtype() == root.dtype(), "the cotangent {} does not match the root {}",
        grad, root);
  grad = on_ranks_of(root, std::move(grad));
  BackwardPass pass(options);
  try {
    pass.run(root, std::move(grad));
  } catch (...) {
    pass.abandon(current_exception_text());
    throw;
  }
}

bool in_backward() { return tape_modes().backward != nullptr; }

std::uint64_t backward_pass() {
  const BackwardPass* const pass = tape_modes().backward;
  return pass ? pass->id() : 0;
}

std::int64_t leaves_of_backward() {
  const BackwardPass* const pass = tape_modes().backward;
  return pass ? pass->leaves() : 1;
}

void at_end_of_backward(std::function<void()> callback) {
  BackwardPass* pass = tape_modes().backward;
  check(pass != nullptr, "at_end_of_backward: no backward pass is running");
  pass->add_callback(std::move(callback));
}

void register_grad_hook(const Tensor& tensor, std::unique_ptr<TensorHook> hook) {
  check(tensor.requires_grad(), "a gradient hook needs a tensor that requires a gradient, got {}", tensor);
  check(
      tensor.grad_node()->kind == Node::Kind::op,
      "a gradient hook on a parameter: use its slot's on_grad_accumulated(), which runs once the gradient is complete");
  std::unique_ptr<TensorHook>* place = &static_cast<OpNode*>(tensor.grad_node())->hooks;
  while (*place) place = &(*place)->next;
  *place = std::move(hook);
}

namespace {
struct FunctionHook final : TensorHook {
  FunctionHook(int output, HookOptions how, GradHook f) : TensorHook(output, how), function(std::move(f)) {}
  Tensor run(const Tensor& grad) override { return function(grad); }
  GradHook function;
};
}  // namespace

void register_grad_hook(const Tensor& tensor, GradHook hook) {
  register_grad_hook(tensor, std::make_unique<FunctionHook>(tensor.output_index(), HookOptions(), std::move(hook)));
}

void register_capturable_grad_hook(const Tensor& tensor, GradHook hook) {
  const HookOptions how{.capturable = true};
  register_grad_hook(tensor, std::make_unique<FunctionHook>(tensor.output_index(), how, std::move(hook)));
}

VjpCall::VjpCall(OpNode& node, BackwardPass& pass) : attrs(node.attrs), node_(node), pass_(pass) {}

std::size_t VjpCall::num_inputs() const { return node_.next.size(); }
std::size_t VjpCall::num_outputs() const { return node_.output_metas.size(); }
const Tensor& VjpCall::out(std::size_t i) const { return pass_.recomputed().value(node_, i); }
const Shape& VjpCall::in_shape(std::size_t i) const { return node_.input_metas[i].shape; }
DType VjpCall::in_dtype(std::size_t i) const { return node_.input_metas[i].dtype; }
Device VjpCall::in_device(std::size_t i) const { return node_.input_metas[i].device; }
const TensorMeta& VjpCall::out_meta(std::size_t i) const { return node_.output_metas[i]; }
bool VjpCall::has_grad(std::size_t i) const { return i < node_.pending.size() && node_.pending[i].defined(); }
bool VjpCall::wants(std::size_t i) const { return static_cast<bool>(node_.next[i].node); }

const Tensor& VjpCall::in(std::size_t i) const {
  if (!is_recomputed(node_, i)) return node_.saved_inputs[i].unpack();
  return pass_.recomputed().value(maker_of(node_, i), output_of(node_, i));
}

Tensor VjpCall::grad(std::size_t i) const {
  if (has_grad(i)) return node_.pending[i];
  const TensorMeta& meta = node_.output_metas[i];
  if (!meta.layout) return zeros(meta.shape, meta.dtype, meta.device);
  const Distributed* layout = meta.layout->is_partial() ? meta.layout->replicated() : meta.layout;
  return Tensor::distributed(meta.shape, layout, zeros(layout->local_shape(meta.shape), meta.dtype, meta.device));
}

Tensor VjpCall::take_grad(std::size_t i) {
  if (!has_grad(i)) return grad(i);
  return std::move(node_.pending[i]);
}

Tensor VjpCall::take_in(std::size_t i) {
  if (!pass_.is_last_turn()) return in(i);
  if (is_recomputed(node_, i)) {
    taken_ |= 1u << i;
    return pass_.recomputed().take(maker_of(node_, i), output_of(node_, i));
  }
  Tensor result = in(i);
  const bool may_run_again = node_.segment != 0 && node_.op->needs.outputs != 0;  // for a result that this vjp reads
  if (!pass_.retains_graph() && !may_run_again) node_.saved_inputs[i] = SavedTensor();
  return result;
}

void VjpCall::give(std::size_t i, Tensor gradient) {
  if (!wants(i)) return;
  const TensorMeta& meta = node_.input_metas[i];
  check(gradient.shape() == meta.shape && gradient.dtype() == meta.dtype,
        "vjp of {}: gradient of input {} is {}, the input is {}{}", node_.op->name, i, gradient, name(meta.dtype),
        meta.shape);
  const Edge& edge = node_.next[i];
  if (edge.node.get()->kind == Node::Kind::leaf) {
    auto& leaf = *static_cast<Leaf*>(edge.node.get());
    if (leaf.slot)
      if (const auto to = pass_.destination(leaf, meta); takes(to.buffer, {&gradient, 1})) {
        copy_into(to.buffer, std::move(gradient), to.accumulate);
        return pass_.wrote(leaf);
      }
  }
  const BackwardPass::LeafPending of_leaf(pass_, edge);
  pass_.deliver(edge.node.get(), edge.index, std::move(gradient));
}

namespace {

bool is_ours_alone(const TensorImpl& t) {
  return t.use_count() == 1 && t.storage && t.storage->use_count() == 1 && !t.storage->owner &&
         !t.storage->is_borrowed() && t.contiguous;
}

// The sum of earlier gradients at `edge`, if `op` can add its result to it in place: one pass less, and no buffer.
Tensor* sum_to_extend(const Edge& edge, const Op& op) {
  if (!op.traits.accumulates || edge.node.get()->kind != Node::Kind::op) return nullptr;
  auto& pending = static_cast<OpNode*>(edge.node.get())->pending;
  const auto at = static_cast<std::size_t>(edge.index);
  if (pending.size() <= at || !pending[at].defined()) return nullptr;
  Tensor& sum = pending[at];
  const bool ours = is_distributed(sum) ? sum.impl()->use_count() == 1 && is_ours_alone(*sum.impl()->local)
                                        : is_ours_alone(*sum.impl());
  return ours ? &sum : nullptr;
}

}  // namespace

void VjpCall::give_call(std::size_t i, const Op& op, std::span<Tensor> in, AttrsView op_attrs) {
  const Edge& edge = node_.next[i];
  const Distributed* layout = node_.input_metas[i].layout;
  if (edge.node.get()->kind == Node::Kind::leaf) {
    auto& leaf = *static_cast<Leaf*>(edge.node.get());
    if (leaf.slot)
      if (const auto to = pass_.destination(leaf, node_.input_metas[i]); takes(to.buffer, in)) {
        call_op_into(op, in, op_attrs, to.buffer, to.accumulate, {.layout = layout});
        return pass_.wrote(leaf);
      }
  }
  Tensor* sum = nullptr;
  {
    const BackwardPass::LeafPending of_leaf(pass_, edge);
    sum = sum_to_extend(edge, op);
    const bool is_local = sum && !is_distributed(*sum) && std::ranges::none_of(in, is_distributed);
    if (is_local) return call_op_into(op, in, op_attrs, *sum, true);
  }
  // How a distributed result will lie only the dist layer knows: it adds it in place if it lies as the sum does.
  const Wanted wanted{.layout = layout, .sum = sum && is_distributed(*sum) ? sum : nullptr};
  Tensor gradient = std::move(call_op(op, in, op_attrs, wanted)[0]);
  if (sum && gradient.impl() == sum->impl()) return;
  for (Tensor& t : in) t = Tensor();  // one of them may have given its memory: the gradient is to be its only owner
  give(i, std::move(gradient));
}

void VjpCall::give_summed(std::size_t i, Tensor gradient) {
  if (!wants(i)) return;
  const Shape& shape = in_shape(i);
  if (gradient.shape() == shape) return give(i, std::move(gradient));
  const bool sums_rows = shape.size() < gradient.ndim() || shape[0] != gradient.size(0);
  if (sums_rows) give_rows(i, op::sum_to, SumToAttrs{shape}, std::move(gradient));
  else give(i, op::sum_to, SumToAttrs{shape}, std::move(gradient));
}

std::int64_t VjpCall::leaves() const { return pass_.has_turn_of_leaf() ? 1 : pass_.leaves(); }

Tensor VjpCall::rows_of_leaf(std::int64_t leaf, const Tensor& rows) const {
  const std::int64_t all = leaves();
  if (all == 1) return rows;
  check(rows.ndim() > 0 && rows.size(0) % all == 0, "{} does not divide into {} leaves of rows", rows, all);
  const std::int64_t own = rows.size(0) / all;
  return narrow(rows, 0, leaf * own, own);
}

void VjpCall::give_rows_call(std::size_t i, const Op& op, std::span<Tensor> in, AttrsView op_attrs) {
  const std::int64_t all = leaves();
  if (all == 1) return give_call(i, op, in, op_attrs);
  for (std::int64_t leaf = 0; leaf < all; ++leaf) {
    std::vector<Tensor> part;
    for (const Tensor& t : in) part.push_back(rows_of_leaf(leaf, t));
    give_of_leaf(leaf, i, op, part, op_attrs);
  }
}

void VjpCall::give_products(std::size_t i, Tensor a, Tensor b) {
  const std::int64_t all = leaves();
  Tensor in[] = {std::move(a), std::move(b)};
  if (!wants(i)) return;
  if (all == 1) return give_call(i, op::linear_weight_grad, in, {});
  if (!give_product_of_leaves(i, in)) give_rows_call(i, op::linear_weight_grad, in, {});
}

// The sum over all leaves in one call, if it may be had in the type that they are added in.
bool VjpCall::give_product_of_leaves(std::size_t i, std::span<Tensor> in) {
  Leaf* const leaf = pass_.takes_sum(node_.next[i]);
  if (!leaf || std::ranges::any_of(in, is_distributed)) return false;
  Slot& slot = *leaf->slot;
  const auto to = slot.sink().destination(slot);
  const DType sums = byte_size(in_dtype(i)) == 2 ? DType::f32 : in_dtype(i);
  if ((to.buffer.defined() ? to.buffer.dtype() : in_dtype(i)) != sums) return false;
  const LeafAttrs products{pass_.leaves()};
  if (to.buffer.defined()) {
    call_op_into(op::leaf_weight_grad, in, products, to.buffer, to.accumulate);
    pass_.wrote(*leaf);
  } else {
    leaf->received = true;
    slot.sink().accept(slot, std::move(call_op(op::leaf_weight_grad, in, products)[0]));
  }
  return true;
}

void VjpCall::give_of_leaf(std::int64_t leaf, std::size_t i, Tensor gradient) {
  const BackwardPass::LeafTurn turn(pass_, leaf);
  give(i, std::move(gradient));
}

void VjpCall::give_of_leaf(std::int64_t leaf, std::size_t i, const Op& op, std::span<Tensor> in, AttrsView op_attrs) {
  if (!wants(i)) return;
  const BackwardPass::LeafTurn turn(pass_, leaf);
  give_call(i, op, in, op_attrs);
}

}  // namespace sherd
