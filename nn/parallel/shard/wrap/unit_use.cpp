#include "nn/parallel/shard/wrap/unit_use.h"

#include <algorithm>

#include "nn/parallel/shard/wrap/wrap.h"
#include "runtime/exec/context.h"

namespace sherd::nn {

// Visits each unit with the wrap that has it.
void UnitUse::each(const auto& visit) const {
  for (const auto& unit : wrap_.units) visit(*unit, wrap_);
  for (const Borrowed& borrowed : borrowed_)
    if (const auto owner = borrowed.owner.lock()) visit(*borrowed.unit, *owner);
}

bool UnitUse::is_none() const { return wrap_.units.empty() && borrowed_.empty(); }

void UnitUse::borrow(Wrap& owner, Unit& unit) {
  std::erase_if(borrowed_, [](const Borrowed& borrowed) { return borrowed.owner.expired(); });
  if (borrows(unit)) return;
  borrowed_.push_back({owner.weak_from_this(), &unit});
  if (is_open()) ++unit.users;  // leave() will count it
}

bool UnitUse::borrows(const Unit& unit) const {
  return std::ranges::any_of(
      borrowed_, [&](const Borrowed& borrowed) { return borrowed.unit == &unit && !borrowed.owner.expired(); });
}

void UnitUse::forget_borrowed() {
  if (!is_open()) borrowed_.clear();
}

void UnitUse::prefetch() const {
  each([](Unit& unit, const Wrap&) { unit.buffers.prefetch(); });
}

void UnitUse::unshard() const {
  each([](Unit& unit, const Wrap&) { unit.buffers.unshard(); });
}

void UnitUse::begin() {
  awaited_ = wrap_.modules();
  each([](Unit& unit, const Wrap&) { ++unit.users; });
}

bool UnitUse::ends_with(const Module& module) {
  if (awaited_.size() == 1 ? awaited_[0] == &module : awaited_.empty()) return true;
  std::erase(awaited_, &module);
  return false;
}

void UnitUse::leave() {
  if (!is_open()) return;
  awaited_.clear();
  each([](Unit& unit, const Wrap&) { --unit.users; });
}

// Without grad mode there is no backward that would reshard later.
void UnitUse::close() {
  leave();
  const bool has_backward = RankContext::current().grad_enabled;
  each([has_backward](Unit& unit, const Wrap& owner) {
    if (unit.users > 0) return;
    if (!has_backward) unit.buffers.reshard();
    else if (owner.reshards() && unit.frees_after_forward()) unit.buffers.reshard_after_forward();
  });
}

void UnitUse::abandon() {
  leave();
  each([](Unit& unit, const Wrap&) {
    if (unit.users == 0) unit.buffers.reshard();
  });
}

}  // namespace sherd::nn
