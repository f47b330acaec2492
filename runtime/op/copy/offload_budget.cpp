#include "runtime/op/copy/offload_budget.h"

#include <algorithm>
#include <numeric>

namespace sherd {

std::vector<bool> kept_in_memory(std::span<const std::int64_t> bytes, std::int64_t budget) {
  std::vector<std::size_t> smallest_first(bytes.size());
  std::iota(smallest_first.begin(), smallest_first.end(), std::size_t{0});
  std::ranges::stable_sort(smallest_first, {}, [&](std::size_t i) { return bytes[i]; });
  std::vector<bool> kept(bytes.size(), false);
  for (const std::size_t i : smallest_first) {
    if (bytes[i] > budget) break;
    budget -= bytes[i];
    kept[i] = true;
  }
  return kept;
}

}  // namespace sherd
