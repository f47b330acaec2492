#pragma once
// Work of a stream recorded once and started again in one call.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/exec/backend.h"
#include "runtime/memory/allocator.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {
class DeviceAllocator;
}

namespace sherd::cuda {

class Context;

/// Memory of the temporaries of all graphs of a context. They are dead between two launches on one stream, so graphs
/// share it; what a step hands out is copied. Segments stay until the last graph has gone.
class GraphMemory : NoCopy {
 public:
  GraphMemory(int device, cudaStream_t stream, std::shared_ptr<std::uint64_t> num_fills);
  ~GraphMemory();
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

class Graph;

/// All graphs of a context.
class Graphs final : public GivesBack, NoCopy {
 public:
  /// `num_fills` counts what their memory puts on the stream.
  Graphs(Context& context, std::shared_ptr<std::uint64_t> num_fills)
      : context_(context), num_fills_(std::move(num_fills)) {}
  /// Records what `work` queues on the context's stream. Throws what `work` throws, or Error if CUDA refuses; then
  /// nothing was recorded and the context is as before.
  std::unique_ptr<DeviceGraph> record(const std::function<void()>& work);
  /// The memory of what is being recorded; null while nothing is.
  DeviceAllocator* recording() const { return recording_; }
  /// Their memory is the rank's last: what is recorded once can be recorded again. Not in a recording.
  bool give_back() noexcept override;
  /// The context ends before those that live.
  void end();

 private:
  friend class Graph;
  Context& context_;
  const std::shared_ptr<std::uint64_t> num_fills_;
  cudaStream_t stream_ = nullptr;
  DeviceAllocator* recording_ = nullptr;
  std::unique_ptr<GraphMemory> memory_;
  std::vector<Graph*> list_;  // those that live
};

class Graph final : public DeviceGraph, NoCopy {
 public:
  explicit Graph(Graphs& of);
  ~Graph() override;
  void launch() override;
  bool is_there() const override { return of_ != nullptr; }
  std::int64_t num_nodes() const override { return num_nodes_; }
  std::int64_t reserved_bytes() const override;

 private:
  friend class Graphs;
  void let_go();
  Graphs* of_;  // null: the context has ended
  cudaGraphExec_t executable_ = nullptr;
  std::int64_t num_nodes_ = 0;
};

}  // namespace sherd::cuda
