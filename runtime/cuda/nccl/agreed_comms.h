#pragma once
// Communicators of a group, made at one point that all ranks come to: made at first use they would come into being in
// the order of each rank's program, which need not be the same.
#include <memory>
#include <span>
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/cuda/nccl/queue_comm.h"

namespace sherd::cuda::nccl {

/// One communicator of the ranks of `host` for each of `options`, in their order, on the thread's device. Rank 0 makes
/// the ids, and `host` carries them. Collective. Where ranks have different releases of NCCL, or a communicator cannot
/// be made, every rank throws Error that says where and why.
std::vector<std::shared_ptr<QueueComm>> make_comms(const NcclApi& api, ProcessGroup& host,
                                                   std::span<const QueueCommOptions> options);

}  // namespace sherd::cuda::nccl
