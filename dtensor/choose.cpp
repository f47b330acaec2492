// Along one axis a signature costs the transitions of its inputs. Over several axes the best few of each axis are
// combined, and combinations are priced by real transitions, which know about axes that share a dim. A combination that
// moves nothing is taken at once, which is the usual case.
#include "dtensor/choose.h"

#include <algorithm>
#include <limits>

#include "dtensor/transition/transition.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kBestPerAxis = 6;

struct Priced {
  const Signature* signature;
  double seconds;
  int moved;  // inputs in another layout
  bool is_wanted = false;
};

// A Partial input may be reduce-scattered at half the price of an all_reduce. Where no other input is sharded along
// that axis this only defers the other half, by a result that is sharded though no operand asks for it: price it as an
// all_reduce.
Placement priced_as(Placement now, Placement to, bool is_sharded) {
  return now.is_partial() && to.is_shard() && !is_sharded ? Replicate() : to;
}

// The same layout, Partial along this axis only. Where kinds do not commute (a maximum of sums) an axis cannot be
// reduced before the others; here only the price of its own reduction counts, not the order.
const Spec* without_other_partials(const Spec* from, int axis) {
  for (int a = 0; a < from->num_axes(); ++a)
    if (a != axis && from->placement(a).is_partial()) from = from->with(a, Replicate());
  return from;
}

// Price of one input along one axis: a transition of this axis alone.
double axis_seconds(const Spec* from, int axis, Placement to, bool is_sharded, const TensorMeta& meta) {
  if (!from) return to.is_partial() ? kNever : 0;  // slicing a replicated tensor is free
  const Placement now = from->placement(axis);
  if (now == to) return 0;
  if (to.is_partial()) return kNever;
  if (now.is_partial()) from = without_other_partials(from, axis);
  return transition_seconds(from, from->with(axis, priced_as(now, to, is_sharded)), meta.shape, meta.dtype);
}

bool is_sharded_along(std::span<const Spec* const> from, int axis) {
  return std::any_of(from.begin(), from.end(), [&](const Spec* s) { return s && s->placement(axis).is_shard(); });
}

bool is_better(const Priced& a, const Priced& b) {
  if (a.seconds != b.seconds) return a.seconds < b.seconds;
  if (a.moved != b.moved) return a.moved < b.moved;
  return a.is_wanted && !b.is_wanted;
}

// The best signatures of an axis, cheapest first.
std::vector<Priced> price_axis(const RuleCall& call, const Signatures& signatures, int axis,
                               std::span<const Spec* const> from, const Spec* wanted) {
  const bool is_sharded = is_sharded_along(from, axis);
  std::vector<Priced> priced;
  for (const Signature& s : signatures) {
    Priced p{&s, 0, 0, wanted && !s.out.empty() && wanted->placement(axis) == s.out[0]};
    for (std::size_t i = 0; i < from.size() && p.seconds < kNever; ++i) {
      if (!call.has(i)) continue;
      p.seconds += axis_seconds(from[i], axis, s.in[i], is_sharded, call.in[i]);
      p.moved += (from[i] ? from[i]->placement(axis) : Replicate()) != s.in[i];
    }
    if (p.seconds < kNever) priced.push_back(p);
  }
  std::stable_sort(priced.begin(), priced.end(), is_better);
  if (priced.size() > kBestPerAxis) {
    // Keep all-Replicate, which is listed first: it is legal in every combination.
    const auto replicated =
        std::find_if(priced.begin(), priced.end(), [&](const Priced& p) { return p.signature == &signatures.front(); });
    if (replicated - priced.begin() >= static_cast<std::ptrdiff_t>(kBestPerAxis))
      priced[kBestPerAxis - 1] = *replicated;
    priced.resize(kBestPerAxis);
  }
  return priced;
}

// Axes that share a dim must split it in the same order in all operands: that of the largest operand that has such a
// dim.
std::vector<int> common_order(const RuleCall& call, std::span<const Spec* const> from) {
  const Spec* lead = nullptr;
  std::int64_t most = -1;
  for (const std::size_t i : indices(from)) {
    if (!from[i] || !call.has(i)) continue;
    bool shares = false;
    for (const int d : up_to(call.ndim(i))) shares |= from[i]->axes_of(d).size() > 1;
    if (!shares || call.in[i].numel() <= most) continue;
    lead = from[i];
    most = call.in[i].numel();
  }
  return lead ? lead->order() : std::vector<int>{};
}

// Layout of operand i if every axis takes its signature.
const Spec* layout_of(const DeviceMesh& mesh, std::span<const Signature* const> per_axis, std::size_t i, bool is_input,
                      std::span<const int> order) {
  std::vector<Placement> placements;
  for (const Signature* s : per_axis) placements.push_back(is_input ? s->in[i] : s->out[i]);
  return Spec::of(mesh, placements, order);
}

// Whether all axes together satisfy `even` of every signature.
bool is_even(const RuleCall& call, const DeviceMesh& mesh, std::span<const Signature* const> per_axis) {
  for (const std::size_t a : indices(per_axis)) {
    if (per_axis[a]->even == 0) continue;
    for (const std::size_t i : indices(call.in)) {
      const Placement p = per_axis[a]->in[i];
      if (!p.is_shard()) continue;
      std::int64_t parts = 1;
      for (const std::size_t b : indices(per_axis))
        if (per_axis[b]->in[i].is_shard(p.dim)) parts *= mesh.size(static_cast<int>(b));
      if (per_axis[a]->even % parts != 0) return false;
    }
  }
  return true;
}

Choice layouts_of(const RuleCall& call, const DeviceMesh& mesh, std::span<const Signature* const> per_axis,
                  std::span<const int> order) {
  Choice choice;
  for (std::size_t i = 0; i < call.in.size(); ++i)
    choice.in.push_back(call.has(i) ? layout_of(mesh, per_axis, i, true, order) : nullptr);
  for (std::size_t i = 0; i < call.out.size(); ++i) choice.out.push_back(layout_of(mesh, per_axis, i, false, order));
  return choice;
}

Priced price(const RuleCall& call, const Choice& choice, std::span<const Spec* const> from) {
  Priced total{nullptr, 0, 0, false};
  for (const std::size_t i : indices(from)) {
    if (!call.has(i) || !from[i] || from[i] == choice.in[i]) continue;
    const Spec* to = choice.in[i];
    for (int a = 0; a < to->num_axes(); ++a)
      if (const Placement p = priced_as(from[i]->placement(a), to->placement(a), is_sharded_along(from, a));
          p != to->placement(a))
        to = to->with(a, p);
    total.seconds += transition_seconds(from[i], to, call.shape(i), call.in[i].dtype);
    ++total.moved;
  }
  return total;
}

}  // namespace

Choice choose_layouts(const RuleCall& call, const Signatures& signatures, const DeviceMesh& mesh,
                      std::span<const Spec* const> from, const Distributed* wanted_layout) {
  const auto* wanted = static_cast<const Spec*>(wanted_layout);
  if (wanted && wanted->mesh_id() != mesh.id()) wanted = nullptr;
  const auto axes = static_cast<std::size_t>(mesh.ndim());
  std::vector<std::vector<Priced>> best;
  for (const std::size_t a : up_to(axes))
    best.push_back(price_axis(call, signatures, static_cast<int>(a), from, wanted));
  const std::vector<int> order = common_order(call, from);

  Choice choice;
  Priced lowest{nullptr, kNever, 0, false};
  std::vector<std::size_t> at(axes, 0);  // a counter with one digit per axis, the last one running fastest
  for (;;) {
    std::vector<const Signature*> per_axis;
    for (const std::size_t a : up_to(axes)) per_axis.push_back(best[a][at[a]].signature);
    if (is_even(call, mesh, per_axis)) {
      Choice candidate = layouts_of(call, mesh, per_axis, order);
      Priced total = price(call, candidate, from);
      total.is_wanted = wanted && !candidate.out.empty() && candidate.out[0] == wanted;
      if (is_better(total, lowest)) {
        lowest = total;
        choice = std::move(candidate);
        if (total.seconds == 0 && total.moved == 0 && (!wanted || total.is_wanted)) break;
      }
    }
    std::size_t a = axes;
    while (a > 0 && ++at[a - 1] == best[a - 1].size()) at[--a] = 0;
    if (a == 0) break;
  }
  check(lowest.seconds < kNever, "{}: no signature of its rule can be reached from these layouts", call.op.name);
  return choice;
}

}  // namespace sherd
