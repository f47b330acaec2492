#pragma once
// A captured step as data: op calls in execution order over values. A value is a storage, not a tensor; every use of
// it carries the recipe (dtype, shape, strides, offset) of the tensor that was seen there, so views are not nodes.
//
//   values   $0 argument    @w slot    @w.grad its gradient    &0 storage of a unit    #0 constant    %0 temporary
//   nodes    %2 f32[8,64] = matmul($0, @w)
//   end      return %7      @step = %9      @w.grad = %5
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/autograd/node.h"
#include "runtime/exec/context.h"
#include "runtime/op/capture_sink.h"
#include "runtime/op/op.h"
#include "runtime/op/tensor.h"
#include "runtime/tensor/small_vec.h"

namespace sherd {

using ValueId = std::int32_t;
inline constexpr ValueId kNoValue = -1;

enum class ValueKind : std::uint8_t {
  argument,   ///< bytes of an argument, from its first element on
  slot,       ///< storage of a slot's tensor, looked up in the slot at every replay
  gradient,   ///< storage of a slot's gradient that was there before the step, looked up likewise
  unit,       ///< storage with an owner that releases and restores its data (gathered parameters); held
  constant,   ///< storage of any other tensor from outside; held, so its contents stay
  temporary,  ///< made by the first node that writes it, freed after its last use
};

/// A tensor in the bytes of a value. `value` is kNoValue for an undefined input.
struct TensorRef {
  ValueId value = kNoValue;
  DType dtype = DType::f32;
  Shape shape;
  Strides strides;
  std::int64_t offset = 0;  ///< elements; for arguments from the argument's own first element

  bool defined() const { return value != kNoValue; }
  /// Bytes [first, last) of the value that it touches.
  std::pair<std::int64_t, std::int64_t> extent() const;
  friend bool operator==(const TensorRef&, const TensorRef&) = default;
};

struct Value {
  ValueKind kind = ValueKind::temporary;
  std::int64_t bytes = 0;
  MemoryCategory category = MemoryCategory::activations;  ///< the account it was last seen in
  Device device;
  TensorRef home;     ///< its first ref; refs equal to it print as the name
  int source = -1;    ///< argument: its index; slot, gradient: index of the first binding in Graph::bindings
  Ref<Storage> held;  ///< unit, constant
};

struct GraphNode {
  const Op* op = nullptr;
  Attrs attrs;
  SmallVec<TensorRef, 3> in;
  SmallVec<TensorRef, 1> out;  ///< a value seen before: written in place; else this node makes it
  bool accumulate = false;     ///< the outputs are added to
  int num_mutated = 0;         ///< how many of the first inputs the kernel writes in place
  const std::string* module_path = nullptr;
  StepPhase phase = StepPhase::forward;
  std::vector<ValueId> restores, releases;  ///< unit values whose data this (effect) node restores or releases
  std::vector<ValueId> frees;               ///< temporaries that nothing reads after this node
};

/// A slot that the step reads, writes or leaves a gradient in. The leaf outlives the slot and knows when it is gone; it
/// is empty for a slot that lived within the step only.
struct GraphSlot {
  NodeRef leaf;
  std::string name;                   ///< unique within the graph
  bool requires_grad = false;         ///< before the step
  bool leaves_requires_grad = false;  ///< after it
  bool had_value = false;             ///< before the step
  bool had_grad = false;              ///< likewise
  bool drops_grad_first = false;      ///< the old gradient is unused and gone at the end: freed before the first node
  Slot* get() const { return static_cast<Leaf*>(leaf.get())->slot; }
};

/// The guard on an argument or a slot's tensor: local metadata, and the global shape and layout, because equal local
/// tensors may belong to different global ones, on some ranks only.
struct TensorGuard {
  DType dtype = DType::f32;
  Shape shape;
  Strides strides;
  std::int64_t offset = 0;  ///< not compared for arguments
  const Distributed* layout = nullptr;
  Shape global;  ///< of a plain tensor: its shape
  Device device{};
};

struct ArgumentGuard {
  TensorGuard tensor;
  int shares = -1;         ///< an earlier argument whose storage it shares
  std::int64_t shift = 0;  ///< then: bytes from that argument's first element to this one's
};

/// A slot's tensor (or gradient) that is stored in `value`. Several slots may share one storage.
struct Binding {
  int slot = 0;
  bool gradient = false;
  ValueId value = kNoValue;
  TensorGuard tensor;
  /// A gradient that the step writes in place and that only its slot held: where others hold it, the program leaves it
  /// to them and makes a new one.
  bool held_by_slot_only = false;
};

/// A tensor the step returns: a recipe, and its global shape and layout when it is distributed.
struct GraphResult {
  TensorRef local;
  Shape shape;
  const Distributed* layout = nullptr;
};

/// At the end of the step a slot gets a tensor, or its gradient becomes one (or none).
struct SlotUpdate {
  int slot = 0;
  bool gradient = false;
  GraphResult result;
};

/// A setting and its text in the recorded run.
struct GraphSetting {
  std::shared_ptr<const StepSetting> setting;
  std::string text;
};

struct Graph {
  std::vector<Value> values;  ///< in order of first appearance
  std::vector<GraphNode> nodes;
  std::vector<ArgumentGuard> arguments;
  std::vector<GraphSlot> slots;
  std::vector<Binding> bindings;
  std::vector<GraphResult> results;
  std::vector<SlotUpdate> updates;
  std::vector<GraphSetting> settings;
  bool grad_enabled = true;

  const Value& value(ValueId id) const { return values[static_cast<std::size_t>(id)]; }
  Value& value(ValueId id) { return values[static_cast<std::size_t>(id)]; }
  const GraphSlot& slot(int index) const { return slots[static_cast<std::size_t>(index)]; }
  GraphSlot& slot(int index) { return slots[static_cast<std::size_t>(index)]; }
  /// 64-bit hash of the text form; see print.h.
  std::uint64_t hash() const;
};

/// Fills `frees` of all nodes from last uses. Values the step returns are never freed. Linear in the refs.
void compute_lifetimes(Graph& graph);

/// Recipe of a plain tensor in `value` whose bytes start `base_bytes` into the tensor's storage.
TensorRef reference(const Tensor& tensor, ValueId value, std::int64_t base_bytes = 0);

/// Whether this handle is the only one, and its bytes have no other user.
bool is_sole_owner(const Tensor& tensor);

}  // namespace sherd
