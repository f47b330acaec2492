#include "runtime/comm/group/shared_times.h"

#include <algorithm>

#include "runtime/comm/group/uncounted.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {
constexpr std::uint64_t kEvery = 16;
constexpr std::size_t kLast = 256;  // more than a host is ahead of its device
}  // namespace

std::shared_ptr<SharedWork> SharedTimes::next() {
  ++number_;
  if (last_.size() == kLast) last_.pop_front();
  return last_.emplace_back(std::make_shared<SharedWork>());
}

SharedWorks SharedTimes::due() const {
  if (number_ % kEvery != 0) return {};
  return {last_.begin(), last_.end()};
}

void compare_times(HostGroup& lane, std::span<const std::shared_ptr<SharedWork>> works) {
  const std::size_t n = works.size(), self = static_cast<std::size_t>(lane.rank());
  std::vector<std::int64_t> took(n * static_cast<std::size_t>(lane.size()));  // 0: not over
  for (const std::size_t i : indices(works))
    if (const std::int64_t ended = works[i]->ended(); ended != 0)
      took[self * n + i] = std::max<std::int64_t>(ended - works[i]->started(), 1);
  {
    const Uncounted aside;
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(lane.size()), static_cast<std::int64_t>(n));
    lane.all_gather({in_place(took.data(), DType::i64, counts)});
  }
  for (const std::size_t i : indices(works)) {
    std::int64_t least = took[self * n + i];
    for (std::size_t at = i; at < took.size(); at += n) least = std::min(least, took[at]);
    if (least == 0 || works[i]->is_skew_known()) continue;
    const std::int64_t started = works[i]->started();
    works[i]->set_skew({started, started + took[self * n + i] - least});
  }
}

}  // namespace sherd::comm
