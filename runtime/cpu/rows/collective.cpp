// Collectives on host memory. They run on the rank's queue "collective", so a result is waited for where it is first
// touched. A dim that is not the outermost is cut across the memory:
//
//   x [outer, n, inner]    | part 0 | part 1 |      long lines: a tensor of `outer` blocks, moved where they lie
//                          | part 0 | part 1 |      short ones: packed part by part, [part][outer, its n, inner]
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "runtime/comm/group/count_collective.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/cpu/kernels.h"
#include "runtime/exec/queue.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/collective_cut.h"

namespace sherd::cpu {

namespace {

using comm::CommOp;

// A line costs about 100 ns, as much as one more copy of this many bytes: gathers of 3 MB between two processes take
// 0.48 ms line by line and 0.59 ms packed with lines of 2 KB, 0.70 and 0.64 ms with lines of 512 bytes.
constexpr std::int64_t kLineBytes = 2048;

std::int64_t blocks_of(const Cut& cut) { return std::max<std::int64_t>(cut.outer, 1); }

/// Bytes to pack a tensor in, 0 if it is moved where it lies.
std::int64_t packed_bytes(const Cut& cut) {
  return cut.outer == 1 || cut.line_bytes() >= cut.parts * kLineBytes ? 0 : cut.bytes();
}

const Tensor& dense_input(const KernelCall& call) {
  check(call.in[0].is_contiguous(), "{} needs a dense tensor, got {} with strides {}", call.op.name, call.in[0],
        call.in[0].strides());
  return call.in[0];
}

// A result may lie where a donated input was.
void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// `lines` stretches of `bytes`, `to_pitch` and `from_pitch` apart.
void copy_lines(std::byte* to, std::int64_t to_pitch, const std::byte* from, std::int64_t from_pitch,
                std::int64_t bytes, std::int64_t lines) {
  for (std::int64_t i = 0; i < lines; ++i) copy_bytes(to + i * to_pitch, from + i * from_pitch, bytes);
}

/// whole [outer, n, inner] -> blocks [part][outer, its n, inner]
void pack(const Cut& cut, const std::byte* whole, std::byte* blocks) {
  for (int r = 0; r < cut.parts; ++r) {
    const std::int64_t bytes = cut.line(r) * cut.size;
    copy_lines(blocks, bytes, whole + cut.first(r) * cut.size, cut.line_bytes(), bytes, cut.outer);
    blocks += cut.outer * bytes;
  }
}

void unpack(const Cut& cut, const std::byte* blocks, std::byte* whole) {
  for (int r = 0; r < cut.parts; ++r) {
    const std::int64_t bytes = cut.line(r) * cut.size;
    copy_lines(whole + cut.first(r) * cut.size, cut.line_bytes(), blocks, bytes, bytes, cut.outer);
    blocks += cut.outer * bytes;
  }
}

std::byte* address(const Tensor& t) { return t.storage()->address() + t.offset() * byte_size(t.dtype()); }

Buffer buffer_of(const Tensor& t) { return {address(t), t.bytes(), t.device()}; }
Buffer buffer_of(const Ref<Storage>& memory) { return {memory->address(), memory->bytes(), Device::cpu()}; }

HostGroup& lane(const KernelCall& call) {
  return lane_of(group_of(call.attrs.as<CollectiveAttrs>()), call.exec.queue->name());
}

/// Memory of the work itself; it lives until the work is done.
Ref<Storage> take_scratch(std::int64_t bytes) {
  return bytes == 0 ? Ref<Storage>() : Storage::allocate(bytes, MemoryCategory::communication);
}

/// `run` reads the input and writes the output and the scratch; whoever touches the output waits for it.
void submit(CommOp kind, const KernelCall& call, std::function<void()> run,
            std::span<const Ref<Storage>> scratch = {}) {
  const std::int64_t bytes = kind == CommOp::all_gather ? call.out[0].bytes() : call.in[0].bytes();  // the full buffer
  const int ranks = group_of(call.attrs.as<CollectiveAttrs>()).size();
  count_collective({.kind = kind, .op = call.op.name, .ranks = ranks, .bytes = bytes});
  if (ranks == 1) {  // a copy
    call.in[0].storage()->wait_to_read();
    call.out[0].storage()->wait_to_write();
    if (!call.out[0].is_ghost()) run();
    return;
  }
  std::vector<Loan> loans{{call.out[0].storage(), true}};
  if (call.in[0].storage() != call.out[0].storage()) loans.push_back({call.in[0].storage(), false});
  for (const Ref<Storage>& each : scratch)
    if (each) loans.push_back({each, false});  // nobody else asks for it: kept, not waited for
  call.exec.queue->submit({.name = call.op.name,
                           .bytes = bytes,
                           .wire = comm::wire_of(lane(call), kind),
                           .run = std::move(run),
                           .loans = loans,
                           .abort = [&group = lane(call)](std::string_view reason) { group.abort(reason); },
                           .max_in_flight = kMaxCollectivesInFlight});
}

/// Rows that work in place on a copy of their input.
template <class Collective>
void submit_on_copy(CommOp kind, const KernelCall& call, Collective collective) {
  const Tensor& x = dense_input(call);
  submit(kind, call, [part = in_place(address(call.out[0]), x.dtype(), x.numel()), from = address(x), collective] {
    copy_bytes(part.out.address, from, part.out.bytes);
    collective(part);
  });
}

void all_reduce(const KernelCall& call) {
  const auto kind = static_cast<ReduceKind>(call.attrs.as<CollectiveAttrs>().kind);
  submit_on_copy(CommOp::all_reduce, call,
                 [&group = lane(call), kind](const CollectivePart& part) { group.all_reduce({part}, {.kind = kind}); });
}

void broadcast(const KernelCall& call) {
  const int root = call.attrs.as<CollectiveAttrs>().root;
  submit_on_copy(CommOp::broadcast, call,
                 [&group = lane(call), root](const CollectivePart& part) { group.broadcast({part}, root); });
}

Cut cut_along(const KernelCall& call, const Tensor& whole, int dim) {
  return {whole.shape(), dim, whole.dtype(), group_of(call.attrs.as<CollectiveAttrs>()).size()};
}

void all_gather(const KernelCall& call) {
  const Tensor& x = dense_input(call);
  const Cut cut = cut_along(call, call.out[0], call.attrs.as<CollectiveAttrs>().dim);
  const Ref<Storage> scratch = take_scratch(packed_bytes(cut));
  const CollectivePart part{.in = buffer_of(x),
                            .out = scratch ? buffer_of(scratch) : buffer_of(call.out[0]),
                            .dtype = x.dtype(),
                            .counts = cut.counts(),
                            .blocks = scratch ? 1 : blocks_of(cut)};
  const auto gather = [&group = lane(call), part, cut, packed = scratch.get(), out = address(call.out[0])] {
    group.all_gather({part});
    if (packed) unpack(cut, packed->address(), out);
  };
  submit(CommOp::all_gather, call, gather, {&scratch, 1});
}

void reduce_scatter(const KernelCall& call) {
  const Tensor& x = dense_input(call);
  const auto& attrs = call.attrs.as<CollectiveAttrs>();
  const Cut cut = cut_along(call, x, attrs.dim);
  const Ref<Storage> scratch = take_scratch(packed_bytes(cut));
  const CollectivePart part{.in = scratch ? buffer_of(scratch) : buffer_of(x),
                            .out = buffer_of(call.out[0]),
                            .dtype = x.dtype(),
                            .counts = cut.counts(),
                            .blocks = scratch ? 1 : blocks_of(cut)};
  const auto reduce = [&group = lane(call), part, cut, packed = scratch.get(), from = address(x),
                       kind = static_cast<ReduceKind>(attrs.kind)] {
    if (packed) pack(cut, from, packed->address());
    group.reduce_scatter({part}, {.kind = kind});
  };
  submit(CommOp::reduce_scatter, call, reduce, {&scratch, 1});
}

// What rank q gets is dense after packing along the split dim, and so is what comes from it.
void all_to_all(const KernelCall& call) {
  const Tensor& x = dense_input(call);
  const auto& attrs = call.attrs.as<CollectiveAttrs>();
  const Cut split = cut_along(call, x, attrs.split_dim), joined = cut_along(call, call.out[0], attrs.dim);
  const Ref<Storage> scratch[] = {take_scratch(split.outer == 1 ? 0 : split.bytes()),
                                  take_scratch(joined.outer == 1 ? 0 : joined.bytes())};
  const CollectivePart part{.in = scratch[0] ? buffer_of(scratch[0]) : buffer_of(x),
                            .out = scratch[1] ? buffer_of(scratch[1]) : buffer_of(call.out[0]),
                            .dtype = x.dtype(),
                            .counts = split.counts(),
                            .out_counts = joined.counts()};
  const auto swap = [&group = lane(call), part, split, joined, packed = scratch[0].get(), received = scratch[1].get(),
                     from = address(x), out = address(call.out[0])] {
    if (packed) pack(split, from, packed->address());
    group.all_to_all({part});
    if (received) unpack(joined, received->address(), out);
  };
  submit(CommOp::all_to_all, call, swap, scratch);
}

}  // namespace

void register_collective(OpTable& table) {
  table.kernel(op::all_reduce, Device::Kind::cpu, all_reduce);
  table.kernel(op::all_gather, Device::Kind::cpu, all_gather);
  table.kernel(op::reduce_scatter, Device::Kind::cpu, reduce_scatter);
  table.kernel(op::all_to_all, Device::Kind::cpu, all_to_all);
  table.kernel(op::broadcast, Device::Kind::cpu, broadcast);
}

}  // namespace sherd::cpu
