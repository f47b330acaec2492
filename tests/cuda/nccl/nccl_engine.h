#pragma once
// Groups over the emulated NCCL, for bodies that run on any group: every rank is a thread with a device of its own.
#include "runtime/comm/group/device_group.h"
#include "runtime/cuda/nccl/nccl_api.h"
#include "tests/comm/conformance/engines.h"

namespace sherd::cuda::nccl {

/// Options that end soon where a rank does not come.
NcclGroupOptions quick_options();

/// The group of this rank over `host`, which is one of threads.
std::shared_ptr<ProcessGroup> group_over(const std::shared_ptr<ProcessGroup>& host, NcclGroupOptions options = quick_options());

sherd::testing::Engine nccl_engine(const NcclGroupOptions& options = quick_options());

}  // namespace sherd::cuda::nccl
