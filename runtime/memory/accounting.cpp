#include "runtime/memory/accounting.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "runtime/tensor/indices.h"

namespace sherd {

std::string_view name(MemoryCategory category) {
  constexpr std::array<std::string_view, kNumCategories> names = {
      "parameters", "unsharded", "gradients", "optimizer", "activations", "communication", "workspace"};
  return names[static_cast<std::size_t>(category)];
}

void Accounting::settle(MemoryCategory category, std::int64_t bytes) {
  at_peak_ = current_;
  at_peak_[static_cast<std::size_t>(category)] -= bytes;  // undo the fall that brought us here
  stale_ = false;
}

void Accounting::reset_peaks() {
  peak_ = at_peak_ = current_;
  total_peak_ = total_;
  stale_ = false;
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.3g} {}", value, units[unit]);
}

std::string describe(const CategoryBytes& bytes) {
  std::vector<int> order;
  for (const int i : up_to(kNumCategories))
    if (bytes[static_cast<std::size_t>(i)] != 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return bytes[static_cast<std::size_t>(a)] > bytes[static_cast<std::size_t>(b)];
  });
  std::string text;
  for (int i : order)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name(static_cast<MemoryCategory>(i)),
                        format_bytes(bytes[static_cast<std::size_t>(i)]));
  return text.empty() ? "nothing" : text;
}

}  // namespace sherd
