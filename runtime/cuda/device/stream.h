#pragma once
// Streams of a device besides that of its kernels: what runtime/exec/device_queue.h is made over.
//
//   a stream waits for a stream   cudaStreamWaitEvent
//   a host thread for a stream    cudaEventSynchronize; only threads of host queues do, and who wants a number
//   a stream for the host         cuStreamWaitValue32 on a word of pinned memory, which the host queue's thread stores
//
// The last one is the driver's: the device looks at the word by itself, so no thread of the host waits or is called.
// (cudaLaunchHostFunc is no way: its functions may be run one after another by one thread of the driver, so one that
// blocked until another rank came could keep out the copy that this rank is waiting for.) It cannot deadlock as long as
// what the word waits for was put on the device before the wait, which the order of the program gives, and as long as
// no stream stands behind another in the device's own queues. Those are CUDA_DEVICE_MAX_CONNECTIONS for all streams of
// a process (8 if unset, which ranks that are threads soon fill): the backend asks for 32. And a kernel's first launch
// may load its code, which waits for the device: where the host's work waits for a later launch, as in tests that hold
// it back, CUDA_MODULE_LOADING=EAGER loads all code at the start.
#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda_runtime_api.h>

#include "runtime/exec/backend.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

class Context;

class Stream final : public DeviceStream, NoCopy {
 public:
  /// Over a stream of the context's, which stays its own.
  Stream(Context& context, cudaStream_t stream) : context_(context), stream_(stream), is_own_(false) {}
  /// Over a stream of its own, whose work goes first where it competes with compute: it is little, and awaited.
  explicit Stream(Context& context);
  ~Stream() override;

  std::shared_ptr<DeviceMark> mark() override;
  void wait(const DeviceMark& mark) override;
  void wait(const std::atomic<std::uint32_t>& word, std::uint32_t value) override;
  void to_host(void* to, const void* from, std::int64_t bytes) override;
  void to_device(void* to, const void* from, std::int64_t bytes) override;
  void synchronize() override;

  cudaStream_t handle() const { return stream_; }

 private:
  void enter() const;

  Context& context_;
  cudaStream_t stream_ = nullptr;
  const bool is_own_;
  void* wait_value_ = nullptr;  // the driver's function, once it was asked for
  std::shared_ptr<DeviceMark> last_mark_;
  std::uint64_t marked_ = 0, num_waits_ = 0;  // what had been put here by the last mark; waits for marks among it
};

}  // namespace sherd::cuda
