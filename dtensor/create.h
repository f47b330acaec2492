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

/// The values of random_normal() and random_uniform() in runtime/op/rows/ops.h, with arguments as there, bit for bit,
/// in any layout on any number of ranks: `first` is the index of the global tensor's element 0 in the sequence of the
/// key. No communication.
Tensor random_normal(const Shape& shape, std::uint64_t key, double mean, double std, const Spec* spec,
                     std::int64_t first = 0, DType dtype = DType::f32, Tensor step = {}, Device device = Device::cpu());
Tensor random_uniform(const Shape& shape, std::uint64_t key, double low, double high, const Spec* spec,
                      std::int64_t first = 0, DType dtype = DType::f32, Tensor step = {},
                      Device device = Device::cpu());

}  // namespace sherd
