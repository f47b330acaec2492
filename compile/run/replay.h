#pragma once
// Runs a graph node by node through the dispatcher's device layer: the same kernels on the same bytes in the same order
// as the recorded run, so the results are those of the program bit for bit.
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compile/ir/graph.h"

namespace sherd {

/// Keeps no bytes between runs, only its tables. Runs on the rank's own thread; blocks where the program's ops would.
class Interpreter {
 public:
  /// The graph's program is verified; the graph outlives this object and neither moves nor changes. `predicted`: what
  /// it was to hold at most, which an OutOfMemory of a run says, here and to the ranks that wait for this one.
  explicit Interpreter(const ir::Graph& graph, std::string predicted = {});

  /// Arguments and slots must fit the graph (guard.h), and data of units that no node gathers must be there.
  /// Temporaries are allocated when first written, in their account, and freed after their last use; slots get their
  /// tensors and gradients at the end. An error carries the node; it leaves no temporary behind and no slot with
  /// another tensor. What ops wrote in place by then stays written; if that is some of what the optimizer writes and
  /// not all, its slots are marked torn. Error if a slot is torn already.
  std::vector<Tensor> run(std::span<const Tensor> arguments);
  /// Runs every node, then `finish` while the values of the step are still present; slots are left alone. `ran` is told
  /// of each node that has run, and what it frees is free.
  void run(std::span<const Tensor> arguments, const std::function<void()>& finish,
           const std::function<void(std::size_t node)>& ran = {});
  /// Error if a slot that the optimizer changes is torn.
  void check_whole() const;
  /// Within `finish`: a tensor that the step returns, or leaves in a slot.
  Tensor result(const ir::GraphResult& result) const;

 private:
  class Running;
  void find_changes();
  void await_changes() const;
  void tear_changed(std::string_view reason) const;
  void bind(std::span<const Tensor> arguments);
  void execute(std::size_t index);
  void present(const ir::TensorRef& ref, const Tensor& handle);
  void check_is_there(const ir::TensorRef& ref) const;
  void wait_for(const ir::GraphNode& node) const;
  Storage& room_for_scratch(ir::ValueId id);
  void let_go(std::size_t index);
  Tensor tensor_of(const ir::TensorRef& ref) const;
  void update_slots() const;

  const ir::Program& program_;
  const ir::Live& live_;
  const ir::Graph& graph_;
  const std::string predicted_;
  std::vector<Ref<Storage>> storages_;  // by value, during a run
  std::vector<std::int64_t> bases_;     // by value: bytes before an argument's first element
  struct Handles {
    std::vector<Tensor> in, out;
  };
  std::vector<Handles> handles_;  // by node: tensors without a storage, but for the node that runs
  std::size_t at_ = 0;            // the node that runs
  /// Nodes of the optimizer that write slots in place; what those slots are.
  std::size_t first_change_ = kNever, last_change_ = kNever;
  std::vector<int> changed_slots_;
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);
};

}  // namespace sherd
