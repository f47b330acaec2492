#include "nn/parallel/shard/reduce/gradient_arrival.h"

#include <algorithm>
#include <utility>

#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/leaves.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"

namespace sherd::nn {

namespace {
bool all_of(const Spec& spec, bool (*is)(const Placement&)) {
  return std::all_of(spec.placements().begin(), spec.placements().end(), is);
}
bool is_sum(const Placement& p) { return p.is_partial(ReduceKind::sum); }
bool is_average(const Placement& p) { return p.is_replicate() || p.is_partial(ReduceKind::avg); }
bool has_any(const std::vector<GradientArrival::Entry>& entries) {
  return std::ranges::any_of(entries, [](const auto& e) { return e.kind != GradientArrival::Kind::none; });
}
std::size_t index_of(const Slot& slot, const UnitPieces& pieces) {
  const std::size_t i = slot.sink_place();
  if (i >= pieces.size() || pieces.parameter(i) != &slot)
    fail("unit \"{}\" got a gradient of \"{}\", which is not its parameter", pieces.layout().name, slot.name());
  return i;
}
}  // namespace

GradientArrival::GradientArrival(const UnitBuffers& buffers, ReductionSettings& settings, UnitListener& unit)
    : levels_(buffers.levels()),
      pieces_(buffers.pieces()),
      settings_(settings),
      unit_(unit),
      entries_(pieces_.size()),
      layout_(pieces_.layout().shared()) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Parameter& p = *pieces_.parameter(i);
    if (const Spec* gathered = pieces_.placement(i).gathered; gathered && gathered->num_axes() == 1)
      if (gathered->is_replicated() && gathered->axis_size(0) > 1)
        entries_[i].partial_gradients = PartialGradients::of(gathered->mesh());
    if (settings.facts.has_replicas) entries_[i].aside = std::make_unique<Slot>(p.name() + ".unsummed");
    p.set_sink(this, i);
  }
}

GradientArrival::~GradientArrival() {
  for (Parameter* p : pieces_.parameters()) p->set_sink(nullptr);
}

void GradientArrival::layout_changed() {
  held_.reset();
  settings_changed();
}

// A step that was recorded before there was anywhere to hold gradients does not look for them.
void GradientArrival::settings_changed() {
  const int passes = settings_.facts.accumulated == ShardedOver::none ? settings_.passes_that_wait : 0;
  if ((settings_.facts.holds() || passes > 0) && !held_)
    held_ = std::make_unique<HeldGradients>(pieces_, settings_.facts.sums_in_tree, passes + 1);
  settings_.knobs.set<&ReductionKnobs::hold_levels>(held_ ? held_->levels() : 0);
}

Route::Facts GradientArrival::facts(std::size_t i) const {
  const Entry& e = entries_[i];
  const UnitPiece& piece = pieces_.layout().pieces[i];
  const Parameter* const p = pieces_.parameter(i);
  Route::Facts facts = settings_.facts;
  facts.has_tensor = e.partial_gradients != nullptr;
  facts.has_home &= !facts.has_tensor;
  facts.made = piece.full_dtype;
  facts.wire = piece.wire;
  facts.kept = piece.gradient_dtype();
  facts.has_grad = p && p->grad().defined();
  facts.is_grad_home = facts.has_home && facts.has_grad && home_of(p->grad().local());
  facts.is_held = held_ && (held_->is_apart() ? held_->bytes().defined() : held_->has(i));
  facts.is_partial = e.is_partial;
  if (e.has_unsummed()) facts.unsummed = Route::Unsummed::some;
  return facts;
}

// ---- arriving ----

// One after the other: parameters that train, or did when the tape was recorded, and those of which something is there
// or waits. What is held stays where it lies, whatever was frozen meanwhile, and others lie between.
std::int64_t GradientArrival::lay_out(const UnitLayout& layout) {
  if (layout_.get() != &layout) layout_ = layout.shared();
  const Tensor earlier = held_ && &held_->layout() == &layout ? held_->bytes() : Tensor();
  std::int64_t bytes = 0;
  const auto move_on_to = [&](std::int64_t offset) {
    if (bytes > offset) held_->refuse_thawed();
    bytes = offset;
  };
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    const Parameter* const p = pieces_.parameter(i);
    const bool has_place =
        is_held(i) || (p && (p->requires_grad() || p->leaf()->expected > 0 || e.waits() || e.has_unsummed()));
    e.offset = Entry::kNoPlace;
    if (!has_place) continue;
    if (earlier.defined() && is_held(i)) move_on_to(held_->offset(i));
    e.offset = bytes;
    bytes += align(sherd::numel(layout.pieces[i].shape) * byte_size(layout.pieces[i].full_dtype));
  }
  if (earlier.defined()) move_on_to(earlier.numel());
  return bytes;
}

// Where there is no buffer yet it is that of held gradients, to which backward then adds, unless they have another
// type. A pass of several leaves gives their sums.
const Tensor& GradientArrival::full(std::size_t i) {
  if (!gradients_.defined()) {
    const UnitLayoutPtr sums = leaves_of_backward() > 1 ? layout_of_sums(pieces_.layout()) : UnitLayoutPtr();
    const std::int64_t bytes = lay_out(sums ? *sums : pieces_.layout());
    if (held_ && !held_->is_apart()) gradients_ = held_->bytes();
    if (!gradients_.defined()) gradients_ = gradient_buffer(bytes, levels_.device());
  }
  Entry& e = entries_[i];
  if (e.full.defined()) return e.full;
  if (e.offset == Entry::kNoPlace) fail("parameter \"{}\" got a gradient and is frozen", pieces_.parameter(i)->name());
  const Shape& shape = pieces_.placement(i).used_shape;
  return e.full = view_at(gradients_, shape, e.offset, layout_->pieces[i].full_dtype);
}

GradSink::Destination GradientArrival::destination(Slot& slot) {
  const std::size_t i = index_of(slot, pieces_);
  if (entries_[i].partial_gradients) return {};  // Partial or not: only accept() can tell
  Destination to = local_destination(i);
  if (pieces_.placement(i).gathered) to.buffer = pieces_.as_gathered(i, to.buffer);
  return to;
}

// A Partial one is summed over its axis leaf by leaf, as where a rank has one leaf.
GradSink::Destination GradientArrival::home_of_leaves(Slot& slot) {
  const std::size_t i = index_of(slot, pieces_);
  return entries_[i].partial_gradients ? local_destination(i) : destination(slot);
}

Tensor GradientArrival::of_leaf(Slot& slot, Tensor gradient) {
  const std::size_t i = index_of(slot, pieces_);
  return entries_[i].partial_gradients ? local_gradient(i, std::move(gradient)) : gradient;
}

GradSink::Destination GradientArrival::local_destination(std::size_t i) {
  Entry& e = entries_[i];
  const Tensor& gradient = pieces_.parameter(i)->grad();
  const bool is_fresh = e.kind == Kind::none || e.kind == Kind::in_place;
  // On one rank micro-batches accumulate in grad() itself, as in the default sink.
  e.writes_in_place = settings_.facts.is_direct && is_fresh && !e.is_partial && !settings_.facts.holds() &&
                      !is_held(i) && gradient.defined();
  if (e.writes_in_place) return {pieces_.as_used(i, gradient.local().detach()), true};
  return {full(i), e.kind != Kind::none || (is_held(i) && !held_->is_apart())};
}

void GradientArrival::note(std::size_t i, Kind kind) {
  Entry& e = entries_[i];
  const ReduceKind other = kind == Kind::sum ? ReduceKind::avg : ReduceKind::sum;
  if ((e.kind != Kind::none && e.kind != kind) || (held_ && held_->kind(i) == other))
    fail(
        "parameter \"{}\" got both a plain gradient (an average over ranks) and a Partial(sum) one in one backward "
        "pass, or in passes that are reduced together",
        pieces_.parameter(i)->name());
  check(kind != Kind::sum || !settings_.facts.sums_in_tree,
        "parameter \"{}\" got a gradient that is Partial(sum) over the data ranks: as a tree averages add up "
        "(sums_in_tree, numerics = layout_free); give each rank its own rows of the batch",
        pieces_.parameter(i)->name());
  e.kind = kind;
  unit_.arrived();
}

void GradientArrival::wrote(Slot& slot) {
  const std::size_t i = index_of(slot, pieces_);
  note(i, entries_[i].writes_in_place ? Kind::in_place : Kind::average);
}

void GradientArrival::accept(Slot& slot, Tensor gradient) {
  const std::size_t i = index_of(slot, pieces_);
  const ShardPlacement& at = pieces_.placement(i);
  Kind kind = Kind::average;  // a plain gradient counts as an average over the data axes
  if (at.gathered) {
    gradient = local_gradient(i, std::move(gradient));
  } else if (gradient.is_distributed()) {
    const Spec& spec = Spec::from(gradient);
    check(spec.mesh_id() == at.sharded->mesh_id(),
          "parameter \"{}\" is sharded as {}, its gradient is {}: on another mesh; redistribute() or to_local() it",
          slot.name(), pieces_.parameter(i)->sharded_value(), gradient);
    check(all_of(spec, is_sum) || all_of(spec, is_average),
          "parameter \"{}\": a gradient placed {} cannot be reduced to shards; Partial(sum), Partial(avg) and "
          "Replicate can",
          slot.name(), gradient);
    if (all_of(spec, is_sum)) kind = Kind::sum;
    gradient = gradient.local();
  }
  const Destination to = local_destination(i);
  if (entries_[i].writes_in_place) kind = Kind::in_place;
  copy_into(to.buffer, std::move(gradient), to.accumulate);
  note(i, kind);
}

// The local tensor of a gradient in the gathered parameter's layout, or left Partial, see Entry::partial_gradients. In
// one pass either all contributions to a parameter are left Partial or none is.
Tensor GradientArrival::local_gradient(std::size_t i, Tensor gradient) {
  Entry& e = entries_[i];
  const Spec* const gathered = pieces_.placement(i).gathered;
  if (!gradient.is_distributed() || Spec::from(gradient).mesh_id() != gathered->mesh_id())
    fail("parameter \"{}\" is gathered as {}, its gradient is {}: on another mesh, or plain",
         pieces_.parameter(i)->name(), gathered->describe(), gradient);
  const bool is_partial = Spec::from(gradient).placement(0).is_partial(ReduceKind::sum);
  Route::Facts if_left = facts(i);
  if_left.is_partial = true;
  if_left.is_held = is_held(i);
  if (is_partial && (e.is_partial || e.kind == Kind::none) && Route::refusal(if_left).empty()) {
    e.is_partial = true;
    return gradient.local().detach();
  }
  if (e.is_partial) reduce_partial_now(i);
  return redistribute(std::move(gradient), gathered).local().detach();
}

void GradientArrival::reduce_partial_now(std::size_t i) {
  const Tensor& buffer = full(i);
  const Spec* const gathered = pieces_.placement(i).gathered;
  const Tensor partial = Tensor::distributed(pieces_.parameter(i)->shape(), gathered->with(0, Partial()), buffer);
  copy_into(buffer, redistribute(partial, gathered).local().detach(), false);
  entries_[i].is_partial = false;
}

// Parameters that the pass does not reach get no gradient: the others complete the unit, in the same order of units on
// all ranks.
void GradientArrival::finish(Slot&) {
  if (finished_ == 0) {
    reached_ = 0;
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (const Parameter* p = pieces_.parameter(i)) reached_ += p->leaf()->visited == backward_pass();
  }
  if (++finished_ == reached_) unit_.completed(reached_ == entries_.size());
}

// ---- leaving ----

bool GradientArrival::close() {
  finished_ = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (!pieces_.parameter(i)) entries_[i].kind = Kind::none;
  if (!settings_.facts.holds()) take_held();
  add_zeros();
  if (settings_.facts.holds()) hold();
  if (has_any(entries_)) return true;
  reset();
  return false;
}

void GradientArrival::clear() {
  if (held_) held_->drop_all();
  reset();
}

void GradientArrival::reset() {
  gradients_ = Tensor();
  for (Entry& e : entries_) {
    e.full = Tensor();
    e.kind = Kind::none;
    e.is_partial = false;
  }
}

// Leaves the gradients of this pass to a later one: where backward has put them, unless they are held apart.
void GradientArrival::hold() {
  std::vector<HeldGradients::Member> members;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (!e.waits()) continue;
    if (e.is_partial) reduce_partial_now(i);
    members.push_back({.piece = i, .pass_offset = e.offset});
    if (e.kind != Kind::zeros) members.back().kind = e.reduce_kind();
  }
  if (!members.empty()) {
    const UnitLayoutPtr of_pass = layout_;
    const std::int64_t bytes = held_->is_apart() ? lay_out(held_->layout()) : 0;
    for (HeldGradients::Member& m : members) m.held_offset = entries_[m.piece].offset;
    held_->add(members, *of_pass, gradients_, bytes);
    // A recording that knows of fewer does not look for what waits in the others.
    settings_.knobs.set<&ReductionKnobs::hold_levels>(held_->levels());
  }
  reset();
}

// What is held is reduced now, together with the gradients of this pass if there are any.
void GradientArrival::take_held() {
  if (!held_ || !held_->bytes().defined()) return;
  if (held_->is_apart()) {
    hold();
    held_->join();
    lay_out(held_->layout());
    gradients_ = held_->bytes();
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!is_held(i) || !pieces_.parameter(i)) continue;
    full(i);
    Kind& kind = entries_[i].kind;
    if (const auto of_held = held_->kind(i)) kind = *of_held == ReduceKind::sum ? Kind::sum : Kind::average;
    else if (kind == Kind::none) kind = Kind::zeros;
  }
}

// Sums that earlier passes left are all-reduced over replicas now, also for parameters without a gradient in this pass.
// What a pass does not reach is zero once in it: a later arrival is reduced for itself. Passes that are held need zeros
// too: finalize_backward() reduces what is held, and that must be the same on all ranks.
void GradientArrival::add_zeros() {
  const auto add_where = [this](const auto& is_wanted) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Parameter* const p = pieces_.parameter(i);
      if (!p || entries_[i].kind != Kind::none || !is_wanted(i, *p)) continue;
      fill_into(full(i), 0);
      entries_[i].kind = Kind::zeros;
    }
  };
  const Route::Facts& now = settings_.facts;
  if (now.has_replicas && !now.holds() && !now.leaves_unsummed())
    add_where([this](std::size_t i, const Parameter&) { return entries_[i].has_unsummed(); });
  if (now.reduces_unused && in_backward() && std::exchange(zeros_pass_, backward_pass()) != backward_pass())
    add_where([this](std::size_t i, const Parameter& p) { return p.requires_grad() && !is_held(i); });
}

// Drops all of one parameter: a step that is given up must not reach into the next one.
void GradientArrival::cleared(Slot& slot) {
  const std::size_t i = index_of(slot, pieces_);
  if (held_) held_->drop(i);
  if (entries_[i].has_unsummed()) entries_[i].aside->clear_grad();
}

void GradientArrival::discard_earlier() {
  for (const Entry& e : entries_)
    if (e.aside) e.aside->clear_grad();
  if (held_) held_->drop_all();
}

// Such a pass may have added to what is held, where it lies.
void GradientArrival::discard() {
  if (has_any(entries_) && held_) held_->drop_all();
  finished_ = 0;
  for (const Entry& e : entries_)
    if (e.partial_gradients) e.partial_gradients->discard();
  reset();
}

}  // namespace sherd::nn
