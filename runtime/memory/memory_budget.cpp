#include "runtime/memory/memory_budget.h"

#include <optional>

#include "runtime/tensor/error.h"
#include "runtime/tensor/quantity.h"

namespace sherd {

MemoryBudget::MemoryBudget(std::string_view text) {
  if (text == "none") return;
  if (!text.empty() && text.back() == '%') {
    const std::optional<double> percent = parse_number(text.substr(0, text.size() - 1));
    check(percent && *percent > 0 && *percent <= 100,
          "a memory budget of {}: give a part over 0% and at most 100% of what the step holds without one", text);
    part_ = *percent / 100;
    return;
  }
  const std::optional<std::int64_t> bytes = parse_bytes(text);
  check(bytes && *bytes > 0, "a memory budget of \"{}\": give bytes, as 1.5GB or 800MiB, a part, as 75%, or none",
        text);
  bytes_ = *bytes;
}

std::int64_t MemoryBudget::bytes(std::int64_t without) const {
  return bytes_ > 0 ? bytes_ : static_cast<std::int64_t>(part_ * static_cast<double>(without));
}

std::string MemoryBudget::text() const {
  if (part_ > 0) return fmt::format("{:.12g}%", part_ * 100);
  return bytes_ > 0 ? std::to_string(bytes_) : "none";
}

}  // namespace sherd
