// Collectives on host memory. They run on the rank's stream for them, so a result is waited for where it is first
// touched.
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "runtime/comm/process_group.h"
#include "runtime/cpu/kernels.h"
#include "runtime/exec/stream.h"
#include "runtime/op/attr_types.h"

namespace sherd::cpu {

namespace {

// Results that nobody touches keep their memory until this many others were asked for.
constexpr std::size_t kMaxInFlight = 8;

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

std::byte* address(const Tensor& t) { return t.storage()->address() + t.offset() * byte_size(t.dtype()); }

ProcessGroup& channel(const KernelCall& call) {
  return call.attrs.as<CollectiveAttrs>().group->channel(channel_of(call.exec.stream->kind()));
}

/// `run` reads the input and writes the output; whoever touches the output waits for it.
void submit(const KernelCall& call, std::function<void()> run) {
  if (call.attrs.as<CollectiveAttrs>().group->size() == 1) {  // a copy
    (void)call.in[0].storage()->data();
    return run();
  }
  const Loan loans[] = {{call.in[0].storage(), false}, {call.out[0].storage(), true}};
  call.exec.stream->submit({.name = call.op.name,
                            .bytes = std::max(call.in[0].bytes(), call.out[0].bytes()),
                            .run = std::move(run),
                            .loans = loans,
                            .abort = [&group = channel(call)](std::string_view reason) { group.abort(reason); },
                            .max_in_flight = kMaxInFlight});
}

/// Rows that work in place on a copy of their input.
template <class Collective>
void submit_on_copy(const KernelCall& call, Collective collective) {
  const Tensor& x = dense_input(call);
  const FlatPart part{address(call.out[0]), x.dtype(), x.numel()};
  submit(call, [part, from = address(x), bytes = x.bytes(), collective] {
    copy_bytes(part.data, from, bytes);
    collective(part);
  });
}

void all_reduce(const KernelCall& call) {
  const auto kind = static_cast<ReduceKind>(call.attrs.as<CollectiveAttrs>().kind);
  submit_on_copy(call, [&group = channel(call), kind](const FlatPart& part) {
    group.all_reduce({&part, 1}, {.kind = kind})->wait();
  });
}

void broadcast(const KernelCall& call) {
  const int root = call.attrs.as<CollectiveAttrs>().root;
  submit_on_copy(call,
                 [&group = channel(call), root](const FlatPart& part) { group.broadcast({&part, 1}, root)->wait(); });
}

void all_gather(const KernelCall& call) {
  ProcessGroup& group = channel(call);
  const Tensor& x = dense_input(call);
  auto counts = chunk_counts(call.out[0].shape(), group.size());
  std::int64_t before = 0;
  for (int r = 0; r < group.rank(); ++r) before += counts[static_cast<std::size_t>(r)];
  submit(call, [&group, counts = std::move(counts), out = address(call.out[0]), from = address(x), bytes = x.bytes(),
                own = before * byte_size(x.dtype()), dtype = x.dtype()] {
    copy_bytes(out + own, from, bytes);
    const GatherPart part{out, dtype, counts};
    group.all_gather({&part, 1})->wait();
  });
}

void reduce_scatter(const KernelCall& call) {
  ProcessGroup& group = channel(call);
  const Tensor& x = dense_input(call);
  const auto kind = static_cast<ReduceKind>(call.attrs.as<CollectiveAttrs>().kind);
  submit(call, [&group, counts = chunk_counts(x.shape(), group.size()), from = address(x), to = address(call.out[0]),
                dtype = x.dtype(), kind] {
    const ScatterPart part{from, to, dtype, counts};
    group.reduce_scatter({&part, 1}, {.kind = kind})->wait();
  });
}

}  // namespace

void register_collective(OpTable& table) {
  table.kernel("all_reduce", Device::Kind::cpu, all_reduce);
  table.kernel("all_gather", Device::Kind::cpu, all_gather);
  table.kernel("reduce_scatter", Device::Kind::cpu, reduce_scatter);
  table.kernel("broadcast", Device::Kind::cpu, broadcast);
}

}  // namespace sherd::cpu
