#pragma once
// The memory side of one rank's thread: where its storages come from, their numbers, and who watches accesses to them.
// All that a rank carries is RankContext (exec/context.h), which is one of these.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory/caching_allocator.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

class Storage;
class StorageMemory;

/// Told of accesses by the rank's thread to bytes that queues use too (exec/hazards.h).
class AccessWatcher {
 public:
  enum class Kind : std::uint8_t { read, write, release };
  /// Whether to look at an access before the wait that orders it: for a check that is to go without this wait.
  virtual bool looks_before_wait(const Storage& storage, Kind kind) const = 0;
  /// A read or a write, in order. Throws Error if nothing orders it after a conflicting access.
  virtual void accessed(const Storage& storage, Kind kind) = 0;
  virtual void released(const Storage& storage) noexcept = 0;

 protected:
  ~AccessWatcher() = default;
};

struct RankOptions {
  /// Storages have no bytes: memory is accounted and nothing is computed, moved or looked at (ghost_allocator.h).
  bool ghost = false;
};

class RankMemory : NoCopy {
 public:
  /// This thread's. The first thread that asks without having one is given it; any other gets an Error
  /// (RankContext::current).
  static RankMemory& current() {
    if (RankMemory* m = current_) [[likely]]
      return *m;
    return adopt();
  }
  static RankMemory* current_or_null() { return current_; }

  /// Allocator of the host, or of a device's context, which is opened at first use. Throws Error if there is no such
  /// device. A ghost rank opens no context.
  Allocator& allocator(Device device = Device::cpu()) {
    if (device.kind == Device::Kind::cpu) [[likely]]
      return *allocator_;
    return is_ghost_ ? ghost_allocator(device) : device_allocator(device);
  }
  /// On the host what peers read lies in `memory` from now on, see CachingAllocator. No-op on a ghost rank.
  void use_shared_heap(std::shared_ptr<std::byte> memory, std::size_t bytes) {
    if (!is_ghost_) static_cast<CachingAllocator&>(*allocator_).use_shared_heap(std::move(memory), bytes);
  }
  bool is_ghost() const { return is_ghost_; }
  /// Grows on this rank, and no other rank of the process has it: tensors, and the tape, may come from another thread.
  std::uint64_t next_id() {
    if ((++last_id_ & kLastOfBlock) == 0) [[unlikely]]
      take_block();
    return last_id_;
  }
  /// Whether next_id() of this rank gave the id.
  bool is_own(std::uint64_t id) const { return std::ranges::binary_search(blocks_, id & ~kLastOfBlock); }

  /// Storages made or lent from now on report to it; null: to nobody.
  AccessWatcher* watcher = nullptr;
  /// What a storage is known by on this rank, for messages: "blocks.3 full", or empty. Set while some have a name, by
  /// who keeps the names (op/step_names.h).
  std::string (*storage_name)(const StorageMemory& storage) = nullptr;

 protected:
  explicit RankMemory(RankOptions options);
  ~RankMemory();
  virtual Allocator& device_allocator(Device device) = 0;
  static thread_local constinit RankMemory* current_ __attribute__((tls_model("initial-exec")));

 private:
  static RankMemory& adopt();  // exec/context.cpp
  Allocator& ghost_allocator(Device device);

  static constexpr std::uint64_t kLastOfBlock = 0xffffffff;  // ids are taken from the process by blocks
  void take_block();

  const bool is_ghost_;
  Allocator* const allocator_;  // a CachingAllocator, unless this is a ghost
  std::vector<std::pair<Device, Allocator*>> ghost_devices_;
  std::uint64_t last_id_ = kLastOfBlock;  // the first that is asked for takes a block
  std::vector<std::uint64_t> blocks_;     // their first ids, in order
};

}  // namespace sherd
