#include "nn/parallel/shard/wrap/unit.h"

#include <utility>

#include "runtime/autograd/autograd.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {
constexpr int kAnyNumber = 1 << 20;
constexpr std::string_view kOrder = "whose order a reduction of your own does not keep";
}  // namespace

void Unit::BackwardEnd::expect() {
  const std::uint64_t pass = backward_pass();
  if (pass == 0 || std::exchange(pass_, pass) == pass) return;
  at_end_of_backward([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->run_();
  });
}

Unit::Unit(const UnitMembers& members, PlacedUnit placed, const UnitPolicy& policy)
    : data(members.data),
      types(members.types),
      kept(std::make_shared<UnitBuffers>(std::move(placed), members.parameters,
                                         members.is_replicated ? std::nullopt : policy.offload)),
      buffers(*kept),
      pieces(buffers.pieces()),
      is_replicated(members.is_replicated),
      settings_(buffers, data.num_ranks()),
      arrival_(buffers, settings_, *this),
      routes_(buffers, arrival_, settings_, *this),
      end_(std::make_shared<BackwardEnd>([this] { finish_backward(); })) {
  buffers.set_unit(*this);
  if (is_replicated || policy.parameters == ShardedOver::none) buffers.keep_gathered();
  // They are small: none waits until the reduction of the large ones ends.
  if (is_replicated) set<&ReductionKnobs::max_reductions>(kAnyNumber);
  else set<&ReductionKnobs::accumulated>(policy.gradients);
  if (policy.sums_in_tree) set<&ReductionKnobs::sums_in_tree>(true);
  settings_.passes_that_wait = policy.passes_that_wait;
  arrival_.settings_changed();
  if (policy.reduce_unused) set<&ReductionKnobs::reduces_unused>(true);
}

// What the program itself does has an order, or roundings, of its own.
void Unit::check_may_set(std::string_view what, bool is_own, std::string_view why) const {
  check(
      !is_own || !settings_.facts.sums_in_tree,
      "{}: the gradients of unit \"{}\" add up as a tree (sums_in_tree, numerics = layout_free), {}; leave one of them "
      "out",
      what, pieces.layout().name, why);
}

void Unit::set_gather(std::shared_ptr<UnitGather> gather) {
  check_may_set("set_custom_gather and set_gather_transform", gather != nullptr,
                "and a gather of your own may round by what a rank's shard holds");
  buffers.levels().set_gather(std::move(gather));
}

void Unit::set_reduce(UnitReduce reduce) {
  check_may_set("set_custom_reduce", reduce != nullptr, kOrder);
  settings_.reduce = std::move(reduce);
  set<&ReductionKnobs::reduce>(settings_.knobs.all().reduce.next());
}

void Unit::set_all_reduce_hook(AllReduceHook hook) {
  check_may_set("set_all_reduce_hook", hook != nullptr, kOrder);
  settings_.hook = std::move(hook);
  set<&ReductionKnobs::all_reduce_hook>(settings_.knobs.all().all_reduce_hook.next());
}

void Unit::settings_changed() {
  settings_.update(buffers);
  arrival_.settings_changed();
}

void Unit::materialize(Device device) {
  buffers.materialize(device);
  routes_.materialize();
}

void Unit::cast_to(DType dtype) {
  buffers.cast_to(with_dtype(pieces.layout(), dtype, types));
  settings_.update(buffers);
  routes_.layout_changed();
  arrival_.layout_changed();
}

void Unit::reshard() {
  if (settings_.knobs.all().reshards) buffers.reshard();
}

void Unit::leave_backward() {
  if (buffers.is_unsharded()) reshard();
  run_hooks();
}

void Unit::finish_backward() {
  reshard();
  reduce();
  run_hooks();
}

// What was gathered stays while the tape has readers for it: frozen parameters, or a use behind detach(). The backward
// of the module before this one tells when that is over (UnitSchedule::begin_backward). Where the shards are what is
// read, hooks wait too: they may write them.
void Unit::completed(bool are_all) {
  const bool is_read = buffers.levels().is_shard_full() ? !are_all : buffers.levels().has_readers();
  if (!is_read) reshard();
  reduce();
  if (!is_read || !buffers.levels().is_shard_full()) run_hooks();
}

void Unit::reduce() {
  settings_.knobs.read_all();
  if (!arrival_.close()) return;
  routes_.run();
  for (const std::size_t i : indices(pieces)) {
    const GradientArrival::Entry& e = arrival_[i];
    const bool is_reduced = e.kind != GradientArrival::Kind::none && !e.is_partial && !e.has_unsummed();
    if (is_reduced && pieces.parameter(i)->has_grad_hooks()) reduced_.push_back(i);
  }
  arrival_.clear();
}

void Unit::run_hooks() {
  if (reduced_.empty()) return;
  std::vector<std::size_t> now;
  now.swap(reduced_);  // a hook may lead here again
  for (const std::size_t i : now)
    if (Parameter* p = pieces.parameter(i)) p->run_grad_hooks();
  now.clear();
  if (reduced_.empty()) now.swap(reduced_);  // keeps the memory
}

void Unit::abandon(std::string_view reason) noexcept {
  if (data.root_group().size() > 1) data.root_group().abort(reason);
  discard_pending();
  discard_earlier();
  buffers.drop();
}

void Unit::discard_pending() noexcept {
  arrival_.discard();
  reduced_.clear();
}

void Unit::discard_earlier() noexcept {
  arrival_.discard_earlier();
  routes_.drop_home();
}

}  // namespace sherd::nn
