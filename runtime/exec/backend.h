#pragma once
// What the runtime asks of a device that is not the CPU. One Backend per kind of device, in a library of its own that
// is opened when a tensor of that kind is first wanted (device_library.h); one DeviceContext per rank and device.
//
//   rank's thread   upload | kernel | kernel | kernel | start_read ...  later: read.wait()
//   compute queue            [upload][kernel][kernel][kernel][read]      nothing on the rank's thread waits in between
//
// All kernels of a rank go to one queue in program order, so memory that is freed may be reused at once. Other queues
// of the device (DeviceQueue) borrow storages and never free.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/memory/allocator.h"
#include "runtime/memory/event.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/error.h"

namespace sherd {

class OpTable;
namespace comm {
struct DeviceGroups;  // comm/group/device_group.h
struct GroupKernels;  // comm/group/group_kernels.h
}  // namespace comm

/// Bytes on their way to the host. It may outlive its context, which waits for it when it ends.
class HostRead {
 public:
  virtual ~HostRead() = default;
  /// Whether wait() would return at once.
  virtual bool is_ready() = 0;
  /// Blocks until the bytes are there. They live as long as this object. Throws what failed on the device before.
  virtual const std::byte* wait() = 0;
};

/// Recorded work of a device that can be started again in one call: the same kernels on the same addresses.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Queues the whole graph. Does not block.
  virtual void launch() = 0;
  /// False once the context has let go of it (DeviceContext::record()).
  virtual bool is_there() const = 0;
  virtual std::int64_t num_nodes() const = 0;
  /// Bytes that the temporaries of all graphs of the context share.
  virtual std::int64_t reserved_bytes() const = 0;
};

/// A place in the work of a stream. Outlives the stream; from any thread.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Whether everything before it has run. Of a lost device: false, because nobody knows; await() says so.
  virtual bool is_reached() = 0;
  /// Blocks until it is. Throws if the device is lost.
  virtual void await() = 0;
};

/// Work of a device that runs in the order it was put here. On the rank's thread only; nothing here blocks, but for
/// synchronize().
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  /// Everything that was put here so far. The mark of before, if that was nothing.
  virtual std::shared_ptr<DeviceMark> mark() = 0;
  /// What is put here from now on starts after the mark, of any stream of this kind of device.
  virtual void wait(const DeviceMark& mark) = 0;
  /// ... starts when `word`, of DeviceContext::progress(), is `value` or has passed it (modulo 2^32). It must come
  /// there without anything that is put on the device from now on.
  virtual void wait(const std::atomic<std::uint32_t>& word, std::uint32_t value) = 0;
  /// Between the device and memory of DeviceContext::pinned(), which lives until this has run.
  virtual void to_host(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void to_device(void* to, const void* from, std::int64_t bytes) = 0;
  /// Blocks until everything has run. Throws if the device is lost.
  virtual void synchronize() = 0;
};

/// One rank's use of one device: its compute queue, its memory, its libraries' handles. Used on the rank's thread only.
class DeviceContext {
 public:
  virtual ~DeviceContext() = default;
  virtual Device device() const = 0;
  /// "NVIDIA H200, 139 GiB".
  virtual std::string describe() const = 0;
  /// Memory of the device; in a recording the graph's own.
  virtual Allocator& allocator() = 0;

  /// Host to device, in order with the queue. `from` may change when it returns.
  virtual void upload(void* to, const void* from, std::int64_t bytes) = 0;
  /// Device to host; blocks until everything queued before has run and the bytes are there.
  virtual void download(void* to, const void* from, std::int64_t bytes) = 0;
  /// Starts a read that nobody waits for yet. Does not block.
  virtual std::unique_ptr<HostRead> start_read(const void* from, std::int64_t bytes) = 0;
  /// Within the device, in order with the queue.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void fill(void* to, std::uint8_t value, std::int64_t bytes) = 0;
  /// Blocks until everything queued has run. Throws what failed there.
  virtual void synchronize() = 0;

  /// The compute queue's stream, or one of its own for another queue. Ends before the context.
  virtual std::unique_ptr<DeviceStream> open_stream(bool is_compute) = 0;
  /// Host memory that streams copy from and to by themselves. Not initialised; freed with the last handle, when no
  /// stream uses it any more.
  virtual std::shared_ptr<std::byte> pinned(std::int64_t bytes) = 0;
  /// A word of the host that streams can wait for, one for each queue of the rank: HostQueue::show_progress(). Lives as
  /// long as the context.
  virtual std::atomic<std::uint32_t>& progress(int queue_index) = 0;

  /// Runs `work`, which queues kernels but must not wait for the device, and records it instead of executing it.
  /// Memory it allocates comes from the graph and is the graph's; nothing of it may be kept when `work` returns but
  /// through storages that hold it. Error, with nothing recorded, if `work` waits for the device or throws.
  /// A recording is let go of, and is_there() no more, where the rank has no other memory for what it asks.
  virtual std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) = 0;
  virtual bool is_recording() const = 0;

  /// Notes work of the host that some stream waits for: whoever waits for the device next is told what failed there.
  void note_host_work(const Event& event) { host_work_.push_back(event); }
  /// Lets go of all noted work that is over, and throws what failed there first. Called after every wait for the
  /// device.
  void throw_failed_host_work();
  /// After everything has run: what failed in noted work or was found wrong on the device is nobody's any more.
  virtual void drop_failures() noexcept = 0;

  /// What makes bytes of the device wrong and no call of the device says: collectives that were stopped. Whoever waits
  /// for the device is told, until it is cleared, as drop_failures() does. From any thread; may outlive the context.
  class Failure {
   public:
    /// The first stays.
    void set(const CommError& error);
    void clear();
    void check() const;

   private:
    mutable std::mutex mutex_;
    std::optional<CommError> error_;
  };
  const std::shared_ptr<Failure> failure = std::make_shared<Failure>();

 protected:
  void drop_host_work() noexcept;

 private:
  std::vector<Event> host_work_;
};

/// A line of `sherd info`: {"cuDNN", "9.19.0"} or {"cuDNN", "not found: ..."}.
struct BackendFact {
  std::string name, value;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Device::Kind kind() const = 0;
  /// Devices that can be used now; 0 has a reason.
  virtual int num_devices() const = 0;
  virtual std::string why_no_devices() const = 0;
  virtual std::vector<BackendFact> facts() const = 0;
  /// Throws Error naming the device and the remedy if there is no such device.
  virtual std::unique_ptr<DeviceContext> open(int index) = 0;
  /// Fills its kernel column of the op table.
  virtual void register_kernels(OpTable& table) const = 0;
  /// What a group composes collectives of the device's memory from; none where nothing does.
  virtual const comm::GroupKernels* group_kernels() const { return nullptr; }
  /// Groups over its library of collectives; none where it has none.
  virtual const comm::DeviceGroups* device_groups() const { return nullptr; }
};

/// The backend of a device that is about to be used. Throws Error, with the reason and the remedy, if there is none.
/// op/device_library.cpp finds and opens it, since its kernels go into the op table.
Backend& backend_of(Device device);

}  // namespace sherd
