#include "runtime/comm/group/exchange_sum.h"

#include <algorithm>
#include <numeric>

#include "runtime/comm/group/chunks.h"

namespace sherd::comm {

namespace {

constexpr std::int64_t kSmallBytes = std::int64_t{16} << 10;  // one exchange less is worth more than the bytes

/// Elements of a part that a rank sums.
struct Share {
  std::int64_t first = 0, count = 0;
};

/// By rank.
std::vector<Share> shares_of(const Collective& call, const CollectivePart& part, int size, bool is_small) {
  std::vector<Share> shares;
  std::int64_t first = 0;
  for (int r = 0; r < size; ++r) {
    const std::int64_t n = part.counts[call.op == CommOp::all_reduce ? 0 : static_cast<std::size_t>(r)];
    if (call.op == CommOp::reduce_scatter) shares.push_back({first, n});
    else if (is_small) shares.push_back({0, n});
    else shares.push_back({chunk_begin(n, size, r), chunk_size(n, size, r)});
    first += n;
  }
  return shares;
}

class Planner {
 public:
  Planner(const Collective& call, int rank, int size, ExchangeSum& steps, Scratch& scratch)
      : call_(call), rank_(rank), size_(size), steps_(steps), scratch_(scratch) {}

  void add(const CollectivePart& part, bool is_small) {
    const std::vector<Share> shares = shares_of(call_, part, size_, is_small);
    const Share own = shares[static_cast<std::size_t>(rank_)];
    // A wire that is not narrower saves nothing: the sum rounds to it.
    const bool is_narrower = byte_size(part.wire_type()) < byte_size(part.dtype);
    const DType travels = size_ > 1 && is_narrower ? part.wire_type() : part.dtype;
    const std::byte* const from = pack(part, shares, travels);
    const std::int64_t item = byte_size(travels), own_bytes = own.count * item;

    ListSum sum{.inputs = {},
                .out = target(part, own),
                .count = own.count,
                .reduction = reduction_of(call_.reduction, size_, part)};
    for (int r = 0; r < size_; ++r) {
      const Share& theirs = shares[static_cast<std::size_t>(r)];
      if (r == rank_) {
        sum.inputs.push_back(from + own.first * item);
        continue;
      }
      if (theirs.count > 0)
        steps_.sends.push_back({r, const_cast<std::byte*>(from) + theirs.first * item, theirs.count * item});
      std::byte* const received = scratch_.take(own_bytes);
      if (own.count > 0) steps_.receives.push_back({r, received, own_bytes});
      sum.inputs.push_back(received);
    }
    sum.reduction.in = travels;
    if (travels != part.dtype && part.dtype == DType::f64) widen(sum, travels);
    if (own.count > 0) steps_.sums.push_back(std::move(sum));
    if (call_.op == CommOp::all_reduce && !is_small) spread(part, shares);
  }

 private:
  std::byte* target(const CollectivePart& part, const Share& own) const {
    const bool is_flat = call_.op == CommOp::all_reduce;
    return static_cast<std::byte*>(part.out.address) + (is_flat ? own.first * byte_size(part.out_type()) : 0);
  }

  /// Where all shares lie one after the other, as they travel.
  const std::byte* pack(const CollectivePart& part, const std::vector<Share>& shares, DType travels) {
    const auto* const in = static_cast<const std::byte*>(part.in.address);
    if (part.blocks == 1 && travels == part.dtype) return in;
    const std::int64_t total = std::reduce(part.counts.begin(), part.counts.end());
    std::byte* const packed = scratch_.take(total * byte_size(travels));
    for (const Share& share : shares)
      if (share.count > 0)
        steps_.packs.push_back({.to = packed + share.first * byte_size(travels),
                                .from = in + share.first / part.blocks * byte_size(part.dtype),
                                .to_dtype = travels,
                                .from_dtype = part.dtype,
                                .run = share.count / part.blocks,
                                .blocks = part.blocks,
                                .to_step = share.count / part.blocks,
                                .from_step = total / part.blocks});
    return packed;
  }

  void widen(ListSum& sum, DType travels) {
    sum.reduction.in = DType::f64;
    for (const std::byte*& input : sum.inputs) {
      std::byte* const wide = scratch_.take(sum.count * byte_size(DType::f64));
      steps_.widened.push_back(
          {.to = wide, .from = input, .to_dtype = DType::f64, .from_dtype = travels, .run = sum.count});
      input = wide;
    }
  }

  void spread(const CollectivePart& part, const std::vector<Share>& shares) {
    const Share own = shares[static_cast<std::size_t>(rank_)];
    const std::int64_t item = byte_size(part.out_type());
    for (int r = 0; r < size_; ++r) {
      const Share& theirs = shares[static_cast<std::size_t>(r)];
      if (r == rank_) continue;
      if (own.count > 0) steps_.sum_sends.push_back({r, target(part, own), own.count * item});
      if (theirs.count > 0) steps_.sum_receives.push_back({r, target(part, theirs), theirs.count * item});
    }
  }

  const Collective& call_;
  const int rank_, size_;
  ExchangeSum& steps_;
  Scratch& scratch_;
};

}  // namespace

ExchangeSum::ExchangeSum(const Collective& call, int rank, int size, Scratch& scratch) {
  has_exchange = size > 1 && call.bytes() > 0;
  const bool is_small = call.op == CommOp::all_reduce && call.bytes() <= kSmallBytes;
  has_second = has_exchange && call.op == CommOp::all_reduce && !is_small;
  Planner planner(call, rank, size, *this, scratch);
  for (const CollectivePart& part : call.parts) planner.add(part, is_small);
}

void ExchangeSum::run(PieceMover& mover, const GroupKernels& kernels, Queue& queue) const {
  if (!packs.empty()) kernels.move_list(packs, queue);
  if (has_exchange) mover.exchange(sends, receives, queue);
  if (!widened.empty()) kernels.move_list(widened, queue);
  if (!sums.empty()) kernels.sum_list(sums, queue);
  if (has_second) mover.exchange(sum_sends, sum_receives, queue);
}

}  // namespace sherd::comm
