#include "runtime/exec/rank_register.h"

#include "runtime/exec/context.h"

namespace sherd {

RegisteredThing::RegisteredThing(std::size_t kind, void* thing)
    : home_(RankContext::current().rank_register), kind_(kind) {
  const std::lock_guard lock(home_->mutex_);
  if (home_->living_.size() <= kind) home_->living_.resize(kind + 1);
  std::list<void*>& list = home_->living_[kind];
  place_ = list.insert(list.end(), thing);
}

RegisteredThing::~RegisteredThing() {
  const std::lock_guard lock(home_->mutex_);
  home_->living_[kind_].erase(place_);
}

std::size_t RegisteredThing::next_kind() {
  static std::atomic<std::size_t> next{0};
  return next++;
}

std::vector<void*> RegisteredThing::living(std::size_t kind, RankRegister* of) {
  RankRegister& here = of ? *of : *RankContext::current().rank_register;
  const std::lock_guard lock(here.mutex_);
  if (here.living_.size() <= kind) return {};
  return {here.living_[kind].begin(), here.living_[kind].end()};
}

}  // namespace sherd
