// Facts become hops in of(), which knows what is done, and hops become sums in check(), which knows what each does:
// that both are right about the same way is tried for all facts there are (tests/parallel/route_test.cpp).
#include "nn/parallel/shard/reduce/route.h"

#include <algorithm>
#include <array>
#include <optional>

namespace sherd::nn {

namespace {

constexpr std::array<std::string_view, Route::kNumPlaces> kPlaceNames{"arrival",  "held",  "shard", "apart",
                                                                      "unsummed", "owned", "grad",  "home"};
std::string_view route_name(Route::Place place) { return kPlaceNames[static_cast<std::size_t>(place)]; }

struct MoveRow {
  std::string_view name;
  int does = 0;  // of Sum::done
};
constexpr std::array<MoveRow, 10> kMoveRows{{{"hold"},
                                             {"fetch"},
                                             {"copy"},
                                             {"scatter", Route::kShards | Route::kFactor},
                                             {"sum_replicas", Route::kReplicas},
                                             {"scatter_replicas", Route::kReplicas},
                                             {"hook"},
                                             {"agree", Route::kTensor},
                                             {"keep"},
                                             {"evict"}}};
std::string_view route_name(Route::Move move) { return kMoveRows[static_cast<std::size_t>(move)].name; }

int done_by(Route::Move move, const Route::Facts& f) {
  const int does = kMoveRows[static_cast<std::size_t>(move)].does;
  if (!f.scales_last()) return does;
  return (does & Route::kReplicas) != 0 ? does | Route::kFactor : does & ~Route::kFactor;
}

bool is_narrower(DType a, DType b) { return byte_size(a) < byte_size(b); }

// One that somebody has set in memory stays there.
bool goes_home(const Route::Facts& f) { return f.has_home && (f.is_grad_home || !f.has_grad); }

DType dtype_in(Route::Place place, const Route::Facts& f) {
  using enum Route::Place;
  const DType wider = is_narrower(f.wire, f.kept) ? f.kept : f.wire;
  if (place == arrival) return f.made;
  if (place == held) return f.is_wide() ? f.wire : f.made;
  if (place == apart) return f.divides ? wider : f.wire;
  return f.kept;
}

struct RouteRefusal {
  bool applies;
  std::string_view why;
};

}  // namespace

std::string_view Route::refusal(const Facts& f) {
  const bool is_one = !f.has_shards && !f.has_replicas && !f.divides;
  const bool waits_partial = f.has_tensor && !f.sums_in_tree && !f.has_hook && !f.has_custom && !f.reduces_unused &&
                             !f.is_held && !f.holds() && !f.leaves_unsummed() && f.unsummed == Unsummed::none;
  const RouteRefusal all[] = {
      {f.divides && !f.has_replicas, "replicas divide shards, and there are none"},
      {f.divides && f.has_home, "offloaded gradients of shards that replicas divide"},
      {f.has_tensor && f.has_home, "gradients over an axis of tensor parallelism stay in memory"},
      {f.is_grad_home && !(f.has_grad && f.has_home), "a gradient at home, and there is no home or no gradient"},
      {f.unsummed != Unsummed::none && !f.has_replicas, "a shard waits for replicas, and there are none"},
      {f.unsummed == Unsummed::together && (!f.divides || is_narrower(f.kept, f.wire)),
       "shards that wait are added to where they lie if replicas divide them, in the type that travels"},
      {f.is_partial && !waits_partial, "a Partial gradient is summed when it arrives"},
      {f.sums_in_tree && f.accumulated != ShardedOver::none,
       "passes add up as a tree in full, and shards are to add up"},
      {f.sums_in_tree && (f.unsummed != Unsummed::none || f.leaves_unsummed()),
       "passes that add up as a tree are summed over replicas together"},
      {f.is_direct && (!is_one || f.has_home || f.has_hook || f.made != f.kept || is_narrower(f.wire, f.made)),
       "a full gradient is the reduced one on one rank, in one type"}};
  const auto found = std::ranges::find_if(all, &RouteRefusal::applies);
  return found == std::end(all) ? std::string_view() : found->why;
}

Route Route::of(const Facts& f) {
  using enum Place;
  using enum Move;
  if (const std::string_view why = refusal(f); !why.empty()) fail("no route of a gradient: {}", why);
  std::vector<Hop> hops;
  const auto hop = [&hops](Move move, Place from, Place to, AddTo add_to = AddTo::nothing) {
    hops.push_back({move, from, to, add_to});
    return to;
  };
  const auto checked = [&] {
    Route route(std::move(hops));
    route.check(f);
    return route;
  };
  const bool has_unsummed = f.unsummed != Unsummed::none, joins_held = f.is_held && f.holds_apart();
  const AddTo to_gradient = f.has_grad ? AddTo::gradient : AddTo::nothing;
  const AddTo to_unsummed = has_unsummed ? AddTo::unsummed : AddTo::nothing;
  Place at = arrival;
  if (f.holds() || joins_held) at = hop(hold, at, held, joins_held ? AddTo::gradient : AddTo::nothing);
  if (f.holds()) return checked();
  if (f.leaves_unsummed()) {
    at = hop(scatter, at, has_unsummed ? unsummed : shard, to_unsummed);
    hop(keep, at, unsummed);
    return checked();
  }
  if (f.is_grad_home) hop(fetch, home, grad);
  // A hook sees this pass alone, and a Partial gradient waits for other units': earlier passes are added after them.
  const bool adds = f.has_grad && !f.is_partial && !f.has_hook;
  const Place end = adds ? grad : f.divides ? owned : shard;
  const AddTo to_end = adds ? AddTo::gradient : AddTo::nothing;
  if (f.is_direct && at == arrival) {
    // Nothing to do: the full gradient is the shard, summed and scaled.
  } else if (!f.has_replicas) {
    at = hop(scatter, at, end, to_end);
  } else {
    // Shards travel between replicas in one type, whatever this one has used in which pass: all of them make one call.
    const bool is_apart = f.divides ? f.unsummed != Unsummed::together : f.wire != f.kept || (adds && !has_unsummed);
    const Place part = is_apart ? apart : has_unsummed ? unsummed : shard;
    if (is_apart && has_unsummed) hop(copy, unsummed, apart);
    at = hop(scatter, at, part, to_unsummed);
    if (f.divides) at = hop(scatter_replicas, at, end, to_end);
    else at = is_apart ? hop(sum_replicas, at, end, to_end) : hop(sum_replicas, at, at);
  }
  if (f.has_hook) hop(hook, at, at);
  if (f.is_partial) at = hop(agree, at, grad, to_gradient);
  else at = hop(keep, at, grad, at == grad ? AddTo::nothing : to_gradient);
  if (goes_home(f)) hop(evict, at, home);
  return checked();
}

void Route::check(const Facts& f) {
  using enum Place;
  using enum Move;
  std::array<std::optional<Sum>, kNumPlaces> places;
  const auto in = [&places](Place place) -> std::optional<Sum>& { return places[static_cast<std::size_t>(place)]; };
  const bool is_apart = f.is_held && f.holds_apart(), has_unsummed = f.unsummed != Unsummed::none;
  // An axis of one rank counts as summed over, but that of the shards, which each scatter sums over.
  const int part = kAll - (f.has_replicas ? kReplicas : 0), full = part - kShards - kFactor;
  in(arrival) = Sum{.done = full - (f.is_partial ? kTensor : 0), .passes = f.is_held && !is_apart ? 2 : 1};
  if (is_apart) in(held) = Sum{.done = full, .passes = 1};
  if (has_unsummed) in(unsummed) = Sum{.done = part, .passes = 1};
  if (f.has_grad) in(f.is_grad_home ? home : grad) = Sum{.done = kAll, .passes = 1};
  Sum end{.done = kAll, .passes = 1 + f.is_held + has_unsummed + f.has_grad};
  Place last = goes_home(f) ? home : grad;
  if (f.leaves_unsummed()) {
    last = unsummed;
    end = {.done = part, .passes = 1 + f.is_held + has_unsummed};
  }
  if (f.holds()) {
    last = held;
    end = {.done = full, .passes = 1 + f.is_held};
  }
  const auto wrong = [this](std::string_view why, std::string_view where) {
    fail("the route \"{}\" {} {}", text(), why, where);
  };
  for (std::size_t i = 0; i < hops_.size(); ++i) {
    Hop& hop = hops_[i];
    const std::string_view name = route_name(hop.move);
    const int does = done_by(hop.move, f);
    if (i > 0 && hop.move <= hops_[i - 1].move) wrong("is out of order at", name);
    if (!in(hop.from)) wrong("reads before it is written", route_name(hop.from));
    Sum sum = *in(hop.from);
    if (f.is_direct && hop.from == arrival && hop.to == grad) sum.done |= kShards | kFactor;
    if (sum.done & does) wrong("does twice what is done by", name);
    sum.done |= does;
    sum.roundings += (does & (kShards | kReplicas)) != 0 && is_narrower(f.wire, f.kept);
    sum.dtype = dtype_in(hop.to, f);
    if (hop.add_to != AddTo::nothing) {
      const std::optional<Sum>& before = in(hop.to);
      if (!before || before->done != sum.done) wrong("adds another sum to", route_name(hop.to));
      sum.passes += before->passes;
    }
    in(hop.to) = hop.after = sum;
  }
  const Sum result = hops_.empty() || hops_.back().to != last ? Sum{} : hops_.back().after;
  if (result.done != end.done || result.passes != end.passes) wrong("does not end with all of it in", route_name(last));
}

Route::Route(std::vector<Hop> hops) : hops_(std::move(hops)) {
  for (const Hop& hop : hops_) {
    moves_ |= 1U << static_cast<unsigned>(hop.move);
    written_ |= 1U << static_cast<unsigned>(hop.to);
  }
}

const Route::Hop* Route::find(Move move) const {
  const auto found = std::ranges::find(hops_, move, &Hop::move);
  return found == hops_.end() ? nullptr : &*found;
}

std::string Route::text() const {
  std::string text;
  for (const Hop& hop : hops_) {
    text += fmt::format("{}{} {}>{}", text.empty() ? "" : ", ", route_name(hop.move), route_name(hop.from),
                        route_name(hop.to));
    if (hop.add_to != AddTo::nothing) text += fmt::format(" +{}", name(hop.add_to));
  }
  return text;
}

}  // namespace sherd::nn
