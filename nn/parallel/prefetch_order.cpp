#include "nn/parallel/prefetch_order.h"

#include <algorithm>

namespace sherd::nn {

void PrefetchOrder::begin_forward() {
  in_forward_ = true;
  if (!now_.empty()) last_.swap(now_);
  now_.clear();
  at_ = 0;
  if (left_.size() > kMaxPending) end_backward();
}

ShardGroup* PrefetchOrder::enter(ShardGroup* group) {
  if (!in_forward_) return nullptr;
  now_.push_back(group);
  const auto found = std::find(last_.begin() + static_cast<std::ptrdiff_t>(at_), last_.end(), group);
  if (found == last_.end()) return nullptr;  // another branch than last time
  at_ = static_cast<std::size_t>(found - last_.begin()) + 1;
  return at_ < last_.size() ? last_[at_] : nullptr;
}

PrefetchOrder::Call PrefetchOrder::leave(ShardGroup* group, Call begun) {
  left_.push_back(group);
  return {epoch_, begun.epoch == epoch_ ? begun.before : 0, left_.size() - 1};
}

ShardGroup* PrefetchOrder::enter_backward(Call call) const {
  return call.epoch == epoch_ && call.index > 0 ? left_[call.index - 1] : nullptr;
}

void PrefetchOrder::end_backward() {
  left_.clear();
  ++epoch_;
}

void PrefetchOrder::forget() {
  end_forward();
  end_backward();
  last_.clear();
  now_.clear();
}

}  // namespace sherd::nn
