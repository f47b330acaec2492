#include "nn/parallel/replica_sum.h"

#include "runtime/comm/board/reduce.h"

namespace sherd::nn {

namespace {
constexpr std::int64_t kAlign = 64;
}

ReplicaSum::ReplicaSum(ProcessGroup& group, int shard_rank, std::span<ScatterPart> parts,
                       const std::vector<bool>& unsummed)
    : group_(&group) {
  std::int64_t bytes = 0;
  std::vector<std::pair<std::size_t, std::int64_t>> scratch;  // part, offset
  for (std::size_t m = 0; m < parts.size(); ++m) {
    ScatterPart& part = parts[m];
    const DType out = part.out_dtype.value_or(part.dtype), wire = part.wire.value_or(part.dtype);
    const std::int64_t count = part.counts[static_cast<std::size_t>(shard_rank)];
    const bool in_place = unsummed[m] || (!part.accumulate && wire == out);  // a narrower `out` would round too early
    sums_.push_back({part.out, in_place ? out : wire, count});
    if (in_place) continue;
    scratch.emplace_back(m, bytes);
    bytes += (count * byte_size(wire) + kAlign - 1) / kAlign * kAlign;
  }
  if (scratch.empty()) return;
  memory_ = Storage::allocate(bytes, MemoryCategory::communication);
  for (const auto& [m, offset] : scratch) {
    ScatterPart& part = parts[m];
    FlatPart& sum = sums_[m];
    std::byte* const at = memory_->address() + offset;
    stores_.push_back({at, static_cast<std::byte*>(part.out), sum.count, sum.dtype, part.out_dtype.value_or(part.dtype),
                       part.accumulate});
    sum.data = part.out = at;
    part.out_dtype = sum.dtype;
    part.accumulate = false;
  }
}

std::int64_t ReplicaSum::bytes() const {
  std::int64_t sum = 0;
  for (const FlatPart& part : sums_) sum += part.count * byte_size(part.dtype);
  return sum;
}

void ReplicaSum::run() const {
  if (!group_) return;
  group_->all_reduce(sums_, {.kind = ReduceKind::sum})->wait();
  for (const Store& s : stores_)
    comm::reduce({&s.from, 1}, s.to, s.count,
                 {.kind = ReduceKind::sum, .accumulate = s.accumulate, .in = s.in, .wire = s.in, .out = s.out}, false);
}

}  // namespace sherd::nn
