#include "nn/parallel/shard/wrap/unit_handle.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "nn/parallel/shard/gather/gather_transform.h"
#include "nn/parallel/shard/wrap/wrap.h"
#include "runtime/comm/group/sum_order.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

UnitHandle::UnitHandle(const std::shared_ptr<Wrap>& wrap) : wrap_(wrap), name_(wrap->name()) {}

Wrap& UnitHandle::wrap() const {
  const auto wrap = wrap_.lock();
  check(wrap != nullptr,
        "the modules of the fully_shard unit \"{}\" were destroyed; use a handle of modules that are there, as of "
        "unit_of()",
        name_);
  return *wrap;  // kept by its modules, which nobody destroys within a call
}

const std::string& UnitHandle::name() const { return wrap().name(); }
bool UnitHandle::has_parameters() const { return !wrap().units.empty(); }

std::vector<UnitHandle::Part> UnitHandle::parts() const {
  std::vector<Part> all;
  for (const auto& unit : wrap().own_units()) {
    const bool reshards = wrap().reshards() && !unit->buffers.keeps_gathered() && unit->frees_after_forward();
    all.push_back({unit->pieces.layout().shared(), unit->pieces.parameters(), reshards ? unit->slices() : 0, reshards});
  }
  return all;
}

std::vector<Parameter*> UnitHandle::parameters() const {
  std::vector<Parameter*> all;
  for (const Part& part : parts()) all.insert(all.end(), part.parameters.begin(), part.parameters.end());
  return all;
}

namespace {
std::string tree_text(int leaves, std::string_view what) {
  const int levels = tree_levels(static_cast<std::size_t>(leaves));
  return fmt::format("{} {} in {} level{}", leaves, what, levels, levels == 1 ? "" : "s");
}

// The order of the sums over ranks on a route, and how often they are rounded to a narrower type.
std::string text_of_sums(const Route& route, const UnitLayout& layout) {
  const int roundings = route.hops().empty() ? 0 : route.hops().back().after.roundings;
  std::vector<std::string> trees;
  if (layout.shards > 1 && route.find(Route::Move::scatter)) trees.push_back(tree_text(layout.shards, "shards"));
  if (route.find(Route::Move::sum_replicas) || route.find(Route::Move::scatter_replicas))
    trees.push_back(tree_text(layout.replicas, "replicas"));
  if (trees.empty()) return "";
  return fmt::format("; sums {}{}", fmt::join(trees, ", then "),
                     roundings > 0 ? fmt::format(", rounds {}x", roundings) : "");
}
}  // namespace

std::vector<std::string> UnitHandle::routes(std::size_t part) const {
  const Unit& unit = *wrap().own_units()[part];
  std::map<std::string, int> counts;
  for (const std::size_t i : indices(unit.pieces))
    if (const Parameter* p = unit.pieces.parameter(i); p && p->requires_grad()) {
      const Route route = Route::of(unit.arrival().facts(i));
      ++counts[route.text() + text_of_sums(route, unit.pieces.layout())];
    }
  std::vector<std::string> lines;
  for (const auto& [route, count] : counts)
    lines.push_back(fmt::format("{} parameter{}: {}", count, count == 1 ? "" : "s", route));
  return lines;
}

const UnitLayout& UnitHandle::layout() const { return wrap().own_units().front()->pieces.layout(); }

std::int64_t UnitHandle::gathered_bytes() const {
  std::int64_t bytes = 0;
  for (const Part& part : parts()) bytes += part.layout->full_bytes;
  return bytes;
}

bool UnitHandle::is_unsharded() const { return wrap().own_units().front()->buffers.is_unsharded(); }
bool UnitHandle::is_gathered() const { return wrap().own_units().front()->buffers.levels().is_gathered(); }
bool UnitHandle::reshards_after_forward() const { return parts().front().reshards; }
std::vector<int> UnitHandle::order_in_forward() const { return wrap().order_in_forward(); }

int UnitHandle::late_gathers() const {
  int count = 0;
  for (const auto& unit : wrap().own_units()) count += unit->buffers.late_gathers();
  return count;
}

void UnitHandle::unshard() const {
  wrap().agree();
  for (const auto& unit : wrap().units) unit->buffers.unshard();
}

UnshardHandle UnitHandle::unshard_async() const {
  unshard();
  return UnshardHandle(wrap().shared_from_this());
}

void UnshardHandle::wait() const {
  if (const auto wrap = wrap_.lock())
    for (const auto& unit : wrap->units) unit->buffers.levels().wait();
}

void UnitHandle::reshard() const {
  for (const auto& unit : wrap().units) unit->buffers.reshard();
}

void UnitHandle::set_gradient_divide_factor(double factor) const {
  check(factor > 0 && std::isfinite(factor), "the gradient divide factor must be a number above 0, got {}", factor);
  check(std::isnormal(static_cast<float>(factor)) && std::isnormal(static_cast<float>(1 / factor)),
        "the gradient divide factor is {}, and f32 sums are multiplied by its reciprocal: give one from 1e-37 to 1e37",
        factor);
  for (const auto& unit : wrap().units) unit->set<&ReductionKnobs::divide_factor>(factor);
}

void UnitHandle::set_requires_all_reduce(bool on) const {
  for (const auto& unit : wrap().units)
    check(
        on || !unit->settings().facts.sums_in_tree,
        "set_requires_all_reduce: gradients of unit \"{}\" add up as a tree (sums_in_tree, numerics = layout_free), of "
        "which replicas sum the whole; leave it on",
        unit->pieces.layout().name);
  for (const auto& unit : wrap().units) unit->set<&ReductionKnobs::all_reduces>(on);
}

void UnitHandle::set_reduce_unused(bool on) const {
  for (const auto& unit : wrap().units) unit->set<&ReductionKnobs::reduces_unused>(on);
}

void UnitHandle::set_requires_gradient_sync(bool on) const {
  for (const auto& unit : wrap().units) unit->set<&ReductionKnobs::syncs>(on);
}

void UnitHandle::set_reshard_after_forward(ReshardAfterForward reshard) const {
  wrap().set_reshard_after_forward(reshard);
}

void UnitHandle::set_reshard_after_backward(bool reshard) const {
  for (const auto& unit : wrap().units) unit->set<&ReductionKnobs::reshards>(reshard);
}

void UnitHandle::set_keep_unsharded_storage(bool keep) const {
  for (const auto& unit : wrap().units) unit->buffers.levels().set_keeps_memory(keep);
}

void UnitHandle::set_max_reductions(int count) const {
  check(count >= 1, "at least one gradient buffer must be allowed to be in reduction, got {}", count);
  for (const auto& unit : wrap().units)
    if (!unit->is_replicated) unit->set<&ReductionKnobs::max_reductions>(count);
}

void UnitHandle::set_is_last_backward(bool is_last) const { wrap().set_is_last_backward(is_last); }

std::vector<std::weak_ptr<Wrap>> UnitHandle::wraps_of(const std::vector<UnitHandle>& units) {
  std::vector<std::weak_ptr<Wrap>> wraps;
  for (const UnitHandle& unit : units) wraps.push_back(unit.wrap_);
  return wraps;
}

void UnitHandle::set_forward_prefetch(const std::vector<UnitHandle>& units) const {
  wrap().set_forward_prefetch(wraps_of(units));
}

void UnitHandle::set_backward_prefetch(const std::vector<UnitHandle>& units) const {
  wrap().set_backward_prefetch(wraps_of(units));
}

namespace {

// The unit that communications of the user's own are for; null if there is none.
Unit* sharded_unit(const Wrap& wrap, std::string_view call) {
  const auto is_sharded = [](const auto& unit) { return !unit->is_replicated; };
  check(std::ranges::count_if(wrap.units, is_sharded) <= 1,
        "{}: the parameters of unit \"{}\" lie on several meshes, and one communication cannot serve them; call "
        "fully_shard on the modules of each mesh apart",
        call, wrap.name());
  const auto found = std::ranges::find_if(wrap.units, is_sharded);
  return found == wrap.units.end() ? nullptr : found->get();
}

}  // namespace

void UnitHandle::set_custom_gather(std::shared_ptr<UnitGather> gather) const {
  if (Unit* unit = sharded_unit(wrap(), "set_custom_gather")) unit->set_gather(std::move(gather));
}

void UnitHandle::set_gather_transform(GatherTransform transform) const {
  Unit* const unit = sharded_unit(wrap(), "set_gather_transform");
  if (!unit) return;
  unit->set_gather(std::make_shared<TransformedGather>(std::move(transform), unit->pieces.layout()));
}

void UnitHandle::set_custom_reduce(UnitReduce reduce) const {
  if (Unit* unit = sharded_unit(wrap(), "set_custom_reduce")) unit->set_reduce(std::move(reduce));
}

void UnitHandle::set_all_reduce_hook(AllReduceHook all_reduce_hook) const {
  sharded_unit(wrap(), "set_all_reduce_hook");
  for (const auto& unit : wrap().units) unit->set_all_reduce_hook(all_reduce_hook);
}

Units::Units(Module& root) {
  const std::vector<Wrap*> wraps = wraps_below(root);
  if (wraps.empty()) unwrapped_ = root.label();
  for (Wrap* wrap : wraps)
    if (!wrap->units.empty()) units_.emplace_back(wrap->shared_from_this());
}

void Units::wait() const {
  for (const UnitHandle& unit : units_) {
    if (!unit.is_alive()) continue;
    for (const Parameter* p : unit.parameters())
      if (const Tensor& gradient = p->grad(); gradient.defined() && gradient.local().storage())
        gradient.local().storage()->wait_to_read();
  }
}

const std::vector<UnitHandle>& Units::told() const {
  check(unwrapped_.empty(), kNotWrapped, unwrapped_);
  return units_;
}

}  // namespace sherd::nn
