#pragma once
// What is known of a tensor without its bytes: rows infer their results from this.
#include <cstdint>

#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace sherd {

class Distributed;

/// Global metadata of a tensor; for view rows also where the alias starts and how it steps.
struct TensorMeta {
  Shape shape;
  DType dtype = DType::f32;
  Strides strides{};                    ///< of views; of a fresh output if its dims lie in another order in memory
  std::int64_t offset = 0;              ///< views only: elements from the start of the storage
  Device device{};                      ///< on the tape only: where the tensor was
  const Distributed* layout = nullptr;  ///< on the tape only: how it was spread, if it was
};

}  // namespace sherd
