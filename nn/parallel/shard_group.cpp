#include "nn/parallel/shard_group.h"

#include <algorithm>
#include <cstring>

#include "dtensor/spec.h"
#include "nn/parallel/alone.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/exec/stream.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

namespace {
constexpr std::int64_t kAlign = 64;  // one cache line; the gaps are zero and never touched
std::int64_t align(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

Tensor bytes_over(Ref<Storage> storage) {
  const Shape shape{storage->bytes()};
  return Tensor::over(std::move(storage), shape, contiguous_strides(shape), 0, DType::u8);
}
Tensor view_at(const Tensor& buffer, const Shape& shape, std::int64_t byte_offset, DType dtype) {
  return Tensor::make(buffer.storage(), shape, contiguous_strides(shape), byte_offset / byte_size(dtype), dtype,
                      buffer.device());
}
// `count` elements of `buffer` in a row.
Tensor run_at(const Tensor& buffer, std::int64_t count, std::int64_t byte_offset, DType dtype) {
  return view_at(buffer, {count}, byte_offset, dtype);
}
Tensor flat(const Tensor& t) { return run_at(t, t.numel(), t.offset() * byte_size(t.dtype()), t.dtype()); }

void set_zero(const Tensor& bytes) {
  if (bytes.numel() == 0) return;
  if (bytes.device() == Device::cpu()) std::memset(bytes.raw(), 0, static_cast<std::size_t>(bytes.numel()));
  else RankContext::current().device(bytes.device()).fill(bytes.raw(), 0, bytes.numel());
}
}  // namespace

ShardGroup::ShardGroup(std::string name, const DeviceMesh& mesh, std::vector<Parameter*> parameters,
                       const MixedPrecision& policy)
    : name_(std::move(name)),
      mesh_(mesh),
      policy_(policy),
      parameters_(std::move(parameters)),
      divide_factor_(mesh.size()) {
  const Spec* spec = Spec::of(mesh_, Shard(0));
  std::vector<Tensor> values;
  for (Parameter* p : parameters_) {
    const Shape& shape = p->shape();
    check(shape.size() > 0, "fully_shard: parameter \"{}\" is 0-d and has no dim to shard; make it a 1-element vector",
          p->name());
    const Tensor value = p->value().detach();
    check(!value.is_distributed(), "fully_shard: parameter \"{}\" is sharded already: {}", p->name(), describe(value));
    const DType dtype = value.dtype();
    const DType full_dtype = is_floating(dtype) ? policy_.param_dtype.value_or(dtype) : dtype;
    Placed placed{p, spec, dtype, full_dtype, {}, spec->local_shape(shape), shard_bytes_, gathered_bytes_, {}, {}};
    casts_ = casts_ || full_dtype != dtype;
    rounds_ = rounds_ || byte_size(wire_of(placed).value_or(full_dtype)) < byte_size(dtype);
    const std::int64_t row = shape[0] == 0 ? 0 : sherd::numel(shape) / shape[0];
    for (int r = 0; r < mesh_.size(); ++r) placed.counts.push_back(chunk_range(shape[0], mesh_.size(), r).size() * row);
    shard_bytes_ += align(sherd::numel(placed.local_shape) * byte_size(dtype));
    gathered_bytes_ += align(sherd::numel(shape) * byte_size(full_dtype));
    placed_.push_back(std::move(placed));
    values.push_back(value);
  }
  const bool any_real = std::any_of(values.begin(), values.end(), [](const Tensor& t) { return !t.is_meta(); });
  if (any_real) {
    for (std::size_t i = 0; i < values.size(); ++i)
      check(!values[i].is_meta(),
            "fully_shard: parameter \"{}\" is on meta but others of its group have values; materialize all or none",
            parameters_[i]->name());
    materialize(values[0].device());
    take_values(values);
  } else {
    for (Placed& p : placed_)
      p.parameter->set(
          Tensor::distributed(p.parameter->shape(), p.spec, Tensor::empty(p.local_shape, p.dtype, Device::meta())));
  }
  for (Parameter* p : parameters_) {
    p->set_sink(this);
    leaves_.emplace_back(p->leaf());
  }
}

ShardGroup::~ShardGroup() {
  // Modules of one list die one by one, with their parameters; a leaf knows whether its slot is still there.
  for (const NodeRef& leaf : leaves_)
    if (Slot* slot = static_cast<Leaf*>(leaf.get())->slot) slot->set_sink(nullptr);
  last_reduction_.settle();
  if (gathered_.defined()) {
    gathered_.storage()->owner = nullptr;
    gathered_.storage()->release_data();
  }
}

void ShardGroup::materialize(Device device) {
  if (shards_.defined()) return;
  check(alone() || device == Device::cpu(),
        "fully_shard: group \"{}\" is spread over {} ranks on {}; ranks on GPUs talk through NCCL, which is not built "
        "yet: use one rank, or the cpu device",
        name_, mesh_.size(), to_string(device));
  shards_ = bytes_over(Storage::allocate(shard_bytes_, MemoryCategory::parameters, device));
  set_zero(shards_);
  if (is_shard_full()) {
    gathered_ = shards_;
  } else {
    Ref<Storage> storage = Storage::released(gathered_bytes_, MemoryCategory::unsharded, device);
    storage->owner = this;
    gathered_ = bytes_over(std::move(storage));
  }
  attach_tensors();
  for (Placed& p : placed_) p.parameter->present(p.sharded);
}

void ShardGroup::attach_tensors() {
  for (Placed& p : placed_) {
    const Tensor local = view_at(shards_, p.local_shape, p.shard_offset, p.dtype);
    p.sharded = p.parameter->attach(Tensor::distributed(p.parameter->shape(), p.spec, local));
    p.unsharded = p.parameter->attach(full_view(p, gathered_));
  }
}

Tensor ShardGroup::full_view(const Placed& p, const Tensor& buffer) const {
  return view_at(buffer, p.parameter->shape(), p.full_offset, p.full_dtype);
}

void ShardGroup::take_values(const std::vector<Tensor>& values) {
  GradMode off(false);
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    const Placed& p = placed_[i];
    const Spec::Range rows = p.spec->local_range(0, p.parameter->shape()[0]);
    copy_into(p.sharded.local().detach(), narrow(values[i], 0, rows.begin, rows.size()));
  }
}

bool ShardGroup::is_current() const {
  return is_gathered() && gathered_.storage()->version() == shards_.storage()->version();
}

void ShardGroup::prefetch() {
  if (!is_shard_full() && !is_current()) issue_gather(*this, shards_, gathered_);
}

void ShardGroup::unshard() {
  if (unsharded_ && !is_shard_full() && is_current()) return;
  prefetch();
  unsharded_ = true;
  for (Placed& p : placed_) {
    // Freezing or thawing since the last time changes whether the tensors point to the leaf.
    if (p.unsharded.requires_grad() != p.parameter->requires_grad()) attach_tensors();
    p.parameter->present(p.unsharded);
  }
}

void ShardGroup::wait() {
  if (is_gathered()) (void)gathered_.storage()->data();
}

void ShardGroup::reshard() {
  if (unsharded_)
    for (Placed& p : placed_) p.parameter->present(p.sharded);
  unsharded_ = false;
  drop_unused();
}

void ShardGroup::drop_unused() {
  if (!unsharded_ && is_gathered()) issue_release(*this, gathered_);
}

void ShardGroup::gather() {
  gathered_.storage()->restore_data();
  if (alone()) gather_shards_alone();
  else gather_shards();
  gathered_.storage()->set_version(shards_.storage()->version());
}

// One rank has nobody to wait for.
void ShardGroup::gather_shards_alone() {
  std::vector<AlonePart> parts;
  for (const Placed& p : placed_)
    parts.push_back({run_at(shards_, p.counts[0], p.shard_offset, p.dtype),
                     run_at(gathered_, p.counts[0], p.full_offset, p.full_dtype)});
  gather_alone(joined(std::move(parts)));
}

// Addresses are taken here; the copy, which the peers need too, runs on the stream.
void ShardGroup::gather_shards() {
  static constexpr std::byte kNoRows{};
  std::byte* const gathered = gathered_.storage()->address();
  const std::byte* const shards = shards_.storage()->address();
  std::vector<GatherPart> parts;
  for (const Placed& p : placed_)
    parts.push_back(
        {gathered + p.full_offset, p.full_dtype, p.counts, shards ? shards + p.shard_offset : &kNoRows, p.dtype});
  ProcessGroup& channel = mesh_.group().channel(channel_of(StreamKind::all_gather));
  const Loan loans[] = {{shards_.storage(), false}, {gathered_.storage(), true}};
  RankContext::current()
      .stream(StreamKind::all_gather)
      .submit({.name = "unshard",
               .subject = name_,
               .bytes = gathered_bytes_,
               .run = [&channel, parts = std::move(parts)] { channel.all_gather(parts)->wait(); },
               .loans = loans,
               .abort = [&channel](std::string_view reason) { channel.abort(reason); }});
}

void ShardGroup::release() { gathered_.storage()->release_data(); }

void ShardGroup::ensure_present(Storage&) {
  if (unsharded_) return;
  ++late_gathers_;
  unshard();
}

ShardGroup::Placed& ShardGroup::placed(const Slot& slot) {
  for (Placed& p : placed_)
    if (p.parameter == &slot) return p;
  fail("group \"{}\" got a gradient of \"{}\", which is not its parameter", name_, slot.name());
}

// One rank adds micro-batches to the gradient itself, as the default sink does.
bool ShardGroup::adds_in_place(const Placed& p) const {
  const bool fresh = p.pending == Placed::Pending::none || p.pending == Placed::Pending::in_place;
  return is_gradient_reduced() && fresh && p.parameter->grad().defined();
}

GradSink::Destination ShardGroup::destination(Slot& slot) {
  const Placed& p = placed(slot);
  if (adds_in_place(p)) return {slot.grad().local().detach(), true};
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
  Placed::Pending kind = Placed::Pending::average;  // a plain gradient is the average over the data axis
  if (gradient.is_distributed()) {
    const Placement placement = Spec::from(gradient).placements()[0];
    const bool is_sum = placement.is_partial() && placement.reduce == ReduceKind::sum;
    const bool is_average =
        placement.kind == Placement::Kind::replicate || (placement.is_partial() && placement.reduce == ReduceKind::avg);
    check(is_sum || is_average,
          "parameter \"{}\": a gradient placed {} cannot be reduced to shards; Partial(sum), Partial(avg) and "
          "Replicate can",
          slot.name(), describe(gradient));
    kind = is_sum ? Placed::Pending::sum : Placed::Pending::average;
    gradient = gradient.local();
  }
  Placed& p = placed(slot);
  if (adds_in_place(p)) kind = Placed::Pending::in_place;
  const Destination to = destination(slot);
  copy_into(to.buffer, std::move(gradient), to.accumulate);
  note(p, kind);
}

void ShardGroup::finish(Slot&) {
  const auto trainable =
      std::count_if(parameters_.begin(), parameters_.end(), [](const Parameter* p) { return p->requires_grad(); });
  if (++finished_ == static_cast<std::size_t>(trainable)) finish_backward();
}

void ShardGroup::finish_backward() {
  reshard();
  reduce_pending();
}

void ShardGroup::reduce_pending() {
  finished_ = 0;
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
    p.parameter->run_grad_hooks();
  }
}

// The full gradients are the shards of gradients.
void ShardGroup::keep_gradients() {
  for (Placed& p : placed_)
    if (p.pending == Placed::Pending::average || p.pending == Placed::Pending::sum)
      p.parameter->set_grad(Tensor::distributed(p.parameter->shape(), p.spec, full_view(p, gradients_)));
}

void ShardGroup::launch(Placed::Pending kind, double scale) {
  ReducePlan plan{scale, {}, {}};
  std::int64_t fresh_bytes = 0;
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    if (placed_[i].pending != kind) continue;
    plan.members.push_back(i);
    plan.accumulate.push_back(placed_[i].parameter->grad().defined());
    if (!plan.accumulate.back())
      fresh_bytes += align(sherd::numel(placed_[i].local_shape) * byte_size(placed_[i].dtype));
  }
  if (plan.members.empty()) return;
  // A rank without rows still takes part, with empty tensors: all ranks issue the same rows.
  const bool any_fresh = std::find(plan.accumulate.begin(), plan.accumulate.end(), false) != plan.accumulate.end();
  const Tensor fresh = any_fresh ? issue_gradient_buffer(fresh_bytes, shards_.device()) : Tensor();
  std::vector<Tensor> out;
  std::int64_t offset = 0;
  for (std::size_t m = 0; m < plan.members.size(); ++m) {
    const Placed& p = placed_[plan.members[m]];
    if (plan.accumulate[m]) {
      out.push_back(p.parameter->grad().local().detach());
      continue;
    }
    out.push_back(view_at(fresh, p.local_shape, offset, p.dtype));
    offset += align(sherd::numel(p.local_shape) * byte_size(p.dtype));
  }
  issue_reduce(*this, plan_index(plan), gradients_, out);
  for (std::size_t m = 0; m < plan.members.size(); ++m) {
    const Placed& p = placed_[plan.members[m]];
    p.parameter->set_grad(Tensor::distributed(p.parameter->shape(), p.spec, out[m]));
  }
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

// While it runs, the full gradients count as communication: they are nobody's gradients any more.
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
                     to->address() + out[m].offset() * byte_size(p.dtype), p.full_dtype, p.counts, plan.accumulate[m],
                     wire_of(p), p.dtype});
    moved += p.unsharded.bytes();
    if (std::none_of(loans.begin(), loans.end(), [&](const Loan& loan) { return loan.storage == to; }))
      loans.push_back({to, true});
  }
  ProcessGroup& channel = mesh_.group().channel(channel_of(StreamKind::reduce_scatter));
  last_reduction_ = RankContext::current()
                        .stream(StreamKind::reduce_scatter)
                        .submit({.name = "reduce",
                                 .subject = name_,
                                 .bytes = moved,
                                 .run =
                                     [&channel, parts = std::move(parts), scale = plan.scale] {
                                       channel.reduce_scatter(parts, {.kind = ReduceKind::sum, .scale = scale})->wait();
                                     },
                                 .loans = loans,
                                 .abort = [&channel](std::string_view reason) { channel.abort(reason); },
                                 .max_in_flight = max_reductions_});
  full.storage()->retag(MemoryCategory::communication);
}

void ShardGroup::reduce_shards_alone(const ReducePlan& plan, const Tensor& full, std::span<const Tensor> out) const {
  std::vector<AlonePart> parts;
  for (std::size_t m = 0; m < plan.members.size(); ++m) {
    const Placed& p = placed_[plan.members[m]];
    parts.push_back({run_at(full, p.counts[0], full.offset() + p.full_offset, p.full_dtype), flat(out[m]),
                     wire_of(p).value_or(p.full_dtype), plan.accumulate[m]});
  }
  reduce_alone(joined(std::move(parts)), plan.scale);
}

void ShardGroup::abandon(std::string_view reason) noexcept {
  if (!alone()) mesh_.group().abort(reason);
  discard_pending();
  reshard();
}

void ShardGroup::discard_pending() {
  gradients_ = Tensor();
  finished_ = 0;
  for (Placed& p : placed_) p.pending = Placed::Pending::none;
}

}  // namespace sherd::nn
