#include "nn/parallel/shard/reduce/route_run.h"

#include <algorithm>
#include <utility>

#include "nn/parallel/shard/unit/unit_layout.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/op/unit/unit.h"

namespace sherd::nn {

namespace {
std::int64_t byte_offset(const Tensor& t) { return t.offset() * byte_size(t.dtype()); }
}  // namespace

RouteRun::RouteRun(UnitBuffers& buffers, GradientArrival& arrival, const ReductionSettings& settings,
                   UnitListener& unit)
    : buffers_(buffers), pieces_(buffers.pieces()), arrival_(arrival), settings_(settings), unit_(unit) {
  layout_changed();
}

void RouteRun::materialize() {
  if (!home_ && settings_.facts.has_home && !buffers_.levels().is_meta())
    home_ = std::make_unique<GradientHome>(buffers_);
}

void RouteRun::layout_changed() {
  shards_.reset();
  if (const UnitLayout* owned = pieces_.owned()) shards_ = layout_of_owned_gradients(*owned);
  known_.clear();
  home_.reset();
  materialize();
}

void RouteRun::drop_home() noexcept {
  if (!home_) return;
  for (Parameter* p : pieces_.parameters())
    if (p->grad().defined() && home_->is_home(p->grad().local())) p->clear_grad();
  home_->forget();
}

const Route& RouteRun::route_of(const Route::Facts& facts) {
  auto known = std::ranges::find(known_, facts, &Known::facts);
  if (known == known_.end()) known = known_.insert(known, {facts, Route::of(facts)});
  return known->route;
}

// Whether shards that replicas have not summed lie in one buffer, in the type that travels between replicas: then they
// are added to there. Else they are put together: whatever a replica has used in which pass, it issues one row.
bool RouteRun::lie_together(std::span<Member> members) const {
  return shards_ && std::ranges::all_of(members, [&](Member& m) {
           const Tensor& shard = m.at(Place::unsummed);
           return shard.defined() && shard.storage().get() == members[0].at(Place::unsummed).storage().get() &&
                  shard.dtype() == shards_->pieces[m.piece].full_dtype;
         });
}

std::vector<RouteRun::Member> RouteRun::members() {
  std::vector<Member> members;
  members.reserve(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (arrival_[i].waits()) members.emplace_back(i).at(Place::unsummed) = arrival_[i].unsummed();
  const bool are_together = lie_together(members);
  for (Member& m : members) {
    Route::Facts facts = arrival_.facts(m.piece);
    if (are_together) facts.unsummed = Route::Unsummed::together;
    m.route = &route_of(facts);
    if (facts.has_grad && !facts.is_grad_home) m.at(Place::grad) = pieces_.parameter(m.piece)->grad().local().detach();
  }
  return members;
}

// Memory for what is new in a place, in one buffer. A rank of which it is empty issues the row too, with empty tensors:
// all ranks issue the same rows.
void RouteRun::make_room(std::span<Member> members, Place place) const {
  const auto room_of = [&](const Member& m) -> std::pair<Shape, DType> {
    const UnitPiece& at = pieces_.layout().pieces[m.piece];
    if (place == Place::owned) return {pieces_.placement(m.piece).local_shape, at.gradient_dtype()};
    if (place != Place::apart) return {pieces_.shard_shape(m.piece), at.gradient_dtype()};
    if (shards_) return {shards_->pieces[m.piece].shape, shards_->pieces[m.piece].full_dtype};
    return {Shape{pieces_.layout().count_here(at)}, at.wire};
  };
  std::int64_t bytes = 0;
  std::vector<std::pair<Member*, std::int64_t>> fresh;
  for (Member& m : members) {
    if (m.at(place).defined() || !m.route->writes(place)) continue;
    const auto [shape, dtype] = room_of(m);
    fresh.emplace_back(&m, std::exchange(bytes, bytes + align(numel(shape) * byte_size(dtype))));
  }
  if (fresh.empty()) return;
  const Tensor memory = place == Place::apart ? communication_buffer(bytes, buffers_.levels().device())
                                              : gradient_buffer(bytes, buffers_.levels().device());
  for (const auto& [member, offset] : fresh) {
    const auto [shape, dtype] = room_of(*member);
    member->at(place) = view_at(memory, shape, offset, dtype);
  }
}

void RouteRun::run() {
  using Move = Route::Move;
  std::vector<Member> all = members();
  if (all.empty()) return;
  unsigned moves = 0;
  for (const Member& m : all) moves |= m.route->moves();
  std::vector<Step> steps;
  steps.reserve(all.size());
  for (const Move move : {Move::fetch, Move::copy, Move::scatter, Move::sum_replicas, Move::scatter_replicas,
                          Move::hook, Move::agree, Move::keep, Move::evict}) {
    if (move == Move::copy) make_room(all, Place::apart);
    if (move == Move::scatter) make_room(all, Place::shard);
    if (move == Move::scatter_replicas) make_room(all, Place::owned);
    if ((moves >> static_cast<unsigned>(move) & 1U) == 0) continue;
    steps.clear();
    for (Member& m : all)
      if (const Route::Hop* hop = m.route->find(move)) steps.push_back({m, *hop});
    if (!steps.empty()) call(move, steps);
  }
}

void RouteRun::call(Route::Move move, Steps steps) {
  using Move = Route::Move;
  const auto pieces = [steps] {
    std::vector<std::size_t> all;
    for (const Step& step : steps) all.push_back(step.member.piece);
    return all;
  };
  const auto tensors = [steps] {
    std::vector<Tensor> all;
    for (const Step& step : steps) all.push_back(step.from());
    return all;
  };
  switch (move) {
    case Move::hold: break;  // done when the pass was closed
    case Move::fetch: {
      const std::vector<Tensor> here = home_->fetch(pieces());
      for (std::size_t i = 0; i < steps.size(); ++i) steps[i].to() = here[i];
      break;
    }
    case Move::copy:
      for (const Step& step : steps) {
        const bool is_flat = step.to().shape() != step.from().shape();
        copy_into(step.to(), cast(is_flat ? flat(step.from()) : step.from(), step.to().dtype()));
      }
      break;
    case Move::scatter: scatter(steps, /*over_replicas=*/false); break;
    case Move::sum_replicas: sum_replicas(steps, tensors()); break;
    case Move::scatter_replicas: scatter(steps, /*over_replicas=*/true); break;
    case Move::hook: settings_.hook({arrival_.layout(), told_, tensors()}); break;
    case Move::agree:
    case Move::keep:
      for (const Step& step : steps) keep(step);
      break;
    case Move::evict: home_->evict(pieces(), tensors()); break;
  }
}

// Over the shards from full gradients, or over replicas from shards to what this rank owns of them. Averages are scaled
// by one of the two.
void RouteRun::scatter(Steps steps, bool over_replicas) {
  const ReductionKnobs& knobs = settings_.knobs.all();
  UnitReduceAttrs attrs{.unit = over_replicas ? *shards_ : arrival_.layout(),
                        .scale = 1 / knobs.divide_factor,
                        .in_flight = knobs.max_reductions,
                        .over_replicas = over_replicas,
                        .pieces = {}};
  const bool scales = settings_.facts.scales_last();
  std::vector<Tensor> out;
  for (const Step& step : steps) {
    const GradientArrival::Entry& e = arrival_[step.member.piece];
    attrs.pieces.push_back({.piece = static_cast<int>(step.member.piece),
                            .offset = over_replicas ? byte_offset(step.from()) : e.offset,
                            .kind = scales == over_replicas ? e.reduce_kind() : ReduceKind::sum,
                            .add_to = step.hop.add_to});
    out.push_back(step.to());
  }
  if (over_replicas) return start_reduce(attrs, bytes_over(steps.front().from().storage()), out);
  unit_.communicates();
  told_ = attrs.pieces;
  if (settings_.reduce && pieces_.layout().shards > 1) settings_.reduce(attrs, arrival_.bytes(), out);
  else start_reduce(attrs, arrival_.bytes(), out);
}

// Sums that are apart hold memory of their own, so they count among the reductions in flight.
void RouteRun::sum_replicas(Steps steps, std::span<const Tensor> sums) const {
  ReplicaSumAttrs attrs{.unit = arrival_.layout(), .pieces = {}};
  const double scale = settings_.facts.scales_last() ? 1 / settings_.knobs.all().divide_factor : 1;
  std::vector<Tensor> out;
  for (const Step& step : steps) {
    const bool is_apart = step.hop.from == Place::apart;
    attrs.pieces.push_back({.piece = static_cast<int>(step.member.piece),
                            .is_apart = is_apart,
                            .add_to = step.hop.add_to,
                            .scale = arrival_[step.member.piece].reduce_kind() == ReduceKind::avg ? scale : 1});
    if (is_apart) out.push_back(step.to());
  }
  if (!out.empty()) attrs.in_flight = settings_.knobs.all().max_reductions;
  start_replica_sum(attrs, sums, out);
}

// The sum becomes grad(), or is added to it: of one rank the full gradient, in the shape that modules see.
void RouteRun::keep(const Step& step) const {
  const std::size_t i = step.member.piece;
  const GradientArrival::Entry& e = arrival_[i];
  Parameter& p = *pieces_.parameter(i);
  const bool is_full = step.hop.from == Place::arrival, adds = step.hop.add_to != AddTo::nothing;
  if (is_full && !(adds && step.hop.move == Route::Move::keep)) step.from() = pieces_.as_sharded(i, arrival_.full(i));
  if (step.hop.move == Route::Move::agree)
    return e.partial_gradients->add(p, step.from(), p.shape(), pieces_.placement(i).sharded);
  if (step.hop.to == Place::unsummed) return e.aside->set_grad(step.from());
  if (e.has_unsummed()) e.aside->clear_grad();
  if (!adds) step.to() = step.from();
  else if (is_full) copy_into(pieces_.as_used(i, step.to()), arrival_.full(i), true);
  else copy_into(step.to(), step.from(), true);
  if (step.member.route->writes(Place::home)) p.set_grad(Tensor::distributed_like(p.sharded_value(), home_->of(i)));
  else if (!adds) p.set_grad(Tensor::distributed_like(p.sharded_value(), step.to()));
}

}  // namespace sherd::nn
