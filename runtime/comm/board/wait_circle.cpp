#include "runtime/comm/board/wait_circle.h"

#include <algorithm>
#include <tuple>

namespace sherd::comm {

std::vector<Hold> circle_in(std::vector<Hold> holds) {
  if (holds.empty()) return {};
  const auto first = std::ranges::find(holds, holds.back().to, &Hold::from);
  holds.erase(holds.begin(), first);
  const auto order = [](const Hold& hold) { return std::tuple(hold.from.rank, hold.from.lane); };
  std::ranges::rotate(holds, std::ranges::min_element(holds, {}, order));
  return holds;
}

bool CircleProof::is_proven(const std::vector<Hold>& circle, std::int64_t end) {
  const bool is_seen = !circle.empty() && std::ranges::equal(circle, seen_, &Hold::is_same);
  if (is_seen) return std::ranges::all_of(circle, [&](const Hold& hold) { return hold.found_until >= seen_at_; });
  seen_ = circle;
  seen_at_ = end;
  return false;
}

}  // namespace sherd::comm
