#pragma once
// Kernels that walk rows want their inputs dense. One that is not is copied into workspace first, by the row `copy`.
#include "runtime/cuda/device/context.h"

namespace sherd::cuda {

/// The elements of a tensor in row-major order: its own bytes if it is dense. The copy lives as long as this.
class Dense {
 public:
  Dense(const KernelCall& call, const Tensor& tensor);
  template <class T>
  const T* data() const {
    return tensor_.defined() ? tensor_.data<T>() : nullptr;
  }
  const void* raw() const { return tensor_.defined() ? tensor_.raw() : nullptr; }

 private:
  Tensor tensor_;  // undefined for an input that was left out
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
