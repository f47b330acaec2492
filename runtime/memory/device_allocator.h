#pragma once
// Memory of a device for one rank: best fit with splitting and joining, over segments that a MemorySource maps.
//
//   segment   | used | free | used | free . . . . . |
//
// Blocks belong to the order of the rank's compute queue: what is freed may be handed out at once, because work that
// still uses it was queued before. Other queues borrow storages between two events (Storage::lend) and never free.
//
// For tools that watch accesses (compute-sanitizer), `separate` makes every block a segment of its own, exactly as long
// as asked for: reading or writing beyond its end, or after its release, is then beyond what the device has mapped.
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/memory/allocator.h"

namespace sherd {

/// Where a device's memory comes from.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// "cuda:0", for messages.
  virtual std::string name() const = 0;
  /// A segment of `bytes`, aligned to 256 or more; null when the device has no more.
  virtual void* map(std::int64_t bytes) = 0;
  /// Gives a whole segment back. Waits for work that may use it.
  virtual void unmap(void* segment, std::int64_t bytes) noexcept = 0;
  /// Sets bytes, in order with work on the compute queue.
  virtual void fill(void* block, std::uint8_t value, std::int64_t bytes) noexcept = 0;
  /// Free and total bytes of the device, for messages.
  virtual std::pair<std::int64_t, std::int64_t> free_and_total() const = 0;
};

class DeviceAllocator final : public Allocator {
 public:
  static constexpr std::int64_t kAlignment = 256;
  static constexpr std::int64_t kSegmentUnit = std::int64_t{2} << 20;  ///< granularity of device memory
  static constexpr std::int64_t kSmallLimit = std::int64_t{1} << 20;   ///< blocks up to this share small segments

  struct Options {
    /// A lack of memory is reported without giving unused segments back: recorded work may still use what looks free.
    bool keeps_segments = false;
    bool separate = false;  ///< a segment for each block; given back at once unless segments are kept
  };
  explicit DeviceAllocator(std::unique_ptr<MemorySource> source) : DeviceAllocator(std::move(source), Options{}) {}
  DeviceAllocator(std::unique_ptr<MemorySource> source, Options options)
      : source_(std::move(source)), options_(options) {}

  /// Gives segments without a used block back to the device. Called by itself before it reports a lack of memory.
  void release_unused();
  /// Bytes of segments that are not in use now.
  std::int64_t unused_bytes() const;

 private:
  // A run of bytes of a segment, in use or free.
  struct Block {
    std::byte* address;
    std::int64_t bytes;
    std::byte* segment;
    bool used;
  };
  using Blocks = std::map<std::byte*, Block>;
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
    }
  };
  struct Pool {
    Blocks blocks;
    std::set<const Block*, BySize> free;
  };

  ~DeviceAllocator() override;
  void* take(std::int64_t bytes, MemoryCategory category) override;
  void put_back(void* block, std::int64_t bytes) noexcept override;
  void poison(void* block, std::int64_t bytes) noexcept override;
  std::int64_t size_of_block(std::int64_t bytes) const;
  Pool& pool_for(std::int64_t bytes) { return bytes <= kSmallLimit ? small_ : large_; }
  const Block* best_fit(Pool& pool, std::int64_t bytes) const;
  const Block* map_segment(Pool& pool, std::int64_t bytes);
  void* carve(Pool& pool, const Block* block, std::int64_t bytes);
  Blocks::iterator unmap(Pool& pool, Blocks::iterator whole_segment) noexcept;
  void unmap_unused(Pool& pool) noexcept;
  [[noreturn]] void fail_device_memory(std::int64_t bytes, MemoryCategory category);

  std::unique_ptr<MemorySource> source_;
  const Options options_;
  Pool small_, large_;
  std::unordered_map<std::byte*, std::int64_t> segments_;
};

}  // namespace sherd
