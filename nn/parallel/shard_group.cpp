#include "nn/parallel/shard_group.h"

#include <algorithm>

#include "runtime/op/alone.h"
#include "runtime/op/buffer_views.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/channels.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/subject.h"
#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/op/capture_sink.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

namespace {
Tensor bytes_over(Ref<Storage> storage) {
  const Shape shape{storage->bytes()};
  return Tensor::over(std::move(storage), shape, contiguous_strides(shape), 0, DType::u8);
}
}  // namespace

ShardGroup::ShardGroup(std::string name, const DeviceMesh& mesh, std::vector<Parameter*> parameters,
                       const MixedPrecision& policy)
    : name_(std::move(name)),
      data_(mesh),
      policy_(policy),
      parameters_(std::move(parameters)),
      divide_factor_(mesh.num_ranks()) {
  add_unit_rows();
  reduction_changed();
  std::vector<Tensor> values;  // of this rank
  for (Parameter* p : parameters_) {
    const Tensor value = p->value().local().detach();
    const DType dtype = value.dtype();
    const DType full_dtype = is_floating(dtype) ? policy_.param_dtype.value_or(dtype) : dtype;
    Placed placed{p, data_.place(*p), dtype, full_dtype, shard_bytes_, gathered_bytes_, {}, {}};
    casts_ = casts_ || full_dtype != dtype;
    rounds_ = rounds_ || byte_size(wire_of(placed).value_or(full_dtype)) < byte_size(dtype);
    shard_bytes_ += align(sherd::numel(placed.at.local_shape) * byte_size(dtype));
    gathered_bytes_ += align(sherd::numel(placed.at.full_shape) * byte_size(full_dtype));
    if (const Spec* gathered = placed.at.gathered; gathered && gathered->num_axes() == 1)
      if (gathered->is_replicated() && gathered->axis_size(0) > 1)
        placed.partial_gradients = PartialGradients::of(gathered->mesh());
    if (data_.num_replicas() > 1) placed.aside = std::make_unique<Slot>(p->name() + ".unsummed");
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
      p.parameter->set(Tensor::distributed(p.parameter->shape(), p.at.sharded,
                                           Tensor::empty(p.at.local_shape, p.dtype, Device::meta())));
  }
  for (Parameter* p : parameters_) {
    p->set_sink(this);
    leaves_.emplace_back(p->leaf());
  }
}

ShardGroup::~ShardGroup() {
  // Modules of one list are destroyed one by one, with their parameters; a leaf knows whether its slot still exists.
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
        "fully_shard: group \"{}\" is distributed over {} ranks on {}; ranks on GPUs talk through NCCL, which is not "
        "built yet: use one rank, or the cpu device",
        name_, data_.num_ranks(), to_string(device));
  shards_ = bytes_over(Storage::allocate(shard_bytes_, MemoryCategory::parameters, device));
  fill_into(shards_, 0);
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
    const Tensor local = view_at(shards_, p.at.local_shape, p.shard_offset, p.dtype);
    p.sharded = p.parameter->attach(Tensor::distributed(p.parameter->shape(), p.at.sharded, local));
    p.unsharded = p.parameter->attach(as_gathered(p, full_view(p, gathered_)));
  }
}

Tensor ShardGroup::full_view(const Placed& p, const Tensor& buffer) const {
  return view_at(buffer, p.at.full_shape, p.full_offset, p.full_dtype);
}

// The local tensor of a gathered parameter as modules see it: plain, or wrapped as a distributed tensor.
Tensor ShardGroup::as_gathered(const Placed& p, const Tensor& local) const {
  return p.at.gathered ? Tensor::distributed(p.parameter->shape(), p.at.gathered, local) : local;
}

void ShardGroup::take_values(const std::vector<Tensor>& values) {
  GradMode off(false);
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    const Placed& p = placed_[i];
    copy_into(p.sharded.local().detach(), narrow(values[i], 0, p.at.rows.begin, p.at.rows.size()));
  }
}

bool ShardGroup::is_current() const {
  return is_gathered() && gathered_.storage()->version() == shards_.storage()->version();
}

// A captured step gathers what it uses even if it is gathered at the time: in replay it may be released.
bool ShardGroup::needs_gather() const {
  if (is_shard_full()) return false;
  const CaptureSink* capture = RankContext::current().capture;
  return !is_current() || (capture && !capture->has_seen(*gathered_.storage()));
}

void ShardGroup::prefetch() {
  if (needs_gather()) issue_gather(*this, shards_, gathered_);
}

void ShardGroup::unshard() {
  if (unsharded_ && !is_shard_full() && !needs_gather()) return;
  prefetch();
  unsharded_ = true;
  for (Placed& p : placed_) {
    // Freezing or thawing since the last time changes whether the tensors point to the leaf.
    if (p.unsharded.requires_grad() != p.parameter->requires_grad()) attach_tensors();
    p.parameter->present(p.unsharded);
  }
}

void ShardGroup::wait() {
  if (is_gathered()) gathered_.storage()->wait_to_read();
}

void ShardGroup::present_shards() {
  if (unsharded_)
    for (Placed& p : placed_) p.parameter->present(p.sharded);
  unsharded_ = false;
}

void ShardGroup::reshard() {
  present_shards();
  drop_unused();
}

void ShardGroup::drop_unused() {
  if (!unsharded_ && is_gathered()) issue_release(*this, gathered_);
}

void ShardGroup::gather() {
  if (is_current()) return;  // in a replay
  gathered_.storage()->restore_data();
  if (gathers_alone()) gather_shards_alone();
  else gather_shards();
  gathered_.storage()->set_version(shards_.storage()->version());
}

// One shard only: copy here, no collective.
void ShardGroup::gather_shards_alone() {
  std::vector<AlonePart> parts;
  for (const Placed& p : placed_)
    parts.push_back({run_at(shards_, p.at.counts[0], p.shard_offset, p.dtype),
                     run_at(gathered_, p.at.counts[0], p.full_offset, p.full_dtype)});
  gather_alone(joined(std::move(parts)));
}

// Addresses are taken here, without a wait; the collective runs on the queue.
void ShardGroup::gather_shards() {
  static constexpr std::byte kNoRows{};
  std::byte* const gathered = gathered_.storage()->address();
  const std::byte* const shards = shards_.storage()->address();
  std::vector<GatherPart> parts;
  std::int64_t moved = 0;
  for (const Placed& p : placed_) {
    parts.push_back(
        {gathered + p.full_offset, p.full_dtype, p.at.counts, shards ? shards + p.shard_offset : &kNoRows, p.dtype});
    moved += sherd::numel(p.at.full_shape) * byte_size(p.full_dtype);
  }
  ProcessGroup& channel = channel_of(data_.shard_group(), kGatherQueue);
  const Loan loans[] = {{shards_.storage(), false}, {gathered_.storage(), true}};
  count_collective(
      {.kind = comm::CommOp::all_gather, .op = "unshard", .module = name_, .ranks = channel.size(), .bytes = moved});
  RankContext::current()
      .queue(kGatherQueue)
      .submit({.name = "unshard",
               .subject = name_,
               .bytes = gathered_bytes_,
               .run =
                   [&channel, parts = std::move(parts), unit = std::string_view(name_)] {
                     const comm::SubjectScope subject(unit);
                     channel.all_gather(parts)->wait();
                   },
               .loans = loans,
               .abort = [&channel](std::string_view reason) { channel.abort(reason); }});
}

// A replay runs this row without reshard(), so the shards are registered here too.
void ShardGroup::release() {
  present_shards();
  gathered_.storage()->release_data();
}

void ShardGroup::ensure_present(Storage&) {
  if (unsharded_ && is_gathered()) return;
  ++late_gathers_;
  unshard();
}

}  // namespace sherd::nn
