// The autograd layer: runs the call below and, when an input wants gradients, puts one node on the tape. Saved are
// only the tensors the row's `needs` names, and fewer in a segment. Also the ownership of nodes: long chains are freed
// without recursion.
#include <algorithm>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/saved_policy.h"
#include "runtime/autograd/segment.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/pool.h"

namespace sherd {

namespace {

void destroy_one(Node* node) {
  if (node->kind == Node::Kind::op) Pool<OpNode>::destroy(static_cast<OpNode*>(node));
  else delete static_cast<Leaf*>(node);
}

template <std::size_t N>
void push_meta(OpNode& node, SmallVec<TensorMeta, N>& metas, const Tensor& t) {
  if (!t.defined()) return void(metas.push_back(kAbsent));
  const TensorMeta& of = t.impl()->meta;
  TensorMeta& kept = metas.emplace_back(of.shape, of.dtype, of.device);
  if (!of.layout) return;
  kept.layout = of.layout;
  hold_layout(of.layout);
  node.holds_layouts = true;
}

// ---- what the tape keeps ----

// Bytes that somebody wrote after their maker are none that it can make again.
bool is_written(const Tensor& t) {
  const Ref<Storage>& bytes = SavedTensor::bytes_of(t);
  return bytes && bytes->version() != 0;
}

// Whether `t` is cheap to compute again, see the column `recompute`: then backward asks its maker, and the bytes need
// not be kept. One in a segment is asked by that segment only: others would start it early.
bool is_cheap(const Tensor& t, std::uint64_t segment) {
  if (!t.requires_grad() || t.output_index() != 0 || t.grad_node()->kind != Node::Kind::op) return false;
  const auto& maker = *static_cast<const OpNode*>(t.grad_node());
  return maker.op->recompute && (maker.segment == 0 || maker.segment == segment) && !is_written(t);
}

// Whether `t` was made in this segment, so that backward can run it from the segment's inputs again.
bool is_made_in(std::uint64_t segment, const Tensor& t) {
  if (segment == 0 || !t.requires_grad() || t.grad_node()->kind != Node::Kind::op) return false;
  return static_cast<const OpNode*>(t.grad_node())->segment == segment && !is_written(t);
}

constexpr std::size_t kMostRecomputed = 32;  // inputs of a call: as many as the node's mask has bits

/// What the vjp reads.
struct SaveNeeds {
  static constexpr std::uint64_t segment = 0;
  void input(OpNode& node, SavedTensor& saved, const Tensor& t, std::size_t i) const {
    if (!node.op->needs.input(i)) return;
    if (i < kMostRecomputed && is_cheap(t, 0)) node.recomputed_inputs |= 1u << i;
    else saved = SavedTensor(t);
  }
  // A handle of its own: the output's handle points back to its node.
  void output(const OpNode& node, SavedTensor& saved, const Tensor& t, std::size_t i) const {
    if (node.op->needs.output(i)) saved = SavedTensor(t.alias());
  }
};

/// In a segment, or by a policy.
struct SaveByPolicy {
  SavedPolicy* policy;
  std::uint64_t segment;
  Saves saves;

  SavedTensor save(const Tensor& t) const {
    const Ref<Storage>& bytes = SavedTensor::bytes_of(t);
    if (policy && bytes && !bytes->owner)
      if (auto packed = policy->pack(t)) return SavedTensor(std::move(packed));
    return SavedTensor(t);
  }
  // A call that may run again needs all of its inputs; those that its vjp does not read as well.
  void input(OpNode& node, SavedTensor& saved, const Tensor& t, std::size_t i) const {
    const bool is_read = node.op->needs.input(i), may_run_again = segment != 0 && saves != Saves::results;
    if (!is_read && !may_run_again) return;
    const bool is_expensive_too = !is_read || saves == Saves::nothing;
    const bool is_made_again = is_cheap(t, segment) || (is_expensive_too && is_made_in(segment, t));
    if (is_made_again && i < kMostRecomputed) node.recomputed_inputs |= 1u << i;
    else saved = save(t);
  }
  void output(const OpNode& node, SavedTensor& saved, const Tensor& t, std::size_t i) const {
    const bool is_kept = saves == Saves::results ? is_floating(t.dtype()) || node.op->needs.output(i)
                                                 : saves == Saves::needs && node.op->needs.output(i);
    if (is_kept) saved = save(t.alias());
  }
};

SaveByPolicy saving_of(const OpCall& call, const TapeModes& modes) {
  if (modes.segment == 0) return {modes.saved_policy, 0, Saves::needs};
  if (call.op.traits.collective)
    fail(
        "{} in a recomputed segment: backward would run it again, at a time of its own; leave the module that "
        "communicates out of recomputation, or use distributed tensors",
        call.op.name);
  return {modes.saved_policy, modes.segment, modes.segment_policy->saves(call.op)};
}

// ---- nodes ----

template <class How>
NodeRef make_node(const OpCall& call, RankContext& context, const How& how) {
  NodeRef made = NodeRef::fresh(Pool<OpNode>::make());
  auto* const node = static_cast<OpNode*>(made.get());
  node->op = &call.op;
  node->attrs = call.attrs.keep();
  node->sequence = context.next_id();
  node->module_path = context.module_path;
  node->segment = how.segment;
  for (const std::size_t i : indices(call.in)) {
    const Tensor& t = call.in[i];
    push_meta(*node, node->input_metas, t);
    if (t.defined() && t.requires_grad()) {
      node->next.emplace_back(NodeRef(t.grad_node()), t.output_index());
      node->sequence = std::max(node->sequence, t.grad_node()->sequence + 1);  // which another thread may have made
    } else {
      node->next.emplace_back();
    }
    SavedTensor& saved = node->saved_inputs.emplace_back();
    if (t.defined()) how.input(*node, saved, t, i);
  }
  return made;
}

}  // namespace

// A node's destructor releases its neighbours, which come back here and are queued, not nested.
[[gnu::noinline]] void Node::destroy(Node* node) {
  static thread_local constinit Node* dead __attribute__((tls_model("initial-exec"))) = nullptr;
  static thread_local constinit bool running __attribute__((tls_model("initial-exec"))) = false;
  node->next_dead = dead;
  dead = node;
  if (running) return;
  running = true;
  while (dead) destroy_one(std::exchange(dead, dead->next_dead));
  running = false;
}

void release_node(Node* node) {
  if (node->drop()) Node::destroy(node);
}

void TensorHandle::set_grad_node(NodeRef node, int output_index) {
  if (!impl_) refuse_empty("set_grad_node()");
  if (!node) fail("set_grad_node() of {}: there is no node", meta());
  if (Node* before = std::exchange(impl_->grad_node, node.release())) release_node(before);
  impl_->output_index = output_index;
  impl_->flags |= TensorImpl::kRequiresGrad;
}

namespace {

template <class How>
Tensors record_as(OpCall& call, RankContext& context, const How& how) {
  NodeRef node = make_node(call, context, how);  // before the call: what is saved is not donated to it
  auto* op_node = static_cast<OpNode*>(node.get());
  Tensors out = call_below_autograd(call);
  for (const std::size_t i : indices(out)) {
    push_meta(*op_node, op_node->output_metas, out[i]);
    how.output(*op_node, op_node->saved_outputs.emplace_back(), out[i], i);
    if (!is_floating(out[i].dtype())) continue;
    const bool is_last = i + 1 == out.size();
    out[i].set_grad_node(is_last ? std::move(node) : node, static_cast<int>(i));
  }
  return out;
}

Tensors record(OpCall& call) {
  RankContext& context = RankContext::current();
  if (const auto& modes = context.state<TapeModes>(); modes.saved_policy || modes.segment) [[unlikely]]
    return record_as(call, context, saving_of(call, modes));
  return record_as(call, context, SaveNeeds());
}

}  // namespace

Tensors autograd_layer(OpCall& call) {
  if (call.op.vjp) return record(call);
  check(!call.op.no_gradient.empty(), "{} has no derivative; detach() the inputs or turn recording off", call.op.name);
  return call_below_autograd(call);  // an integer result or an effect: nothing flows back
}

}  // namespace sherd
