#pragma once
// The bytes behind tensors. Views share one storage. Its data may be released and restored while handles stay:
// that is how gathered parameters come and go under tensors that autograd has saved.
#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/memory/accounting.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/intrusive.h"

namespace sherd {

class CachingAllocator;
class Storage;

/// Whoever releases and restores a storage's data (the unit of a fully_shard group).
class StorageOwner {
 public:
  /// Makes the data present again; called before a saved tensor of this storage is used.
  virtual void ensure_present(Storage& storage) = 0;
  /// A replayed step that uses this storage was left by an exception: go back to the state between steps, without
  /// communication.
  virtual void abandon_replay(Storage& storage) noexcept { (void)storage; }

 protected:
  ~StorageOwner() = default;
};

class Storage final : public RefCounted {
 public:
  /// `bytes` may be 0. Memory comes from the current rank's allocator and is not initialised.
  static Ref<Storage> allocate(std::int64_t bytes, MemoryCategory category);
  /// A storage without data yet; restore() allocates it.
  static Ref<Storage> released(std::int64_t bytes, MemoryCategory category);
  /// Borrowed memory (a file mapping, a shared segment); `release` runs when the last handle goes.
  static Ref<Storage> borrow(void* data, std::int64_t bytes, std::function<void()> release);
  static void destroy(Storage* storage);

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  std::uint64_t id() const { return id_; }
  MemoryCategory category() const { return category_; }
  /// Moves the bytes to another account.
  void retag(MemoryCategory category);

  /// Memory of someone else (perhaps read-only): never reused for a result.
  bool is_borrowed() const { return allocator_ == nullptr; }
  bool is_present() const { return data_ != nullptr || bytes_ == 0; }
  /// Gives the memory back; handles stay. No-op when absent.
  void release_data();
  /// Allocates again (contents undefined). No-op when present.
  void restore_data();

  /// Grows with every write after creation; a saved tensor remembers it.
  std::uint32_t version() const { return version_; }
  void set_version(std::uint32_t version) { version_ = version; }
  void bump_version() { ++version_; }

  StorageOwner* owner = nullptr;

 private:
  template <class T>
  friend class Pool;
  Storage() = default;
  ~Storage();

  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::uint64_t id_ = 0;
  CachingAllocator* allocator_ = nullptr;
  std::unique_ptr<std::function<void()>> on_release_;
  std::uint32_t version_ = 0;
  MemoryCategory category_ = MemoryCategory::activations;
};

}  // namespace sherd
