#include "runtime/cuda/group/kernels.h"

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/stream.h"
#include "runtime/exec/device_queue.h"

namespace sherd::cuda {

namespace {

cudaStream_t stream_of(Queue& queue) {
  auto& on = static_cast<DeviceQueue&>(queue);
  auto& context = static_cast<Context&>(on.context());
  (void)context.stream();  // makes the device the thread's
  context.log().in_row(nullptr);
  return static_cast<Stream&>(on.stream()).handle();
}

constexpr comm::GroupKernels kOnDevice{
    .move_list = [](std::span<const comm::ListMove> list, Queue& queue) { move_list(list, stream_of(queue)); },
    .sum_list = [](std::span<const comm::ListSum> list, Queue& queue) { sum_list(list, stream_of(queue)); }};

}  // namespace

const comm::GroupKernels& group_kernels() { return kOnDevice; }

}  // namespace sherd::cuda
