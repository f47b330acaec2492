#pragma once
// Factories of distributed tensors: each rank makes its own elements, and no rank ever holds the full tensor.
#include "dtensor/spec.h"
#include "runtime/op/core/tensor.h"

namespace sherd {

/// Error, in all factories: a Partial layout, or one that shards a dim the shape does not have.
Tensor full(const Shape& shape, double value, const Spec* spec, DType dtype = DType::f32,
            Device device = Device::cpu());
Tensor zeros(const Shape& shape, const Spec* spec, DType dtype = DType::f32, Device device = Device::cpu());
Tensor ones(const Shape& shape, const Spec* spec, DType dtype = DType::f32, Device device = Device::cpu());

struct RandomOptions {
  std::int64_t first = 0;  ///< index of the global tensor's element 0 in the sequence of the key
  DType dtype = DType::f32;
  Tensor step{};  ///< 0-d i64, or undefined
  Device device = Device::cpu();
};

/// The values of random_normal() and random_uniform() in runtime/op/rows/ops.h, bit for bit, in any layout on any
/// number of ranks. No communication.
Tensor random_normal(const Shape& shape, std::uint64_t key, double mean, double std, const Spec* spec,
                     const RandomOptions& options = {});
Tensor random_uniform(const Shape& shape, std::uint64_t key, double low, double high, const Spec* spec,
                      const RandomOptions& options = {});

}  // namespace sherd
