#include "nn/parallel/shard/unit/unit_schedule.h"

#include <algorithm>

namespace sherd::nn {

void UnitSchedule::begin_forward() {
  in_forward_ = true;
  if (!now_.empty()) last_.swap(now_);
  now_.clear();
  at_ = 0;
  if (left_.size() > kMaxPending) end_backward();
}

UnitId UnitSchedule::enter(UnitId unit) {
  if (!in_forward_) return kNoUnit;
  now_.push_back(unit);
  const auto found = std::find(last_.begin() + static_cast<std::ptrdiff_t>(at_), last_.end(), unit);
  if (found == last_.end()) return kNoUnit;  // another branch than last time
  at_ = static_cast<std::size_t>(found - last_.begin()) + 1;
  return at_ < last_.size() ? last_[at_] : kNoUnit;
}

UnitSchedule::Call UnitSchedule::leave(UnitId unit, Call begun) {
  left_.push_back(unit);
  return {epoch_, begun.epoch == epoch_ ? begun.before : 0, left_.size() - 1};
}

UnitSchedule::Backward UnitSchedule::begin_backward(UnitId unit, Call call) {
  Backward result;
  if (call.epoch == 0) return result;
  std::erase_if(in_backward_, [&](const Begun& other) {
    if (other.unit == unit) return true;  // this call takes its place
    if (!is_over(other.call, call)) return false;
    result.over.push_back(other.unit);
    return true;
  });
  in_backward_.push_back({unit, call});
  if (call.epoch == epoch_ && call.index > 0) result.next = left_[call.index - 1];
  return result;
}

void UnitSchedule::end_backward() {
  left_.clear();
  in_backward_.clear();
  ++epoch_;
}

void UnitSchedule::forget() {
  end_forward();
  end_backward();
  last_.clear();
  now_.clear();
}

}  // namespace sherd::nn
