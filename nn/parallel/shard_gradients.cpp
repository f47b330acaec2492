// The backward half of a group: where gradients are written, how they are reduced, and the launch of the reduction.
#include <algorithm>

#include "dtensor/redistribute.h"
#include "runtime/op/alone.h"
#include "runtime/op/buffer_views.h"
#include "nn/parallel/replica_sum.h"
#include "nn/parallel/shard_group.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/board/reduce.h"
#include "runtime/comm/group/channels.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/subject.h"
#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/op/capture_sink.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

namespace {

// What a reduce_scatter over one rank does, without a collective.
void scatter_alone(const std::vector<ScatterPart>& parts, double scale) {
  for (const ScatterPart& p : parts) {
    const auto* const in = static_cast<const std::byte*>(p.in);
    comm::reduce({&in, 1}, static_cast<std::byte*>(p.out), p.counts[0],
                 {.kind = ReduceKind::sum,
                  .factor = scale,
                  .accumulate = p.accumulate,
                  .in = p.dtype,
                  .wire = p.wire.value_or(p.dtype),
                  .out = p.out_dtype.value_or(p.dtype)},
                 false);
  }
}

bool all_of(const Spec& spec, bool (*is)(const Placement&)) {
  return std::all_of(spec.placements().begin(), spec.placements().end(), is);
}
bool is_sum(const Placement& p) { return p.is_partial(ReduceKind::sum); }
bool is_average(const Placement& p) { return p.is_replicate() || p.is_partial(ReduceKind::avg); }

}  // namespace

ShardGroup::Placed& ShardGroup::placed(const Slot& slot) {
  for (Placed& p : placed_)
    if (p.parameter == &slot) return p;
  fail("group \"{}\" got a gradient of \"{}\", which is not its parameter", name_, slot.name());
}

// On one rank micro-batches accumulate in grad() itself, as in the default sink.
bool ShardGroup::adds_in_place(const Placed& p) const {
  const bool fresh = p.pending == Placed::Pending::none || p.pending == Placed::Pending::in_place;
  return is_gradient_reduced() && fresh && !p.is_partial && p.parameter->grad().defined();
}

GradSink::Destination ShardGroup::destination(Slot& slot) {
  const Placed& p = placed(slot);
  if (p.partial_gradients) return {};  // Partial or not: only accept() can tell
  Destination to = local_destination(p);
  to.buffer = as_gathered(p, to.buffer);
  return to;
}

GradSink::Destination ShardGroup::local_destination(const Placed& p) {
  if (adds_in_place(p)) return {p.parameter->grad().local().detach(), true};
  if (!gradients_.defined()) gradients_ = issue_gradient_buffer(gathered_bytes_, shards_.device());
  return {full_view(p, gradients_), p.pending != Placed::Pending::none};
}

void ShardGroup::note(Placed& p, Placed::Pending kind) {
  check(
      p.pending == Placed::Pending::none || p.pending == kind,
      "parameter \"{}\" got both a plain gradient (an average over ranks) and a Partial(sum) one in one backward pass",
      p.parameter->name());
  p.pending = kind;
}

void ShardGroup::wrote(Slot& slot) {
  Placed& p = placed(slot);
  note(p, adds_in_place(p) ? Placed::Pending::in_place : Placed::Pending::average);
}

void ShardGroup::accept(Slot& slot, Tensor gradient) {
  Placed& p = placed(slot);
  Placed::Pending kind = Placed::Pending::average;  // a plain gradient counts as an average over the data axes
  if (p.at.gathered) {
    gradient = local_gradient(p, std::move(gradient));
  } else if (gradient.is_distributed()) {
    const Spec& spec = Spec::from(gradient);
    check(spec.mesh_id() == p.at.sharded->mesh_id(),
          "parameter \"{}\" is sharded as {}, its gradient is {}: on another mesh; redistribute() or to_local() it",
          slot.name(), p.sharded, gradient);
    check(all_of(spec, is_sum) || all_of(spec, is_average),
          "parameter \"{}\": a gradient placed {} cannot be reduced to shards; Partial(sum), Partial(avg) and "
          "Replicate can",
          slot.name(), describe(gradient));
    if (all_of(spec, is_sum)) kind = Placed::Pending::sum;
    gradient = gradient.local();
  }
  if (adds_in_place(p)) kind = Placed::Pending::in_place;
  const Destination to = local_destination(p);
  copy_into(to.buffer, std::move(gradient), to.accumulate);
  note(p, kind);
}

// The local tensor of a gradient in the gathered parameter's layout, or left Partial, see Placed::partial_gradients. In
// one pass either all contributions to a parameter are left Partial or none is.
Tensor ShardGroup::local_gradient(Placed& p, Tensor gradient) {
  check(gradient.is_distributed() && Spec::from(gradient).mesh_id() == p.at.gathered->mesh_id(),
        "parameter \"{}\" is gathered as {}, its gradient is {}: on another mesh, or plain", p.parameter->name(),
        p.unsharded, gradient);
  const bool may_wait = p.partial_gradients && !leaves_unsummed() && !p.has_unsummed();
  if (may_wait && Spec::from(gradient).placement(0).is_partial(ReduceKind::sum) &&
      (p.is_partial || p.pending == Placed::Pending::none)) {
    p.is_partial = true;
    return gradient.local().detach();
  }
  if (p.is_partial) reduce_partial_now(p);
  return redistribute(std::move(gradient), p.at.gathered).local().detach();
}

void ShardGroup::reduce_partial_now(Placed& p) {
  const Tensor buffer = full_view(p, gradients_);
  const Tensor partial = Tensor::distributed(p.parameter->shape(), p.at.gathered->with(0, Partial()), buffer);
  copy_into(buffer, redistribute(partial, p.at.gathered).local().detach(), false);
  p.is_partial = false;
}

// A frozen parameter has no gradient that would tell when backward has last read it; the backward of the module before
// this one tells (ShardTree::leave_backward_before).
void ShardGroup::finish(Slot&) {
  const auto trainable = static_cast<std::size_t>(
      std::count_if(parameters_.begin(), parameters_.end(), [](const Parameter* p) { return p->requires_grad(); }));
  if (++finished_ != trainable) return;
  if (trainable == parameters_.size()) reshard();
  reduce_pending();
}

void ShardGroup::finish_backward() {
  reshard();
  reduce_pending();
}

void ShardGroup::set_divide_factor(double factor) {
  divide_factor_ = factor;
  reduction_changed();
}

void ShardGroup::set_all_reduces(bool on) {
  all_reduces_ = on;
  reduction_changed();
}

void ShardGroup::reduction_changed() {
  const char* const over_replicas = data_.num_replicas() == 1 ? ""
                                    : all_reduces_            ? " and adds them up over replicas"
                                                              : " and does not add them up over replicas";
  reduction_->text = fmt::format("group \"{}\" divides gradients by {}{}", name_, divide_factor_, over_replicas);
  if (CaptureSink* capture = RankContext::current().capture) capture->setting_changed(reduction_);
}

void ShardGroup::reduce_pending() {
  if (CaptureSink* capture = RankContext::current().capture) capture->setting_read(reduction_);
  finished_ = 0;
  add_zeros_to_unsummed();
  if (gradients_.defined() && is_gradient_reduced()) {
    keep_gradients();
  } else if (gradients_.defined()) {
    launch(Placed::Pending::average, 1 / divide_factor_);
    launch(Placed::Pending::sum, 1);
  }
  gradients_ = Tensor();
  for (Placed& p : placed_) {
    if (p.pending == Placed::Pending::none) continue;
    p.pending = Placed::Pending::none;
    const bool is_complete = !p.is_partial && !p.has_unsummed();
    p.is_partial = false;
    if (is_complete) p.parameter->run_grad_hooks();
  }
}

// Sums that earlier passes left are all-reduced over replicas now, also for parameters without a gradient in this pass.
void ShardGroup::add_zeros_to_unsummed() {
  if (!all_reduces_) return;
  for (Placed& p : placed_) {
    if (!p.has_unsummed() || p.pending != Placed::Pending::none) continue;
    if (!gradients_.defined()) gradients_ = issue_gradient_buffer(gathered_bytes_, shards_.device());
    fill_into(full_view(p, gradients_), 0);
    p.pending = Placed::Pending::average;
  }
}

// The full gradients are the reduced ones. Those that were Partial at first were not added in place, see
// reduce_partial_now().
void ShardGroup::keep_gradients() {
  for (Placed& p : placed_) {
    if (p.pending != Placed::Pending::average && p.pending != Placed::Pending::sum) continue;
    const Tensor full = full_view(p, gradients_);
    if (!p.is_partial && p.parameter->grad().defined()) copy_into(p.parameter->grad().local().detach(), full, true);
    else deliver(p, full);
  }
}

// The tensor that the reduction accumulates onto: this rank's shard of an earlier sum, or none.
Tensor ShardGroup::earlier_sum(const Placed& p) const {
  if (p.is_partial || p.has_unsummed() || leaves_unsummed()) return p.unsummed();
  return p.parameter->grad().defined() ? p.parameter->grad().local().detach() : Tensor();
}

void ShardGroup::deliver(Placed& p, const Tensor& shard) {
  if (p.is_partial) return p.partial_gradients->add(*p.parameter, shard, p.parameter->shape(), p.at.sharded);
  if (leaves_unsummed()) return p.aside->set_grad(shard);
  const bool had_unsummed = p.has_unsummed();
  if (had_unsummed) p.aside->clear_grad();
  if (had_unsummed && p.parameter->grad().defined()) copy_into(p.parameter->grad().local().detach(), shard, true);
  else p.parameter->set_grad(Tensor::distributed(p.parameter->shape(), p.at.sharded, shard));
}

void ShardGroup::launch(Placed::Pending kind, double scale) {
  ReducePlan plan{scale, !leaves_unsummed(), {}, {}, {}};
  std::vector<Tensor> out;
  std::int64_t fresh_bytes = 0;
  bool any_fresh = false;
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    const Placed& p = placed_[i];
    if (p.pending != kind) continue;
    plan.members.push_back(i);
    plan.unsummed.push_back(p.has_unsummed());
    out.push_back(earlier_sum(p));
    plan.accumulate.push_back(out.back().defined());
    if (out.back().defined()) continue;
    any_fresh = true;
    fresh_bytes += align(sherd::numel(p.at.local_shape) * byte_size(p.dtype));
  }
  if (plan.members.empty()) return;
  // A rank whose shards are empty issues the row too, with empty tensors: all ranks issue the same rows.
  const Tensor fresh = any_fresh ? issue_gradient_buffer(fresh_bytes, shards_.device()) : Tensor();
  std::int64_t offset = 0;
  for (std::size_t m = 0; m < plan.members.size(); ++m) {
    const Placed& p = placed_[plan.members[m]];
    if (plan.accumulate[m]) continue;
    out[m] = view_at(fresh, p.at.local_shape, offset, p.dtype);
    offset += align(sherd::numel(p.at.local_shape) * byte_size(p.dtype));
  }
  issue_reduce(*this, plan_index(plan), gradients_, out);
  for (std::size_t m = 0; m < plan.members.size(); ++m) deliver(placed_[plan.members[m]], out[m]);
}

int ShardGroup::plan_index(const ReducePlan& plan) {
  const auto found = std::find(plans_.begin(), plans_.end(), plan);
  if (found != plans_.end()) return static_cast<int>(found - plans_.begin());
  plans_.push_back(plan);
  return static_cast<int>(plans_.size()) - 1;
}

std::optional<DType> ShardGroup::wire_of(const Placed& p) const {
  return is_floating(p.dtype) ? policy_.reduce_dtype : std::nullopt;
}

// While it runs, the full gradients are accounted as communication: no parameter owns them any more.
void ShardGroup::reduce(int plan_number, const Tensor& full, std::span<const Tensor> out) {
  const ReducePlan& plan = plans_[static_cast<std::size_t>(plan_number)];
  if (alone()) return reduce_shards_alone(plan, full, out);
  std::vector<ScatterPart> parts;
  std::vector<Loan> loans{{full.storage(), false}};
  std::int64_t moved = 0;
  for (std::size_t m = 0; m < plan.members.size(); ++m) {
    const Placed& p = placed_[plan.members[m]];
    const Ref<Storage>& to = out[m].storage();
    parts.push_back({full.storage()->address() + full.offset() + p.full_offset,
                     to->address() + out[m].offset() * byte_size(p.dtype), p.full_dtype, p.at.counts,
                     plan.accumulate[m], wire_of(p), p.dtype});
    const std::int64_t wire = byte_size(wire_of(p).value_or(p.full_dtype));
    moved += sherd::numel(p.at.full_shape) * std::min(byte_size(p.full_dtype), wire);
    if (std::none_of(loans.begin(), loans.end(), [&](const Loan& loan) { return loan.storage == to; }))
      loans.push_back({to, true});
  }
  ReplicaSum replicas;
  if (plan.all_reduces && data_.num_replicas() > 1) {
    replicas =
        ReplicaSum(channel_of(data_.replica_group(), kReduceQueue), data_.shard_group().rank(), parts, plan.unsummed);
    count_collective({.kind = comm::CommOp::all_reduce,
                      .op = "reduce",
                      .module = name_,
                      .ranks = data_.num_replicas(),
                      .bytes = replicas.bytes()});
    if (Ref<Storage> aside = replicas.take_memory()) loans.push_back({std::move(aside), false});  // nobody reads it
  }
  ProcessGroup& channel = channel_of(data_.shard_group(), kReduceQueue);
  count_collective(
      {.kind = comm::CommOp::reduce_scatter, .op = "reduce", .module = name_, .ranks = channel.size(), .bytes = moved});
  auto run = [&channel, parts = std::move(parts), scale = plan.scale, replicas = std::move(replicas),
              unit = std::string_view(name_)] {
    const comm::SubjectScope subject(unit);
    if (channel.size() == 1) scatter_alone(parts, scale);
    else channel.reduce_scatter(parts, {.kind = ReduceKind::sum, .scale = scale})->wait();
    replicas.run();
  };
  last_reduction_ = RankContext::current()
                        .queue(kReduceQueue)
                        .submit({.name = "reduce",
                                 .subject = name_,
                                 .bytes = moved,
                                 .run = std::move(run),
                                 .loans = loans,
                                 .abort = [&channel](std::string_view reason) { channel.abort(reason); },
                                 .max_in_flight = max_reductions_});
  full.storage()->retag(MemoryCategory::communication);
}

void ShardGroup::reduce_shards_alone(const ReducePlan& plan, const Tensor& full, std::span<const Tensor> out) const {
  std::vector<AlonePart> parts;
  for (std::size_t m = 0; m < plan.members.size(); ++m) {
    const Placed& p = placed_[plan.members[m]];
    parts.push_back({run_at(full, p.at.counts[0], full.offset() + p.full_offset, p.full_dtype), flat(out[m]),
                     wire_of(p).value_or(p.full_dtype), plan.accumulate[m]});
  }
  reduce_alone(joined(std::move(parts)), plan.scale);
}

void ShardGroup::abandon(std::string_view reason) noexcept {
  if (process_group().size() > 1) process_group().abort(reason);
  discard_pending();
  discard_unsummed();
  reshard();
}

void ShardGroup::discard_unsummed() {
  for (const Placed& p : placed_)
    if (p.aside) p.aside->clear_grad();
}

void ShardGroup::discard_pending() {
  gradients_ = Tensor();
  finished_ = 0;
  for (Placed& p : placed_) {
    p.pending = Placed::Pending::none;
    p.is_partial = false;
    if (p.partial_gradients) p.partial_gradients->discard();
  }
}

}  // namespace sherd::nn
