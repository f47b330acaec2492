// Collectives on host memory. They run and wait on the rank's thread; the engine is the group's.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/comm/process_group.h"
#include "runtime/cpu/kernels.h"
#include "runtime/op/attr_types.h"

namespace sherd::cpu {

namespace {

/// Elements of each rank when dim 0 of `shape` is cut into chunks of ceil(rows / ranks).
std::vector<std::int64_t> chunk_counts(const Shape& shape, int ranks) {
  const std::int64_t rows = shape[0], chunk = (rows + ranks - 1) / ranks;
  std::int64_t row_elements = 1;
  for (int d = 1; d < shape.size(); ++d) row_elements *= shape[d];
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks; ++r)
    counts.push_back(std::max<std::int64_t>(0, std::min(rows, (r + 1) * chunk) - r * chunk) * row_elements);
  return counts;
}

const Tensor& dense_input(const KernelCall& call) {
  check(call.in[0].is_contiguous(), "{} needs a dense tensor, got {} with strides {}", call.op.name,
        describe(call.in[0]), to_string(call.in[0].strides()));
  return call.in[0];
}

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

FlatPart copied_to_output(const KernelCall& call) {
  const Tensor& x = dense_input(call);
  copy_bytes(call.out[0].raw(), x.raw(), x.bytes());
  return {call.out[0].raw(), x.dtype(), x.numel()};
}

void all_reduce(const KernelCall& call) {
  const auto& a = call.attrs.as<CollectiveAttrs>();
  const FlatPart part = copied_to_output(call);
  a.group->all_reduce({&part, 1}, {.kind = static_cast<ReduceKind>(a.kind)})->wait();
}

void broadcast(const KernelCall& call) {
  const auto& a = call.attrs.as<CollectiveAttrs>();
  const FlatPart part = copied_to_output(call);
  a.group->broadcast({&part, 1}, a.root)->wait();
}

void all_gather(const KernelCall& call) {
  ProcessGroup& group = *call.attrs.as<CollectiveAttrs>().group;
  const Tensor& x = dense_input(call);
  const auto counts = chunk_counts(call.out[0].shape(), group.size());
  std::int64_t before = 0;
  for (int r = 0; r < group.rank(); ++r) before += counts[static_cast<std::size_t>(r)];
  copy_bytes(static_cast<std::byte*>(call.out[0].raw()) + before * byte_size(x.dtype()), x.raw(), x.bytes());
  const GatherPart part{call.out[0].raw(), x.dtype(), counts};
  group.all_gather({&part, 1})->wait();
}

void reduce_scatter(const KernelCall& call) {
  const auto& a = call.attrs.as<CollectiveAttrs>();
  const Tensor& x = dense_input(call);
  const auto counts = chunk_counts(x.shape(), a.group->size());
  const ScatterPart part{x.raw(), call.out[0].raw(), x.dtype(), counts};
  a.group->reduce_scatter({&part, 1}, {.kind = static_cast<ReduceKind>(a.kind)})->wait();
}

}  // namespace

void register_collective(OpTable& table) {
  table.kernel("all_reduce", Device::Kind::cpu, all_reduce);
  table.kernel("all_gather", Device::Kind::cpu, all_gather);
  table.kernel("reduce_scatter", Device::Kind::cpu, reduce_scatter);
  table.kernel("broadcast", Device::Kind::cpu, broadcast);
}

}  // namespace sherd::cpu
