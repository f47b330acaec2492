#pragma once
// The tape. A node is one recorded op call; its edges lead to the makers of its inputs. Leaves stand for slots.
// Sequence numbers grow with creation, and from a node to what is made of its outputs on any thread, so that
// "descending sequence" is a valid backward order; on one thread it is a unique one.
#include <functional>
#include <memory>
#include <vector>

#include "runtime/autograd/saved_tensor.h"
#include "runtime/op/core/op.h"

namespace sherd {

class Slot;

class Node : public RefCounted {
 public:
  enum class Kind : std::uint8_t { op, leaf };
  explicit Node(Kind k) : kind(k) {}
  /// And what it alone holds.
  static void destroy(Node* node);
  const Kind kind;
  std::uint64_t sequence = 0;
  std::uint64_t visited = 0;  // id of the backward pass that saw it last
  Node* next_dead = nullptr;  // chain of nodes about to be destroyed
};

using NodeRef = Ref<Node>;

/// Where the gradient of an input goes.
struct Edge {
  NodeRef node;  // empty: the input needs no gradient
  int index = 0;
};

using GradHook = std::function<Tensor(const Tensor& grad)>;

/// A captured step does not run hooks when it replays. `capturable` says that everything a hook does goes through ops
/// and slots, which are replayed; any other hook is an Error while a step is being captured.
struct HookOptions {
  bool capturable = false;
};
/// A hook on output `index` of a node, and those that were registered after it. One allocation each: fully_shard has
/// one on every output of every call.
struct TensorHook {
  TensorHook(int output, HookOptions how) : index(output), options(how) {}
  virtual ~TensorHook() = default;
  /// May return another gradient of the same shape and dtype; undefined: it stays.
  virtual Tensor run(const Tensor& grad) = 0;
  const int index;
  const HookOptions options;
  std::unique_ptr<TensorHook> next;
};
/// register_grad_hook() of autograd.h with an object of the caller's, whose index is the tensor's output index.
void register_grad_hook(const Tensor& tensor, std::unique_ptr<TensorHook> hook);

class OpNode final : public Node {
 public:
  OpNode() : Node(Kind::op) {}
  ~OpNode() {
    if (holds_layouts) drop_layouts();
  }
  const Op* op = nullptr;
  Attrs attrs;
  SmallVec<Edge, 3> next;                 // per input
  SmallVec<SavedTensor, 3> saved_inputs;  // per input; undefined where nobody reads it or its maker recomputes it
  SmallVec<SavedTensor, 1> saved_outputs;
  SmallVec<TensorMeta, 3> input_metas;
  SmallVec<TensorMeta, 1> output_metas;
  const std::string* module_path = nullptr;
  std::unique_ptr<TensorHook> hooks;    // in the order of registration
  SmallVec<Tensor, 1> pending;          // gradients of the outputs, during a pass
  std::uint64_t segment = 0;            // of the calls that it may run again with; 0: of none
  std::uint32_t recomputed_inputs = 0;  // bit mask: their makers compute them again
  bool queued = false, freed = false;
  bool holds_layouts = false;  // of its metas

 private:
  [[gnu::noinline]] void drop_layouts() {
    for (const TensorMeta& meta : input_metas) drop_layout(meta.layout);
    for (const TensorMeta& meta : output_metas) drop_layout(meta.layout);
  }
};

/// The permanent end of the tape at a slot.
class Leaf final : public Node {
 public:
  explicit Leaf(Slot* owner) : Node(Kind::leaf), slot(owner) {}
  Slot* slot;        // null once the slot is gone
  int expected = 0;  // uses not yet delivered in this pass
  bool received = false;
};

/// Two gradients of one value, added up; where they may lie in several ways, as the value does (`layout`, or null).
Tensor sum_of_gradients(Tensor a, Tensor b, const Distributed* layout);

}  // namespace sherd
