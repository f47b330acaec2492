// The autograd layer: runs the call below and, when an input wants gradients, puts one node on the tape. Saved are
// only the tensors the row's `needs` names. Also the ownership of nodes: long chains are freed without recursion.
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/pool.h"

namespace sherd {

namespace {

void destroy_one(Node* node) {
  if (node->kind == Node::Kind::op) Pool<OpNode>::destroy(static_cast<OpNode*>(node));
  else delete static_cast<Leaf*>(node);
}

bool needed(std::uint32_t mask, std::size_t i) { return i < 31 ? (mask >> i) & 1u : mask == Needs::kAll; }

template <std::size_t N>
void push_meta(SmallVec<TensorMeta, N>& metas, const Tensor& t) {
  if (t.defined()) metas.emplace_back(t.shape(), t.dtype(), t.device()).layout = t.layout();
  else metas.push_back(kAbsent);
}

// Whether the maker of `t` can compute it again: then backward asks it, and the bytes need not be kept.
bool is_recomputed(const Tensor& t) {
  if (!t.requires_grad() || t.output_index() != 0 || t.grad_node()->kind != Node::Kind::op) return false;
  return static_cast<const OpNode*>(t.grad_node())->op->recompute != nullptr;
}

OpNode* make_node(const OpCall& call) {
  RankContext& context = RankContext::current();
  OpNode* node = Pool<OpNode>::make();
  node->op = &call.op;
  node->attrs = call.attrs.keep();
  node->sequence = context.next_id();
  node->module_path = context.module_path;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Tensor& t = call.in[i];
    push_meta(node->input_metas, t);
    if (t.defined() && t.requires_grad()) node->next.emplace_back(NodeRef(t.grad_node()), t.output_index());
    else node->next.emplace_back();
    SavedTensor& saved = node->saved_inputs.emplace_back();
    if (!t.defined() || !needed(call.op.needs.inputs, i)) continue;
    if (i < 32 && is_recomputed(t)) node->recomputed_inputs |= 1u << i;
    else saved = SavedTensor(t);
  }
  return node;
}

// A node's destructor releases its neighbours, which come back here and are queued, not nested.
[[gnu::noinline]] void destroy_node(Node* node) {
  static thread_local constinit Node* dead __attribute__((tls_model("initial-exec"))) = nullptr;
  static thread_local constinit bool running __attribute__((tls_model("initial-exec"))) = false;
  node->next_dead = dead;
  dead = node;
  if (running) return;
  running = true;
  while (dead) destroy_one(std::exchange(dead, dead->next_dead));
  running = false;
}

}  // namespace

void release_node(Node* node) {
  if (node->drop()) destroy_node(node);
}

void Tensor::set_grad_node(NodeRef node, int output_index) {
  if (Node* before = std::exchange(impl_->grad_node, node.release())) release_node(before);
  impl_->output_index = output_index;
  impl_->flags |= TensorImpl::kRequiresGrad;
}

namespace {
Tensors record(OpCall& call) {
  NodeRef node = NodeRef::fresh(make_node(call));
  auto* op_node = static_cast<OpNode*>(node.get());
  Tensors out = call_below_autograd(call);
  for (std::size_t i = 0; i < out.size(); ++i) {
    push_meta(op_node->output_metas, out[i]);
    op_node->saved_outputs.emplace_back();
    // A handle of its own: the output's handle points back to this node.
    if (needed(call.op.needs.outputs, i)) op_node->saved_outputs.back() = SavedTensor(out[i].alias());
    if (!is_floating(out[i].dtype())) continue;
    const bool is_last = i + 1 == out.size();
    out[i].set_grad_node(is_last ? std::move(node) : node, static_cast<int>(i));
  }
  return out;
}
}  // namespace

Tensors autograd_layer(OpCall& call) {
  if (call.op.vjp) return record(call);
  check(!call.op.no_gradient.empty(), "{} has no derivative; detach() the inputs or turn recording off", call.op.name);
  return call_below_autograd(call);  // an integer result or an effect: nothing flows back
}

}  // namespace sherd
