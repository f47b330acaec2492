#pragma once
// A graph as its plan runs it: tensors and ops in order, computed in f32, inner tensors rounded to their types.
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/emulated_cudnn/descriptor.h"

namespace sherd::cuda::emulated {

using Dims = std::array<std::int64_t, 4>;

struct GraphTensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Dims dims{1, 1, 1, 1}, strides{1, 1, 1, 1};
  bool inner = false, scalar = false;
};

struct GraphOp {
  cudnnBackendDescriptorType_t kind;
  int mode = 0;
  std::int64_t axis = 0;
  std::array<std::int64_t, 4> operands{};  // ids of x, b, t, y; 0: none
};

class Program {
 public:
  /// Reads a finalized graph. Returns why there is no such program; "" if there is.
  std::string read(const Descriptor& graph);
  /// Pointers of device memory by id that are not scalars.
  std::vector<const void*> device_pointers(const std::map<std::int64_t, void*>& arguments) const;
  /// Copies the scalars. The result runs where device memory is accessible.
  std::function<void()> bind(const std::map<std::int64_t, void*>& arguments) const;
  /// Ids that an execution must name.
  std::vector<std::int64_t> ids() const;

 private:
  std::map<std::int64_t, GraphTensor> tensors_;
  std::vector<GraphOp> ops_;
};

}  // namespace sherd::cuda::emulated
