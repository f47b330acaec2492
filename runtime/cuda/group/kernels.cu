// Lists of moves and sums as one launch. A table of items is the kernel's argument; a few blocks take tiles of all
// items in turn. Every element is independent, hence the bits do not depend on who takes which tile.
//
// Bytes per element: a move reads and writes it once; a sum reads every rank's and writes one.
#include "runtime/cuda/group/kernels.h"

#include <bit>
#include <numeric>

#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/rows/elements.h"
#include "runtime/cuda/rows/units.h"

namespace sherd::cuda {

namespace {

using comm::ListMove;
using comm::ListSum;

constexpr unsigned kListThreads = 512;
constexpr int kListItems = 4;  // elements of a thread, whose loads do not wait for each other
constexpr std::int64_t kTile = std::int64_t{kListThreads} * kListItems;

/// The item that a tile belongs to, and its first element there. `ends` are running totals of tiles.
struct Tile {
  int item;
  std::int64_t begin;
};

__device__ inline Tile tile_of(const std::int64_t* ends, int size, std::int64_t tile) {
  int low = 0, high = size - 1;  // the first item whose total is above the tile
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ends[middle] > tile) high = middle;
    else low = middle + 1;
  }
  return {low, (tile - (low == 0 ? 0 : ends[low - 1])) * kTile};
}

// ---- moves ----

/// `count` elements in runs; of a copy, in units of `unit` bytes.
struct Move {
  void* to;
  const void* from;
  std::int64_t count, run, to_step, from_step;
  DType to_dtype, from_dtype;
  std::uint8_t unit;  // 0: elements that are cast
};

struct MoveBatch {
  static constexpr int kMost = 60;  // below the 4 KB that every device takes as arguments
  Move items[kMost];
  std::int64_t ends[kMost];
  int size = 0;
};
static_assert(sizeof(MoveBatch) <= 4096);

template <class U>
__device__ void copy_units(const Move& m, const std::int64_t (&to)[kListItems], const std::int64_t (&from)[kListItems],
                           int count) {
  U units[kListItems];
#pragma unroll
  for (int i = 0; i < kListItems; ++i)
    if (i < count) units[i] = static_cast<const U*>(m.from)[from[i]];
#pragma unroll
  for (int i = 0; i < kListItems; ++i)
    if (i < count) static_cast<U*>(m.to)[to[i]] = units[i];
}

template <class C>
__device__ void cast_elements(const Move& m, const std::int64_t (&to)[kListItems],
                              const std::int64_t (&from)[kListItems], int count) {
  C values[kListItems];
  load_elements(m.from, m.from_dtype, from, values);
#pragma unroll
  for (int i = 0; i < kListItems; ++i)
    if (i < count) store_element<false>(m.to, m.to_dtype, to[i], values[i]);
}

__device__ void move_tile(const Move& m, std::int64_t begin) {
  std::int64_t to[kListItems], from[kListItems];
  int count = 0;
#pragma unroll
  for (int i = 0; i < kListItems; ++i) {
    const std::int64_t at = begin + i * std::int64_t{kListThreads} + thread_index();
    const std::int64_t k = at < m.count ? at : 0;
    count += at < m.count ? 1 : 0;
    to[i] = k / m.run * m.to_step + k % m.run;
    from[i] = k / m.run * m.from_step + k % m.run;
  }
  switch (m.unit) {
    case 0:
      return m.from_dtype == DType::f64 ? cast_elements<double>(m, to, from, count)
                                        : cast_elements<float>(m, to, from, count);
    case 1: return copy_units<std::uint8_t>(m, to, from, count);
    case 2: return copy_units<std::uint16_t>(m, to, from, count);
    case 4: return copy_units<std::uint32_t>(m, to, from, count);
    case 8: return copy_units<std::uint64_t>(m, to, from, count);
    default: return copy_units<Unit16>(m, to, from, count);
  }
}

__global__ void move_list_kernel(MoveBatch batch) {
  for (std::int64_t tile = block_index(); tile < batch.ends[batch.size - 1]; tile += grid_blocks()) {
    const Tile t = tile_of(batch.ends, batch.size, tile);
    move_tile(batch.items[t.item], t.begin);
  }
}

/// A copy in the largest units that its addresses and steps are multiples of.
Move move_of(const ListMove& m) {
  Move move{m.to,
            m.from,
            m.run * m.blocks,
            m.run,
            m.blocks == 1 ? m.run : m.to_step,
            m.blocks == 1 ? m.run : m.from_step,
            m.to_dtype,
            m.from_dtype,
            0};
  if (m.to_dtype != m.from_dtype) return move;
  const std::int64_t size = byte_size(m.to_dtype);
  const std::int64_t all =
      std::gcd(std::gcd(move.run, move.to_step), move.from_step) * size |
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(m.to) | reinterpret_cast<std::uintptr_t>(m.from)) | 16;
  const std::int64_t unit = all & -all;  // the lowest bit
  move.unit = static_cast<std::uint8_t>(unit);
  for (std::int64_t* n : {&move.count, &move.run, &move.to_step, &move.from_step}) *n = *n * size / unit;
  return move;
}

// ---- sums ----

struct Sum {
  std::byte* out;
  std::int64_t count;
  double factor;
  int first, leaves;  // of the batch's inputs
  ReduceKind kind;
  DType in, wire, out_dtype;
  bool rounds_inputs, rounds_result, accumulate;
};

struct SumBatch {
  static constexpr int kMost = 32, kMostInputs = 280;
  const std::byte* inputs[kMostInputs];
  Sum items[kMost];
  std::int64_t ends[kMost];
  int size = 0, num_inputs = 0;
};
static_assert(sizeof(SumBatch) <= 4096);

constexpr int kLevels = std::bit_width(unsigned{SumBatch::kMostInputs});

template <class A>
__device__ A wrapped(std::uint64_t x) {
  return static_cast<A>(x);
}

template <class A>
__device__ A combine(ReduceKind kind, A a, A x) {
  switch (kind) {
    case ReduceKind::max: return x > a || x != x ? x : a;  // a NaN comes in, and nothing replaces it
    case ReduceKind::min: return x < a || x != x ? x : a;
    case ReduceKind::product:
      if constexpr (std::is_integral_v<A>)
        return wrapped<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(x));
      else return a * x;
    default:
      if constexpr (std::is_integral_v<A>)
        return wrapped<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(x));
      else return a + x;
  }
}

template <class A>
__device__ A rounded(A x, DType wire) {
  switch (wire) {
    case DType::bf16: return cast<A>(cast<bf16>(x));
    case DType::f16: return cast<A>(cast<f16>(x));
    default: return cast<A>(cast<float>(x));
  }
}

/// The leaves in order as a binary counter counts: level k holds the sum of 2^k of them while that bit is set.
template <class A>
__device__ A sum_leaves(const Sum& s, const std::byte* const* inputs, std::int64_t i) {
  A level[kLevels];
  for (int r = 0; r < s.leaves; ++r) {
    const std::int64_t at[1] = {i};
    A values[1] = {};
    load_elements(inputs[r], s.in, at, values);
    A x = values[0];
    if constexpr (std::is_floating_point_v<A>)
      if (s.rounds_inputs) x = rounded(x, s.wire);
    bool carries = true;
#pragma unroll
    for (int k = 0; k < kLevels; ++k) {
      if (!carries) continue;
      if (r >> k & 1) {
        x = combine(s.kind, level[k], x);
      } else {
        level[k] = x;
        carries = false;
      }
    }
  }
  A sum{};
  bool has_sum = false;
#pragma unroll
  for (int k = 0; k < kLevels; ++k) {
    if (!(s.leaves >> k & 1)) continue;
    sum = has_sum ? combine(s.kind, level[k], sum) : level[k];
    has_sum = true;
  }
  return sum;
}

/// Adds in the wider of the sum's type and the output's.
template <class Wider>
__device__ void store_sum(const Sum& s, std::int64_t i, Wider value) {
  if (s.accumulate) {
    const std::int64_t at[1] = {i};
    Wider old[1] = {};
    load_elements(s.out, s.out_dtype, at, old);
    value = combine(ReduceKind::sum, old[0], value);
  }
  store_element<false>(s.out, s.out_dtype, i, value);
}

template <class A>
__device__ void sum_element(const Sum& s, const std::byte* const* inputs, std::int64_t i) {
  A sum = sum_leaves<A>(s, inputs, i);
  if constexpr (std::is_floating_point_v<A>) {
    sum *= static_cast<A>(s.factor);
    if (s.rounds_result) sum = rounded(sum, s.wire);
    if (std::is_same_v<A, float> && s.out_dtype == DType::f64) return store_sum(s, i, static_cast<double>(sum));
  }
  store_sum(s, i, sum);
}

template <class A>
__global__ void sum_list_kernel(SumBatch batch) {
  for (std::int64_t tile = block_index(); tile < batch.ends[batch.size - 1]; tile += grid_blocks()) {
    const Tile t = tile_of(batch.ends, batch.size, tile);
    const Sum& s = batch.items[t.item];
    for (std::int64_t i = t.begin + thread_index(); i < s.count && i < t.begin + kTile; i += kListThreads)
      sum_element<A>(s, batch.inputs + s.first, i);
  }
}

Sum sum_of(const ListSum& s, int first) {
  const comm::Reduction& r = s.reduction;
  const std::int64_t width = r.in == DType::f64 ? 8 : 4;  // of the type that floats are added in
  const bool narrows = is_floating(r.in) && byte_size(r.wire) < width;
  return {.out = s.out,
          .count = s.count,
          .factor = r.factor,
          .first = first,
          .leaves = static_cast<int>(s.inputs.size()),
          .kind = r.kind,
          .in = r.in,
          .wire = r.wire,
          .out_dtype = r.out,
          .rounds_inputs = narrows && r.wire != r.in,
          .rounds_result = narrows && r.wire != r.out,
          .accumulate = r.accumulate};
}

// ---- lists ----

template <class Batch>
void append(Batch& batch, std::int64_t count) {
  batch.ends[batch.size] = (batch.size == 0 ? 0 : batch.ends[batch.size - 1]) + (count + kTile - 1) / kTile;
  ++batch.size;
}

template <class Batch>
void launch_batch(cudaStream_t stream, void (*kernel)(Batch), Batch& batch) {
  if (batch.size == 0) return;
  const std::int64_t tiles = batch.ends[batch.size - 1];
  launch(stream, kernel,
         {.blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles, kGroupBlocks)), .threads = kListThreads},
         batch);
  batch.size = 0;
}

/// Launches those of one type of sum.
template <class A>
void sum_list_as(std::span<const ListSum> list, cudaStream_t stream) {
  SumBatch batch{};
  const auto flush = [&] {
    launch_batch(stream, sum_list_kernel<A>, batch);
    batch.num_inputs = 0;
  };
  for (const ListSum& s : list) {
    const bool is_one = visit_compute(s.reduction.in, []<class C>(Type<C>) { return std::is_same_v<A, C>; });
    if (!is_one || s.count == 0) continue;
    check(s.inputs.size() <= SumBatch::kMostInputs,
          "a sum over {} ranks on a device; at most {} can be added in order, "
          "use --sums fast",
          s.inputs.size(), int{SumBatch::kMostInputs});
    const int inputs = static_cast<int>(s.inputs.size());
    if (batch.size == SumBatch::kMost || batch.num_inputs + inputs > SumBatch::kMostInputs) flush();
    std::copy(s.inputs.begin(), s.inputs.end(), batch.inputs + batch.num_inputs);
    batch.items[batch.size] = sum_of(s, batch.num_inputs);
    batch.num_inputs += inputs;
    append(batch, s.count);
  }
  flush();
}

}  // namespace

void move_list(std::span<const ListMove> list, cudaStream_t stream) {
  MoveBatch batch{};
  for (const ListMove& m : list) {
    if (m.run * m.blocks == 0) continue;
    if (batch.size == MoveBatch::kMost) launch_batch(stream, move_list_kernel, batch);
    batch.items[batch.size] = move_of(m);
    append(batch, batch.items[batch.size].count);
  }
  launch_batch(stream, move_list_kernel, batch);
}

void sum_list(std::span<const ListSum> list, cudaStream_t stream) {
  sum_list_as<float>(list, stream);
  sum_list_as<double>(list, stream);
  sum_list_as<std::int64_t>(list, stream);
}

}  // namespace sherd::cuda
