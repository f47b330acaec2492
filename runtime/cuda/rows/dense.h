#pragma once
// Kernels that walk rows or elements in order want their inputs dense. One that is not is copied into workspace first.
#include "runtime/cuda/device/context.h"

namespace sherd::cuda {

/// The elements of a tensor in row-major order: its own bytes if it is dense, else a copy that lives as long as this;
/// null for an input that was left out. The copy is queued on the context's stream.
class Dense {
 public:
  Dense(Context& context, const Tensor& tensor);
  template <class T>
  const T* data() const {
    return static_cast<const T*>(data_);
  }
  const void* raw() const { return data_; }

 private:
  Workspace copy_;
  const void* data_;
};

}  // namespace sherd::cuda
