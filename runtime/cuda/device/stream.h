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
// what the word waits for was put on the device before the wait, which the order of the program gives.
#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda_runtime_api.h>

#include "runtime/exec/backend.h"

namespace sherd::cuda {

class Context;

class Stream final : public DeviceStream {
 public:
  /// Over a stream of the context's, which stays its own.
  Stream(Context& context, cudaStream_t stream) : context_(context), stream_(stream), is_own_(false) {}
  /// Over a stream of its own, whose work goes first where it competes with compute: it is little, and awaited.
  explicit Stream(Context& context);
  ~Stream() override;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

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
};

/// Pinned memory, freed with its last handle.
std::shared_ptr<std::byte> allocate_pinned(std::int64_t bytes);

}  // namespace sherd::cuda
