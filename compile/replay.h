#pragma once
// Runs a graph node by node through the dispatcher's device layer: the same kernels on the same bytes in the same order
// as the recorded run, so the results are those of the program bit for bit.
#include <span>
#include <vector>

#include "compile/graph.h"

namespace sherd {

/// Keeps nothing between runs but its tables. Runs on the rank's own thread; blocks where the program's ops would.
class Interpreter {
 public:
  /// `graph` is verified, stays where it is and does not change.
  explicit Interpreter(const Graph& graph);

  /// Arguments and slots must fit the graph (guard.h). Temporaries are allocated when first written, in their account,
  /// and freed after their last use; slots get their tensors and gradients at the end. An error carries the node; it
  /// leaves no temporary behind and no slot with another tensor. What ops wrote in place by then stays written.
  std::vector<Tensor> run(std::span<const Tensor> arguments);

 private:
  class Running;
  void bind(std::span<const Tensor> arguments);
  void execute(const GraphNode& node, std::size_t index);
  Tensor tensor_of(const TensorRef& ref) const;
  Tensor result(const GraphResult& result) const;
  void update_slots() const;

  const Graph& graph_;
  std::vector<Ref<Storage>> storages_;  // by value, during a run
  std::vector<std::int64_t> bases_;     // by value: bytes before an argument's first element
  std::vector<Tensor> in_, out_;        // of the node that runs; kept for their capacity
};

}  // namespace sherd
