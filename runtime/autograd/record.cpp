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

TensorMeta meta_of(const Tensor& t) {
  TensorMeta m;
  if (t.defined()) {
    m.shape = t.shape();
    m.dtype = t.dtype();
  }
  return m;
}

OpNode* make_node(const OpCall& call) {
  RankContext& context = RankContext::current();
  OpNode* node = Pool<OpNode>::make();
  node->op = &call.op;
  node->attrs = call.attrs;
  node->sequence = context.next_id();
  node->module_path = context.module_path;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Tensor& t = call.in[i];
    node->input_metas.push_back(meta_of(t));
    Edge& edge = node->next.emplace_back();
    if (t.defined() && t.requires_grad()) {
      edge.node = NodeRef(t.grad_node());
      edge.index = t.output_index();
    }
    node->saved_inputs.emplace_back();
    if (t.defined() && needed(call.op.needs.inputs, i)) node->saved_inputs.back() = SavedTensor(t);
  }
  return node;
}

}  // namespace

void release_node(Node* node) {
  // A node's destructor releases its neighbours, which come back here and are queued, not nested.
  static thread_local std::vector<Node*>* queue = nullptr;
  if (!node->drop()) return;
  if (queue) {
    queue->push_back(node);
    return;
  }
  std::vector<Node*> pending{node};
  queue = &pending;
  while (!pending.empty()) {
    Node* last = pending.back();
    pending.pop_back();
    destroy_one(last);
  }
  queue = nullptr;
}

void Tensor::set_grad_node(Node* node, int output_index) {
  node->retain();
  if (impl_->grad_node) release_node(impl_->grad_node);
  impl_->grad_node = node;
  impl_->output_index = output_index;
  impl_->flags |= TensorImpl::kRequiresGrad;
}

GradMode::GradMode(bool enabled) : outer_(RankContext::current().grad_enabled) {
  RankContext::current().grad_enabled = enabled;
}
GradMode::~GradMode() { RankContext::current().grad_enabled = outer_; }

Tensors autograd_layer(OpCall& call) {
  if (!call.op.vjp) {
    check(!call.op.no_gradient.empty(), "{} has no derivative; detach() the inputs or turn recording off",
          call.op.name);
    return call_below_autograd(call);  // an integer result or an effect: nothing flows back
  }
  NodeRef node(make_node(call));
  auto* op_node = static_cast<OpNode*>(node.get());
  Tensors out = call_below_autograd(call);
  for (std::size_t i = 0; i < out.size(); ++i) {
    op_node->output_metas.push_back(meta_of(out[i]));
    op_node->saved_outputs.emplace_back();
    // A handle of its own: the output's handle points back to this node.
    if (needed(call.op.needs.outputs, i)) op_node->saved_outputs.back() = SavedTensor(out[i].alias());
    if (is_floating(out[i].dtype())) out[i].set_grad_node(op_node, static_cast<int>(i));
  }
  return out;
}

}  // namespace sherd
