#include "nn/parallel/shard/wrap/shard_tree.h"

#include <algorithm>
#include <iterator>

#include "nn/parallel/shard/wrap/wrap.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/left_steps.h"

namespace sherd::nn {

void ShardTree::each(const auto& visit) const {
  for (Wrap* wrap : wraps)
    if (wrap) visit(*wrap);
}

void ShardTree::each_unit(const auto& visit) const {
  each([&](const Wrap& wrap) {
    for (const auto& unit : wrap.units) visit(*unit);
  });
}

// ---- who is in it ----

namespace {

// A tied parameter is gathered wherever it is used: by the unit that has it, and while modules of another one compute
// that use it, for them.
void link_tied(Module& module, Wrap* user, const std::vector<Wrap*>& tree) {
  if (Wrap* wrap = wrap_of(module)) user = wrap;
  for (const Module::NamedParameter& p : module.own_parameters()) {
    const ShardKeeper* const keeper = ShardKeeper::of(*p.parameter);
    if (!keeper || (user && user->owns(*keeper))) continue;
    const auto owner = std::ranges::find_if(tree, [&](Wrap* wrap) { return wrap && wrap->owns(*keeper); });
    check(
        user && owner != tree.end(),
        "parameter \"{}\" is used by module \"{}\", and its fully_shard unit belongs to no module of this model: tied "
        "weights need both users below one root; wrap their common parent",
        p.parameter->name(), module.label());
    user->use.borrow(**owner, *(*owner)->unit_of(*keeper));
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

}  // namespace

std::shared_ptr<ShardTree> ShardTree::above(const Module& module) {
  for (const Module* above = module.parent(); above; above = above->parent())
    if (const Wrap* wrap = wrap_of(*above); wrap && wrap->tree()) return wrap->tree();
  return nullptr;
}

void ShardTree::enter(Wrap& wrap, Module& module) {
  try {
    if (const std::shared_ptr<ShardTree> tree = wrap.tree() ? wrap.tree() : above(module)) tree->join(wrap, module);
    else std::make_shared<ShardTree>()->begin_at(wrap, module);
  } catch (...) {
    const std::string reason = current_exception_text();
    for (Wrap* other : wraps_below(module))
      if (other->root_group().size() > 1) other->root_group().abort(reason);
    throw;
  }
}

void ShardTree::add(Wrap& wrap) {
  wrap.tree_ = shared_from_this();
  wrap.id_ = static_cast<UnitId>(wraps.size());
  wraps.push_back(&wrap);
  news.push_back(wrap.weak_from_this());
  num_gathering += wrap.gathers() ? 1 : 0;
  for (const auto& unit : wrap.units) unit->set_end(end);
}

// Modules that were wrapped after the root's first forward, in place of others perhaps, join its tree: this one, and
// all that have values. They may share weights with older ones and with each other, so the whole tree is linked again.
void ShardTree::join(Wrap& wrap, Module& module) {
  if (!wrap.tree_) check_materialized(module);
  Module* top = &module;  // of this module and those above: the topmost that is in the tree
  for (Module* above = module.parent(); above; above = above->parent())
    if (const Wrap* of = wrap_of(*above); of && of->tree_.get() == this) top = above;
  const std::vector<Wrap*> below = wraps_below(*top);
  std::vector<Wrap*> all = wraps;
  std::ranges::copy_if(below, std::back_inserter(all), [](const Wrap* other) { return !other->tree_; });
  for (Wrap* other : all)
    if (other) other->use.forget_borrowed();  // modules may have been replaced
  link_tied(*top, nullptr, all);
  is_whole = true;
  late.clear();
  for (Wrap* other : below) {
    if (other->tree_) continue;
    if (other == &wrap || other->has_values()) add(*other);
    else late.push_back(other->weak_from_this());
  }
}

void ShardTree::begin_at(Wrap& root, Module& module) {
  check_materialized(module);
  const std::vector<Wrap*> found = wraps_below(module);
  for (const Wrap* other : found)
    if (other->tree_)
      fail(
          "fully_shard: module \"{}\" ran by itself before \"{}\", so it is a root of its own; run the whole model "
          "first",
          other->name(), module.label());
  link_tied(module, nullptr, found);
  for (Wrap* other : found) add(*other);
  root.is_root_ = true;
  is_last = root.knobs.all().is_last;
}

void ShardTree::forget(const Wrap& wrap) {
  wraps[static_cast<std::size_t>(wrap.id())] = nullptr;
  num_gathering -= wrap.gathers() ? 1 : 0;
}

bool ShardTree::has_news() const {
  return !is_whole || std::ranges::any_of(late, [](const std::weak_ptr<Wrap>& weak) {
    const auto wrap = weak.lock();
    return wrap && !wrap->tree() && wrap->has_values();
  });
}

void ShardTree::agree() {
  if (news.empty()) return;
  std::vector<Wrap*> compared;
  for (const auto& weak : news)
    if (const auto wrap = weak.lock()) compared.push_back(wrap.get());
  agree_on_units(compared);
  news.clear();
}

void ShardTree::compare_again() {
  news.clear();
  each([this](Wrap& wrap) { news.push_back(wrap.weak_from_this()); });
}

// ---- a step ----

void ShardTree::begin_forward() {
  schedule.begin_forward();
  each([](Wrap& wrap) {
    if (wrap.use.is_open()) wrap.use.close();  // of modules that were called by themselves
  });
  each_unit([](Unit& unit) { unit.discard_pending(); });  // left by a backward that failed
}

void ShardTree::end_forward() {
  if (schedule.end_forward()) note_other_prediction();
  each([](Wrap& wrap) {
    if (wrap.use.is_open()) wrap.use.close();  // the rest of their lists does not run
  });
  each_unit([](Unit& unit) { unit.buffers.drop_unused(); });
}

void ShardTree::end_backward(bool is_last_of_all) {
  if (is_last_of_all) schedule.end_backward();
  for (auto wrap = wraps.rbegin(); wrap != wraps.rend(); ++wrap) {
    if (!*wrap) continue;
    (*wrap)->use.leave();
    for (const auto& unit : (*wrap)->units) unit->finish_backward();
  }
  if (is_last_of_all) each_unit([](Unit& unit) { unit.buffers.drop_unused(); });  // for a backward that did not come
}

void ShardTree::abandon(std::string_view reason) noexcept {
  schedule.end_forward();
  schedule.end_backward();
  each([&](Wrap& wrap) {
    wrap.use.leave();
    for (const auto& unit : wrap.units) unit->abandon(reason);
  });
}

}  // namespace sherd::nn
