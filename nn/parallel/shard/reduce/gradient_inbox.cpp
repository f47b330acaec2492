#include "nn/parallel/shard/reduce/gradient_inbox.h"

#include <algorithm>
#include <utility>

#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/step_names.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"

namespace sherd::nn {

namespace {
bool all_of(const Spec& spec, bool (*is)(const Placement&)) {
  return std::all_of(spec.placements().begin(), spec.placements().end(), is);
}
bool is_sum(const Placement& p) { return p.is_partial(ReduceKind::sum); }
bool is_average(const Placement& p) { return p.is_replicate() || p.is_partial(ReduceKind::avg); }
}  // namespace

void BackwardEnd::expect() {
  const std::uint64_t pass = backward_pass();
  if (pass == 0 || std::exchange(pass_, pass) == pass) return;
  at_end_of_backward([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->run_();
  });
}

GradientInbox::GradientInbox(UnitBuffers& buffers, const DataMesh& data)
    : buffers_(buffers),
      data_(data),
      entries_(buffers.size()),
      unit_of_gradients_(buffers.layout().shared()),
      end_(std::make_shared<BackwardEnd>([this] { finish_backward(); })),
      knobs_([](const void* unit) { return label_of(static_cast<const UnitBuffers*>(unit)->layout()); }, &buffers) {
  knobs_.set<&ReductionKnobs::divide_factor>(static_cast<double>(data.num_ranks()));
  layout_changed();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Parameter& p = *buffers.parameter(i);
    if (const Spec* gathered = buffers.placement(i).gathered; gathered && gathered->num_axes() == 1)
      if (gathered->is_replicated() && gathered->axis_size(0) > 1)
        entries_[i].partial_gradients = PartialGradients::of(gathered->mesh());
    if (data_.num_replicas() > 1) entries_[i].aside = std::make_unique<Slot>(p.name() + ".unsummed");
    p.set_sink(this, i);
  }
}

void GradientInbox::materialize() {
  if (!home_ && buffers_.home() && buffers_.home()->options().gradients)
    home_ = std::make_unique<GradientHome>(buffers_);
  reduction_changed();
}

void GradientInbox::layout_changed() {
  if (std::exchange(home_, nullptr)) materialize();
  if (const UnitLayout* owned = buffers_.owned()) owned_.emplace(*owned);
  held_.reset();
  holding_changed();
  reduction_changed();
}

GradientInbox::~GradientInbox() {
  for (Parameter* p : buffers_.parameters()) p->set_sink(nullptr);
}

std::size_t GradientInbox::index_of(const Slot& slot) const {
  const std::size_t i = slot.sink_place();
  if (i >= entries_.size() || buffers_.parameter(i) != &slot)
    fail("group \"{}\" got a gradient of \"{}\", which is not its parameter", buffers_.layout().name, slot.name());
  return i;
}

// ---- arriving ----

// On one rank micro-batches accumulate in grad() itself, as in the default sink.
bool GradientInbox::adds_in_place(std::size_t i) const {
  const Entry& e = entries_[i];
  const bool fresh = e.pending == Pending::none || e.pending == Pending::in_place;
  return is_gradient_reduced_ && fresh && !e.is_partial && !holds() && !is_held(i) &&
         buffers_.parameter(i)->grad().defined();
}

// Parameters that train, or did when the tape was recorded, and those of which something is there or waits.
bool GradientInbox::has_place(std::size_t i) const {
  const Parameter* const p = buffers_.parameter(i);
  const Entry& e = entries_[i];
  return is_held(i) || (p && (p->requires_grad() || p->leaf()->expected > 0 || e.waits() || e.has_unsummed()));
}

// One after the other. What is held stays where it lies, whatever was frozen meanwhile, and others lie between.
const GradientInbox::Places& GradientInbox::places(const UnitLayout& layout) {
  const Tensor earlier = held_ && &held_->layout() == &layout ? held_->bytes() : Tensor();
  Places& at = places_;
  at.bytes = 0;
  at.offsets.assign(entries_.size(), kNoPlace);
  const auto move_on_to = [&](std::int64_t offset) {
    if (at.bytes > offset) held_->refuse_thawed();
    at.bytes = offset;
  };
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!has_place(i)) continue;
    if (earlier.defined() && is_held(i)) move_on_to(held_->offset(i));
    at.offsets[i] = at.bytes;
    at.bytes += align(sherd::numel(layout.pieces[i].shape) * byte_size(layout.pieces[i].full_dtype));
  }
  if (earlier.defined()) move_on_to(earlier.numel());
  return at;
}

void GradientInbox::set_layout_of_gradients(const UnitLayout& layout) {
  if (unit_of_gradients_.get() != &layout) unit_of_gradients_ = layout.shared();
}

// What is held is added to where it lies, unless it has another type.
void GradientInbox::make_buffer() {
  set_layout_of_gradients(buffers_.layout());
  const Places& at = places(*unit_of_gradients_);
  for (std::size_t i = 0; i < entries_.size(); ++i) entries_[i].offset = at.offsets[i];
  if (held_ && !held_->is_apart()) gradients_ = held_->bytes();
  if (!gradients_.defined()) gradients_ = gradient_buffer(at.bytes, buffers_.device());
}

const Tensor& GradientInbox::full_view(std::size_t i) {
  if (!gradients_.defined()) make_buffer();
  Entry& e = entries_[i];
  if (e.full.defined()) return e.full;
  if (e.offset == kNoPlace) fail("parameter \"{}\" got a gradient and is frozen", buffers_.parameter(i)->name());
  const Shape& shape = buffers_.placement(i).used_shape;
  return e.full = view_at(gradients_, shape, e.offset, unit_of_gradients_->pieces[i].full_dtype);
}

void GradientInbox::drop_buffer() {
  if (!gradients_.defined()) return;
  gradients_ = Tensor();
  for (Entry& e : entries_) e.full = Tensor();
}

GradSink::Destination GradientInbox::destination(Slot& slot) {
  const std::size_t i = index_of(slot);
  if (entries_[i].partial_gradients) return {};  // Partial or not: only accept() can tell
  Destination to = local_destination(i);
  if (buffers_.placement(i).gathered) to.buffer = buffers_.as_gathered(i, to.buffer);
  return to;
}

GradSink::Destination GradientInbox::local_destination(std::size_t i) {
  const bool in_place = entries_[i].writes_in_place = adds_in_place(i);
  if (in_place) return {buffers_.as_used(i, buffers_.parameter(i)->grad().local().detach()), true};
  const Tensor& full = full_view(i);
  return {full, entries_[i].pending != Pending::none || (is_held(i) && !held_->is_apart())};
}

void GradientInbox::note(std::size_t i, Pending kind) {
  Entry& e = entries_[i];
  const ReduceKind other = kind == Pending::sum ? ReduceKind::avg : ReduceKind::sum;
  if ((e.pending != Pending::none && e.pending != kind) || (held_ && held_->kind(i) == other))
    fail(
        "parameter \"{}\" got both a plain gradient (an average over ranks) and a Partial(sum) one in one backward "
        "pass, or in passes that are reduced together",
        buffers_.parameter(i)->name());
  e.pending = kind;
  has_pending_ = true;
  end_->expect();
}

void GradientInbox::wrote(Slot& slot) {
  const std::size_t i = index_of(slot);
  note(i, entries_[i].writes_in_place ? Pending::in_place : Pending::average);
}

void GradientInbox::accept(Slot& slot, Tensor gradient) {
  const std::size_t i = index_of(slot);
  const ShardPlacement& at = buffers_.placement(i);
  Pending kind = Pending::average;  // a plain gradient counts as an average over the data axes
  if (at.gathered) {
    gradient = local_gradient(i, std::move(gradient));
  } else if (gradient.is_distributed()) {
    const Spec& spec = Spec::from(gradient);
    check(spec.mesh_id() == at.sharded->mesh_id(),
          "parameter \"{}\" is sharded as {}, its gradient is {}: on another mesh; redistribute() or to_local() it",
          slot.name(), buffers_.parameter(i)->sharded_value(), gradient);
    check(all_of(spec, is_sum) || all_of(spec, is_average),
          "parameter \"{}\": a gradient placed {} cannot be reduced to shards; Partial(sum), Partial(avg) and "
          "Replicate can",
          slot.name(), gradient);
    if (all_of(spec, is_sum)) kind = Pending::sum;
    gradient = gradient.local();
  }
  const Destination to = local_destination(i);
  if (entries_[i].writes_in_place) kind = Pending::in_place;
  copy_into(to.buffer, std::move(gradient), to.accumulate);
  note(i, kind);
}

// The local tensor of a gradient in the gathered parameter's layout, or left Partial, see Entry::partial_gradients. In
// one pass either all contributions to a parameter are left Partial or none is.
Tensor GradientInbox::local_gradient(std::size_t i, Tensor gradient) {
  Entry& e = entries_[i];
  const Spec* const gathered = buffers_.placement(i).gathered;
  if (!gradient.is_distributed() || Spec::from(gradient).mesh_id() != gathered->mesh_id())
    fail("parameter \"{}\" is gathered as {}, its gradient is {}: on another mesh, or plain",
         buffers_.parameter(i)->name(), gathered->describe(), gradient);
  const bool may_wait = e.partial_gradients && !hook_ && !reduce_ && !knobs().reduces_unused && !holds() &&
                        !is_held(i) && !leaves_unsummed() && !e.has_unsummed();
  if (may_wait && Spec::from(gradient).placement(0).is_partial(ReduceKind::sum) &&
      (e.is_partial || e.pending == Pending::none)) {
    e.is_partial = true;
    return gradient.local().detach();
  }
  if (e.is_partial) reduce_partial_now(i);
  return redistribute(std::move(gradient), gathered).local().detach();
}

void GradientInbox::reduce_partial_now(std::size_t i) {
  const Tensor& buffer = full_view(i);
  const Spec* const gathered = buffers_.placement(i).gathered;
  const Tensor partial = Tensor::distributed(buffers_.parameter(i)->shape(), gathered->with(0, Partial()), buffer);
  copy_into(buffer, redistribute(partial, gathered).local().detach(), false);
  entries_[i].is_partial = false;
}

// Those that are not reached get no gradient: the others complete the unit, in the same order of units on all ranks.
std::size_t GradientInbox::num_reached() const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (const Parameter* p = buffers_.parameter(i)) count += p->leaf()->visited == backward_pass() ? 1 : 0;
  return count;
}

// What was gathered stays while the tape has readers for it: frozen parameters, or a use behind detach(). The backward
// of the module before this one tells when that is over (UnitSchedule::begin_backward). Where the shards are what is
// read, hooks wait too: they may write them.
void GradientInbox::finish(Slot&) {
  if (finished_ == 0) reached_ = num_reached();
  if (++finished_ != reached_) return;
  const bool is_read = buffers_.is_shard_full() ? reached_ < entries_.size() : buffers_.has_readers();
  if (!is_read && knobs().reshards) buffers_.reshard();
  reduce_pending();
  if (!is_read || !buffers_.is_shard_full()) run_hooks();
}

void GradientInbox::leave_backward() {
  if (knobs().reshards && buffers_.is_unsharded()) buffers_.reshard();
  run_hooks();
}

void GradientInbox::finish_backward() {
  if (knobs().reshards) buffers_.reshard();
  reduce_pending();
  run_hooks();
}

// ---- settings ----

void GradientInbox::set_divide_factor(double factor) {
  knobs_.set<&ReductionKnobs::divide_factor>(factor);
  reduction_changed();
}

void GradientInbox::set_all_reduces(bool on) { knobs_.set<&ReductionKnobs::all_reduces>(on); }

void GradientInbox::set_reduces_unused(bool on) { knobs_.set<&ReductionKnobs::reduces_unused>(on); }

void GradientInbox::set_syncs(bool on) {
  if (knobs_.set<&ReductionKnobs::syncs>(on)) holding_changed();
}

void GradientInbox::set_accumulated(ShardedOver over) {
  if (knobs_.set<&ReductionKnobs::accumulated>(over)) holding_changed();
}

// A step that was recorded before there was anywhere to hold gradients does not look for them.
void GradientInbox::holding_changed() {
  if (holds() && !held_) held_ = std::make_unique<HeldGradients>(buffers_);
  knobs_.set<&ReductionKnobs::may_hold>(held_ != nullptr);
}

void GradientInbox::set_reduce(UnitReduce reduce) {
  reduce_ = std::move(reduce);
  knobs_.set<&ReductionKnobs::reduce>(knobs().reduce.next());
}

void GradientInbox::set_all_reduce_hook(AllReduceHook hook) {
  hook_ = std::move(hook);
  knobs_.set<&ReductionKnobs::all_reduce_hook>(knobs().all_reduce_hook.next());
  reduction_changed();
}

void GradientInbox::reduction_changed() {
  is_gradient_reduced_ = data_.num_ranks() == 1 && buffers_.is_plain() && !home_ &&
                         !casts_gradients(buffers_.layout()) && knobs().divide_factor == 1 && !hook_;
}

std::vector<std::pair<std::string, std::string>> GradientInbox::settings() const {
  const auto text = [](bool on) { return std::string(on ? "true" : "false"); };
  return {{"the gradient divide factor", fmt::format("{}", knobs().divide_factor)},
          {"requires_gradient_sync", text(knobs().syncs)},
          {"requires_all_reduce", text(knobs().all_reduces)},
          {"reduce_unused", text(knobs().reduces_unused)},
          {"what accumulates", knobs().accumulated == ShardedOver::none     ? "full gradients"
                               : knobs().accumulated == ShardedOver::shards ? "shards"
                                                                            : "shards over all ranks"},
          {"its reduction", reduce_ ? "one of the user's own" : "the usual one"},
          {"its all-reduce hook", hook_ ? "set" : "none"}};
}

// ---- leaving ----

void GradientInbox::reduce_pending() {
  knobs_.read_all();
  finished_ = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (!buffers_.parameter(i)) entries_[i].pending = Pending::none;
  if (holds()) {
    add_zeros_for_unused();
    return hold();
  }
  take_held();
  add_zeros_to_unsummed();
  add_zeros_for_unused();
  if (!has_pending_) return drop_buffer();
  if (gradients_.defined()) {
    if (is_gradient_reduced_ && unit_of_gradients_.get() == &buffers_.layout()) keep_gradients();
    else launch();
  }
  drop_buffer();
  has_pending_ = false;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if (e.pending == Pending::none) continue;
    e.pending = Pending::none;
    const bool is_complete = !e.is_partial && !e.has_unsummed();
    e.is_partial = false;
    if (is_complete && buffers_.parameter(i)->has_grad_hooks()) reduced_.push_back(i);
  }
  if (held_) held_->drop_all();
}

std::optional<ReduceKind> GradientInbox::kind_of(Pending pending) {
  if (pending == Pending::zeros) return std::nullopt;
  return pending == Pending::sum ? ReduceKind::sum : ReduceKind::avg;
}

// Leaves the gradients of this pass to a later one: where backward has put them, unless they are held apart.
void GradientInbox::hold() {
  std::vector<HeldGradients::Member> members;
  const bool is_apart = held_->is_apart();
  const Places at = has_pending_ && is_apart ? places(held_->layout()) : Places();
  for (std::size_t i = 0; has_pending_ && i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if (e.waits()) {
      if (e.is_partial) reduce_partial_now(i);
      members.push_back({.piece = i,
                         .kind = kind_of(e.pending),
                         .held_offset = is_apart ? at.offsets[i] : e.offset,
                         .pass_offset = e.offset});
    }
    e.pending = Pending::none;
  }
  if (!members.empty()) held_->add(members, gradients_, at.bytes);
  drop_buffer();
  has_pending_ = false;
}

// What is held is reduced now, together with the gradients of this pass if there are any.
void GradientInbox::take_held() {
  if (!held_ || !held_->bytes().defined()) return;
  if (held_->is_apart()) {
    hold();
    const Places& at = places(held_->layout());
    for (std::size_t i = 0; i < entries_.size(); ++i) entries_[i].offset = at.offsets[i];
    set_layout_of_gradients(held_->layout());
    gradients_ = held_->bytes();
  } else if (!gradients_.defined()) {
    make_buffer();
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!is_held(i) || !buffers_.parameter(i)) continue;
    Pending& pending = entries_[i].pending;
    if (const auto kind = held_->kind(i)) pending = *kind == ReduceKind::sum ? Pending::sum : Pending::average;
    else if (pending == Pending::none) pending = Pending::zeros;
    has_pending_ = true;
  }
}

void GradientInbox::run_hooks() {
  if (reduced_.empty()) return;
  std::vector<std::size_t> now;
  now.swap(reduced_);  // a hook may lead here again
  for (const std::size_t i : now)
    if (Parameter* p = buffers_.parameter(i)) p->run_grad_hooks();
  now.clear();
  if (reduced_.empty()) now.swap(reduced_);  // keeps the memory
}

// Sums that earlier passes left are all-reduced over replicas now, also for parameters without a gradient in this pass.
void GradientInbox::add_zeros_to_unsummed() {
  if (leaves_unsummed() || buffers_.layout().replicas == 1) return;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (e.has_unsummed() && e.pending == Pending::none && buffers_.parameter(i)) add_zeros(i);
  }
}

// Once in a pass: what arrives after that is reduced for itself. Passes that are held need them too:
// finalize_backward() reduces what is held, and that must be the same on all ranks.
void GradientInbox::add_zeros_for_unused() {
  if (!knobs().reduces_unused || !in_backward() || std::exchange(zeros_pass_, backward_pass()) == backward_pass())
    return;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Parameter* const p = buffers_.parameter(i);
    if (p && p->requires_grad() && entries_[i].pending == Pending::none && !is_held(i)) add_zeros(i);
  }
}

void GradientInbox::add_zeros(std::size_t i) {
  fill_into(full_view(i), 0);
  entries_[i].pending = Pending::zeros;
  has_pending_ = true;
}

// The full gradients are the reduced ones. Those that were Partial at first were not added in place, see
// reduce_partial_now().
void GradientInbox::keep_gradients() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].waits()) continue;
    const Tensor& full = full_view(i);
    const Tensor& gradient = buffers_.parameter(i)->grad();
    if (!entries_[i].is_partial && gradient.defined()) {
      copy_into(buffers_.as_used(i, gradient.local().detach()), full, true);
      continue;
    }
    Tensor shard = buffers_.as_sharded(i, full);
    deliver(i, shard);
  }
}

// The tensor that the reduction accumulates onto: this rank's shard of an earlier sum, or none. A hook sees this pass
// alone, which is added after it.
Tensor GradientInbox::earlier_sum(std::size_t i) const {
  const Entry& e = entries_[i];
  if (e.is_partial || e.has_unsummed() || leaves_unsummed()) return e.unsummed();
  return gradient_to_add_to(i);
}

// The gradient of earlier passes, if the sum of this one is added to it by the row that makes it.
Tensor GradientInbox::gradient_to_add_to(std::size_t i) const {
  const Entry& e = entries_[i];
  const Tensor& gradient = buffers_.parameter(i)->grad();
  if (!gradient.defined() || e.is_partial || hook_) return {};
  return e.earlier.defined() ? e.earlier : gradient.local().detach();
}

void GradientInbox::deliver(std::size_t i, Tensor& shard) {
  Entry& e = entries_[i];
  Parameter& p = *buffers_.parameter(i);
  const Spec* const layout = buffers_.placement(i).sharded;
  if (e.is_partial) return e.partial_gradients->add(p, shard, p.shape(), layout);
  if (leaves_unsummed()) return e.aside->set_grad(shard);
  if (e.has_unsummed()) e.aside->clear_grad();
  if (e.goes_home) {
    if (e.earlier.defined() && shard.storage() != e.earlier.storage()) {
      copy_into(e.earlier, shard, true);
      shard = e.earlier;
    }
    return p.set_grad(Tensor::distributed_like(p.sharded_value(), home_->of(i)));
  }
  const auto is_gradient = [&](const Tensor& t) {
    return t.storage() == shard.storage() && t.offset() == shard.offset();
  };
  if (p.grad().defined() && !is_gradient(p.grad().local())) copy_into(p.grad().local().detach(), shard, true);
  else p.set_grad(Tensor::distributed_like(p.sharded_value(), shard));
}

// ---- errors ----

void GradientInbox::abandon(std::string_view reason) noexcept {
  if (data_.root_group().size() > 1) data_.root_group().abort(reason);
  discard_pending();
  discard_earlier();
  buffers_.drop();
}

// Which of them are whole nobody knows: gradients at home are those of a step that is over.
void GradientInbox::drop_home() noexcept {
  if (!home_) return;
  for (Parameter* p : buffers_.parameters())
    if (p->grad().defined() && home_->is_home(p->grad().local())) p->clear_grad();
  home_->forget();
}

// Of one parameter: a step that is given up must not reach into the next one.
void GradientInbox::cleared(Slot& slot) {
  const std::size_t i = index_of(slot);
  if (held_) held_->drop(i);
  if (entries_[i].has_unsummed()) entries_[i].aside->clear_grad();
}

void GradientInbox::discard_earlier() {
  for (const Entry& e : entries_)
    if (e.aside) e.aside->clear_grad();
  if (held_) held_->drop_all();
  drop_home();
}

// Such a pass may have added to what is held, where it lies.
void GradientInbox::discard_pending() {
  if (has_pending_ && held_) held_->drop_all();
  drop_buffer();
  has_pending_ = false;
  finished_ = 0;
  reduced_.clear();
  for (Entry& e : entries_) {
    e.pending = Pending::none;
    e.is_partial = false;
    e.goes_home = false;
    e.earlier = Tensor();
    if (e.partial_gradients) e.partial_gradients->discard();
  }
}

}  // namespace sherd::nn
