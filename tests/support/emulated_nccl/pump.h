#pragma once
// A thread that lets items of streams run, where the ranks they wait for are other processes: a device works on while
// its host waits for something else, and these streams run only when somebody asks.
#include <memory>

#include "tests/support/emulated_gpu/gpu.h"

namespace sherd::cuda::nccl::fake {

/// Goes on until the item has run. The caller holds the lock.
void pump(emulated::Gpu& gpu, std::shared_ptr<emulated::Op> item);

}  // namespace sherd::cuda::nccl::fake
