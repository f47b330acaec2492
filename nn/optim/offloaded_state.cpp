#include "nn/optim/offloaded_state.h"

#include <algorithm>
#include <utility>

#include "dtensor/spec.h"
#include "runtime/memory/allocator.h"
#include "runtime/op/copy/offload_budget.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {
constexpr std::int64_t kPiecesInFlight = 3, kLeastInFlight = 4096;
// A small state is cut so that no more than a quarter of it is in memory either (between steps a half), as long as a
// piece is worth a call.
constexpr std::int64_t kLeastPieces = 4 * kPiecesInFlight, kWorthACall = 16 << 10;
}  // namespace

Device update_device(const Parameter& parameter) {
  const Tensor local = parameter.sharded_value().local();
  const OffloadHome* const home = home_of(local);
  return home ? home->device : local.device();
}

std::int64_t bytes_per_rank(const Tensor& value) {
  std::int64_t shards = 1;
  if (value.is_distributed())
    for (const int dim : up_to(value.ndim())) shards *= Spec::from(value).num_shards(dim);
  return (value.numel() + shards - 1) / shards * byte_size(value.dtype());
}

std::int64_t most_bytes_of_a_rank(const Tensor& value) {
  if (!value.is_distributed()) return value.bytes();
  const Spec& spec = Spec::from(value);
  std::vector<int> at(static_cast<std::size_t>(spec.num_axes()), 0);
  std::int64_t most = 0;
  for (std::size_t axis = 0; axis < at.size();) {
    std::int64_t elements = 1;
    for (const int dim : up_to(value.ndim())) elements *= spec.range_at(dim, value.size(dim), at).size();
    most = std::max(most, elements);
    for (axis = 0; axis < at.size() && ++at[axis] == spec.axis_size(static_cast<int>(axis)); ++axis) at[axis] = 0;
  }
  return most * byte_size(value.dtype());
}

Tensor elements_of(const Tensor& tensor, const StateRun& run) {
  const Tensor local = tensor.local();
  return run_at(local, run.count, (local.offset() + run.first) * byte_size(local.dtype()), local.dtype());
}

OffloadedState::OffloadedState(Device device, const OffloadOptions& options, std::span<const std::int64_t> bytes)
    : store_(device, options.folder),
      bytes_in_flight_(options.bytes_in_flight),
      kept_(kept_in_memory(bytes, options.bytes_in_memory)) {
  check(options.bytes_in_memory >= 0, "offload: {} bytes of optimizer state in memory; give 0 or more",
        options.bytes_in_memory);
  check(options.bytes_in_flight >= kLeastInFlight,
        "offload: {} bytes of optimizer state in memory at a time are too few; give at least {}",
        options.bytes_in_flight, kLeastInFlight);
}

std::int64_t piece_bytes(std::int64_t bytes, std::int64_t bytes_in_flight) {
  return std::min(bytes_in_flight / kPiecesInFlight, std::max(bytes / kLeastPieces, kWorthACall));
}

// Homes begin at multiples of a cache line, too.
std::vector<StatePiece> StatePieces::add(std::size_t parameter, const Tensor& value) {
  std::vector<StatePiece> full;
  const std::int64_t kinds = std::max<std::int64_t>(static_cast<std::int64_t>(kinds_), 1);
  const std::int64_t bytes = kinds * bytes_per_rank(value),
                     runs = std::max<std::int64_t>((bytes + piece_bytes_ - 1) / piece_bytes_, 1);
  const std::int64_t count = value.local().numel(),
                     line = block_ > 0 ? block_ : kBufferAlign / byte_size(value.dtype());
  const std::int64_t of_run = round_up((count + runs - 1) / runs, line);
  for (const std::int64_t i : up_to(runs)) {
    if (bytes / runs > left_ && !open_.empty()) full.push_back(take_rest());
    const std::int64_t first = std::min(i * of_run, count);
    open_.push_back({parameter, first, std::min(of_run, count - first), i + 1 == runs});
    left_ -= bytes / runs;
  }
  return full;
}

StatePiece StatePieces::take_rest() {
  left_ = piece_bytes_;
  return std::exchange(open_, {});
}

}  // namespace sherd::nn
