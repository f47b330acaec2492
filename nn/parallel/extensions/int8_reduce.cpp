#include "nn/parallel/extensions/int8_reduce.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <type_traits>
#include <utility>

#include "runtime/comm/group/count_collective.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/subject.h"
#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/op/core/infer.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

struct Int8ReduceAttrs {
  UnitRef unit{};
  double scale = 1;
  int in_flight = 1;
  int block = kQuantizationBlock;
  std::vector<ReducedPiece> pieces{};
  static constexpr AttrField fields[] = {attr<&Int8ReduceAttrs::unit>("unit"), attr<&Int8ReduceAttrs::scale>("scale"),
                                         attr<&Int8ReduceAttrs::in_flight>("in_flight").optional(),
                                         attr<&Int8ReduceAttrs::block>("block"),
                                         attr<&Int8ReduceAttrs::pieces>("pieces")};
};

/// Where a piece lies in the memory that the row works in: `sent` as in the full gradient, rank by rank; `received` one
/// rank's contribution after the other.
struct WorkPlaces {
  std::int64_t sent_values = 0, sent_scales = 0, received_values = 0, received_scales = 0;
};

std::vector<std::int64_t> blocks_of(const std::vector<std::int64_t>& counts, int block) {
  std::vector<std::int64_t> blocks;
  for (const std::int64_t count : counts) blocks.push_back(num_blocks(count, block));
  return blocks;
}

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  std::int64_t all = 0;
  for (const std::int64_t count : counts) all += count;
  return all;
}

struct WorkMemory {
  std::vector<WorkPlaces> places{};  // of each piece
  std::int64_t bytes = 0;
};

WorkMemory work_memory(const Int8ReduceAttrs& a) {
  WorkMemory memory;
  const auto take = [&](std::int64_t count, std::int64_t size) {
    return std::exchange(memory.bytes, memory.bytes + align(count * size));
  };
  for (const ReducedPiece& p : a.pieces) {
    const UnitPiece& piece = a.unit->piece(p.piece);
    const std::vector<std::int64_t> counts = a.unit->counts(piece);
    const std::int64_t here = a.unit->count_here(piece), ranks = a.unit->shards;
    memory.places.push_back({.sent_values = take(sum(counts), 1),
                             .sent_scales = take(sum(blocks_of(counts, a.block)), 4),
                             .received_values = take(ranks * here, 1),
                             .received_scales = take(ranks * num_blocks(here, a.block), 4)});
  }
  return memory;
}

// ---- on the queue ----

/// One piece, by addresses.
struct PieceWork {
  const std::byte* full;
  DType full_dtype;
  std::vector<std::int64_t> counts;  // of its elements, by rank
  std::int64_t here;
  double scale;
  std::byte* out;
  DType out_dtype;
  bool accumulate;
  std::uint8_t *sent_values, *received_values;
  float *sent_scales, *received_scales;
};

void quantize(const PieceWork& p, int block) {
  const std::byte* from = p.full;
  std::uint8_t* values = p.sent_values;
  float* scales = p.sent_scales;
  for (const std::int64_t count : p.counts) {
    quantize_on_host(p.full_dtype, from, count, block, values, scales);
    from += count * byte_size(p.full_dtype);
    values += count;
    scales += num_blocks(count, block);
  }
}

// As comm::reduce: f64 is added to in f64, narrower types in f32.
template <class T>
void store(const float* sum, std::int64_t count, float scale, bool accumulate, T* out) {
  using Wider = std::conditional_t<std::is_same_v<T, double>, double, float>;
  for (const std::int64_t i : up_to(count)) {
    const Wider value = convert<Wider>(sum[i] * scale);
    out[i] = convert<T>(accumulate ? convert<Wider>(out[i]) + value : value);
  }
}

void sum_received(const PieceWork& p, int block) {
  std::array<float, 4096> sums;  // the longest block
  const std::int64_t blocks = num_blocks(p.here, block);
  for (const std::int64_t b : up_to(blocks)) {
    const std::int64_t first = b * block, count = std::min<std::int64_t>(block, p.here - first);
    std::fill_n(sums.begin(), count, 0.0f);
    for (const std::size_t r : indices(p.counts)) {
      const auto rank = static_cast<std::int64_t>(r);
      add_dequantized_on_host(p.received_values + rank * p.here + first, p.received_scales + rank * blocks + b, count,
                              block, sums.data());
    }
    visit_dtype(p.out_dtype, [&]<class T>(Type<T>) {
      if constexpr (is_floating(dtype_of<T>))
        store(sums.data(), count, static_cast<float>(p.scale), p.accumulate, reinterpret_cast<T*>(p.out) + first);
    });
  }
}

// ---- the row ----

const Int8ReduceAttrs& attrs_of(const InferCall& call) {
  const auto& a = call.attrs.as<Int8ReduceAttrs>();
  check(a.unit && a.unit->shards > 1, "{} needs a unit of several shards", call.op.name);
  check_block(a.block, call.op.name);
  check(a.in_flight >= 1, "{}: {} reductions in flight; the least is 1", call.op.name, a.in_flight);
  return a;
}

Metas infer_reduce(const InferCall& call) {
  const Int8ReduceAttrs& a = attrs_of(call);
  const std::size_t n = a.pieces.size();
  check(call.in.size() == n + 2, "{}: {} tensors for {} pieces, memory and gradients", call.op.name, call.in.size(), n);
  const TensorMeta &work = required(call, n), &full = required(call, n + 1);
  for (const std::size_t m : up_to(n)) {
    const ReducedPiece& p = a.pieces[m];
    check(p.piece >= 0 && static_cast<std::size_t>(p.piece) < a.unit->pieces.size(),
          "{}: unit \"{}\" has {} pieces, not one {}", call.op.name, a.unit->name, a.unit->pieces.size(), p.piece);
    const UnitPiece& piece = a.unit->piece(p.piece);
    const std::int64_t size = byte_size(piece.full_dtype);
    check(is_quantizable(piece.full_dtype), "{}: piece {} is {}; it reduces f32, bf16 and f16", call.op.name, p.piece,
          name(piece.full_dtype));
    check(UnitLayout::blocks(piece) == 1, "{}: piece {} is sharded along dim {}; it reduces rows", call.op.name,
          p.piece, piece.dim);
    check(p.offset >= 0 && p.offset % size == 0 && numel(piece.shape) * size <= full.numel() - p.offset,
          "{}: the gradient of piece {} lies at byte {} of {}", call.op.name, p.piece, p.offset, full);
    const TensorMeta& out = required(call, m);
    check(out.numel() == a.unit->count_here(piece) && out.is_contiguous() && is_floating(out.dtype),
          "{}: the result of piece {} is {}; this rank's part has {} elements, dense", call.op.name, p.piece, out,
          a.unit->count_here(piece));
  }
  const std::int64_t bytes = work_memory(a).bytes;
  check(work.dtype == DType::u8 && work.numel() == bytes && full.dtype == DType::u8 && full.is_contiguous(),
        "{}: it works in {} and reads {}; give it u8[{}], and gradients as u8", call.op.name, work, full, bytes);
  return {};
}

int all_but_the_last(const InferCall& c) { return std::max(static_cast<int>(c.in.size()) - 1, 0); }

QueueUse queue_of_reduction(AttrsView attrs) {
  const auto& a = attrs.as<Int8ReduceAttrs>();
  return {kReduceQueue, static_cast<std::size_t>(a.in_flight)};
}

std::byte* address_of(const Tensor& t) {
  std::byte* const start = t.storage()->address();
  return start ? start + t.offset() * byte_size(t.dtype()) : nullptr;
}

/// The parts of an exchange, and what each piece of it is made from and into.
struct Exchange {
  Collective call{.op = comm::CommOp::all_to_all};
  std::vector<PieceWork> pieces{};
  std::vector<Loan> loans{};
  std::string part{};  // names of the pieces, where not all take part: ranks compare it
};

CollectivePart swap_of(void* in, void* out, DType dtype, std::vector<std::int64_t> counts, std::int64_t here) {
  const std::int64_t ranks = std::ssize(counts), size = byte_size(dtype);
  CollectivePart part{.in = {in, sum(counts) * size}, .out = {out, ranks * here * size}, .dtype = dtype};
  part.counts = std::move(counts);
  part.out_counts.assign(static_cast<std::size_t>(ranks), here);
  return part;
}

void lend_once(std::vector<Loan>& loans, const Ref<Storage>& storage, bool writes) {
  if (std::ranges::none_of(loans, [&](const Loan& loan) { return loan.storage == storage; }))
    loans.push_back({storage, writes});
}

// Addresses are taken without a wait. The memory that is worked in is nobody's after this: lent to be read, it stays
// until the work is done, and no one waits.
Exchange exchange_of(const KernelCall& c) {
  const auto& a = c.attrs.as<Int8ReduceAttrs>();
  const Tensor &work = c.in[a.pieces.size()], &full = c.in.back();
  const WorkMemory memory = work_memory(a);
  Exchange e;
  for (std::size_t m = 0; m < a.pieces.size(); ++m) {
    const ReducedPiece& p = a.pieces[m];
    const UnitPiece& piece = a.unit->piece(p.piece);
    const WorkPlaces& at = memory.places[m];
    std::byte* const base = address_of(work);
    PieceWork w{.full = address_of(full) + p.offset,
                .full_dtype = piece.full_dtype,
                .counts = a.unit->counts(piece),
                .here = a.unit->count_here(piece),
                .scale = p.kind == ReduceKind::avg ? a.scale : 1,
                .out = address_of(c.in[m]),
                .out_dtype = c.in[m].dtype(),
                .accumulate = p.add_to != AddTo::nothing,
                .sent_values = reinterpret_cast<std::uint8_t*>(base + at.sent_values),
                .received_values = reinterpret_cast<std::uint8_t*>(base + at.received_values),
                .sent_scales = reinterpret_cast<float*>(base + at.sent_scales),
                .received_scales = reinterpret_cast<float*>(base + at.received_scales)};
    e.call.parts.push_back(swap_of(w.sent_values, w.received_values, DType::u8, w.counts, w.here));
    e.call.parts.push_back(swap_of(w.sent_scales, w.received_scales, DType::f32, blocks_of(w.counts, a.block),
                                   num_blocks(w.here, a.block)));
    e.pieces.push_back(std::move(w));
    lend_once(e.loans, c.in[m].storage(), true);
    e.part += (m == 0 ? "of " : ", ") + piece.name;
  }
  if (a.pieces.size() == a.unit->pieces.size()) e.part.clear();
  lend_once(e.loans, work.storage(), false);
  lend_once(e.loans, full.storage(), false);
  return e;
}

void run_reduce(const KernelCall& c) {
  const auto& a = c.attrs.as<Int8ReduceAttrs>();
  if (a.pieces.empty()) return;
  const UnitLayout& unit = *a.unit;
  Exchange e = exchange_of(c);
  const std::int64_t bytes = e.call.bytes();
  count_collective(
      {.kind = comm::CommOp::all_to_all, .op = kReduceWork, .module = unit.name, .ranks = unit.shards, .bytes = bytes});
  HostGroup& lane = group_named(unit.shard_axis).host().lane(kReduceQueue);
  RankContext::current()
      .queue(kReduceQueue, Device::cpu())
      .submit({.name = kReduceWork,
               .subject = unit.name,
               .bytes = bytes,
               .wire = comm::wire_of(lane, comm::CommOp::all_to_all),
               .run =
                   [&lane, unit = unit.shared(), call = std::move(e.call), pieces = std::move(e.pieces),
                    part = std::move(e.part), block = a.block] {
                     for (const PieceWork& piece : pieces) quantize(piece, block);
                     const comm::SubjectScope subject(unit->name, part);
                     lane.run(call);
                     for (const PieceWork& piece : pieces) sum_received(piece, block);
                   },
               .loans = e.loans,
               .abort = [&lane](std::string_view reason) { lane.abort(reason); },
               .max_in_flight = static_cast<std::size_t>(a.in_flight)});
  c.in.back().storage()->retag(MemoryCategory::communication);  // no parameter owns the full gradients any more
}

constinit const Op kInt8Reduce{
    .name = "int8_reduce_start",
    .doc = "Starts to sum full gradients, u8[bytes], over the ranks of a unit in 8 bits, by way of memory u8[bytes].",
    .attrs = &attr_kind<Int8ReduceAttrs>,
    .infer = infer_reduce,
    .traits = {.collective = true, .issues = true, .effect = true},
    .no_gradient = "effect",
    .mutated = all_but_the_last,
    .queue = queue_of_reduction,
};

void register_int8_reduce(OpTable& table) {
  table.add({&kInt8Reduce});
  table.kernel(kInt8Reduce, Device::Kind::cpu, run_reduce);
}

}  // namespace

UnitReduce int8_reduce(int block) {
  check_block(block, "int8_reduce");
  add_rows(register_int8_reduce);
  return [block](const UnitReduceAttrs& attrs, const Tensor& gradients, std::span<const Tensor> out) {
    const auto is_other = [&](const ReducedPiece& p) {
      const UnitPiece& piece = attrs.unit->piece(p.piece);
      return !is_quantizable(piece.full_dtype) || UnitLayout::blocks(piece) != 1;
    };
    if (std::ranges::any_of(attrs.pieces, is_other)) return start_reduce(attrs, gradients, out);
    const Int8ReduceAttrs a{attrs.unit, attrs.scale, attrs.in_flight, block, attrs.pieces};
    std::vector<Tensor> in(out.begin(), out.end());
    in.push_back(communication_buffer(work_memory(a).bytes, gradients.device()));
    in.push_back(gradients);
    call_op(kInt8Reduce, in, a);
  };
}

}  // namespace sherd::nn
