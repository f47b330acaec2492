// Plans are searched once and cached per rank, because layouts are interned per rank; running one is a row per step.
#include "dtensor/transition/transition.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "dtensor/below.h"
#include "dtensor/listed_splits.h"
#include "dtensor/propagate.h"
#include "dtensor/recent.h"
#include "dtensor/transition/transition_search.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using Kind = TransitionStep::Kind;

// The row that makes a step: of a collective, or of a slice, which keeps a part.
const Op& row_of(Kind kind) {
  static constexpr const Op* rows[] = {&op::narrow, &op::all_gather, &op::all_to_all, &op::reduce_scatter,
                                       &op::all_reduce};
  return *rows[static_cast<std::size_t>(kind)];
}

std::string_view name(Kind kind) { return kind == Kind::slice ? "slice" : row_of(kind).name; }

struct AxisPrices {
  std::map<std::string, LinkPrice, std::less<>> by_name;
};

std::map<std::string, LinkPrice, std::less<>>& axis_prices() {
  return RankContext::current().state<AxisPrices>().by_name;
}

struct PlanKey {
  SpecRef from, to;
  Shape shape;
  DType dtype;
  friend bool operator==(const PlanKey& a, const PlanKey& b) {
    return a.from.get() == b.from.get() && a.to.get() == b.to.get() && a.shape == b.shape && a.dtype == b.dtype;
  }
};

std::uint64_t hash_of(const PlanKey& key) {
  std::uint64_t hash = std::hash<const void*>()(key.from);
  const auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u + (hash >> 29); };
  mix(std::hash<const void*>()(key.to));
  for (std::int64_t n : key.shape) mix(static_cast<std::uint64_t>(n));
  mix(static_cast<std::uint64_t>(key.dtype));
  return hash;
}

// The axes of a mesh that a search looks at: those of more than one rank.
struct Searched {
  const Spec* from;
  const Spec* to;
  DeviceMesh mesh;
  std::vector<int> axes;

  Searched(const Spec* source, const Spec* target) : from(source), to(target), mesh(source->mesh()) {
    for (const int a : up_to(from->num_axes()))
      if (from->axis_size(a) > 1) axes.push_back(a);
  }

  std::vector<int> mesh_axes(const AxisList& list) const {
    std::vector<int> result;
    for (int a : list) result.push_back(axes[static_cast<std::size_t>(a)]);
    return result;
  }

  PackedLayout pack(const Spec* spec) const {
    PackedLayout packed;
    for (const int i : up_to(static_cast<int>(axes.size()))) {
      const int axis = axes[static_cast<std::size_t>(i)];
      const Placement& p = spec->placement(axis);
      if (p.is_partial()) packed.set(i, PackedLayout::kPartial);
      if (!p.is_shard()) continue;
      int order = 0;
      for (int outer : spec->axes_of(p.dim)) {
        if (outer == axis) break;
        if (spec->axis_size(outer) > 1) ++order;
      }
      packed.set(i, PackedLayout::shard(p.dim, order));
    }
    return packed;
  }

  const Spec* unpack(const PackedLayout& packed) const {
    std::vector<Placement> placements(static_cast<std::size_t>(from->num_axes()));
    std::vector<std::pair<std::uint8_t, int>> splits;
    for (const int i : up_to(static_cast<int>(axes.size()))) {
      const int axis = axes[static_cast<std::size_t>(i)];
      Placement& p = placements[static_cast<std::size_t>(axis)];
      if (packed.at(i) == PackedLayout::kPartial) p = from->placement(axis);
      if (!packed.is_shard(i)) continue;
      p = Shard(packed.dim(i));
      splits.emplace_back(packed.at(i), axis);
    }
    std::sort(splits.begin(), splits.end());  // by dim, then by order
    std::vector<int> order;
    for (const auto& [place, axis] : splits) order.push_back(axis);
    return Spec::of(mesh, placements, order);
  }
};

// Why there is no plan. The text is made only for the error.
std::string refusal_of(const Spec* from, const Spec* to, const Shape& shape) {
  if (from->mesh_id() != to->mesh_id())
    return fmt::format(
        "{} is of {}, {} of {}: a tensor does not change its mesh; slices are meshes of their own, so give "
        "tensors that meet layouts of one mesh",
        from->describe(), from->mesh().describe(), to->describe(), to->mesh().describe());
  for (const Spec* spec : {from, to})
    for (const Placement& p : spec->placements())
      if (p.is_shard() && p.dim >= shape.size())
        return fmt::format("{} shards dim {} of a tensor of shape {}", spec->describe(), p.dim, shape);
  for (const int a : up_to(from->num_axes())) {
    const Placement &source = from->placement(a), &target = to->placement(a);
    if (target.is_partial() && source != target)
      return fmt::format(
          "from {} to {}: along axis \"{}\" {} would become {}, but values become Partial by ops only; ask "
          "for Replicate or Shard there",
          from->describe(), to->describe(), from->mesh().axis_name(a), to_string(source), to_string(target));
  }
  // All dims exist and nothing becomes Partial: the remaining reason is the order of reductions.
  return fmt::format(
      "from {} to {}: later axes reduce first where kinds of Partial do not commute, and they are to stay Partial",
      from->describe(), to->describe());
}

bool is_possible(const Spec* from, const Spec* to, const Shape& shape) {
  if (from->mesh_id() != to->mesh_id()) return false;
  for (const int a : up_to(from->num_axes())) {
    const Placement &source = from->placement(a), &target = to->placement(a);
    if (target.is_partial() && source != target) return false;
    if ((source.is_shard() && source.dim >= shape.size()) || (target.is_shard() && target.dim >= shape.size()))
      return false;
  }
  return true;
}

// The sharded dims of both layouts. With several axes a detour over another dim may be cheaper than gathering: then
// also the largest of the others, up to three dims in all.
std::vector<int> dims_to_search(const Searched& mesh, const Shape& shape) {
  constexpr std::size_t kEnough = 3;
  std::vector<int> dims, others;
  for (const int d : indices(shape))
    (mesh.from->axes_of(d).empty() && mesh.to->axes_of(d).empty() ? others : dims).push_back(d);
  if (mesh.axes.size() < 2) return dims;
  std::stable_sort(others.begin(), others.end(), [&](int a, int b) { return shape[a] > shape[b]; });
  for (int d : others)
    if (dims.size() < kEnough && shape[d] > 1) dims.push_back(d);
  return dims;
}

LinkPrice price_of(const DeviceMesh& mesh, int axis) {
  const auto price = axis_prices().find(mesh.axis_name(axis));
  return price == axis_prices().end() ? LinkPrice{} : price->second;
}

// The price is infinite if there is no plan.
Transition search_plan(const PlanKey& key) {
  Transition plan;
  plan.seconds = std::numeric_limits<double>::infinity();
  const Searched mesh(key.from, key.to);
  if (mesh.axes.size() > kMaxSearchAxes)
    fail("{} has {} axes of more than one rank; transitions are planned for {} at most", mesh.mesh.describe(),
         mesh.axes.size(), kMaxSearchAxes);
  SearchProblem problem{
      .dims = dims_to_search(mesh, key.shape),
      .shape = key.shape,
      .element_bytes = byte_size(key.dtype),
      .from = mesh.pack(key.from),
      .to = mesh.pack(key.to),
      .has_group = [&mesh](const AxisList& axes) { return mesh.mesh.joint_group(mesh.mesh_axes(axes)) != nullptr; }};
  for (int i = 0; i < static_cast<int>(mesh.axes.size()); ++i) {
    const int axis = mesh.axes[static_cast<std::size_t>(i)];
    const bool fixed = problem.from.at(i) == problem.to.at(i) && !problem.from.is_shard(i);
    problem.axes.push_back({.size = key.from->axis_size(axis),
                            .price = price_of(mesh.mesh, axis),
                            .kind = key.from->placement(axis).reduce,
                            .fixed = fixed});
  }
  const auto found = search_transition(problem);
  if (!found) return plan;
  plan.seconds = 0;
  for (const SearchStep& s : *found) {
    TransitionStep& step = plan.steps.emplace_back();
    step.kind = s.kind;
    for (int axis : mesh.mesh_axes(s.axes)) step.axes.push_back(axis);
    step.from_dim = s.from_dim;
    step.to_dim = s.to_dim;
    step.reduce = key.from->placement(step.axes[0]).reduce;
    step.result = &s == &found->back() ? key.to.get() : mesh.unpack(s.result);
    step.bytes = s.bytes;
    plan.seconds += s.seconds;
    plan.bytes += s.bytes;
  }
  return plan;
}

// Elements are gathered padded, and copied once more without the padding.
double gather_seconds(const TransitionStep& step) {
  return price_of(step.result->mesh(), step.axes[0])
      .seconds(Movement::gather, static_cast<int>(step.rows.size()), 2 * static_cast<double>(step.bytes));
}

// The search's plan between the layouts without listed sizes.
Transition make_plan(const PlanKey& key) {
  Transition plan;
  plan.seconds = std::numeric_limits<double>::infinity();
  if (!is_possible(key.from, key.to, key.shape)) return plan;
  if (!key.from->lists_rows() && !key.to->lists_rows()) return search_plan(key);
  for (const Spec* spec : {key.from.get(), key.to.get()}) (void)spec->local_shape(key.shape);  // Error: other sizes
  const SpecRef from = key.from->simplified(), to = key.to->simplified();
  const std::vector<ListedSplit> gathered = listed_splits(from), made = listed_splits(to);
  const PlanKey between{gathered.empty() ? from : gathered.back().joined, made.empty() ? to : made.back().joined,
                        key.shape, key.dtype};
  Transition middle;
  if (between.from != between.to) middle = search_plan(between);
  if (std::isinf(middle.seconds)) return plan;
  plan.seconds = middle.seconds;
  plan.bytes = middle.bytes;
  for (const ListedSplit& split : gathered) {
    if (split.rows.size() == 1) continue;
    const TransitionStep& step = plan.steps.emplace_back(gather_step(split, key.shape, key.dtype));
    plan.seconds += gather_seconds(step);
    plan.bytes += step.bytes;
  }
  std::ranges::move(middle.steps, std::back_inserter(plan.steps));
  for (auto split = made.rbegin(); split != made.rend(); ++split)
    if (split->rows.size() > 1) plan.steps.push_back(slice_step(*split));
  return plan;
}

struct KnownTransition {
  PlanKey key;
  Transition plan;
};
struct Known {
  Recent<KnownTransition> transitions{kMaxTransitions};
};

Known& known() { return RankContext::current().state<Known>(); }

const Transition& find_plan(const Spec* from, const Spec* to, const Shape& shape, DType dtype) {
  const PlanKey key{from, to, shape, dtype};
  const std::uint64_t hash = hash_of(key);
  Recent<KnownTransition>& all = known().transitions;
  const auto is_it = [&](const KnownTransition& of) { return of.key == key; };
  if (const KnownTransition* const found = all.find(hash, is_it)) return found->plan;
  return all.add(hash, std::make_unique<const KnownTransition>(key, make_plan(key))).plan;
}

Tensor run_slice(Tensor x, const TransitionStep& step) {
  for (int axis : step.axes) {
    const int at = step.result->coordinate(axis);
    Spec::Range part = chunk_range(x.size(step.to_dim), step.result->axis_size(axis), at);
    if (!step.rows.empty()) {
      part.begin = std::accumulate(step.rows.begin(), step.rows.begin() + at, std::int64_t{0});
      part.end = part.begin + step.rows[static_cast<std::size_t>(at)];
    }
    x = below(op::narrow, NarrowAttrs{step.to_dim, part.begin, part.size()}, std::move(x));
  }
  return x;
}

Tensor run_collective(Tensor x, const Shape& shape, const TransitionStep& step) {
  if (!step.rows.empty()) return gather_listed(std::move(x), step);
  const DeviceMesh mesh = step.result->mesh();
  const bool joins = step.kind == Kind::all_gather || step.kind == Kind::all_to_all;
  ProcessGroup* const group = step.axes.size() == 1 ? &mesh.group(step.axes[0]) : mesh.joint_group(step.axes);
  CollectiveAttrs attrs;
  if (group) attrs.group = name_group(*group);
  attrs.kind = static_cast<int>(step.reduce);
  if (joins) attrs.rows = step.result->local_range(step.from_dim, shape[step.from_dim]).size();
  attrs.dim = joins ? step.from_dim : step.to_dim;
  attrs.split_dim = step.to_dim;
  return below(row_of(step.kind), attrs, dense_below(std::move(x)));
}

}  // namespace

bool Transition::is_free() const {
  return std::all_of(steps.begin(), steps.end(), [](const TransitionStep& s) { return s.kind == Kind::slice; });
}

std::string Transition::describe() const {
  std::string text;
  for (const TransitionStep& s : steps) {
    std::string what;
    for (int axis : s.axes) what += (what.empty() ? "" : "+") + s.result->mesh().axis_name(axis);
    if (s.kind == Kind::all_gather) what += fmt::format(", dim {}", s.from_dim);
    if (s.kind == Kind::slice || s.kind == Kind::reduce_scatter) what += fmt::format(", dim {}", s.to_dim);
    if (s.kind == Kind::all_to_all) what += fmt::format(", dim {} -> {}", s.from_dim, s.to_dim);
    text += fmt::format("{}{}({}) -> {}", text.empty() ? "" : "; ", name(s.kind), what, s.result->describe());
  }
  return text.empty() ? "nothing" : text;
}

const Transition& plan_transition(const Spec* from, const Spec* to, const Shape& shape, DType dtype) {
  static const Transition nothing;
  if (from == to) return nothing;
  const Transition& plan = find_plan(from, to, shape, dtype);
  if (std::isinf(plan.seconds)) throw Error(refusal_of(from, to, shape));
  return plan;
}

double transition_seconds(const Spec* from, const Spec* to, const Shape& shape, DType dtype) {
  return from == to ? 0 : find_plan(from, to, shape, dtype).seconds;
}

Tensor run_transition(Tensor local, const Shape& shape, const Transition& plan) {
  for (const TransitionStep& step : plan.steps)
    local =
        step.kind == Kind::slice ? run_slice(std::move(local), step) : run_collective(std::move(local), shape, step);
  return local;
}

void set_axis_price(std::string_view axis, const LinkPrice& price) {
  check_price(price, fmt::format("the price of axis \"{}\"", axis));
  axis_prices().insert_or_assign(std::string(axis), price);
  forget_plans();
}

void forget_transitions() { known().transitions.clear(); }
std::size_t num_transitions() { return known().transitions.size(); }

}  // namespace sherd
