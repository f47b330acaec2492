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

 private:
  explicit Graph(Context& context);
  void account(std::int64_t sign);
  Context& context_;
  DeviceAllocator* memory_;  // of the graph's temporaries
  CategoryBytes kept_{};     // of them in the rank's account
  cudaGraphExec_t executable_ = nullptr;
  std::int64_t num_nodes_ = 0;
};

}  // namespace sherd::cuda
