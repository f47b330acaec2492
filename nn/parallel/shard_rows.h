#pragma once
// The op rows of fully_shard: gather, release, gradient buffers, reduce. They are issued below autograd, never
// differentiated, and visible to capture, so that moving one in a graph moves memory and communication with it.
#include <span>

#include "runtime/op/tensor.h"

namespace sherd::nn {

/// The unit that the rows act on: one communication group of parameters.
class ShardUnit {
 public:
  virtual const char* unit_name() const = 0;
  /// Allocates the gathered buffer and submits the gather that fills it; does not wait.
  virtual void gather() = 0;
  /// Frees the gathered buffer, waits for a gather that fills it; handles stay.
  virtual void release() = 0;
  /// Submits the reduction of full gradients in `full` (bytes, laid out like the gathered buffer) into the shards
  /// `out`, by plan `plan`; waits only for earlier reductions.
  virtual void reduce(int plan, const Tensor& full, std::span<const Tensor> out) = 0;

 protected:
  ~ShardUnit() = default;
};

/// Adds the rows to the op table. A unit calls it before the first of the calls below.
void add_unit_rows();

/// `shards` and `gathered` are the unit's buffers as u8 tensors: the data flow that a graph sees.
void issue_gather(ShardUnit& unit, const Tensor& shards, const Tensor& gathered);
void issue_release(ShardUnit& unit, const Tensor& gathered);
/// A fresh u8 tensor of `bytes` in the gradients account of `device`, not initialised.
Tensor issue_gradient_buffer(std::int64_t bytes, Device device);
void issue_reduce(ShardUnit& unit, int plan, const Tensor& full, std::span<const Tensor> out);

}  // namespace sherd::nn
