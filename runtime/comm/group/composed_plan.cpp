#include "runtime/comm/group/composed_plan.h"

#include <algorithm>
#include <numeric>

namespace sherd::comm {

namespace {

using Op = BareCall::Op;

std::byte* at(const Buffer& buffer, std::int64_t elements, DType dtype) {
  return static_cast<std::byte*>(buffer.address) + elements * byte_size(dtype);
}

class Composer {
 public:
  Composer(const Collective& call, const ComposedRank& who, Scratch& scratch)
      : call_(call), who_(who), scratch_(scratch) {}

  ComposedPlan plan() {
    switch (call_.op) {
      case CommOp::all_gather: each(&Composer::gather); break;
      case CommOp::reduce_scatter: reduce(&Composer::scatter); break;
      case CommOp::all_reduce: reduce(&Composer::reduce_flat); break;
      case CommOp::broadcast: each(&Composer::broadcast); break;
      case CommOp::all_to_all: swap(); break;
      case CommOp::barrier: meet(); break;
      case CommOp::send:
      case CommOp::recv: each(&Composer::pair); break;
    }
    return std::move(plan_);
  }

 private:
  using Step = void (Composer::*)(const CollectivePart&);

  void each(Step step) {
    for (const CollectivePart& part : call_.parts)
      if (std::ranges::any_of(part.counts, [](std::int64_t n) { return n > 0; })) (this->*step)(part);
  }

  void add(BareCall call) {
    if (call.count > 0) plan_.calls.push_back(call);
  }

  std::int64_t own(const CollectivePart& part) const { return part.counts[static_cast<std::size_t>(who_.rank)]; }
  bool is_even(const CollectivePart& part) const {
    return who_.library.same_counts && std::ranges::all_of(part.counts, [&](auto n) { return n == part.counts[0]; });
  }

  /// Calls fn(rank, its first element, its count).
  template <class Fn>
  static void for_each_rank(const CollectivePart& part, const Fn& fn) {
    std::int64_t first = 0;
    for (int r = 0; r < static_cast<int>(part.counts.size()); ++r) {
      const std::int64_t count = part.counts[static_cast<std::size_t>(r)];
      fn(r, first, count);
      first += count;
    }
  }

  // ---- gathers ----

  void gather(const CollectivePart& part) {
    const DType dtype = part.out_type();
    const std::int64_t total = std::reduce(part.counts.begin(), part.counts.end());
    const std::int64_t before =
        std::reduce(part.counts.begin(), part.counts.begin() + who_.rank);  // elements of lower ranks
    std::byte* const full = part.blocks == 1 ? at(part.out, 0, dtype) : scratch_.take(total * byte_size(dtype));
    std::byte* const slot = full + before * byte_size(dtype);
    const void* source = part.is_in_place(who_.rank) ? slot : part.in.address;
    if (dtype != part.dtype) {
      add_move({.to = slot, .from = source, .to_dtype = dtype, .from_dtype = part.dtype, .run = own(part)});
      source = slot;
    }
    if (is_even(part)) {
      add({.op = Op::all_gather, .in = source, .out = full, .dtype = dtype, .count = own(part)});
    } else {
      for_each_rank(part, [&](int r, std::int64_t first, std::int64_t count) {
        std::byte* const to = full + first * byte_size(dtype);
        add({.op = Op::broadcast,
             .in = r == who_.rank ? source : to,
             .out = to,
             .dtype = dtype,
             .count = count,
             .peer = r});
      });
    }
    if (part.blocks > 1) unpack(part, full, total);
  }

  void unpack(const CollectivePart& part, const std::byte* full, std::int64_t total) {
    const DType dtype = part.out_type();
    for_each_rank(part, [&](int, std::int64_t first, std::int64_t count) {
      if (count == 0) return;
      plan_.after.push_back({.to = at(part.out, first / part.blocks, dtype),
                             .from = full + first * byte_size(dtype),
                             .to_dtype = dtype,
                             .from_dtype = dtype,
                             .run = count / part.blocks,
                             .blocks = part.blocks,
                             .to_step = total / part.blocks,
                             .from_step = count / part.blocks});
    });
  }

  void add_move(const ListMove& move) {
    if (move.run > 0) plan_.before.push_back(move);
  }

  // ---- reductions ----

  /// Whether the library's result would have other bits than the host's, or lose a NaN. Integers are exact.
  bool is_exchanged(const CollectivePart& part) const {
    if (!is_floating(part.dtype)) return false;
    const ReduceKind kind = call_.reduction.kind;
    if (kind == ReduceKind::max || kind == ReduceKind::min) return !who_.library.nan_wins;
    return who_.orders_sums && !who_.library.ordered_sum;
  }

  void reduce(Step step) {
    Collective exchanged{.op = call_.op, .parts = {}, .reduction = call_.reduction};
    for (const CollectivePart& part : call_.parts) {
      if (std::ranges::all_of(part.counts, [](std::int64_t n) { return n == 0; })) continue;
      if (is_exchanged(part)) exchanged.parts.push_back(part);
      else (this->*step)(part);
    }
    if (!exchanged.parts.empty()) plan_.exchange.emplace(exchanged, who_.rank, who_.size, scratch_);
  }

  ReduceKind kind() const { return call_.reduction.kind == ReduceKind::avg ? ReduceKind::sum : call_.reduction.kind; }

  /// The sum that the library has left at `sum`, scaled, rounded and stored where it belongs.
  void finish(const CollectivePart& part, const std::byte* sum, DType dtype, std::int64_t count) {
    ListSum store{.inputs = {sum},
                  .out = at(part.out, 0, part.out_type()),
                  .count = count,
                  .reduction = reduction_of(call_.reduction, who_.size, part)};
    store.reduction.kind = ReduceKind::sum;
    store.reduction.in = dtype;
    const bool is_there = sum == store.out && store.reduction.factor == 1;
    if (count > 0 && !is_there) plan_.sums.push_back(std::move(store));
  }

  void scatter(const CollectivePart& part) {
    const bool is_narrower = byte_size(part.wire_type()) < byte_size(part.dtype);
    const DType travels = is_narrower ? part.wire_type() : part.dtype;
    const std::int64_t item = byte_size(travels);
    const std::byte* const in = packed(part, travels);
    const bool is_final = travels == part.out_type() && !part.accumulate;
    std::byte* const sum = is_final ? at(part.out, 0, travels) : scratch_.take(own(part) * item);
    if (is_even(part)) {
      add({.op = Op::reduce_scatter, .in = in, .out = sum, .dtype = travels, .count = own(part), .kind = kind()});
    } else {
      for_each_rank(part, [&](int r, std::int64_t first, std::int64_t count) {
        add({.op = Op::reduce,
             .in = in + first * item,
             .out = r == who_.rank ? sum : nullptr,
             .dtype = travels,
             .count = count,
             .kind = kind(),
             .peer = r});
      });
    }
    finish(part, sum, travels, own(part));
  }

  /// Where the parts of all ranks lie one after the other, as they travel.
  const std::byte* packed(const CollectivePart& part, DType travels) {
    if (part.blocks == 1 && travels == part.dtype) return at(part.in, 0, part.dtype);
    const std::int64_t total = std::reduce(part.counts.begin(), part.counts.end());
    std::byte* const memory = scratch_.take(total * byte_size(travels));
    for_each_rank(part, [&](int, std::int64_t first, std::int64_t count) {
      add_move({.to = memory + first * byte_size(travels),
                .from = at(part.in, first / part.blocks, part.dtype),
                .to_dtype = travels,
                .from_dtype = part.dtype,
                .run = count / part.blocks,
                .blocks = part.blocks,
                .to_step = count / part.blocks,
                .from_step = total / part.blocks});
    });
    return memory;
  }

  void reduce_flat(const CollectivePart& part) {
    std::byte* const out = at(part.out, 0, part.dtype);
    add({.op = Op::all_reduce,
         .in = part.in.address,
         .out = out,
         .dtype = part.dtype,
         .count = part.counts[0],
         .kind = kind()});
    finish(part, out, part.dtype, part.counts[0]);
  }

  // ---- moves ----

  void broadcast(const CollectivePart& part) {
    const bool is_root = who_.rank == call_.peer;
    add({.op = Op::broadcast,
         .in = is_root ? part.in.address : part.out.address,
         .out = part.out.address,
         .dtype = part.dtype,
         .count = part.counts[0],
         .peer = call_.peer});
  }

  void pair(const CollectivePart& part) {
    add({.op = call_.op == CommOp::send ? Op::send : Op::recv,
         .in = part.in.address,
         .out = part.out.address,
         .dtype = part.dtype,
         .count = part.counts[0],
         .peer = call_.peer});
  }

  void swap() {
    plan_.has_exchange = who_.size > 1;
    for (const CollectivePart& part : call_.parts) {
      std::int64_t sent = 0, received = 0;
      for (int r = 0; r < who_.size; ++r) {
        const auto k = static_cast<std::size_t>(r);
        const std::int64_t out = part.counts[k], in = part.out_counts[k], item = byte_size(part.dtype);
        std::byte *const from = at(part.in, sent, part.dtype), *const to = at(part.out, received, part.dtype);
        if (r == who_.rank) {
          add_move({.to = to, .from = from, .to_dtype = part.dtype, .from_dtype = part.dtype, .run = out});
        } else {
          if (out > 0) plan_.sends.push_back({r, from, out * item});
          if (in > 0) plan_.receives.push_back({r, to, in * item});
        }
        sent += out;
        received += in;
      }
    }
  }

  void meet() {
    std::byte* const word = scratch_.take(byte_size(DType::i32));
    add({.op = Op::all_reduce, .in = word, .out = word, .dtype = DType::i32, .count = 1});
  }

  const Collective& call_;
  const ComposedRank& who_;
  Scratch& scratch_;
  ComposedPlan plan_;
};

}  // namespace

void ComposedPlan::run(BareGroup& bare, const GroupKernels& kernels, Queue& queue) const {
  if (!before.empty()) kernels.move_list(before, queue);
  if (!calls.empty()) bare.run(calls, queue);
  if (has_exchange) bare.exchange(sends, receives, queue);
  if (exchange) exchange->run(bare, kernels, queue);
  if (!after.empty()) kernels.move_list(after, queue);
  if (!sums.empty()) kernels.sum_list(sums, queue);
}

ComposedPlan composed_plan(const Collective& call, const ComposedRank& who, Scratch& scratch) {
  return Composer(call, who, scratch).plan();
}

}  // namespace sherd::comm
