#include "runtime/cuda/device/stream.h"

#include <utility>

#include <cuda.h>

#include "runtime/cuda/device/check.h"
#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/event_pool.h"
#include "runtime/exec/timed_mark.h"
#include "runtime/tensor/no_copy.h"

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

class EventMark final : public TimedMark, NoCopy {
 public:
  EventMark(std::shared_ptr<EventPool> events, cudaStream_t stream)
      : events_(std::move(events)), event_(events_->take()) {
    const cudaError_t status = cudaEventRecord(event_, stream);
    if (status != cudaSuccess) events_->give_back(event_);
    check(status, "recording an event");
  }
  ~EventMark() override { events_->give_back(event_); }

  bool is_reached() override {
    events_->enter();
    if (cudaEventQuery(event_) == cudaSuccess) return true;
    (void)cudaGetLastError();  // no error of anybody's, or of a lost device, which await() reports
    return false;
  }
  void await() override {
    events_->enter();
    check(cudaEventSynchronize(event_), "waiting for a queue of the device");
  }
  std::int64_t time() override { return is_reached() ? events_->time_of(event_) : 0; }
  cudaEvent_t event() const { return event_; }

 private:
  const std::shared_ptr<EventPool> events_;
  const cudaEvent_t event_;
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

// Compute is marked whenever another queue is given work, often several times in a row.
std::shared_ptr<DeviceMark> Stream::mark() {
  enter();
  const std::uint64_t put_here = context_.num_queued() + num_waits_;
  if (last_mark_ && !is_own_ && put_here == marked_) return last_mark_;
  last_mark_ = std::make_shared<EventMark>(context_.events(), stream_);
  marked_ = put_here;
  return last_mark_;
}

void Stream::wait(const DeviceMark& mark) {
  enter();
  ++num_waits_;
  check(cudaStreamWaitEvent(stream_, static_cast<const EventMark&>(mark).event(), 0), "waiting for another queue");
}

void Stream::wait(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  enter();
  if (!wait_value_) wait_value_ = reinterpret_cast<void*>(find_wait_value());
  context_.log().add("wait for the host");
  const CUresult status = reinterpret_cast<WaitValue>(wait_value_)(
      reinterpret_cast<CUstream>(stream_), reinterpret_cast<CUdeviceptr>(&word), value, CU_STREAM_WAIT_VALUE_GEQ);
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
}

}  // namespace sherd::cuda
