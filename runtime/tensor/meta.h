#pragma once
// What is known of a tensor without its bytes: rows infer their results from this.
#include <cstdint>

#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace sherd {

class Distributed;

/// A tensor without its bytes: of a distributed one the global shape. An input of infer, with all that is known of a
/// tensor; a result of infer, of which device and layout are others' to decide; and what the tape remembers, which
/// keeps no strides.
struct TensorMeta {
  Shape shape{};
  DType dtype = DType::f32;
  Device device{};
  bool absent = false;                  ///< an optional input that a call leaves out: nothing else of it counts
  Strides strides{};                    ///< none: dense. A result has some if it is a view, or lies in another order
  std::int64_t offset = 0;              ///< elements from the start of the storage; of a result: of a view
  const Distributed* layout = nullptr;  ///< how the tensor is sharded, if it is distributed

  bool defined() const { return !absent; }
  int ndim() const { return shape.size(); }
  std::int64_t size(int dim) const { return shape[normalize_dim(dim, ndim())]; }
  std::int64_t numel() const { return sherd::numel(shape); }
  std::int64_t bytes() const { return numel() * byte_size(dtype); }
  bool is_contiguous() const { return strides.empty() || sherd::is_contiguous(shape, strides); }
  /// Elements from one index of dim `d` to the next; steps(): of every dim. Those of a dense tensor if none are given.
  std::int64_t step(int d) const { return strides.empty() ? contiguous_strides(shape)[d] : strides[d]; }
  Strides steps() const { return strides.empty() ? contiguous_strides(shape) : strides; }
};

/// What stands for an input that a call leaves out.
extern const TensorMeta kAbsent;

}  // namespace sherd
