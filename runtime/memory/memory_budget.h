#pragma once
// The bytes that somebody gives a step, as people type them.
#include <cstdint>
#include <string>
#include <string_view>

namespace sherd {

/// "1.5GB": bytes; "75%": of what the step holds without a budget; "none": as many as it takes.
class MemoryBudget {
 public:
  MemoryBudget() = default;
  /// Error naming the text for others, for no bytes, and for a part that is not over 0 and at most 100 %.
  MemoryBudget(std::string_view text);                                             // NOLINT: {.memory_budget = "75%"}
  MemoryBudget(const char* text) : MemoryBudget(std::string_view(text)) {}         // NOLINT
  MemoryBudget(const std::string& text) : MemoryBudget(std::string_view(text)) {}  // NOLINT

  bool is_set() const { return bytes_ > 0 || part_ > 0; }
  /// In bytes, for a step that holds `without` at most when it has none; meaningless unless it is set.
  std::int64_t bytes(std::int64_t without) const;
  std::string text() const;
  friend bool operator==(const MemoryBudget&, const MemoryBudget&) = default;

 private:
  std::int64_t bytes_ = 0;
  double part_ = 0;  // of 1
};

}  // namespace sherd
