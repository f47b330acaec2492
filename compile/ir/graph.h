#pragma once
// A program and what its names stand for on this rank: what the recorder makes and an executor runs.
#include <memory>
#include <string>
#include <vector>

#include "compile/ir/program.h"
#include "runtime/autograd/node.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/core/tensor.h"

namespace sherd::ir {

/// By index, what the names in a program's tables stand for. Passes that leave the tables as they are leave this valid.
struct Live {
  /// Empty for a local slot. A leaf outlives its slot and knows when that is gone.
  std::vector<NodeRef> slots;
  std::vector<Ref<Storage>> units, constants;  ///< kept alive
  std::vector<LayoutRef> layouts;
  std::vector<const std::string*> modules;  ///< as the rank context has interned them
  std::vector<std::shared_ptr<const StepSetting>> settings;

  /// Null if the slot is gone.
  Slot* slot(int index) const { return static_cast<Leaf*>(slots[static_cast<std::size_t>(index)].get())->slot; }
  /// Null for a plain tensor.
  const Distributed* layout(LayoutId id) const {
    return id < 0 ? nullptr : layouts[static_cast<std::size_t>(id)].get();
  }
  const std::string* module(ModuleId id) const { return id < 0 ? nullptr : modules[static_cast<std::size_t>(id)]; }
  /// The storage of a unit value or a constant.
  const Ref<Storage>& storage(const Value& value) const {
    return (value.kind == ValueKind::unit ? units : constants)[static_cast<std::size_t>(value.source)];
  }
};

struct Graph {
  Program program;
  Live live;
};

/// Recipe of a plain tensor in `value` whose bytes start `base_bytes` into the tensor's storage.
TensorRef reference(const Tensor& tensor, ValueId value, std::int64_t base_bytes = 0);

/// Bytes from the start of a tensor's storage to its first element; of a distributed one, of the local tensor.
std::int64_t base_bytes(const Tensor& tensor);

/// Whether this handle is the only one, and its bytes have no other user.
bool is_sole_owner(const Tensor& tensor);

}  // namespace sherd::ir
