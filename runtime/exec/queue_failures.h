#pragma once
// Which items of a queue failed, and with what.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <ranges>
#include <utility>
#include <vector>

namespace sherd {

/// Ranges of items that failed or were skipped. The last range is open, so that what is submitted later is skipped
/// too, until somebody has waited and close() ends it. The caller holds the queue's lock, but for any().
class QueueFailures {
 public:
  /// All items from `first` on.
  void add(std::uint64_t first, std::exception_ptr error) {
    list_.push_back({first, kOpen, std::move(error)});
    any_.store(true, std::memory_order_relaxed);
  }
  bool contains(std::uint64_t sequence) const { return find(sequence) != nullptr; }
  /// Why the item failed; null: it did not.
  std::exception_ptr error_of(std::uint64_t sequence) const {
    const Failure* const failure = find(sequence);
    return failure ? failure->error : nullptr;
  }
  /// Items after `last` run again.
  void close(std::uint64_t last) {
    if (is_open()) list_.back().last = last;
  }
  bool is_open() const { return !list_.empty() && list_.back().last == kOpen; }
  void clear() {
    list_.clear();
    any_.store(false, std::memory_order_relaxed);
  }
  std::size_t size() const { return list_.size(); }
  /// Whether there may be one.
  bool any() const { return any_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kOpen = std::numeric_limits<std::uint64_t>::max();
  struct Failure {
    std::uint64_t first, last;
    std::exception_ptr error;
  };
  // The newest that has the item.
  const Failure* find(std::uint64_t sequence) const {
    const auto newest_first = list_ | std::views::reverse;
    const auto found =
        std::ranges::find_if(newest_first, [&](const Failure& f) { return sequence >= f.first && sequence <= f.last; });
    return found == newest_first.end() ? nullptr : &*found;
  }

  std::vector<Failure> list_;
  std::atomic<bool> any_{false};
};

}  // namespace sherd
