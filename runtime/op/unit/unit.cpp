// Kernels of units. They run on the rank's thread, for the host and for devices: they take addresses without a wait and
// hand the work to queues, or, where one rank has all of it, call the rows that compute.
#include "runtime/op/unit/unit.h"

#include <algorithm>

#include "runtime/comm/group/count_collective.h"
#include "runtime/comm/group/device_support.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/subject.h"
#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/core/infer.h"
#include "runtime/op/unit/alone.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// ---- what calls must be ----

const UnitLayout& unit_of(const InferCall& call, const UnitRef& unit) {
  check(unit.get() != nullptr, "{} needs a unit", call.op.name);
  unit->check_interned();
  return *unit;
}

void check_buffer(const InferCall& call, std::size_t i, std::int64_t bytes, std::string_view what) {
  const TensorMeta& t = required(call, i);
  check(t.dtype == DType::u8 && t.ndim() == 1 && t.size(0) == bytes && t.is_contiguous(),
        "{}: input {} is {}; {} are u8[{}]", call.op.name, i, t, what, bytes);
}

const UnitPiece& piece_of(const InferCall& call, const UnitLayout& unit, int piece) {
  check(piece >= 0 && static_cast<std::size_t>(piece) < unit.pieces.size(), "{}: unit \"{}\" has {} pieces, not one {}",
        call.op.name, unit.name, unit.pieces.size(), piece);
  return unit.piece(piece);
}

/// Error unless input `i` is a dense tensor of as many elements as this rank has of the piece.
const TensorMeta& check_part(const InferCall& call, std::size_t i, const UnitLayout& unit, const UnitPiece& piece) {
  const TensorMeta& t = required(call, i);
  check(t.numel() == unit.count_here(piece) && t.is_contiguous(),
        "{}: input {} is {}; this rank's part of the piece has {} elements, dense", call.op.name, i, t,
        unit.count_here(piece));
  return t;
}

Metas infer_gather(const InferCall& call) {
  const UnitLayout& unit = unit_of(call, call.attrs.as<UnitAttrs>().unit);
  check_buffer(call, 0, unit.shard_bytes, "its shards");
  if (unit.in_place) check_buffer(call, 1, 0, "full tensors in place, which are its shards' buffer,");
  else check_buffer(call, 1, unit.full_bytes, "its full tensors");
  return {};
}

Metas infer_presence(const InferCall& call) {
  check_buffer(call, 0, unit_of(call, call.attrs.as<UnitAttrs>().unit).full_bytes, "its full tensors");
  return {};
}

Metas infer_buffer(const InferCall& call) {
  const Shape& shape = call.attrs.as<BufferAttrs>().shape;
  check(shape.size() == 1 && shape[0] >= 0, "{} of {}: give its bytes", call.op.name, shape);
  return {TensorMeta{shape, DType::u8}};
}

Metas infer_reduce(const InferCall& call) {
  const auto& a = call.attrs.as<UnitReduceAttrs>();
  const UnitLayout& unit = unit_of(call, a.unit);
  check(call.in.size() == 1 + a.pieces.size(), "{}: {} tensors for {} pieces and their gradients", call.op.name,
        call.in.size(), a.pieces.size());
  const TensorMeta& full = required(call, a.pieces.size());
  check(full.dtype == DType::u8 && full.ndim() == 1 && full.is_contiguous(), "{}: gradients are {}; give them as u8",
        call.op.name, full);
  check(a.in_flight >= 1, "{}: {} reductions in flight; the least is 1", call.op.name, a.in_flight);
  for (const std::size_t m : indices(a.pieces)) {
    const ReducedPiece& p = a.pieces[m];
    const UnitPiece& piece = piece_of(call, unit, p.piece);
    const std::int64_t bytes = numel(piece.shape) * byte_size(piece.full_dtype);
    check(p.offset >= 0 && p.offset % byte_size(piece.full_dtype) == 0 && bytes <= full.numel() - p.offset,
          "{}: the gradient of piece {} lies at byte {} of {}", call.op.name, p.piece, p.offset, full);
    check(p.kind == ReduceKind::sum || p.kind == ReduceKind::avg, "{}: gradients are summed or averaged, not {}",
          call.op.name, sherd::name(p.kind));
    const TensorMeta& out = check_part(call, m, unit, piece);
    check(out.dtype == piece.gradient_dtype() || (out.dtype == piece.wire && p.add_to != AddTo::gradient),
          "{}: the gradient of piece {} is {} and travels as {}, its result is {}", call.op.name, p.piece,
          sherd::name(piece.gradient_dtype()), sherd::name(piece.wire), out);
  }
  return {};
}

Metas infer_replica_sum(const InferCall& call) {
  const auto& a = call.attrs.as<ReplicaSumAttrs>();
  const UnitLayout& unit = unit_of(call, a.unit);
  check(a.in_flight >= 0, "{}: {} sums in flight; the least is 1, and 0 any number", call.op.name, a.in_flight);
  std::size_t next = a.pieces.size();
  for (const std::size_t m : indices(a.pieces)) {
    const SummedPiece& p = a.pieces[m];
    const UnitPiece& piece = piece_of(call, unit, p.piece);
    const TensorMeta& sum = check_part(call, m, unit, piece);
    check(sum.dtype == (p.is_apart ? piece.wire : piece.gradient_dtype()), "{}: the sum of piece {} is {}",
          call.op.name, p.piece, sum);
    if (!p.is_apart) continue;
    const TensorMeta& out = check_part(call, next++, unit, piece);
    check(out.dtype == piece.gradient_dtype(), "{}: the gradient of piece {} is {}, its result is {}", call.op.name,
          p.piece, sherd::name(piece.gradient_dtype()), out);
  }
  check(call.in.size() == next, "{}: {} tensors for {} pieces", call.op.name, call.in.size(), a.pieces.size());
  return {};
}

int all_inputs(const InferCall& c) { return static_cast<int>(c.in.size()); }
int all_but_the_last(const InferCall& c) { return std::max(all_inputs(c) - 1, 0); }

// ---- gather and release ----

// One shard only: copy here, no collective.
void gather_here(const UnitLayout& unit, const Tensor& shards, const Tensor& full) {
  std::vector<AlonePart> parts;
  for (const UnitPiece& p : unit.pieces)
    parts.push_back({run_at(shards, numel(p.shape), shards.offset() + p.shard_offset, p.dtype),
                     run_at(full, numel(p.shape), full.offset() + p.full_offset, p.full_dtype)});
  gather_alone(joined(std::move(parts)));
}

/// The group of an axis, for buffers of a device. Error naming the unit if it does not move them, or not as units need.
ProcessGroup& group_of(const UnitLayout& unit, std::string_view axis, Device device) {
  ProcessGroup& group = group_named(axis);
  if (!group.supports(device))
    refuse_device(group, device, fmt::format("unit \"{}\"", unit.name), unit.shards * unit.replicas);
  if (const Abilities& can = group.abilities(); !can.casts || !can.uneven || !can.accumulate || !can.lists)
    fail(
        "unit \"{}\": the {} group \"{}\" lacks what a unit asks of it: lists of uneven parts that are cast and added "
        "to",
        unit.name, group.kind(), group.name());
  return group;
}

std::byte* address_of(const Tensor& t) {
  std::byte* const start = t.storage()->address();
  return start ? start + t.offset() * byte_size(t.dtype()) : nullptr;
}

/// `count` elements of a tensor's storage, `offset` bytes from the tensor's first.
Buffer buffer_at(const Tensor& t, std::int64_t offset, std::int64_t count, DType dtype) {
  std::byte* const start = address_of(t);
  return {start ? start + offset : nullptr, count * byte_size(dtype), t.device()};
}

/// Which pieces take part, for ranks to compare: empty for all, else "without bias", or "of weight alone", whichever
/// list is shorter.
std::string part_of(const UnitLayout& unit, const std::vector<bool>& takes_part) {
  const auto there = std::ranges::count(takes_part, true), missing = std::ranges::ssize(takes_part) - there;
  if (missing == 0) return "";
  const bool lists_missing = missing <= there;
  std::string names;
  for (const std::size_t i : indices(takes_part)) {
    if (takes_part[i] == lists_missing) continue;
    const std::string& name = unit.pieces[i].name;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name.empty() ? fmt::format("piece {}", i) : name);
  }
  return lists_missing ? "without " + names : "of " + names + " alone";
}

Queue& queue_of(std::string_view name, Device device) { return RankContext::current().queue(name, device); }

std::string_view queue_name(const UnitReduceAttrs& attrs) {
  return attrs.over_replicas ? kReplicateQueue : kReduceQueue;
}

std::size_t most_in_flight(int items) { return items > 0 ? static_cast<std::size_t>(items) : QueueWork::kUnlimited; }

// Addresses are taken here, without a wait; the collective runs on the queue.
void issue_gather(const UnitLayout& unit, const Tensor& shards, const Tensor& full) {
  ProcessGroup& group = group_of(unit, unit.shard_axis, full.device());
  const Tensor& to = unit.in_place ? shards : full;
  Collective call{.op = comm::CommOp::all_gather};
  for (const UnitPiece& p : unit.pieces)
    call.parts.push_back({.in = buffer_at(shards, p.shard_offset, unit.count_here(p), p.dtype),
                          .out = buffer_at(to, p.full_offset, numel(p.shape), p.full_dtype),
                          .dtype = p.dtype,
                          .counts = unit.counts(p),
                          .out_dtype = p.full_dtype,
                          .blocks = UnitLayout::blocks(p)});
  const Loan loans[] = {{shards.storage(), unit.in_place}, {full.storage(), true}};
  count_collective({.kind = comm::CommOp::all_gather,
                    .op = kUnshardWork,
                    .module = unit.name,
                    .ranks = unit.shards,
                    .bytes = call.bytes()});
  group.issue(
      std::move(call),
      {.queue = queue_of(kGatherQueue, full.device()), .name = kUnshardWork, .subject = unit.name, .loans = loans});
}

void run_gather(const KernelCall& c) {
  const UnitLayout& unit = *c.attrs.as<UnitAttrs>().unit;
  const Tensor &shards = c.in[0], &full = c.in[1];
  Storage& bytes = *full.storage();
  if (bytes.is_present() && bytes.version() == shards.storage()->version()) return;
  bytes.restore_data();
  if (unit.shards > 1) issue_gather(unit, shards, full);
  else if (!unit.in_place) gather_here(unit, shards, full);
  bytes.set_version(shards.storage()->version());
}

void run_restore(const KernelCall& c) {
  Storage& bytes = *c.in[0].storage();
  if (bytes.is_present()) return;
  bytes.restore_data();
  bytes.bump_version();  // what was gathered before is gone
}

void run_release(const KernelCall& c) { c.in[0].storage()->release_data(); }

void leave_as_is(const KernelCall&) {}

// ---- reductions ----

void lend_once(std::vector<Loan>& loans, const Ref<Storage>& storage, bool writes) {
  if (std::ranges::none_of(loans, [&](const Loan& loan) { return loan.storage == storage; }))
    loans.push_back({storage, writes});
}

/// The pieces of one kind: averages, or sums.
struct Reduction {
  const UnitLayout& unit;
  const UnitReduceAttrs& attrs;
  const Tensor& full;
  std::span<const Tensor> out;
  ReduceKind kind;
  double scale() const { return kind == ReduceKind::avg ? attrs.scale : 1; }
};

// One shard only: cast, scale and add here, on the device that they are on.
void reduce_here(const Reduction& r) {
  std::vector<AlonePart> parts;
  for (const std::size_t m : indices(r.out)) {
    const ReducedPiece& p = r.attrs.pieces[m];
    const UnitPiece& piece = r.unit.piece(p.piece);
    if (p.kind != r.kind) continue;
    parts.push_back({run_at(r.full, numel(piece.shape), r.full.offset() + p.offset, piece.full_dtype), flat(r.out[m]),
                     piece.wire, p.add_to != AddTo::nothing, r.scale()});
  }
  reduce_alone(joined(std::move(parts)));
}

std::string part_of(const Reduction& r) {
  std::vector<bool> takes_part(r.unit.pieces.size());
  for (const ReducedPiece& p : r.attrs.pieces)
    if (p.kind == r.kind) takes_part[static_cast<std::size_t>(p.piece)] = true;
  return part_of(r.unit, takes_part);
}

/// The parts of a reduction, and what they borrow.
struct ReduceParts {
  std::vector<CollectivePart> parts;
  std::vector<Loan> loans;
};

ReduceParts parts_of(const Reduction& r) {
  ReduceParts result{{}, {{r.full.storage(), false}}};
  for (std::size_t m = 0; m < r.out.size(); ++m) {
    const ReducedPiece& p = r.attrs.pieces[m];
    if (p.kind != r.kind) continue;
    const UnitPiece& piece = r.unit.piece(p.piece);
    const Tensor& out = r.out[m];
    result.parts.push_back({.in = buffer_at(r.full, p.offset, numel(piece.shape), piece.full_dtype),
                            .out = buffer_at(out, 0, out.numel(), out.dtype()),
                            .dtype = piece.full_dtype,
                            .counts = r.unit.counts(piece),
                            .out_dtype = out.dtype(),
                            .wire = piece.wire,
                            .accumulate = p.add_to != AddTo::nothing,
                            .blocks = UnitLayout::blocks(piece)});
    lend_once(result.loans, out.storage(), true);
  }
  return result;
}

void submit_reduce(const Reduction& r) {
  const UnitLayout& unit = r.unit;
  const Device device = r.full.device();
  auto [parts, loans] = parts_of(r);
  Collective call{.op = comm::CommOp::reduce_scatter,
                  .parts = std::move(parts),
                  .reduction = {.kind = ReduceKind::sum, .scale = r.scale()}};
  count_collective({.kind = comm::CommOp::reduce_scatter,
                    .op = kReduceWork,
                    .module = unit.name,
                    .ranks = unit.shards,
                    .bytes = call.bytes()});
  const std::string part = part_of(r);
  group_of(unit, unit.shard_axis, device)
      .issue(std::move(call), {.queue = queue_of(queue_name(r.attrs), device),
                               .name = kReduceWork,
                               .subject = unit.name,
                               .part = part,
                               .loans = loans,
                               .max_in_flight = most_in_flight(r.attrs.in_flight)});
}

// While a queue reads them, the full gradients are accounted as communication: no parameter owns them any more.
void run_reduce(const KernelCall& c) {
  const auto& attrs = c.attrs.as<UnitReduceAttrs>();
  const UnitLayout& unit = *attrs.unit;
  for (const ReduceKind kind : {ReduceKind::avg, ReduceKind::sum}) {
    if (std::ranges::none_of(attrs.pieces, [&](const ReducedPiece& p) { return p.kind == kind; })) continue;
    const Reduction reduction{unit, attrs, c.in.back(), c.in.first(c.in.size() - 1), kind};
    if (unit.shards == 1) reduce_here(reduction);
    else submit_reduce(reduction);
  }
  if (unit.shards > 1) c.in.back().storage()->retag(MemoryCategory::communication);
}

/// Sums over replicas: what is all-reduced where it lies, and what then goes from memory of its own into a tensor.
struct ReplicaSum {
  Collective call{.op = comm::CommOp::all_reduce};
  std::vector<AlonePart> stores;
  std::vector<Loan> loans;
  std::string part;  ///< see part_of()
};

ReplicaSum sums_of(const KernelCall& c, const ReplicaSumAttrs& attrs) {
  ReplicaSum result;
  std::vector<bool> takes_part(attrs.unit->pieces.size());
  std::size_t next = attrs.pieces.size();
  for (const std::size_t m : indices(attrs.pieces)) {
    const SummedPiece& p = attrs.pieces[m];
    takes_part[static_cast<std::size_t>(p.piece)] = true;
    const Tensor& sum = c.in[m];
    const Buffer buffer = buffer_at(sum, 0, sum.numel(), sum.dtype());
    result.call.parts.push_back({.in = buffer, .out = buffer, .dtype = sum.dtype(), .counts = {sum.numel()}});
    // Memory of its own is nobody's after this: lent to be read, it stays until the work is done, and no one waits.
    lend_once(result.loans, sum.storage(), !p.is_apart);
    if (!p.is_apart && p.scale == 1) continue;
    const Tensor& out = p.is_apart ? c.in[next++] : sum;
    result.stores.push_back({flat(sum), flat(out), sum.dtype(), p.is_apart && p.add_to != AddTo::nothing, p.scale});
    lend_once(result.loans, out.storage(), true);
  }
  result.part = part_of(*attrs.unit, takes_part);
  return result;
}

// One item for both: the stores come at once after the sum.
void submit_sums(const ReplicaSumAttrs& attrs, ReplicaSum sums, std::int64_t bytes, ProcessGroup& group) {
  const UnitLayout& unit = *attrs.unit;
  std::vector<HostPart> stores;
  for (const AlonePart& p : sums.stores)
    stores.push_back({address_of(p.in), address_of(p.out), p.out.numel(), p.in.dtype(), p.wire, p.out.dtype(),
                      p.accumulate, p.scale});
  HostGroup& lane = group.host().lane(kReplicateQueue);
  queue_of(kReplicateQueue, Device::cpu())
      .submit({.name = "replica_sum",
               .subject = unit.name,
               .bytes = bytes,
               .wire = comm::wire_of(lane, comm::CommOp::all_reduce),
               .run =
                   [&lane, call = std::move(sums.call), stores = std::move(stores), part = std::move(sums.part),
                    unit = unit.shared()] {
                     const comm::SubjectScope subject(unit->name, part);
                     lane.run(call);
                     for (const HostPart& store : stores) reduce_on_host(store);
                   },
               .loans = sums.loans,
               .abort = [&lane](std::string_view reason) { lane.abort(reason); },
               .max_in_flight = most_in_flight(attrs.in_flight)});
}

void run_replica_sum(const KernelCall& c) {
  const auto& attrs = c.attrs.as<ReplicaSumAttrs>();
  const UnitLayout& unit = *attrs.unit;
  if (unit.replicas == 1 || attrs.pieces.empty()) return;
  const Device device = c.in[0].device();
  ReplicaSum sums = sums_of(c, attrs);
  const std::int64_t bytes = sums.call.bytes();
  ProcessGroup& group = group_of(unit, unit.replica_axis, device);
  count_collective({.kind = comm::CommOp::all_reduce,
                    .op = kReduceWork,
                    .module = unit.name,
                    .ranks = unit.replicas,
                    .bytes = bytes});
  if (device == Device::cpu()) return submit_sums(attrs, std::move(sums), bytes, group);
  // On a device sums are written, and compute stores them: it waits there.
  std::vector<Loan> loans;
  for (const std::size_t m : indices(attrs.pieces)) lend_once(loans, c.in[m].storage(), true);
  group.issue(std::move(sums.call), {.queue = queue_of(kReplicateQueue, device),
                                     .name = "replica_sum",
                                     .subject = unit.name,
                                     .part = sums.part,
                                     .loans = loans,
                                     .max_in_flight = most_in_flight(attrs.in_flight)});
  reduce_alone(sums.stores);
}

// Where there is one shard, or one replica, it is done on return.
QueueUse queue_of_gather(AttrsView attrs) {
  return attrs.as<UnitAttrs>().unit->shards == 1 ? QueueUse{} : QueueUse{kGatherQueue};
}
QueueUse queue_of_reduction(AttrsView attrs) {
  const auto& a = attrs.as<UnitReduceAttrs>();
  if (a.unit->shards == 1) return {};
  const auto sums = std::ranges::count(a.pieces, ReduceKind::sum, &ReducedPiece::kind);
  const bool has_both = sums > 0 && sums < std::ranges::ssize(a.pieces);  // averages are an item of their own
  return {queue_name(a), most_in_flight(a.in_flight), has_both ? 2u : 1u};
}
QueueUse queue_of_replica_sum(AttrsView attrs) {
  const auto& a = attrs.as<ReplicaSumAttrs>();
  return a.unit->replicas == 1 ? QueueUse{} : QueueUse{kReplicateQueue, most_in_flight(a.in_flight)};
}

constexpr Traits kCommunicates{.collective = true, .issues = true, .effect = true};

}  // namespace

std::string_view name(AddTo add_to) {
  return add_to == AddTo::nothing ? "nothing" : add_to == AddTo::gradient ? "gradient" : "unsummed";
}

void AttrValue<AddTo>::print(const AddTo& value, AttrWriter& out) { out.raw(sherd::name(value)); }
void AttrValue<AddTo>::read(AddTo& value, AttrReader& in) {
  value = read_name(in, {AddTo::nothing, AddTo::gradient, AddTo::unsummed}, "addition");
}

void AttrValue<MemoryCategory>::print(const MemoryCategory& value, AttrWriter& out) { out.raw(sherd::name(value)); }
void AttrValue<MemoryCategory>::read(MemoryCategory& value, AttrReader& in) {
  using enum MemoryCategory;
  value =
      read_name(in, {parameters, unsharded, gradients, optimizer, activations, communication, workspace}, "account");
}

void AttrValue<ReduceKind>::print(const ReduceKind& value, AttrWriter& out) { out.raw(sherd::name(value)); }
void AttrValue<ReduceKind>::read(ReduceKind& value, AttrReader& in) {
  value = read_name(in, {ReduceKind::sum, ReduceKind::avg, ReduceKind::max, ReduceKind::min, ReduceKind::product},
                    "reduction");
}

constinit const Op op::gather_start{
    .name = "gather_start",
    .doc = "Starts to gather a unit's shards u8[shard bytes] of all ranks into its full tensors u8[full bytes].",
    .attrs = &attr_kind<UnitAttrs>,
    .infer = infer_gather,
    .traits = kCommunicates,
    .no_gradient = "effect",
    .queue = queue_of_gather,
    .residency = {.restores = 1u << 1},
};

constinit const Op op::restore{
    .name = "restore",
    .doc = "Makes the bytes of a unit's full tensors u8[full bytes] present, not initialised.",
    .attrs = &attr_kind<UnitAttrs>,
    .infer = infer_presence,
    .traits = {.issues = true, .effect = true},
    .no_gradient = "effect",
    .residency = {.restores = 1u << 0},
};

constinit const Op op::release{
    .name = "release",
    .doc = "Frees the bytes of a unit's full tensors u8[full bytes].",
    .attrs = &attr_kind<UnitAttrs>,
    .infer = infer_presence,
    .traits = {.issues = true, .effect = true},
    .no_gradient = "effect",
    .residency = {.releases = 1u << 0},
};

constinit const Op op::buffer{
    .name = "buffer",
    .doc = "Bytes u8[n] that rows of units and copies work in, not initialised, in the account that is named.",
    .attrs = &attr_kind<BufferAttrs>,
    .infer = infer_buffer,
    .traits = {.issues = true},
    .no_gradient = "no inputs",
    .account = [](AttrsView attrs) { return attrs.as<BufferAttrs>().account; },
    .device = [](AttrsView attrs) { return attrs.as<BufferAttrs>().device; },
};

constinit const Op op::reduce_start{
    .name = "reduce_start",
    .doc = "Starts to sum full gradients, u8[bytes], over the ranks of a unit into this rank's part of each piece.",
    .attrs = &attr_kind<UnitReduceAttrs>,
    .infer = infer_reduce,
    .traits = kCommunicates,
    .no_gradient = "effect",
    .mutated = all_but_the_last,
    .queue = queue_of_reduction,
};

constinit const Op op::replica_sum_start{
    .name = "replica_sum_start",
    .doc = "Starts to sum a rank's parts of a unit's gradients over replicas, and puts those apart where they belong.",
    .attrs = &attr_kind<ReplicaSumAttrs>,
    .infer = infer_replica_sum,
    .traits = kCommunicates,
    .no_gradient = "effect",
    .mutated = all_inputs,
    .queue = queue_of_replica_sum,
};

void register_unit(OpTable& table) {
  const std::pair<const Op*, Kernel> rows[] = {
      {&op::gather_start, run_gather}, {&op::restore, run_restore},     {&op::release, run_release},
      {&op::buffer, leave_as_is},      {&op::reduce_start, run_reduce}, {&op::replica_sum_start, run_replica_sum}};
  for (const auto& [row, kernel] : rows) {
    table.add({row});
    table.kernel(*row, kernel);
  }
}

void check_groups(const UnitLayout& unit, Device device) {
  for (const std::string& axis : {unit.shard_axis, unit.replica_axis})
    if (!axis.empty()) group_of(unit, axis, device);
}

void start_gather(const UnitLayout& unit, const Tensor& shards, const Tensor& full) {
  Tensor in[] = {shards, full};
  call_op(op::gather_start, in, UnitAttrs{unit});
}

void restore_unit(const UnitLayout& unit, const Tensor& full) {
  Tensor in[] = {full};
  call_op(op::restore, in, UnitAttrs{unit});
}

void release_unit(const UnitLayout& unit, const Tensor& full) {
  Tensor in[] = {full};
  call_op(op::release, in, UnitAttrs{unit});
}

Tensor buffer(std::int64_t bytes, MemoryCategory account, Device device) {
  return call(op::buffer, BufferAttrs{{bytes}, account, device});
}

Tensor gradient_buffer(std::int64_t bytes, Device device) { return buffer(bytes, MemoryCategory::gradients, device); }

Tensor communication_buffer(std::int64_t bytes, Device device) {
  return buffer(bytes, MemoryCategory::communication, device);
}

void start_reduce(const UnitReduceAttrs& attrs, const Tensor& full, std::span<const Tensor> out) {
  std::vector<Tensor> in(out.begin(), out.end());
  in.push_back(full);
  call_op(op::reduce_start, in, attrs);
}

void start_replica_sum(const ReplicaSumAttrs& attrs, std::span<const Tensor> sums, std::span<const Tensor> out) {
  std::vector<Tensor> in(sums.begin(), sums.end());
  in.insert(in.end(), out.begin(), out.end());
  call_op(op::replica_sum_start, in, attrs);
}

}  // namespace sherd
