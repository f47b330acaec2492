// All kernels of a rank go to one stream, in program order. The host runs ahead and waits only where a value is asked
// for: item(), a checkpoint, a full ring of staging buffers.
#include "runtime/cuda/device/context.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>

#include "runtime/cuda/attention/attention.h"
#include "runtime/cuda/device/event_pool.h"
#include "runtime/cuda/device/faults.h"
#include "runtime/cuda/device/memory.h"
#include "runtime/cuda/device/store.h"
#include "runtime/cuda/device/stream.h"
#include "runtime/cuda/gemm/blas.h"
#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/os/settings.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

namespace {

constexpr std::int64_t kChunk = std::int64_t{4} << 20;  // of a long copy through pinned memory

void refuse_in_recording(const Context& context, const char* what) {
  check(!context.is_recording(),
        "{} inside a recorded graph: the graph would repeat today's bytes; read values after the step, "
        "and pass those that change as arguments",
        what);
}

}  // namespace

class PinnedRead final : public HostRead, NoCopy {
 public:
  PinnedRead(Context& context, PinnedBlock block) : context_(&context), block_(block), queued_(context.log().queued()) {
    context.pinned_pool().reads().push_back(this);
  }
  ~PinnedRead() override {
    if (context_) {
      std::erase(context_->pinned_pool().reads(), this);
      context_->pinned_pool().give_back(block_);
    } else {
      PinnedPool::destroy(block_);
    }
  }
  bool is_ready() override {
    if (!context_) return true;
    context_->log().throw_if_lost();
    const cudaError_t status = cudaEventQuery(block_.event);
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();  // no error of anybody's
      return false;
    }
    check(status, "reading from the device");
    return true;
  }
  const std::byte* wait() override {
    if (failed_) std::rethrow_exception(failed_);
    if (context_) {
      context_->log().throw_if_lost();
      check(cudaEventSynchronize(block_.event), "reading from the device");
      context_->log().ended(queued_);
      context_->check_faults();
    }
    return block_.data();
  }
  /// The context ends first, and all its work has. `failed`: what there is to throw.
  void let_go(const std::exception_ptr& failed) {
    failed_ = failed;
    context_ = nullptr;
  }

 private:
  Context* context_;
  const PinnedBlock block_;
  const std::uint64_t queued_;  // with its copy
  std::exception_ptr failed_;
};

Context::Context(int index) : index_(index), log_(index) {
  log_.enter();
  make_current(index);
  check(cudaGetDeviceProperties(&properties_, index), "asking for the device's properties");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  log_.set_stream(stream_);
  events_ = std::make_shared<EventPool>(index, stream_);
  faults_ = std::make_unique<Faults>(stream_);
  allocator_ = new DeviceAllocator(std::make_unique<DeviceMemory>(index, stream_, num_fills_),
                                   {.separate = maps_blocks_separately(requested_device_memory())});
  allocator_->set_last_resort(&graphs_);
}

// What failed on the device is reported by the reads that live: nobody else asks any more.
Context::~Context() {
  std::exception_ptr failed;
  try {
    if (!pinned_.reads().empty()) synchronize();
  } catch (...) { failed = std::current_exception(); }
  for (PinnedRead* read : pinned_.reads()) read->let_go(failed);
  (void)cudaStreamSynchronize(stream_);
  events_->stop_clock();
  allocator_->set_last_resort(nullptr);
  graphs_.end();
  blas_.reset();
  attention_.reset();
  allocator_->abandon();
  (void)cudaStreamDestroy(stream_);
}

std::string Context::describe() const {
  return fmt::format("{}, {}", properties_.name, format_bytes(static_cast<std::int64_t>(properties_.totalGlobalMem)));
}

cudaStream_t Context::stream() {
  log_.enter();
  make_current(index_);
  return stream_;
}

Blas& Context::blas() {
  if (!blas_) blas_ = std::make_unique<Blas>(*this, requested_blas_options());
  return *blas_;
}

Attention& Context::attention() {
  if (!attention_) attention_ = std::make_unique<Attention>(*this);
  return *attention_;
}

// A few bytes travel as an argument of a kernel: they need no staging, and a graph may hold them.
void Context::upload(void* to, const void* from, std::int64_t bytes) {
  if (bytes <= kMaxStoredBytes) {
    log_.in_row(nullptr);
    return store(stream(), to, from, bytes);
  }
  refuse_in_recording(*this, "copying host memory to the device");
  const cudaStream_t stream = this->stream();
  for (std::int64_t done = 0; done < bytes; done += kChunk) {
    const std::int64_t size = std::min(kChunk, bytes - done);
    const PinnedBlock block = pinned_.take(size);
    log_.add("copy to the device");
    std::memcpy(block.data(), static_cast<const std::byte*>(from) + done, static_cast<std::size_t>(size));
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, block.data(), static_cast<std::size_t>(size),
                          cudaMemcpyHostToDevice, stream),
          "copying to the device");
    check(cudaEventRecord(block.event, stream), "recording an event");
    pinned_.give_back(block);
  }
}

// One chunk travels while the one before is copied out of its buffer.
void Context::download(void* to, const void* from, std::int64_t bytes) {
  refuse_in_recording(*this, "reading device memory");
  std::unique_ptr<HostRead> before;
  std::int64_t at = 0, size_before = 0;
  const auto finish = [&] {
    if (!before) return;
    std::memcpy(static_cast<std::byte*>(to) + at, before->wait(), static_cast<std::size_t>(size_before));
    at += size_before;
  };
  for (std::int64_t done = 0; done < bytes; done += kChunk) {
    const std::int64_t size = std::min(kChunk, bytes - done);
    std::unique_ptr<HostRead> next = start_read(static_cast<const std::byte*>(from) + done, size);
    finish();
    before = std::move(next);
    size_before = size;
  }
  finish();
}

std::unique_ptr<HostRead> Context::start_read(const void* from, std::int64_t bytes) {
  refuse_in_recording(*this, "reading device memory");
  const cudaStream_t stream = this->stream();
  const PinnedBlock block = pinned_.take(std::max<std::int64_t>(bytes, 1));
  log_.add("copy from the device");
  auto read = std::make_unique<PinnedRead>(*this, block);
  check(cudaMemcpyAsync(block.data(), from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream),
        "copying from the device");
  check(cudaEventRecord(block.event, stream), "recording an event");
  return read;
}

void Context::copy(void* to, const void* from, std::int64_t bytes) {
  log_.add("copy on the device");
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream()),
        "copying on the device");
}

void Context::fill(void* to, std::uint8_t value, std::int64_t bytes) {
  log_.add("fill");
  check(cudaMemsetAsync(to, value, static_cast<std::size_t>(bytes), stream()), "filling device memory");
}

void Context::synchronize() {
  refuse_in_recording(*this, "waiting for the device");
  check(cudaStreamSynchronize(stream()), "waiting for the device");
  log_.ended(log_.queued());
  check_faults();
}

void Context::check_faults() {
  throw_failed_host_work();
  faults_->check(stream(), device());
}

void Context::drop_failures() noexcept {
  drop_host_work();
  try {
    faults_->check(stream(), device());
  } catch (const Error&) {}
}

std::unique_ptr<DeviceStream> Context::open_stream(bool is_compute) {
  if (is_compute) return std::make_unique<Stream>(*this, stream());
  return std::make_unique<Stream>(*this);
}

std::shared_ptr<std::byte> Context::pinned(std::int64_t bytes) {
  (void)stream();
  return allocate_pinned(bytes);
}

std::atomic<std::uint32_t>& Context::progress(int queue_index) {
  constexpr std::size_t kLine = 64, kBytes = kLine * Queue::kMaxPerRank;
  if (!progress_) {
    progress_ = pinned(kBytes);
    for (std::size_t at = 0; at < kBytes; at += kLine)
      std::construct_at(reinterpret_cast<std::atomic<std::uint32_t>*>(progress_.get() + at), 0u);
  }
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(progress_.get() +
                                                        static_cast<std::size_t>(queue_index) * kLine);
}

std::unique_ptr<DeviceGraph> Context::record(const std::function<void()>& work) {
  check(!is_recording(), "a graph is being recorded already");
  RankContext::current().join_queues(device());  // no wait within the recording is left
  return graphs_.record(work);
}

Workspace::Workspace(Context& context, std::int64_t bytes)
    : allocator_(context.allocator()),
      bytes_(bytes),
      data_(bytes == 0 ? nullptr : static_cast<std::byte*>(allocator_.allocate(bytes, MemoryCategory::workspace))) {}

Workspace::~Workspace() {
  if (data_) allocator_.release(data_, bytes_, MemoryCategory::workspace);
}

}  // namespace sherd::cuda
