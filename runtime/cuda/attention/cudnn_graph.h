#pragma once
// cuDNN graphs as data: tensors and ops on them are listed, and a plan is built of the list.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/attention/cudnn_api.h"

namespace sherd::cuda {

using CudnnDims = std::array<std::int64_t, 4>;

/// A tensor of a graph: memory that the caller names by `id` when the plan runs, one f32 of the host that is named the
/// same way, or a value between two ops that may never be in memory.
struct CudnnTensor {
  enum class Kind : std::uint8_t { memory, scalar, inner };
  Kind kind = Kind::inner;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  CudnnDims dims{1, 1, 1, 1}, strides{1, 1, 1, 1};  // in elements
  std::int64_t id = 0;
};

struct CudnnOp {
  enum class Kind : std::uint8_t { matmul, pointwise, reduction, reshape };
  Kind kind;
  int mode;        // of pointwise and reduction
  int x, b, t, y;  // tensors by index; -1: none. matmul: x b -> y; select: x where t, else b
  std::int64_t axis;
};

class CudnnGraph {
 public:
  int memory(std::int64_t id, cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides);
  int scalar(std::int64_t id);
  int inner(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides);
  /// A dense inner tensor.
  int inner(cudnnDataType_t type, const CudnnDims& dims);

  void matmul(int a, int b, int y) { add(CudnnOp::Kind::matmul, 0, a, b, y); }
  void pointwise(cudnnPointwiseMode_t mode, int x, int b, int y) { add(CudnnOp::Kind::pointwise, mode, x, b, y); }
  void pointwise(cudnnPointwiseMode_t mode, int x, int y) { add(CudnnOp::Kind::pointwise, mode, x, -1, y); }
  void index_along(std::int64_t axis, int like, int y);
  /// y = x where `condition`, else `other`.
  void select(int condition, int x, int other, int y);
  void reduce(cudnnReduceTensorOp_t op, int x, int y) { add(CudnnOp::Kind::reduction, op, x, -1, y); }
  void reshape(int x, int y) { add(CudnnOp::Kind::reshape, 0, x, -1, y); }

  const std::vector<CudnnTensor>& tensors() const { return tensors_; }
  const std::vector<CudnnOp>& ops() const { return ops_; }

 private:
  void add(CudnnOp::Kind kind, int mode, int x, int b, int y);
  int add(const CudnnTensor& tensor);
  std::vector<CudnnTensor> tensors_;
  std::vector<CudnnOp> ops_;
};

/// Owns a descriptor.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;
  cudnnBackendDescriptor_t get() const { return descriptor_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count, const void* values);
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void finalize(const char* what);

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// What a plan is built for: the device of a handle, or one that is described by cuDNN's JSON of device properties.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  std::string device_properties;
};

struct CudnnArgument {
  std::int64_t id;
  const void* pointer;  // device memory, or a float of the host for a scalar
};

/// A graph compiled for a device.
class CudnnPlan {
 public:
  /// Takes the first engine, in the order of cuDNN's heuristics, that compiles the graph; some hundred milliseconds.
  /// Throws CudnnUnsupported, with cuDNN's reason, if there is none.
  CudnnPlan(const CudnnGraph& graph, const CudnnTarget& target, const char* what);
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Queues it on the handle's stream. Scalars are read before it returns.
  void run(cudnnHandle_t handle, std::span<const CudnnArgument> arguments, void* workspace) const;

 private:
  std::vector<CudnnDescriptor> kept_;  // what the plan refers to
  CudnnDescriptor plan_;
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace sherd::cuda
