#pragma once
// Memory by what it holds. Every byte of the allocator belongs to one category, changed only by retag().
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sherd {

enum class MemoryCategory : std::uint8_t {
  parameters,     ///< parameter shards (or whole parameters on one rank)
  unsharded,      ///< gathered parameters
  gradients,      ///< gradients, full or sharded
  optimizer,      ///< optimizer state
  activations,    ///< everything else a step computes and keeps
  communication,  ///< staging of collectives
  workspace,      ///< scratch of one kernel call
};
inline constexpr int kNumCategories = 7;
std::string_view name(MemoryCategory category);

using CategoryBytes = std::array<std::int64_t, kNumCategories>;

/// Bytes as they were asked for (not rounded). Not synchronised: one per rank, used by its thread.
class Accounting {
 public:
  void add(MemoryCategory category, std::int64_t bytes) {
    auto& now = current_[static_cast<std::size_t>(category)];
    now += bytes;
    total_ += bytes;
    auto& top = peak_[static_cast<std::size_t>(category)];
    if (now > top) top = now;
    if (total_ > total_peak_) {
      total_peak_ = total_;
      stale_ = true;
    } else if (stale_ && bytes < 0) settle(category, bytes);
  }
  void retag(MemoryCategory from, MemoryCategory to, std::int64_t bytes) {
    add(from, -bytes);
    add(to, bytes);
  }

  std::int64_t current(MemoryCategory category) const { return current_[static_cast<std::size_t>(category)]; }
  std::int64_t peak(MemoryCategory category) const { return peak_[static_cast<std::size_t>(category)]; }
  const CategoryBytes& current() const { return current_; }
  const CategoryBytes& peak() const { return peak_; }
  std::int64_t total() const { return total_; }
  std::int64_t total_peak() const { return total_peak_; }
  /// The breakdown at the moment of the total peak.
  const CategoryBytes& at_peak() const { return stale_ ? current_ : at_peak_; }
  /// Peaks start again from what is held now.
  void reset_peaks();

 private:
  // The breakdown is copied when the total first falls after a new peak, not at every step up.
  void settle(MemoryCategory category, std::int64_t bytes);
  CategoryBytes current_{}, peak_{}, at_peak_{};
  std::int64_t total_ = 0, total_peak_ = 0;
  bool stale_ = false;
};

/// "gradients 1.5 MB, activations 300 KB": largest first, zero categories left out.
std::string describe(const CategoryBytes& bytes);
/// "43.4 MB", decimal units, three digits.
std::string format_bytes(std::int64_t bytes);

}  // namespace sherd
