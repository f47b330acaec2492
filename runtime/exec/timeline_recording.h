#pragma once
// A ghost rank writes down what its program does in this scope (timeline.h): one step, between two updates.
//
//   Timeline step;
//   predict_peak(config, 0, 16, vocabulary, {.record = {{.timeline = &step, .update = 2, .site = {0, 16}}}});
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/exec/queue.h"
#include "runtime/exec/timeline.h"
#include "runtime/memory/allocator.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

struct QueueItem;

/// Writes into a timeline, which it clears and which outlives it, from construction to destruction. On the ghost's
/// thread, one at a time; Error on a rank that computes. It watches the allocator of the
/// device and passes on what it is
/// told to who watched before.
class TimelineRecording final : public AllocationWatcher, NoCopy {
 public:
  /// The ghost is `rank` of `ranks`, and computes on `device`.
  struct Site {
    int rank = 0, ranks = 1;
    Device device{};
    std::string world = "world";  ///< label of the group of all: on a mesh of one axis that axis' name
  };
  TimelineRecording(Timeline& timeline, const Site& site);
  ~TimelineRecording();

  // ---- for who runs the program ----
  /// A call, before its kernel; `shapes` is asked once for each key.
  template <class Shapes>
  void called(std::string_view op, std::uint64_t key, const CallWork& work, const Shapes& shapes) {
    Timeline::Text& text = shapes_[key];
    if (text == 0) text = timeline_.intern(shapes());
    add_call(op, text, work);
  }
  void submitted(const Queue& queue, const QueueItem& item, const QueueWork& work);
  void waited(const Queue& queue, std::uint64_t sequence, Timeline::Why why);

 private:
  struct QueueItems {
    std::uint64_t first = 0, over = 0;   // sequences: of its first item here, of the last that was waited for
    std::vector<std::uint32_t> items{};  // numbers, by sequence from the first on
  };
  void taken(const void* block, std::int64_t bytes, MemoryCategory category) noexcept override;
  void given_back(const void* block, std::int64_t bytes, MemoryCategory category) noexcept override;
  void retagged(const void* block, std::int64_t bytes, MemoryCategory from, MemoryCategory to) noexcept override;
  void is_of(const void* block, const StorageMemory& storage) noexcept override;
  void refused(std::int64_t bytes, MemoryCategory category) noexcept override;

  void add_call(std::string_view op, Timeline::Text shapes, const CallWork& work);
  void add(Timeline::Kind kind, std::size_t index);
  void change(MemoryCategory category, std::int64_t bytes);
  std::uint32_t item_of(const Queue& queue, std::uint64_t sequence) const;
  std::uint32_t group_of(const WireUse& wire);

  Timeline& timeline_;
  const std::string world_;
  RankContext& context_;
  Allocator& allocator_;
  AllocationWatcher* const outer_;
  std::unordered_map<std::uint64_t, Timeline::Text> shapes_;        // by key
  std::unordered_map<const std::string*, Timeline::Text> modules_;  // by path
  std::unordered_map<std::uint64_t, std::uint32_t> storages_;       // number by id
  std::vector<QueueItems> queues_;                                  // by index of the queue
};

}  // namespace sherd
