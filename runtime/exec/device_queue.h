#pragma once
// A queue over one stream of a device. Work is put on the stream inside of submit(), on the rank's thread and in the
// order of the program; it runs later, beside the device's compute. What blocks the rank's thread is await(), drain()
// and close(); a device that cannot say where it stands (DeviceStream::mark) is waited for too.
//
//   rank's thread   submit(a) . kernels . . . submit(b) . . touches a's bytes . . kernels
//   compute                   [kernels ...............]       waits for a         [kernels]     (the device waits)
//   queue "gather"    after compute so far [a a a a]  after compute so far [b b b]
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/exec/backend.h"
#include "runtime/exec/device_times.h"
#include "runtime/exec/queue.h"
#include "runtime/exec/queue_item.h"

namespace sherd {

/// Waits between queues of devices are the devices' own. A device waits for a host queue by the queue's progress word
/// (DeviceContext::progress); a host queue waits for a device on its own thread, before the work that wants it.
///
/// What work reads is kept until compute has waited for the work: its memory then goes back to the allocator, whose
/// order is compute's. What fails in work of the host that a stream waits for is thrown where the host next waits for
/// the device; a lost device fails every wait, also those of host queues.
class DeviceQueue final : public Queue {
 public:
  /// `name` "compute" is the context's own stream.
  DeviceQueue(std::string_view name, int index, DeviceContext& context);

  /// What QueueWork::run puts its work on.
  DeviceStream& stream() { return *stream_; }
  DeviceContext& context() { return context_; }

  Event submit(QueueWork work) override { return submit(std::move(work), {}); }
  /// How work counts in work_times().
  struct Counts {
    std::shared_ptr<SharedWork> shared{};  ///< of a collective: told when it ran, and asked for its skew
    int calls = 1;                         ///< 0: it is a part of a call that other work counts
  };
  Event submit(QueueWork work, Counts counts);
  void wait(const Event& event) override;
  Event record() override;
  void drain() noexcept override;
  void abort(const std::string& reason) noexcept override;
  void close() noexcept override;

 private:
  struct Place {
    std::uint64_t sequence = 0;
    std::shared_ptr<DeviceMark> mark{};
    std::vector<Ref<Storage>> held{};
    std::vector<Event> after{};   // of other queues of the device that hold storages
    std::function<void()> run{};  // has run; what it captured may be in use until the mark is reached
    std::function<void(std::string_view)> abort{};
  };
  ~DeviceQueue() override = default;
  bool is_done(std::uint64_t sequence) const override;
  void await(std::uint64_t sequence) override;
  void rethrow(std::uint64_t sequence) override;
  void forgive() noexcept override {}

  bool is_compute() const { return name() == kComputeQueue; }
  bool is_owner() const { return std::this_thread::get_id() == owner_; }
  std::shared_ptr<DeviceMark> mark_of(std::uint64_t sequence) const;
  std::shared_ptr<DeviceMark> mark();
  Event add(Place place);
  void set_done(std::uint64_t sequence) const;
  void prune();
  void retire(std::uint64_t sequence);

  DeviceContext& context_;
  const std::thread::id owner_;
  std::unique_ptr<DeviceStream> stream_;  // none after close()
  mutable std::mutex mutex_;              // of places_ and failure_: threads of host queues wait here too
  std::deque<Place> places_;              // the last has sequence submitted_; those that were pruned are over
  std::exception_ptr failure_;            // the device is lost
  std::unique_ptr<DeviceTimes> times_;    // none of compute, and after close()
  std::uint64_t submitted_ = 0, retired_ = 0;
  mutable std::atomic<std::uint64_t> done_{0};
  std::vector<std::uint64_t> seen_;       // by queue: what this stream comes after
  std::vector<QueueItem::Before> after_;  // of the next work, for the hazard check
};

}  // namespace sherd
