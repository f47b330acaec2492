#pragma once
// NCCL as a bare group (comm/group/bare_group.h): a communicator per group and queue, and what is composed over them.
#include <memory>

#include "runtime/comm/group/device_group.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/cuda/nccl/nccl_api.h"

namespace sherd::cuda::nccl {

/// As make_device_group(), on a rank that has NCCL.
///
/// Each collective of device memory is also a meeting of the host's group, on the host queue of the same name: there
/// ranks compare what they call, and who has died, is frozen or does not come is found and named.
std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<ProcessGroup> host, NcclGroupOptions options);
/// The same by an NCCL that is opened already; `api` outlives the group.
std::shared_ptr<ProcessGroup> make_nccl_group(const NcclApi& api, std::shared_ptr<ProcessGroup> host,
                                              NcclGroupOptions options);

/// The table that the backend gives to device_group.h.
const comm::DeviceGroups& device_groups();

}  // namespace sherd::cuda::nccl
