#pragma once
// Making distributed tensors and getting them back.
#include <string>

#include "dtensor/spec.h"
#include "runtime/tensor/tensor.h"

namespace sherd {

struct DistributeOptions {
  int source =
      0;  ///< rank along the axis whose data counts; kOwnData: every rank slices its own copy, no communication
  static constexpr int kOwnData = -1;
};

/// Spreads a plain tensor (equal shape and dtype on all ranks) over a mesh. Broadcasts from the source rank unless told
/// otherwise; each rank keeps a dense copy of its part. Negative shard dims count from the end. Partial is refused.
Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, Placement placement,
                  const DistributeOptions& options = {});

/// The whole tensor on every rank: all-gather of shards, all-reduce of partial values, the local part of a replicated
/// one.
Tensor full_tensor(const Tensor& tensor);

}  // namespace sherd
