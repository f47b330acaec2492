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

/// Calls fn(Type<T>{}) with the C++ type of a floating dtype.
template <class Fn>
void visit_float(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::f64: return fn(Type<double>{});
    case DType::f32: return fn(Type<float>{});
    case DType::bf16: return fn(Type<bf16>{});
    case DType::f16: return fn(Type<f16>{});
    default: fail("needs a floating dtype, got {}", name(dtype));
  }
}

}  // namespace sherd::cuda
