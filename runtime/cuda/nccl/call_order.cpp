#include "runtime/cuda/nccl/call_order.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace sherd::cuda::nccl {

void CallOrder::add(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  Group made{.ranks = std::move(ranks), .outer = {}};
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (std::ranges::includes(groups_[i].ranks, made.ranks)) made.outer.push_back(i);
    if (std::ranges::includes(made.ranks, groups_[i].ranks)) groups_[i].outer.push_back(groups_.size());
  }
  groups_.push_back(std::move(made));
}

std::string CallOrder::next(std::size_t group) {
  Group& of = groups_[group];
  std::string text = fmt::format("call {} over all queues", ++of.calls);
  for (const std::size_t outer : of.outer)
    text += fmt::format("{} {}", outer == of.outer.front() ? ", behind" : " and", groups_[outer].calls);
  return of.outer.empty() ? text : text + " of wider groups";
}

void CallOrder::restart() {
  for (Group& group : groups_) group.calls = 0;
}

}  // namespace sherd::cuda::nccl
