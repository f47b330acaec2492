#include "runtime/cuda/device/stream.h"

#include <cuda.h>

#include "runtime/cuda/device/check.h"
#include "runtime/cuda/device/context.h"

namespace sherd::cuda {

namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

using WaitValue = CUresult (*)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);

// The library is not linked with the driver, so that it loads on hosts without one.
WaitValue find_wait_value() {
  constexpr unsigned kSince = 12000;  // the form that needs no device attribute
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, kSince, cudaEnableDefault, &found);
  check(status, "asking the driver for cuStreamWaitValue32");
  check(found == cudaDriverEntryPointSuccess && function != nullptr,
        "the driver has no cuStreamWaitValue32, by which a device waits for the host; update it");
  return reinterpret_cast<WaitValue>(function);
}

WaitValue wait_value() {
  static const WaitValue function = find_wait_value();
  return function;
}

class EventMark final : public DeviceMark {
 public:
  // A thread that waits for it sleeps: it is a host queue's, and the ranks need the cores.
  explicit EventMark(cudaStream_t stream) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync), "creating an event");
    const cudaError_t status = cudaEventRecord(event_, stream);
    if (status != cudaSuccess) (void)cudaEventDestroy(event_);
    check(status, "recording an event");
  }
  ~EventMark() override { (void)cudaEventDestroy(event_); }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  bool is_reached() override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaSuccess) return true;
    (void)cudaGetLastError();  // no error of anybody's, or of a lost device, which await() reports
    return status != cudaErrorNotReady;
  }
  void await() override { check(cudaEventSynchronize(event_), "waiting for a queue of the device"); }
  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

Stream::Stream(Context& context) : context_(context), is_own_(true) {
  enter();
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for the priorities of streams");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "creating a stream");
}

Stream::~Stream() {
  if (!is_own_) return;
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamDestroy(stream_);
}

void Stream::enter() const { (void)context_.stream(); }

std::shared_ptr<DeviceMark> Stream::mark() {
  enter();
  return std::make_shared<EventMark>(stream_);
}

void Stream::wait(const DeviceMark& mark) {
  enter();
  check(cudaStreamWaitEvent(stream_, static_cast<const EventMark&>(mark).event(), 0), "waiting for another queue");
}

void Stream::wait(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  enter();
  context_.log().add("wait for the host");
  const CUresult status = wait_value()(reinterpret_cast<CUstream>(stream_), reinterpret_cast<CUdeviceptr>(&word), value,
                                       CU_STREAM_WAIT_VALUE_GEQ);
  check(status == CUDA_SUCCESS, "waiting for the host on the device: cuStreamWaitValue32 returns {}",
        static_cast<int>(status));
}

void Stream::to_host(void* to, const void* from, std::int64_t bytes) {
  enter();
  context_.log().add("copy from the device");
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
        "copying from the device");
}

void Stream::to_device(void* to, const void* from, std::int64_t bytes) {
  enter();
  context_.log().add("copy to the device");
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_),
        "copying to the device");
}

void Stream::synchronize() {
  enter();
  check(cudaStreamSynchronize(stream_), "waiting for a queue of the device");
  context_.check_faults();
}

std::shared_ptr<std::byte> allocate_pinned(std::int64_t bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, static_cast<std::size_t>(bytes)), "allocating pinned memory");
  return {static_cast<std::byte*>(data), [](std::byte* memory) { (void)cudaFreeHost(memory); }};
}

}  // namespace sherd::cuda
