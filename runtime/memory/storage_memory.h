#pragma once
// The memory of a storage: bytes on an account of a rank, which may be released and restored while handles stay. That
// is how gathered parameters come and go under tensors that autograd has saved. Who uses the bytes is in storage.h.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/memory/accounting.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/intrusive.h"

namespace sherd {

class Allocator;
class RankMemory;
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

/// Bytes of an allocator, or borrowed ones; always part of a Storage.
class StorageMemory : public RefCounted {
 public:
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

  /// Allocates again (contents undefined). No-op when present.
  void restore_data();
  /// On: Storage::release_data() keeps the memory, on the account of its category, and restore_data() takes it again:
  /// one address for as long as it is on. Off: what is kept and not present is given back.
  void set_keeps_memory(bool on);
  bool keeps_memory() const { return keeps_memory_; }
  /// Where released bytes will be present again; null if they are present, or nothing is kept.
  const std::byte* kept_address() const { return kept_; }

  StorageOwner* owner = nullptr;

 protected:
  // Why an access is more than a load. The other bits are of the loans, in Storage, so that an access tests one byte.
  static constexpr int kGhost = 1;     // there is nothing to read or to write
  static constexpr int kReleased = 2;  // the data was given back, or is yet to come

  /// Released.
  StorageMemory(std::int64_t bytes, MemoryCategory category, Device device, RankMemory& rank);
  /// Borrowed; `release` runs in the end.
  StorageMemory(void* data, std::int64_t bytes, std::uint64_t id, std::function<void()> release);
  ~StorageMemory();
  /// Allocates; the memory is released.
  void take_data();
  /// Gives the memory back, which nobody uses, or keeps it. No-op when absent or borrowed.
  void give_back_data();

  std::byte* data_ = nullptr;
  mutable std::uint8_t guard_ = 0;

 private:
  void give_back_kept();
  [[noreturn]] void refuse_released() const;

  bool keeps_memory_ = false;
  MemoryCategory category_ = MemoryCategory::activations;
  Device device_;
  std::byte* kept_ = nullptr;  // while it is released and keeps its memory
  std::int64_t bytes_ = 0;
  Allocator* allocator_ = nullptr;
  std::uint64_t id_ = 0;
  std::unique_ptr<std::function<void()>> on_release_;
};

/// "storage 17 (blocks.3 full, 4 KB of unsharded)"; without a name if it has none on this rank.
std::string describe(const StorageMemory& storage);

}  // namespace sherd
