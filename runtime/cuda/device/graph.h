#pragma once
// Work of a stream recorded once and started again in one call.
#include <functional>
#include <memory>

#include <cuda_runtime_api.h>

#include "runtime/exec/backend.h"
#include "runtime/memory/accounting.h"

namespace sherd {
class DeviceAllocator;
}

namespace sherd::cuda {

class Context;

/// Memory of the temporaries of all graphs of a context. They are dead between two launches on one stream, so graphs
/// share it; what a step hands out is copied. Segments stay until the last graph has gone.
class GraphMemory {
 public:
  GraphMemory(int device, cudaStream_t stream, std::shared_ptr<std::uint64_t> num_fills);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  DeviceAllocator& pool() { return *pool_; }
  /// Graphs that use it come or go.
  void add(int graphs);
  /// Brings the rank's account up to what recordings keep.
  void account(Accounting& rank);
  /// What the rank's limit leaves.
  void set_limit(const Allocator& rank, const Accounting& accounting);

 private:
  DeviceAllocator* pool_;
  int graphs_ = 0;
  CategoryBytes kept_{};  // in the rank's account
};

class Graph final : public DeviceGraph {
 public:
  /// Records what `work` queues on the context's stream. Throws what `work` throws, or Error if CUDA refuses; then
  /// nothing was recorded and the context is as before.
  static std::unique_ptr<DeviceGraph> record(Context& context, const std::function<void()>& work);
  ~Graph() override;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() override;
  std::int64_t num_nodes() const override { return num_nodes_; }
  std::int64_t reserved_bytes() const override;
  /// The context ends before the graph.
  void let_go();

 private:
  explicit Graph(Context& context);
  Context* context_;
  cudaGraphExec_t executable_ = nullptr;
  std::int64_t num_nodes_ = 0;
};

}  // namespace sherd::cuda
