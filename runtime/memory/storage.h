#pragma once
// The bytes behind tensors. Views share one storage: memory (storage_memory.h), and the loans of it, which are work of
// queues that still reads or writes the bytes. Each access waits for the loans that it conflicts with.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/memory/event.h"
#include "runtime/memory/residency.h"
#include "runtime/memory/storage_memory.h"

namespace sherd {

class Storage final : public StorageMemory {
 public:
  /// `bytes` may be 0. Memory comes from the current rank's allocator and is not initialised.
  static Ref<Storage> allocate(std::int64_t bytes, MemoryCategory category, Device device = Device::cpu());
  /// A storage without data yet, also if it has no bytes; restore_data() allocates it.
  static Ref<Storage> released(std::int64_t bytes, MemoryCategory category, Device device = Device::cpu());
  /// Borrowed memory (a file mapping, a shared segment); `release` runs when the last handle goes.
  static Ref<Storage> borrow(void* data, std::int64_t bytes, std::function<void()> release);
  static void destroy(Storage* storage);

  /// The address, to read: blocks while a queue writes the bytes, and throws what failed there; queues that read them
  /// delay nobody. Bytes of a device are touched by its compute, which waits there: the host goes on. On the rank's
  /// thread. (On a kernel's other threads no wait is left: the dispatcher asks first.) Error if the bytes are a
  /// ghost's, or are released: here, in write(), and, of released ones, in the two waits.
  std::byte* read() const {
    if (guard_ & (kBeingWritten | kWatched | kGhost | kReleased)) [[unlikely]]
      prepare_read();
    return data_;
  }
  /// The address, to write: blocks while a queue uses the bytes at all.
  std::byte* write() const {
    if (guard_) [[unlikely]]
      prepare_write();
    return data_;
  }
  /// The waits of read() and write() alone, for who hands the bytes to somebody else.
  void wait_to_read() const {
    if (guard_ & (kBeingWritten | kWatched | kReleased)) [[unlikely]]
      await_write();
  }
  void wait_to_write() const {
    if (guard_ & ~kGhost) [[unlikely]]
      await_all();
  }
  /// Where the bytes are, in one value. A ghost's is ghost whatever it is beside.
  Residency residency() const {
    if (is_ghost()) return Residency::ghost;
    if (is_lent()) return Residency::lent;
    return is_present() ? Residency::present : Residency::released;
  }
  /// Gives the memory back; handles stay. No-op when absent. Waits while a queue uses the bytes.
  void release_data();

  /// From now until `event` is reached a queue reads the bytes, or writes them. Called by Queue::submit, which has
  /// ordered this work after conflicting work of before.
  void lend(const Event& event, bool writes);
  /// Waits while a queue uses the bytes, and forgets what failed to write them: for who writes them again, or knows
  /// which of them are whole.
  void settle() noexcept;
  bool is_lent() const { return guard_ & (kBeingWritten | kBeingRead); }
  bool is_lent_for_writing() const { return guard_ & kBeingWritten; }
  /// The last write that nobody has waited for; of no queue if there is none.
  const Event& last_write() const { return last_write_; }
  /// The last read of each queue that has not been waited for.
  std::span<const Event> last_reads() const {
    return last_reads_ ? std::span<const Event>(*last_reads_) : std::span<const Event>();
  }

  /// Grows with every write after creation; a saved tensor remembers it.
  std::uint32_t version() const { return version_; }
  void set_version(std::uint32_t version) { version_ = version; }
  void bump_version() { ++version_; }

  /// Tensors over these bytes that the tape keeps for a backward pass. Counted where there is an owner, who need not
  /// keep what nobody will read.
  std::int32_t num_saved = 0;

 private:
  template <class T>
  friend class Pool;
  // Beside those of StorageMemory.
  enum Guard : std::uint8_t {
    kBeingWritten = 4,
    kBeingRead = 8,
    kWatched = 16,  // a hazard check records every access
  };
  static constexpr int kStays = kWatched | kGhost | kReleased;  // when loans end
  Storage(std::int64_t bytes, MemoryCategory category, Device device, RankMemory& rank);
  Storage(void* data, std::int64_t bytes, std::uint64_t id, std::function<void()> release)
      : StorageMemory(data, bytes, id, std::move(release)) {}
  ~Storage();
  void prepare_read() const;
  void prepare_write() const;
  void check_bytes() const;
  void await_write() const;
  void await_all() const;
  void forget_loans() const;

  std::uint32_t version_ = 0;
  mutable Event last_write_;
  std::unique_ptr<std::vector<Event>> last_reads_;  // made when a queue first reads the bytes: few storages have any
};

}  // namespace sherd
