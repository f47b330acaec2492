#include "runtime/comm/group/collective.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using comm::CommOp;

std::int64_t sum(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

bool has_parts_of_ranks(CommOp op) {
  return op == CommOp::all_gather || op == CommOp::reduce_scatter || op == CommOp::all_to_all;
}

void check_counts(const Collective& call, const std::vector<std::int64_t>& counts, std::size_t part, int size) {
  const std::size_t expected = has_parts_of_ranks(call.op) ? static_cast<std::size_t>(size) : 1;
  if (counts.size() != expected)
    fail("{}: tensor {} has {} counts, it takes {}; the group has {} ranks", comm::name(call.op), part, counts.size(),
         expected, size);
  for (const std::int64_t count : counts)
    check(count >= 0, "{}: tensor {} has a count of {}; counts must not be negative", comm::name(call.op), part, count);
}

bool intersect(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a), other = reinterpret_cast<std::uintptr_t>(b);
  return first < other + static_cast<std::uintptr_t>(b_bytes) && other < first + static_cast<std::uintptr_t>(a_bytes);
}

void check_blocks(const Collective& call, const CollectivePart& part, std::size_t i) {
  if (part.blocks == 1) return;
  if (part.blocks < 1 || (call.op != CommOp::all_gather && call.op != CommOp::reduce_scatter))
    fail("{}: tensor {} is of {} blocks; gathers and reductions to shards take several, others one",
         comm::name(call.op), i, part.blocks);
  for (const std::int64_t count : part.counts)
    check(count % part.blocks == 0, "{}: tensor {} has a count of {}, which {} blocks do not divide",
          comm::name(call.op), i, count, part.blocks);
}

// A cast, and shards that are strewn over the full tensor, write elements where others have yet to be read.
void check_apart(const Collective& call, const CollectivePart& part, const CollectiveExtent& extent, std::size_t i) {
  const DType out = part.out_type();
  if ((out == part.dtype && part.blocks == 1) || extent.in == 0 || extent.out == 0) return;
  if (intersect(part.in.address, extent.in, part.out.address, extent.out))
    fail("{}: tensor {} is {} and its input lies in its output; give a buffer of its own", comm::name(call.op), i,
         out == part.dtype ? fmt::format("in {} blocks", part.blocks)
                           : fmt::format("cast from {} to {}", name(part.dtype), name(out)));
}

}  // namespace

std::string_view name(ReduceKind kind) {
  constexpr std::string_view names[] = {"sum", "avg", "max", "min", "product"};
  return names[static_cast<int>(kind)];
}

bool CollectivePart::is_in_place(int rank) const {
  if (dtype != out_type() || blocks != 1) return false;
  const std::int64_t before = sum(std::span(counts).first(static_cast<std::size_t>(rank)));
  return in.address == nullptr || in.address == static_cast<std::byte*>(out.address) + before * byte_size(dtype);
}

CollectivePart in_place(void* data, DType dtype, std::int64_t count) {
  const Buffer buffer{data, count * byte_size(dtype), Device::cpu()};
  return {.in = buffer, .out = buffer, .dtype = dtype, .counts = {count}};
}

CollectivePart in_place(void* data, DType dtype, std::vector<std::int64_t> counts) {
  const Buffer out{data, sum(counts) * byte_size(dtype), Device::cpu()};
  return {.out = out, .dtype = dtype, .counts = std::move(counts)};
}

std::int64_t Collective::bytes() const {
  std::int64_t total = 0;
  for (const CollectivePart& part : parts)
    total += sum(part.counts) * (op == CommOp::all_gather ? byte_size(part.out_type()) : part.wire_size());
  return total;
}

CollectiveExtent extent_of(const Collective& call, const CollectivePart& part, int rank) {
  const std::int64_t in = byte_size(part.dtype), out = byte_size(part.out_type());
  switch (call.op) {
    case CommOp::all_gather: return {in * part.counts[static_cast<std::size_t>(rank)], out * sum(part.counts)};
    case CommOp::reduce_scatter: return {in * sum(part.counts), out * part.counts[static_cast<std::size_t>(rank)]};
    case CommOp::all_to_all: return {in * sum(part.counts), out * sum(part.out_counts)};
    case CommOp::send: return {in * part.counts[0], 0};
    case CommOp::recv: return {0, out * part.counts[0]};
    case CommOp::broadcast: return {rank == call.peer ? in * part.counts[0] : 0, out * part.counts[0]};
    default: return {in * part.counts[0], out * part.counts[0]};
  }
}

Device check_buffers(const Collective& call, int rank, int size, Device otherwise) {
  Device device = otherwise;
  bool decided = false;
  for (const std::size_t i : indices(call.parts)) {
    const CollectivePart& part = call.parts[i];
    check_counts(call, part.counts, i, size);
    check_blocks(call, part, i);
    if (call.op == CommOp::all_to_all) check_counts(call, part.out_counts, i, size);
    const CollectiveExtent extent = extent_of(call, part, rank);
    const std::pair<const Buffer&, std::int64_t> buffers[] = {{part.in, extent.in}, {part.out, extent.out}};
    for (const auto& [buffer, bytes] : buffers) {
      if (bytes == 0) continue;
      check(buffer.address != nullptr && buffer.bytes >= bytes,
            "{}: the {} of tensor {} has {} bytes at {}, its elements take {}", comm::name(call.op),
            &buffer == &part.in ? "input" : "output", i, buffer.bytes, buffer.address ? "its address" : "no address",
            bytes);
      if (std::exchange(decided, true) && buffer.device != device)
        fail("{}: tensor {} is on {}, others are on {}; a collective runs on one device", comm::name(call.op), i,
             to_string(buffer.device), to_string(device));
      device = buffer.device;
    }
    check_apart(call, part, extent, i);
  }
  return device;
}

}  // namespace sherd
