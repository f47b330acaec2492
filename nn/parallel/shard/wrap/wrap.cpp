#include "nn/parallel/shard/wrap/wrap.h"

#include <iterator>

#include "nn/parallel/shard/wrap/unit_plan.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/exec/left_steps.h"

namespace sherd::nn {

void ShardTree::add(Wrap& wrap) {
  wrap.id_ = static_cast<UnitId>(wraps.size());
  wraps.push_back(&wrap);
  news.push_back(wrap.weak_from_this());
  num_gathering += wrap.gathers() ? 1 : 0;
  for (const auto& unit : wrap.units) unit->set_end(end);
}

void ShardTree::agree() {
  if (news.empty()) return;
  std::vector<Wrap*> compared;
  for (const auto& weak : news)
    if (const auto wrap = weak.lock()) compared.push_back(wrap.get());
  agree_on_units(compared);
  news.clear();
}

// Whether there are modules that may join.
bool ShardTree::has_news() const {
  return !is_whole || std::ranges::any_of(late, [](const std::weak_ptr<Wrap>& weak) {
    const auto wrap = weak.lock();
    return wrap && !wrap->tree_ && wrap->has_values();
  });
}

void ShardTree::compare_again() {
  news.clear();
  for (Wrap* wrap : wraps)
    if (wrap) news.push_back(wrap->weak_from_this());
}

void ShardTree::drop_unused() const {
  for (Wrap* wrap : wraps) {
    if (!wrap) continue;
    for (const auto& unit : wrap->units) unit->buffers.drop_unused();
  }
}

void ShardTree::close_rounds() const {
  for (Wrap* wrap : wraps)
    if (wrap && !wrap->awaited_.empty()) wrap->close_round();
}

void ShardTree::end_backward(bool is_last_of_all) {
  if (is_last_of_all) schedule.end_backward();
  for (auto wrap = wraps.rbegin(); wrap != wraps.rend(); ++wrap) {
    if (!*wrap) continue;
    (*wrap)->leave_round();
    for (const auto& unit : (*wrap)->units) unit->finish_backward();
  }
  if (is_last_of_all) drop_unused();  // gathered for a backward that did not come
}

void ShardTree::abandon(std::string_view reason) noexcept {
  schedule.end_forward();
  schedule.end_backward();
  for (Wrap* wrap : wraps) {
    if (!wrap) continue;
    wrap->leave_round();
    for (const auto& unit : wrap->units) unit->abandon(reason);
  }
}

Wrap* wrap_of(const Module& module) {
  for (const auto& hook : module.hooks())
    if (auto* wrap = dynamic_cast<Wrap*>(hook.get())) return wrap;
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
    if (wrap && std::find(wraps.begin(), wraps.end(), wrap) == wraps.end()) wraps.push_back(wrap);
  });
  return wraps;
}

namespace {

// A tied parameter is gathered wherever it is used: by the unit that has it, and while modules of another one compute
// that use it, for them.
void link_tied(Module& module, Wrap* user, const std::vector<Wrap*>& tree) {
  if (Wrap* wrap = wrap_of(module)) user = wrap;
  for (const Module::NamedParameter& p : module.own_parameters()) {
    const ShardKeeper* const keeper = p.parameter->shard_keeper();
    if (!keeper || (user && user->owns(*keeper))) continue;
    const auto owner = std::ranges::find_if(tree, [&](Wrap* wrap) { return wrap && wrap->owns(*keeper); });
    check(
        user && owner != tree.end(),
        "parameter \"{}\" is used by module \"{}\", and its fully_shard unit belongs to no module of this model: tied "
        "weights need both users below one root; wrap their common parent",
        p.parameter->name(), module.label());
    user->borrow(**owner, *(*owner)->unit_of(*keeper));
  }
  for (const auto& child : module.children()) link_tied(*child, user, tree);
}

void check_materialized(Module& module) {
  std::string names;
  int count = 0;
  for (const Parameter* p : module.parameters())
    if (p->value().local().is_meta() && ++count <= 8) names += (names.empty() ? "" : ", ") + p->name();
  check(count == 0,
        "{} parameters have no values yet ({}{}): call model.materialize(seed), or load a checkpoint, before the first "
        "forward",
        count, names, count > 8 ? ", ..." : "");
}

// The tree of the nearest wrapped module above that is in one; else null.
std::shared_ptr<ShardTree> tree_above(const Module& module) {
  for (const Module* above = module.parent(); above; above = above->parent())
    if (const Wrap* wrap = wrap_of(*above); wrap && wrap->tree()) return wrap->tree();
  return nullptr;
}

// The topmost of this module and those above that are in the tree.
Module& top_in(Module& module, const std::shared_ptr<ShardTree>& tree) {
  Module* top = &module;
  for (Module* above = module.parent(); above; above = above->parent())
    if (const Wrap* wrap = wrap_of(*above); wrap && wrap->tree() == tree) top = above;
  return *top;
}

}  // namespace

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
    if (const std::shared_ptr<ShardTree> above = tree_above(*module)) above->is_whole = false;
}

void Wrap::set_reshard_after_forward(ReshardAfterForward value) {
  const bool reshards = value.resolve(mesh_.num_shards());
  std::vector<std::optional<DeviceMesh>> splits;
  for (const auto& unit : units) splits.push_back(split_of(unit->data, unit->is_replicated, value));
  for (std::size_t i = 0; i < units.size(); ++i) units[i]->buffers.set_slices(splits[i]);
  note_reshards(reshards);
  note_slices();
}

void Wrap::check_is_root(std::string_view call) const {
  check(is_root_ || !tree_,
        "{}: module \"{}\" is not the root of its fully_shard tree; name the module whose forward is called", call,
        name_);
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

void Wrap::set_forward_prefetch(std::vector<std::weak_ptr<Wrap>> list) {
  forward_prefetch_ = std::move(list);
  knobs.set<&GatherKnobs::forward_prefetch>(knobs.all().forward_prefetch.next());
}

void Wrap::set_backward_prefetch(std::vector<std::weak_ptr<Wrap>> list) {
  backward_prefetch_ = std::move(list);
  knobs.set<&GatherKnobs::backward_prefetch>(knobs.all().backward_prefetch.next());
}

void Wrap::before_cast(Module&, DType dtype) {
  check(!tree_, "module \"{}\" ran already, and its dtype changes before the first forward only", name_);
  for (const auto& unit : units) unit->cast_to(dtype);
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

void Wrap::borrow(Wrap& owner, Unit& unit) {
  std::erase_if(borrowed_, [](const Borrowed& borrowed) { return borrowed.owner.expired(); });
  if (borrows(unit)) return;
  borrowed_.push_back({owner.weak_from_this(), &unit});
  if (!awaited_.empty()) ++unit.users;  // leave_round() will count it
}

bool Wrap::borrows(const Unit& unit) const {
  return std::ranges::any_of(
      borrowed_, [&](const Borrowed& borrowed) { return borrowed.unit == &unit && !borrowed.owner.expired(); });
}

void Wrap::each_unit(const auto& visit) const {
  for (const auto& unit : units) visit(*unit, *this);
  for (const Borrowed& borrowed : borrowed_)
    if (const auto owner = borrowed.owner.lock()) visit(*borrowed.unit, *owner);
}

bool Wrap::gathers() const {
  return std::ranges::any_of(units, [](const auto& unit) { return unit->pieces.gathers(); });
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

bool Wrap::has_values() const {
  return std::ranges::none_of(units, [](const auto& unit) { return unit->buffers.levels().is_meta(); });
}

std::vector<int> Wrap::order_in_forward() const {
  std::vector<int> places;
  if (!tree_) return places;
  const std::vector<UnitId>& order = tree_->schedule.order();
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i] == id_) places.push_back(static_cast<int>(i));
  return places;
}

void Wrap::join_or_make_tree(Module& module) {
  if (const std::shared_ptr<ShardTree> tree = tree_ ? tree_ : tree_above(module)) join(module, tree);
  else become_root(module);
}

// Modules that were wrapped after the root's first forward, in place of others perhaps, join its tree: this one, and
// all that have values. They may share weights with older ones and with each other, so the whole tree is linked again.
void Wrap::join(Module& module, const std::shared_ptr<ShardTree>& tree) {
  if (!tree_) check_materialized(module);
  Module& top = top_in(module, tree);
  const std::vector<Wrap*> below = wraps_below(top);
  std::vector<Wrap*> all = tree->wraps;
  std::ranges::copy_if(below, std::back_inserter(all), [](const Wrap* wrap) { return !wrap->tree_; });
  for (Wrap* wrap : all)
    if (wrap && wrap->awaited_.empty()) wrap->borrowed_.clear();  // modules may have been replaced
  link_tied(top, nullptr, all);
  tree->is_whole = true;
  tree->late.clear();
  for (Wrap* wrap : below) {
    if (wrap->tree_) continue;
    if (wrap != this && !wrap->has_values()) {
      tree->late.push_back(wrap->weak_from_this());
      continue;
    }
    tree->add(*wrap);
    wrap->tree_ = tree;
  }
}

void Wrap::become_root(Module& module) {
  check_materialized(module);
  const std::vector<Wrap*> found = wraps_below(module);
  for (const Wrap* wrap : found)
    if (wrap->tree_)
      fail(
          "fully_shard: module \"{}\" ran by itself before \"{}\", so it is a root of its own; run the whole model "
          "first",
          wrap->name_, module.label());
  link_tied(module, nullptr, found);
  const auto tree = std::make_shared<ShardTree>();
  for (Wrap* wrap : found) {
    tree->add(*wrap);
    wrap->tree_ = tree;
  }
  is_root_ = true;
  tree->is_last = knobs.all().is_last;
}

// Without a tree nobody else tells the peers, who are on their way into the first gather.
void Wrap::join_or_tell(Module& module) {
  try {
    join_or_make_tree(module);
  } catch (...) {
    const std::string reason = current_exception_text();
    for (Wrap* wrap : wraps_below(module))
      if (wrap->root_group().size() > 1) wrap->root_group().abort(reason);
    throw;
  }
}

void Wrap::before_forward(Module& module) {
  const bool joins = !tree_ || (tree_->depth == 0 && tree_->has_news());
  if (joins) join_or_tell(module);
  const bool begins = awaited_.empty();
  try {
    // A model whose forward communicates nothing may run on one rank alone, until a backward reduces.
    if ((joins || tree_->depth == 0) && !tree_->news.empty() && tree_->gathers()) tree_->agree();
    enter_forward(begins);
  } catch (...) {
    if (tree_->depth == 0) tree_->abandon(current_exception_text());
    throw;
  }
  ++tree_->depth;
  running_.push_back({&module, RankContext::current().next_id()});
  if (begins) begin_round();
}

void Wrap::enter_forward(bool begins) {
  knobs.read_all();
  if (begins && is_root_ && !in_backward()) {
    tree_->schedule.begin_forward();
    tree_->close_rounds();  // of modules that were called by themselves
    for (Wrap* wrap : tree_->wraps) {
      if (!wrap) continue;
      for (const auto& unit : wrap->units) unit->discard_pending();  // left by a backward that failed
    }
  }
  unshard();
  if (begins) forward_call_ = tree_->schedule.begin();
  if (begins) prefetch(forward_prefetch_, uses_none() ? kNoUnit : tree_->schedule.enter(id_));
}

void Wrap::unshard() const {
  each_unit([](Unit& unit, const Wrap&) { unit.buffers.unshard(); });
}

void Wrap::begin_round() {
  awaited_ = modules_;
  each_unit([](Unit& unit, const Wrap&) { ++unit.users; });
}

void Wrap::leave_round() {
  if (awaited_.empty()) return;
  awaited_.clear();
  each_unit([](Unit& unit, const Wrap&) { --unit.users; });
}

// Without grad mode there is no backward that would reshard later.
void Wrap::close_round() {
  leave_round();
  const bool has_backward = RankContext::current().grad_enabled;
  each_unit([has_backward](Unit& unit, const Wrap& owner) {
    if (unit.users > 0) return;
    if (!has_backward) unit.buffers.reshard();
    else if (owner.reshards()) unit.buffers.reshard_after_forward();
  });
}

// Submitted before the module computes, so that it runs beside it.
void Wrap::prefetch(const std::vector<std::weak_ptr<Wrap>>& listed, UnitId expected) const {
  const auto start = [](Wrap& next) {
    next.agree();  // one of another tree may not have communicated yet
    next.each_unit([](Unit& unit, const Wrap&) { unit.buffers.prefetch(); });
  };
  for (const auto& weak : listed)
    if (const auto next = weak.lock()) start(*next);
  if (!listed.empty() || !prefetches_ || expected == kNoUnit) return;
  if (Wrap* next = tree_->wraps[static_cast<std::size_t>(expected)]) start(*next);
}

void Wrap::after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) {
  --tree_->depth;
  const std::uint64_t begun = running_.back().begun;
  running_.pop_back();
  try {
    const UnitSchedule::Call call = leave_forward(module);
    if (RankContext::current().grad_enabled) hook_outputs(call, begun, visit_outputs);
  } catch (...) {
    if (tree_->depth == 0) tree_->abandon(current_exception_text());
    throw;
  }
}

UnitSchedule::Call Wrap::leave_forward(Module& module) {
  if (is_running(module)) return {};  // it called itself
  const bool is_done = awaited_.size() == 1 ? awaited_[0] == &module : awaited_.empty();
  if (!is_done) {
    std::erase(awaited_, &module);
  } else {
    close_round();
    if (is_root_ && !in_backward()) {
      if (tree_->schedule.end_forward()) note_other_prediction();
      tree_->close_rounds();  // the rest of their lists does not run
      tree_->drop_unused();
    }
  }
  if (uses_none() || !is_done || !RankContext::current().grad_enabled) return {};
  return tree_->schedule.leave(id_, forward_call_);
}

// Tells when the backward of a call begins. Gathers are rows: replay issues them without the hook.
struct Wrap::OutputHook final : TensorHook {
  OutputHook(int output, std::shared_ptr<ForwardCall> of)
      : TensorHook(output, {.capturable = true}), call(std::move(of)) {}
  Tensor run(const Tensor&) override {
    if (const auto wrap = call->wrap.lock()) wrap->before_backward(*call);
    return {};
  }
  const std::shared_ptr<ForwardCall> call;
};

// Hooks the outputs that this call has made: one that was an input too is reached when the call's backward is over.
void Wrap::hook_outputs(UnitSchedule::Call call, std::uint64_t begun,
                        const std::function<void(const TensorVisitor&)>& visit_outputs) {
  const auto shared = std::make_shared<ForwardCall>(ForwardCall{weak_from_this(), call, begun});
  if (is_root_) shared->mesh = mesh_.mesh();
  visit_outputs([&shared](const Tensor& t) {
    if (!t.requires_grad() || t.grad_node()->kind != Node::Kind::op || t.grad_node()->sequence < shared->begun) return;
    register_grad_hook(t, std::make_unique<OutputHook>(t.output_index(), shared));
  });
}

// An exception that leaves the outermost forward ends the step, for all ranks. One that leaves an inner forward may be
// handled by the model.
void Wrap::abandon_forward(Module& module, std::string_view reason) noexcept {
  if (!tree_) return;
  running_.pop_back();
  if (--tree_->depth == 0) return tree_->abandon(reason);
  if (is_running(module)) return;  // it called itself
  leave_round();
  each_unit([](Unit& unit, const Wrap&) {
    if (unit.users == 0) unit.buffers.reshard();
  });
}

void Wrap::before_backward(ForwardCall& call) {
  tree_->end->expect();
  if (std::exchange(call.pass, backward_pass()) == backward_pass()) return;  // another output was reached before
  knobs.read_all();
  const UnitSchedule::Backward plan = tree_->schedule.begin_backward(id_, call.call);
  for (const UnitId over : plan.over)
    if (const Wrap* wrap = tree_->wraps[static_cast<std::size_t>(over)])
      for (const auto& unit : wrap->units)
        if (!borrows(*unit)) unit->leave_backward();  // else this call is its next user
  unshard();
  prefetch(backward_prefetch_, plan.next);
}

}  // namespace sherd::nn
