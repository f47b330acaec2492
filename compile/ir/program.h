#pragma once
// A captured step as data: op calls in execution order over values. A value is a storage, not a tensor; every use of
// it carries the recipe (dtype, shape, strides, offset) of the tensor that was seen there, so views are not nodes.
//
//   values   $0 argument    @w slot    @w.grad its gradient    &0 storage of a unit    #0 constant    %0 temporary
//   nodes    %2 f32[8,64] = matmul($0, @w)
//   end      return %7      @step = %9      @w.grad = %5
//
// A program holds no object of the rank that recorded it: slots, units, modules, layouts and settings are names, which
// stand in tables. What they mean on a rank is Live (graph.h). print.h writes it as text, parse.h reads it.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/op/core/op.h"
#include "runtime/tensor/small_vec.h"

namespace sherd::ir {

using ValueId = std::int32_t;
inline constexpr ValueId kNoValue = -1;
using ModuleId = std::int32_t;  ///< index into Program::modules
inline constexpr ModuleId kNoModule = -1;
using LayoutId = std::int32_t;  ///< index into Program::layouts
inline constexpr LayoutId kPlain = -1;

enum class ValueKind : std::uint8_t {
  argument,   ///< bytes of an argument, from its first element on
  slot,       ///< storage of a slot's tensor, looked up in the slot at every replay
  gradient,   ///< storage of a slot's gradient that was there before the step, looked up likewise
  unit,       ///< storage with an owner that releases and restores its data (gathered parameters)
  constant,   ///< storage of any other tensor from outside, whose contents stay
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
  TensorRef home;   ///< its first ref; refs equal to it print as the name
  int source = -1;  ///< argument, unit, constant: its index in that table; slot, gradient: index of its first binding
  bool is_absent = false;  ///< unit: its data was not there before the step
  /// The temporary in whose bytes it was recorded, if ssa() made it a value of its own; place_eager() puts it back.
  ValueId place = kNoValue;
  friend bool operator==(const Value&, const Value&) = default;
};

struct GraphNode {
  const Op* op = nullptr;
  Attrs attrs;
  SmallVec<TensorRef, 3> in;
  SmallVec<TensorRef, 1> out;   ///< a value seen before: written in place; else this node makes it
  bool accumulate = false;      ///< the outputs are added to
  int num_mutated = 0;          ///< how many of the first inputs the kernel writes in place
  ModuleId module = kNoModule;  ///< whose forward, or whose forward's backward, it is part of
  StepPhase phase = StepPhase::forward;
  std::vector<ValueId> restores, releases;  ///< unit values whose data this (effect) node restores or releases
  std::vector<ValueId> frees;               ///< temporaries that nothing reads after this node
  /// What the node was recorded to find; empty: nobody has written it down.
  std::vector<std::int32_t> numbers;
  ValueId scratch = kNoValue;  ///< a temporary for what its kernel's scratch column asks for; none: the executor takes
                               ///< memory
  friend bool operator==(const GraphNode& a, const GraphNode& b);
};

/// A slot that the step reads, writes or leaves a gradient in.
struct GraphSlot {
  std::string name;                   ///< unique within the program: the second one called "w" is "w~2"
  bool requires_grad = false;         ///< before the step
  bool leaves_requires_grad = false;  ///< after it
  bool had_value = false;             ///< before the step
  bool had_grad = false;              ///< likewise
  bool drops_grad_first = false;      ///< the old gradient is unused and gone at the end: freed before the first node
  bool is_local = false;              ///< made and destroyed within the step: as good as a variable of it
  friend bool operator==(const GraphSlot&, const GraphSlot&) = default;
};

/// The guard on an argument or a slot's tensor: local metadata, and the global shape and layout, because equal local
/// tensors may belong to different global ones, on some ranks only.
struct TensorGuard {
  DType dtype = DType::f32;
  Shape shape;
  Strides strides;
  std::int64_t offset = 0;  ///< not compared for arguments
  LayoutId layout = kPlain;
  Shape global;  ///< of a plain tensor: its shape
  Device device{};
  friend bool operator==(const TensorGuard&, const TensorGuard&) = default;
};

struct ArgumentGuard {
  TensorGuard tensor;
  int shares = -1;         ///< an earlier argument whose storage it shares
  std::int64_t shift = 0;  ///< then: bytes from that argument's first element to this one's
  friend bool operator==(const ArgumentGuard&, const ArgumentGuard&) = default;
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
  /// The slot's kept_value(): before the step a unit had gathered it.
  bool kept = false;
  TensorRef ref() const { return {value, tensor.dtype, tensor.shape, tensor.strides, tensor.offset}; }
  friend bool operator==(const Binding&, const Binding&) = default;
};

/// A tensor the step returns: a recipe, and its global shape and layout when it is distributed.
struct GraphResult {
  TensorRef local;
  Shape shape;
  LayoutId layout = kPlain;
  friend bool operator==(const GraphResult&, const GraphResult&) = default;
};

/// At the end of the step a slot gets a tensor, or its gradient becomes one (or none).
struct SlotUpdate {
  int slot = 0;
  bool gradient = false;
  GraphResult result;
  friend bool operator==(const SlotUpdate&, const SlotUpdate&) = default;
};

/// A setting that the step has read, and its text in the recorded run.
struct GraphSetting {
  std::string name, text;
  friend bool operator==(const GraphSetting&, const GraphSetting&) = default;
};

/// What is known of a constant's contents: nothing until lower() looks at them.
struct ConstantContent {
  static constexpr std::int64_t kMostBytes = 256;  ///< that a program carries itself
  std::string bytes;                               ///< all of them, or empty
  std::uint64_t hash = 0;                          ///< of them; 0: not looked at
  friend bool operator==(const ConstantContent&, const ConstantContent&) = default;
};

struct Program {
  std::vector<Value> values;  ///< recorded: in order of first appearance
  std::vector<GraphNode> nodes;
  std::vector<ArgumentGuard> arguments;
  std::vector<GraphSlot> slots;
  std::vector<Binding> bindings;
  std::vector<GraphResult> results;
  std::vector<SlotUpdate> updates;
  bool grad_enabled = true;
  bool has_waits = false;  ///< waits for queues are nodes; else the first touch of bytes waits

  // Names, each once in its table.
  std::vector<std::string> modules;        ///< paths
  std::vector<std::string> layouts;        ///< "{0: dp} on mesh(dp=2,tp=2)"
  std::vector<GraphSetting> settings;      ///< texts of two may be equal
  std::vector<std::string> units;          ///< storages of units: "blocks.0 full"; empty: nobody has named it
  std::vector<ConstantContent> constants;  ///< what is known of them

  const Value& value(ValueId id) const { return values[static_cast<std::size_t>(id)]; }
  Value& value(ValueId id) { return values[static_cast<std::size_t>(id)]; }
  const GraphSlot& slot(int index) const { return slots[static_cast<std::size_t>(index)]; }
  GraphSlot& slot(int index) { return slots[static_cast<std::size_t>(index)]; }
  /// 64-bit hash of the text form that to_string() gives; see print.h.
  std::uint64_t hash() const;
  friend bool operator==(const Program&, const Program&) = default;
};

/// Fills `frees` of all nodes from last uses. Values the step returns are never freed. Linear in the refs.
void compute_lifetimes(Program& program);

}  // namespace sherd::ir
