#pragma once
// One rank's use of one CUDA device: one stream for all its kernels, others for what runs beside them, the memory
// behind it, pinned staging, library handles.
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "runtime/cuda/device/check.h"
#include "runtime/cuda/device/graph.h"
#include "runtime/cuda/device/launch_log.h"
#include "runtime/cuda/device/pinned.h"
#include "runtime/exec/backend.h"
#include "runtime/memory/device_allocator.h"
#include "runtime/op/core/op.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

class Attention;
class Blas;
class EventPool;
class Faults;

class Context final : public DeviceContext, NoCopy {
 public:
  explicit Context(int index);
  ~Context() override;

  Device device() const override { return Device::cuda(static_cast<std::uint8_t>(index_)); }
  std::string describe() const override;
  Allocator& allocator() override { return graphs_.recording() ? *graphs_.recording() : *allocator_; }
  void upload(void* to, const void* from, std::int64_t bytes) override;
  void download(void* to, const void* from, std::int64_t bytes) override;
  std::unique_ptr<HostRead> start_read(const void* from, std::int64_t bytes) override;
  void copy(void* to, const void* from, std::int64_t bytes) override;
  void fill(void* to, std::uint8_t value, std::int64_t bytes) override;
  void synchronize() override;
  std::unique_ptr<DeviceStream> open_stream(bool is_compute) override;
  std::shared_ptr<std::byte> pinned(std::int64_t bytes) override;
  std::atomic<std::uint32_t>& progress(int queue_index) override;
  std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) override;
  bool is_recording() const override { return graphs_.recording() != nullptr; }
  void drop_failures() noexcept override;

  /// The stream of this rank's kernels. Makes the device the thread's current one, as launches need. Throws if the
  /// device is lost.
  cudaStream_t stream();
  /// Grows with everything that is put on that stream, but for waits.
  std::uint64_t num_queued() const { return log_.queued() + *num_fills_; }
  /// Events of the marks of this rank's streams on the device.
  const std::shared_ptr<EventPool>& events() const { return events_; }
  /// What was queued last.
  LaunchLog& log() { return log_; }
  const cudaDeviceProp& properties() const { return properties_; }
  int multiprocessors() const { return properties_.multiProcessorCount; }
  PinnedPool& pinned_pool() { return pinned_; }
  /// Memory that outlives a recording.
  DeviceAllocator& lasting_allocator() { return *allocator_; }
  /// cuBLASLt's handle, workspace and choice of algorithms; made at first use.
  Blas& blas();
  /// Attention's kernels and cuDNN's plans; made at first use.
  Attention& attention();
  /// What kernels found wrong in the values they read.
  Faults& faults() { return *faults_; }
  /// After a wait: throws what a kernel found wrong, or what failed in work of the host that a stream has waited for.
  void check_faults();

 private:
  const int index_;
  LaunchLog log_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<EventPool> events_;
  const std::shared_ptr<std::uint64_t> num_fills_ =
      std::make_shared<std::uint64_t>(0);  // by allocators, in debug builds
  DeviceAllocator* allocator_;
  Graphs graphs_{*this, num_fills_};
  PinnedPool pinned_;
  std::shared_ptr<std::byte> progress_;  // words for which streams wait, a cache line each
  std::unique_ptr<Faults> faults_;
  std::unique_ptr<Blas> blas_;
  std::unique_ptr<Attention> attention_;
};

/// The context a kernel runs in; what is queued there from now on is for the call's row.
inline Context& context_of(const KernelCall& call) {
  auto& context = static_cast<Context&>(*call.exec.device);
  context.log().in_row(&call.op);
  return context;
}

/// Device memory for the kernels that are queued while this lives: later work of the queue may reuse it at once.
class Workspace : NoCopy {
 public:
  Workspace(Context& context, std::int64_t bytes);
  ~Workspace();
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  Allocator& allocator_;
  const std::int64_t bytes_;
  std::byte* data_;
};

}  // namespace sherd::cuda
