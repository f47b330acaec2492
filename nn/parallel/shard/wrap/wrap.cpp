#include "nn/parallel/shard/wrap/wrap.h"

#include <algorithm>

#include "nn/parallel/shard/wrap/fully_shard_hook.h"
#include "nn/parallel/shard/wrap/unit_table.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

Wrap* wrap_of(const Module& module) {
  for (const auto& hook : module.hooks())
    if (const auto* ours = dynamic_cast<const FullyShardHook*>(hook.get())) return ours->wrap.get();
  return nullptr;
}

Wrap& wrapped(Module& module) {
  Wrap* wrap = wrap_of(module);
  if (!wrap) fail(kNotWrapped, module.label());
  return *wrap;
}

std::vector<Wrap*> wraps_below(Module& root) {
  std::vector<Wrap*> wraps;
  root.for_each_module([&](Module& m) {
    Wrap* wrap = wrap_of(m);
    if (wrap && std::ranges::find(wraps, wrap) == wraps.end()) wraps.push_back(wrap);
  });
  return wraps;
}

Wrap::Wrap(PlannedCall call)
    : name_(std::move(call.name)),
      strategy_(strategy_of(call)),
      modules_(std::move(call.modules)),
      policy_(call.policy.mp_policy),
      mesh_(call.data),
      prefetches_(call.policy.prefetch) {
  if (const auto& reshard = call.policy.reshard_after_forward) note_reshards(reshard->resolve(mesh_.num_shards()));
  for (PlannedCall::Part& part : call.parts)
    units.emplace_back(std::make_unique<Unit>(part.members, std::move(part.placed), call.policy))
        ->buffers.set_slices(part.split);
  note_slices();
  for (const Module* module : modules_)
    if (const std::shared_ptr<ShardTree> above = ShardTree::above(*module)) above->is_whole = false;
}

const std::vector<std::unique_ptr<Unit>>& Wrap::own_units() const {
  check(!units.empty(), "module \"{}\" has no parameters of its own: inner calls of fully_shard own them", name_);
  return units;
}

Unit* Wrap::unit_of(const ShardKeeper& keeper) const {
  for (const auto& unit : units)
    if (&unit->buffers == &keeper) return unit.get();
  return nullptr;
}

bool Wrap::gathers() const {
  return std::ranges::any_of(units, [](const auto& unit) { return unit->pieces.gathers(); });
}

bool Wrap::has_values() const {
  return std::ranges::none_of(units, [](const auto& unit) { return unit->buffers.levels().is_meta(); });
}

// ---- settings ----

void Wrap::set_reshard_after_forward(ReshardAfterForward value) {
  const bool reshards = value.resolve(mesh_.num_shards());
  std::vector<std::optional<DeviceMesh>> splits;
  for (const auto& unit : units) splits.push_back(split_of(unit->data, unit->is_replicated, value));
  for (const std::size_t i : indices(units)) units[i]->buffers.set_slices(splits[i]);
  note_reshards(reshards);
  note_slices();
}

void Wrap::note_reshards(bool on) {
  knobs.set<&GatherKnobs::is_told>(true);
  knobs.set<&GatherKnobs::reshards>(on);
}

// By the names of their groups: recorded rows meet in those.
void Wrap::note_slices() {
  std::string text;
  for (const auto& unit : units)
    if (const UnitSlices* slices = unit->buffers.levels().slices())
      text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", slices->ranks(),
                          slices->split().group(slices->split().ndim() - 1).name());
  knobs.set<&GatherKnobs::slices>(text);
}

void Wrap::set_is_last_backward(bool value) {
  check_is_root("set_is_last_backward");
  knobs.set<&GatherKnobs::is_last>(value);
  if (tree_) tree_->is_last = value;
}

void Wrap::set_forward_prefetch(std::vector<std::weak_ptr<Wrap>> list) {
  forward_prefetch_ = std::move(list);
  knobs.set<&GatherKnobs::forward_prefetch>(knobs.all().forward_prefetch.next());
}

void Wrap::set_backward_prefetch(std::vector<std::weak_ptr<Wrap>> list) {
  backward_prefetch_ = std::move(list);
  knobs.set<&GatherKnobs::backward_prefetch>(knobs.all().backward_prefetch.next());
}

void Wrap::prefetch(StepPhase phase, UnitId expected) const {
  const auto start = [](Wrap& next) {
    next.agree();  // one of another tree may not have communicated yet
    next.use.prefetch();
  };
  const auto& listed = phase == StepPhase::forward ? forward_prefetch_ : backward_prefetch_;
  for (const auto& weak : listed)
    if (const auto next = weak.lock()) start(*next);
  if (!listed.empty() || !prefetches_ || expected == kNoUnit) return;
  if (Wrap* next = tree_->wraps[static_cast<std::size_t>(expected)]) start(*next);
}

// ---- its tree ----

void Wrap::check_is_root(std::string_view call) const {
  check(is_root_ || !tree_,
        "{}: module \"{}\" is not the root of its fully_shard tree; name the module whose forward is called", call,
        name_);
}

std::vector<int> Wrap::order_in_forward() const {
  std::vector<int> places;
  if (!tree_) return places;
  const std::vector<UnitId>& order = tree_->schedule.order();
  for (const std::size_t i : indices(order))
    if (order[i] == id_) places.push_back(static_cast<int>(i));
  return places;
}

bool Wrap::is_agreed() const {
  return tree_ ? std::ranges::none_of(tree_->news, [&](const auto& weak) { return weak.lock().get() == this; })
               : is_agreed_;
}

void Wrap::agree() {
  if (tree_ ? tree_->news.empty() : is_agreed_) return;
  if (tree_ ? !tree_->gathers() : !gathers()) return;
  if (tree_) return tree_->agree();
  Wrap* const alone[] = {this};
  agree_on_units(alone);
  is_agreed_ = true;
}

}  // namespace sherd::nn
