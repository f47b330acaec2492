// A* over layouts. A step changes one axis, or several that one group spans, and only the innermost splits of a dim:
// the outer splits stay. This also makes nested uneven splits correct: a step sees the chunk that the outer splits
// left, which is the same on all ranks of its group.
//
// Prices are computed from the global shape and the largest shard, never from this rank's own: all ranks find the same
// plan.
#include "dtensor/transition/transition_search.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <tuple>

#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using Kind = TransitionStep::Kind;

bool commute(ReduceKind a, ReduceKind b) {
  const auto linear = [](ReduceKind k) { return k == ReduceKind::sum || k == ReduceKind::avg; };
  return a == b || (linear(a) && linear(b));
}

Movement movement_of(Kind kind) {
  switch (kind) {
    case Kind::reduce_scatter: return Movement::scatter;
    case Kind::all_reduce: return Movement::reduce_all;
    case Kind::all_to_all: return Movement::all_to_all;
    default: return Movement::gather;
  }
}

class Search {
 public:
  explicit Search(const SearchProblem& problem) : problem_(problem), num_axes_(static_cast<int>(problem.axes.size())) {
    for (const int d : indices(problem.shape))
      if (std::ranges::find(problem.dims, d) == problem.dims.end()) size_of_other_dims_ *= problem.shape[d];
    for (const SearchProblem::Axis& axis : problem.axes)
      cheapest_call_ = std::min(cheapest_call_, axis.price.call_seconds + axis.price.peer_seconds);
    nodes_.reserve(16);
    known_.reserve(16);
  }

  std::optional<std::vector<SearchStep>> run() {
    reach(problem_.from, -1, {}, 0, 0);
    while (!open_.empty()) {
      const int index = std::get<2>(open_.top());
      open_.pop();
      Node& node = nodes_[static_cast<std::size_t>(index)];
      if (node.done) continue;
      node.done = true;
      if (node.layout == problem_.to) return steps_to(index);
      expand(index);
    }
    return std::nullopt;
  }

 private:
  struct Node {
    PackedLayout layout;
    double seconds = 0;
    int num_steps = 0;
    int previous = -1;
    bool done = false;
    SearchStep step{};  // that led here
  };

  std::vector<SearchStep> steps_to(int index) const {
    std::vector<SearchStep> steps;
    for (; nodes_[static_cast<std::size_t>(index)].previous >= 0;
         index = nodes_[static_cast<std::size_t>(index)].previous)
      steps.push_back(nodes_[static_cast<std::size_t>(index)].step);
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  void reach(const PackedLayout& layout, int previous, SearchStep step, double seconds, int num_steps) {
    const double at_least = seconds + lower_bound(layout);
    if (at_least > seconds_to_goal_) return;
    if (layout == problem_.to) seconds_to_goal_ = seconds;
    const auto bits = std::bit_cast<std::uint64_t>(layout.place);
    const auto at = static_cast<std::size_t>(std::ranges::find(known_, bits) - known_.begin());
    if (at == known_.size()) {
      known_.push_back(bits);
      nodes_.push_back({.layout = layout, .seconds = std::numeric_limits<double>::infinity()});
    }
    Node& node = nodes_[at];
    if (node.done || std::tie(node.seconds, node.num_steps) <= std::tie(seconds, num_steps)) return;
    node.seconds = seconds;
    node.num_steps = num_steps;
    node.previous = previous;
    node.step = std::move(step);
    open_.push({at_least, num_steps, static_cast<int>(at)});
  }

  // Lower bound of the remaining price: one call, unless every axis is at its target or Replicate (a slice is free).
  double lower_bound(const PackedLayout& layout) const {
    for (const int a : up_to(num_axes_))
      if (layout.at(a) != problem_.to.at(a) && layout.at(a) != PackedLayout::kReplicate) return cheapest_call_;
    return 0;
  }

  void expand(int index) {
    here_ = index;
    layout_ = nodes_[static_cast<std::size_t>(index)].layout;
    for (const int a : up_to(num_axes_))
      if (!axis(a).fixed && layout_.at(a) == PackedLayout::kReplicate) slice(a);
    for (int d : problem_.dims) move_splits(d);
    reduce_partials();
  }

  const SearchProblem::Axis& axis(int a) const { return problem_.axes[static_cast<std::size_t>(a)]; }

  AxisList axes_of(const PackedLayout& layout, int dim) const {
    AxisList axes;
    for (const int order : up_to(num_axes_))
      for (const int a : up_to(num_axes_))
        if (layout.at(a) == PackedLayout::shard(dim, order)) axes.push_back(a);
    return axes;
  }

  // Bytes of the largest local tensor.
  std::int64_t local_bytes(const PackedLayout& layout) const {
    std::int64_t bytes = problem_.element_bytes * size_of_other_dims_;
    for (int d : problem_.dims) {
      std::int64_t size = problem_.shape[d];
      for (int a : axes_of(layout, d)) size = (size + axis(a).size - 1) / axis(a).size;
      bytes *= size;
    }
    return bytes;
  }

  // Only to the target dim: a slice of another dim would have to be moved later.
  void slice(int a) {
    if (!problem_.to.is_shard(a)) return;
    const int dim = problem_.to.dim(a);
    PackedLayout next = layout_;
    append_splits(next, dim, {a});
    step({.kind = Kind::slice, .axes = {a}, .to_dim = dim, .result = next});
  }

  void append_splits(PackedLayout& layout, int dim, const AxisList& axes) const {
    auto order = static_cast<int>(axes_of(layout, dim).size());
    for (int a : axes) layout.set(a, PackedLayout::shard(dim, order++));
  }

  // Gathers the innermost split of a dim, or several at once, or moves them to another dim.
  void move_splits(int dim) {
    const AxisList all = axes_of(layout_, dim);
    for (std::size_t first = all.size(); first-- > 0;) {
      const AxisList inner(std::span(all.begin() + first, all.end()));
      if (!can_join(inner) || !joint_equals_nested(dim, all, first)) continue;
      PackedLayout joined = layout_;
      for (int a : inner) joined.set(a, PackedLayout::kReplicate);
      const std::int64_t gathered = local_bytes(joined);
      step({.kind = Kind::all_gather,
            .axes = inner,
            .from_dim = dim,
            .bytes = gathered,
            .priced_bytes = gathered,
            .result = joined});
      for (int to : problem_.dims) {
        PackedLayout next = joined;
        append_splits(next, to, inner);
        if (to == dim || !joint_equals_nested(to, axes_of(next, to), axes_of(joined, to).size())) continue;
        const std::int64_t swapped = std::max(local_bytes(layout_), local_bytes(next));
        step({.kind = Kind::all_to_all,
              .axes = inner,
              .from_dim = dim,
              .to_dim = to,
              .bytes = swapped,
              .priced_bytes = std::min(swapped, gathered / 2),  // no dearer than a gather
              .result = next});
      }
    }
  }

  void reduce_partials() {
    AxisList partial;
    for (const int a : up_to(num_axes_))
      if (layout_.at(a) == PackedLayout::kPartial && !axis(a).fixed) partial.push_back(a);
    for (unsigned chosen = 1; chosen < 1u << partial.size(); ++chosen) {
      AxisList axes;
      for (const std::size_t i : indices(partial))
        if (chosen >> i & 1u) axes.push_back(partial[i]);
      if (!may_reduce(axes) || !can_join(axes)) continue;
      PackedLayout reduced = layout_;
      for (int a : axes) reduced.set(a, PackedLayout::kReplicate);
      const std::int64_t bytes = local_bytes(layout_);
      step({.kind = Kind::all_reduce, .axes = axes, .bytes = bytes, .priced_bytes = bytes, .result = reduced});
      for (int to : problem_.dims) {
        PackedLayout next = reduced;
        append_splits(next, to, axes);
        if (!joint_equals_nested(to, axes_of(next, to), axes_of(reduced, to).size())) continue;
        step({.kind = Kind::reduce_scatter,
              .axes = axes,
              .to_dim = to,
              .bytes = bytes,
              .priced_bytes = bytes,
              .result = next});
      }
    }
  }

  // Later axes reduce first, unless the kinds commute. Axes of one call have one kind.
  bool may_reduce(const AxisList& axes) const {
    for (int a : axes) {
      if (axis(a).kind != axis(axes[0]).kind) return false;
      for (const int later : Numbers<int>(a + 1, num_axes_))
        if (layout_.at(later) == PackedLayout::kPartial && !commute(axis(a).kind, axis(later).kind)) return false;
    }
    return true;
  }

  // A joint group numbers its ranks in mesh order, so axes in another order cannot join.
  bool can_join(const AxisList& axes) {
    unsigned set = 0;
    for (int a : axes) {
      if (axis(a).fixed || set >= 1u << a) return false;
      set |= 1u << a;
    }
    if (axes.size() == 1) return true;
    std::optional<bool>& known = has_group_[set];
    if (!known) known = problem_.has_group(axes);
    return *known;
  }

  // Whether axes[first..] of a dim, taken as one joint axis, split every chunk that the outer axes leave as they do
  // when nested. 5 rows over 2 x 2: nested 2 1 1 1, jointly 2 2 1 0.
  bool joint_equals_nested(int dim, const AxisList& axes, std::size_t first) const {
    if (axes.size() - first < 2) return true;
    std::vector<std::int64_t> chunks{problem_.shape[dim]};
    for (const std::size_t i : up_to(first)) {
      std::vector<std::int64_t> split;
      for (std::int64_t n : chunks)
        for (const int r : up_to(axis(axes[i]).size)) split.push_back(chunk_range(n, axis(axes[i]).size, r).size());
      std::sort(split.begin(), split.end());
      split.erase(std::unique(split.begin(), split.end()), split.end());
      chunks = std::move(split);
    }
    int parts = 1;
    for (const std::size_t i : Numbers<std::size_t>(first, axes.size())) parts *= axis(axes[i]).size;
    return std::all_of(chunks.begin(), chunks.end(), [&](std::int64_t n) {
      if (n % parts == 0) return true;
      for (const int r : up_to(parts)) {
        Spec::Range nested{0, n};
        for (std::size_t i = first, below = static_cast<std::size_t>(parts); i < axes.size(); ++i) {
          const int size = axis(axes[i]).size;
          below /= static_cast<std::size_t>(size);
          const Spec::Range part = chunk_range(nested.size(), size, r / static_cast<int>(below) % size);
          nested = {nested.begin + part.begin, nested.begin + part.end};
        }
        const Spec::Range joint = chunk_range(n, parts, r);
        if (nested.size() != joint.size() || (joint.size() > 0 && nested != joint)) return false;
      }
      return true;
    });
  }

  double price(const SearchStep& s) const {
    if (s.kind == Kind::slice) return 0;
    LinkPrice slowest = axis(s.axes[0]).price;  // of several axes it counts
    int ranks = 1;
    for (int a : s.axes) {
      const LinkPrice& price = axis(a).price;
      ranks *= axis(a).size;
      slowest.call_seconds = std::max(slowest.call_seconds, price.call_seconds);
      slowest.peer_seconds = std::max(slowest.peer_seconds, price.peer_seconds);
      slowest.bytes_per_second = std::min(slowest.bytes_per_second, price.bytes_per_second);
    }
    return slowest.seconds(movement_of(s.kind), ranks, static_cast<double>(s.priced_bytes));
  }

  void step(SearchStep s) {
    s.seconds = price(s);
    const Node& node = nodes_[static_cast<std::size_t>(here_)];
    const double seconds = node.seconds + s.seconds;
    const int num_steps = node.num_steps + 1;
    const PackedLayout result = s.result;
    reach(result, here_, std::move(s), seconds, num_steps);
  }

  const SearchProblem& problem_;
  const int num_axes_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> known_;     // layout bits by node: a hundred at most, searched linearly
  std::int64_t size_of_other_dims_ = 1;  // product of the dims that no layout of the search shards
  std::array<std::optional<bool>, 1u << kMaxSearchAxes> has_group_{};  // by set of axes
  double cheapest_call_ = std::numeric_limits<double>::infinity();
  double seconds_to_goal_ = std::numeric_limits<double>::infinity();  // of the best known path
  using Open = std::tuple<double, int, int>;                          // seconds, steps, node
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open_;
  int here_ = 0;
  PackedLayout layout_;
};

}  // namespace

std::optional<std::vector<SearchStep>> search_transition(const SearchProblem& problem) { return Search(problem).run(); }

}  // namespace sherd
