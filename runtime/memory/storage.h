#pragma once
// The bytes behind tensors. Views share one storage. Its data may be released and restored while handles stay:
// that is how gathered parameters come and go under tensors that autograd has saved.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/memory/accounting.h"
#include "runtime/memory/event.h"
#include "runtime/memory/residency.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/intrusive.h"

namespace sherd {

class Allocator;
class Storage;

/// Whoever releases and restores a storage's data (a unit of fully_shard).
class StorageOwner {
 public:
  /// Makes the data present again; called before a saved tensor of this storage is used. A replay never asks: what it
  /// needs, the step's nodes restore.
  virtual void ensure_present(Storage& storage) = 0;
  /// The tape has dropped the last tensor over this storage that it kept for backward (Storage::num_saved).
  virtual void last_saved_dropped(Storage& storage) noexcept { (void)storage; }
  // The next two are about what surrounds a replay and is in no program: what the owner has registered or left half
  // done between steps, and peers that wait for the rest of one. Its nodes alone restore and release the data.
  /// A replayed step that uses this storage begins. Local.
  virtual void begin_replay(Storage& storage) { (void)storage; }
  /// A replayed step that uses this storage, or a backward pass that does and knows no parameter of it, was left by an
  /// exception: go back to the state between steps, without communication, and let peers know the reason.
  virtual void abandon_replay(Storage& storage, std::string_view reason) noexcept { (void)storage, (void)reason; }

 protected:
  ~StorageOwner() = default;
};

class Storage final : public RefCounted {
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
  /// The address without waiting, for work that is about to be submitted with this storage on loan.
  std::byte* address() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  std::uint64_t id() const { return id_; }
  /// Where the bytes are; addresses of a device mean nothing on the host.
  Device device() const { return device_; }
  MemoryCategory category() const { return category_; }
  /// Moves the bytes to another account.
  void retag(MemoryCategory category);

  /// Storage of a ghost rank, accounted but without bytes: its address can be computed with, not followed.
  bool is_ghost() const { return guard_ & kGhost; }
  /// Memory of someone else (perhaps read-only): never reused for a result.
  bool is_borrowed() const { return allocator_ == nullptr; }
  /// A state and no guess from the address: a unit of which this rank holds no bytes is gathered and released as it is
  /// on ranks that hold some, or ranks would take part in different gathers.
  bool is_present() const { return !(guard_ & kReleased); }
  /// Error naming the storage unless it is present.
  void check_present() const {
    if (guard_ & kReleased) [[unlikely]]
      refuse_released();
  }
  /// All of it in one value. A ghost's is ghost whatever it is beside.
  Residency residency() const {
    if (is_ghost()) return Residency::ghost;
    if (is_lent()) return Residency::lent;
    return is_present() ? Residency::present : Residency::released;
  }
  /// Gives the memory back; handles stay. No-op when absent. Waits while a queue uses the bytes.
  void release_data();
  /// Allocates again (contents undefined). No-op when present.
  void restore_data();
  /// On: release_data() keeps the memory, on the account of its category, and restore_data() takes it again: one
  /// address for as long as it is on. Off: what is kept and not present is given back.
  void set_keeps_memory(bool on);
  bool keeps_memory() const { return keeps_memory_; }
  /// Where released bytes will be present again; null if they are present, or nothing is kept.
  const std::byte* kept_address() const { return kept_; }

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

  StorageOwner* owner = nullptr;
  /// Tensors over these bytes that the tape keeps for a backward pass. Counted where there is an owner, who need not
  /// keep what nobody will read.
  std::int32_t num_saved = 0;

 private:
  template <class T>
  friend class Pool;
  // Why read() and write() are more than a load.
  enum Guard : std::uint8_t {
    kBeingWritten = 1,
    kBeingRead = 2,
    kWatched = 4,    // a hazard check records every access
    kGhost = 8,      // there is nothing to read or to write
    kReleased = 16,  // the data was given back, or is yet to come
  };
  static constexpr int kStays = kWatched | kGhost | kReleased;  // when loans end
  Storage(std::int64_t bytes, std::uint64_t id) : bytes_(bytes), id_(id) {}
  ~Storage();
  void give_back_kept();
  void prepare_read() const;
  void prepare_write() const;
  void check_bytes() const;
  [[noreturn]] void refuse_released() const;
  void await_write() const;
  void await_all() const;
  void forget_loans() const;

  std::byte* data_ = nullptr;
  std::byte* kept_ = nullptr;  // while it is released and keeps its memory
  std::int64_t bytes_ = 0;
  std::uint64_t id_ = 0;
  Allocator* allocator_ = nullptr;
  std::unique_ptr<std::function<void()>> on_release_;
  std::uint32_t version_ = 0;
  Device device_;
  MemoryCategory category_ = MemoryCategory::activations;
  mutable std::uint8_t guard_ = 0;
  bool keeps_memory_ = false;
  mutable Event last_write_;
  std::unique_ptr<std::vector<Event>> last_reads_;  // made when a queue first reads the bytes: few storages have any
};

/// "storage 17 (blocks.3 full, 4 KB of unsharded)"; without a name if it has none on this rank.
std::string describe(const Storage& storage);

}  // namespace sherd
