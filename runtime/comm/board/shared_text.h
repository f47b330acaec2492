#pragma once
// Text in memory that several ranks see.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace sherd::comm {

/// Text that one rank writes while others may read. A reader that comes in the middle sees a mixture of both
/// texts, never undefined behaviour.
template <std::size_t kBytes>
class SharedText {
 public:
  void store(std::string_view text) {
    const std::size_t size = std::min(text.size(), kBytes);
    for (std::size_t at = 0; at < size; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, size - at));
      words_[at / 8].store(word, std::memory_order_relaxed);
    }
    size_.store(static_cast<std::uint32_t>(size), std::memory_order_relaxed);
  }
  std::string load() const {
    std::string text(std::min<std::size_t>(size_.load(std::memory_order_relaxed), kBytes), '\0');
    for (std::size_t at = 0; at < text.size(); at += 8) {
      const std::uint64_t word = words_[at / 8].load(std::memory_order_relaxed);
      std::memcpy(text.data() + at, &word, std::min<std::size_t>(8, text.size() - at));
    }
    return text;
  }

 private:
  static_assert(kBytes % 8 == 0);
  std::atomic<std::uint32_t> size_{0};
  std::array<std::atomic<std::uint64_t>, kBytes / 8> words_{};
};

}  // namespace sherd::comm
