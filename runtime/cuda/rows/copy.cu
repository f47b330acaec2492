// Copies between strided layouts, and the rows that are copies: copy, cat, pad_to. Dims are walked in the order of the
// destination's memory. Elements that lie together on both sides move in units of up to 16 bytes; where the two sides
// disagree about the fast dim (a transpose), tiles go through shared memory, so that both sides are read and written in
// whole lines.
#include "runtime/cuda/rows/copy.h"

#include <cstring>

#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/units.h"
#include "runtime/cuda/rows/walk.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::cuda {

namespace {

constexpr unsigned kCopyThreads = 256;
constexpr int kCopyItems = 4;  // units of a thread, all in flight at once
constexpr int kTile = 64;

// ---- units ----

template <class U>
__global__ void copy_units(const U* from, U* to, Offsets<2> offsets, std::uint32_t count) {
  U values[kCopyItems];
  std::int64_t place[kCopyItems];
  const std::uint32_t first = static_cast<std::uint32_t>(block_index()) * (kCopyThreads * kCopyItems) +
                              static_cast<std::uint32_t>(thread_index());
#pragma unroll
  for (int i = 0; i < kCopyItems; ++i) {
    const std::uint32_t unit = first + static_cast<std::uint32_t>(i) * kCopyThreads;
    std::int64_t at[2];
    offsets.at(unit < count ? unit : 0, at);
    place[i] = at[0];
    values[i] = load_vec<1>(from + at[1])[0];
  }
#pragma unroll
  for (int i = 0; i < kCopyItems; ++i)
    if (first + static_cast<std::uint32_t>(i) * kCopyThreads < count) store_vec(to + place[i], Vec<U, 1>{values[i]});
}

template <class U>
__global__ void fill_units(U* to, Offsets<1> offsets, std::uint32_t count, U value) {
  const std::uint32_t first = static_cast<std::uint32_t>(block_index()) * (kCopyThreads * kCopyItems) +
                              static_cast<std::uint32_t>(thread_index());
#pragma unroll
  for (int i = 0; i < kCopyItems; ++i) {
    const std::uint32_t unit = first + static_cast<std::uint32_t>(i) * kCopyThreads;
    if (unit >= count) return;
    std::int64_t at[1];
    offsets.at(unit, at);
    store_vec(to + at[0], Vec<U, 1>{value});
  }
}

unsigned blocks_of(std::int64_t count) {
  return static_cast<unsigned>((count + kCopyThreads * kCopyItems - 1) / (kCopyThreads * kCopyItems));
}

/// The widest unit of whole elements in which a walk can be done, in elements: all operands dense along the last dim,
/// everything else a multiple.
std::int64_t elements_of_unit(const Walk& walk, std::int64_t element_bytes, std::span<const void* const> starts) {
  for (int k = 0; k < walk.operands; ++k)
    if (walk.inner_stride(k) != 1) return 1;
  for (std::int64_t unit = 16; unit > element_bytes; unit /= 2) {
    const std::int64_t elements = unit / element_bytes;
    bool fits = walk.inner() % elements == 0;
    for (const void* start : starts)
      fits = fits && reinterpret_cast<std::uintptr_t>(start) % static_cast<std::uintptr_t>(unit) == 0;
    for (int k = 0; k < walk.operands; ++k)
      for (int d = 0; d + 1 < walk.ndim; ++d) fits = fits && walk.stride[d][k] % elements == 0;
    if (fits) return elements;
  }
  return 1;
}

/// The walk of the units, offsets counted in units.
Walk of_units(Walk walk, std::int64_t elements) {
  if (elements == 1) return walk;
  walk.size[walk.ndim - 1] /= elements;
  for (int d = 0; d + 1 < walk.ndim; ++d)
    for (int k = 0; k < walk.operands; ++k) walk.stride[d][k] /= elements;
  return walk;
}

// ---- transposes ----

/// Two dims of a walk and what is around them: `from` is dense along `a`, `to` along `b`.
struct Transpose {
  std::int64_t a, b;          // sizes
  std::int64_t from_b, to_a;  // strides
  FastDivide tiles_a, tiles_b;
  Offsets<2> around;
};

template <class U>
inline constexpr int kPitch = kTile + (sizeof(U) < 4 ? 4 / static_cast<int>(sizeof(U)) : 1);  // no bank conflicts
template <class U>
struct Tile {
  U values[kTile][kPitch<U>];
};

template <class U>
__global__ void copy_transposed(const U* from, U* to, Transpose t) {
  constexpr int kRows = static_cast<int>(kCopyThreads) / kTile, kSteps = kTile / kRows;
  auto& tile = shared<Tile<U>>();
  std::uint32_t tile_a, tile_b;
  const std::uint32_t rest = t.tiles_a.divide(static_cast<std::uint32_t>(block_index()), tile_a);
  const std::uint32_t batch = t.tiles_b.divide(rest, tile_b);
  std::int64_t at[2];
  t.around.at(batch, at);
  const std::int64_t first_a = std::int64_t{tile_a} * kTile, first_b = std::int64_t{tile_b} * kTile;
  const int column = thread_index() % kTile, row = thread_index() / kTile;
  const U* source = from + at[1] + first_b * t.from_b + first_a;
  U* target = to + at[0] + first_a * t.to_a + first_b;
  U values[kSteps];  // all loads first
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int r = row + i * kRows;
    const bool inside = first_b + r < t.b && first_a + column < t.a;
    values[i] = inside ? source[r * t.from_b + column] : U{};
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) tile.values[row + i * kRows][column] = values[i];
  sync_block();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int r = row + i * kRows;
    if (first_a + r < t.a && first_b + column < t.b) target[r * t.to_a + column] = tile.values[column][r];
  }
}

/// The dim along which `from` is dense, if it is another one than that of `to` and worth tiles; else -1.
int transposed_dim(const Walk& walk) {
  const int last = walk.ndim - 1;
  if (walk.inner_stride(0) != 1 || walk.inner_stride(1) == 1 || walk.inner() < 8) return -1;
  for (int d = 0; d < last; ++d)
    if (walk.stride[d][1] == 1 && walk.size[d] >= 8) return d;
  return -1;
}

template <class U>
void run_transposed(cudaStream_t stream, const Walk& walk, int dim, const U* from, U* to) {
  const int last = walk.ndim - 1;
  Walk around;
  around.operands = 2;
  int n = 0;
  for (int d = 0; d < last; ++d) {
    if (d == dim) continue;
    around.size[n] = walk.size[d];
    for (int k = 0; k < 2; ++k) around.stride[n][k] = walk.stride[d][k];
    ++n;
  }
  around.ndim = std::max(n, 1);
  const std::int64_t tiles_a = (walk.size[dim] + kTile - 1) / kTile, tiles_b = (walk.inner() + kTile - 1) / kTile;
  const Transpose t{walk.size[dim],
                    walk.inner(),
                    walk.stride[last][1],
                    walk.stride[dim][0],
                    FastDivide(static_cast<std::uint32_t>(tiles_a)),
                    FastDivide(static_cast<std::uint32_t>(tiles_b)),
                    Offsets<2>(around, 0)};
  launch(stream, copy_transposed<U>,
         {.blocks = static_cast<unsigned>(tiles_a * tiles_b * around.numel()),
          .threads = kCopyThreads,
          .shared_bytes = sizeof(Tile<U>)},
         from, to, t);
}

// ---- rows ----

void copy(const KernelCall& call) {
  const Tensor &from = call.in[0], &to = call.out[0];
  Context& context = context_of(call);
  if (call.accumulate)
    return strided_convert(context, from.shape(), from.dtype(), layout_of(from), to.dtype(), layout_of(to), true);
  strided_copy(context, from.dtype(), from.shape(), layout_of(from), layout_of(to));
}

/// The part of `whole` that starts at `start` along `dim`.
Layout layout_at(const Tensor& whole, int dim, std::int64_t start) {
  return {static_cast<std::byte*>(whole.raw()) + start * whole.strides()[dim] * byte_size(whole.dtype()),
          whole.strides()};
}

void cat(const KernelCall& call) {
  const Tensor& to = call.out[0];
  const int dim = call.attrs.as<DimAttrs>().dim;
  std::int64_t start = 0;
  for (const Tensor& part : call.in) {
    strided_copy(context_of(call), part.dtype(), part.shape(), layout_of(part), layout_at(to, dim, start));
    start += part.shape()[dim];
  }
}

void pad_to(const KernelCall& call) {
  const auto& attrs = call.attrs.as<PadToAttrs>();
  const Tensor &part = call.in[0], &to = call.out[0];
  Context& context = context_of(call);
  const Layout into = layout_at(to, attrs.dim, attrs.start);
  if (call.accumulate)
    return strided_convert(context, part.shape(), part.dtype(), layout_of(part), to.dtype(), into, true);
  constexpr std::uint64_t kZero = 0;
  const std::int64_t end = attrs.start + part.shape()[attrs.dim];
  Shape around = to.shape();
  around[attrs.dim] = attrs.start;
  strided_fill(context, to.dtype(), around, layout_of(to), &kZero);
  around[attrs.dim] = attrs.size - end;
  strided_fill(context, to.dtype(), around, layout_at(to, attrs.dim, end), &kZero);
  strided_copy(context, part.dtype(), part.shape(), layout_of(part), into);
}

}  // namespace

void strided_copy(Context& context, DType dtype, const Shape& shape, const Layout& from, const Layout& to) {
  const Strides strides[] = {to.strides, from.strides};
  const Walk whole = make_walk_along(shape, strides, 0);
  const std::int64_t bytes = byte_size(dtype);
  if (whole.numel() == 0) return;
  if (whole.ndim == 1 && whole.stride[0][0] == 1 && whole.stride[0][1] == 1)
    return context.copy(to.data, from.data, whole.numel() * bytes);
  for_each_part(whole, kMaxLaunch, [&](const Walk& part) {
    auto* target = static_cast<std::byte*>(to.data) + part.base[0] * bytes;
    const auto* source = static_cast<const std::byte*>(from.data) + part.base[1] * bytes;
    const int dim = transposed_dim(part);
    const void* const starts[] = {target, source};
    const std::int64_t elements = dim >= 0 ? 1 : elements_of_unit(part, bytes, starts);
    visit_unit(elements * bytes, [&]<class U>(Type<U>) {
      const auto* source_units = reinterpret_cast<const U*>(source);
      auto* target_units = reinterpret_cast<U*>(target);
      if constexpr (sizeof(U) <= sizeof(std::uint64_t))
        if (dim >= 0) return run_transposed(context.stream(), part, dim, source_units, target_units);
      const Walk units = of_units(part, elements);
      launch(context.stream(), copy_units<U>, {.blocks = blocks_of(units.numel()), .threads = kCopyThreads},
             source_units, target_units, Offsets<2>(units, 0), static_cast<std::uint32_t>(units.numel()));
    });
  });
}

void strided_fill(Context& context, DType dtype, const Shape& shape, const Layout& to, const void* value) {
  const Strides strides[] = {to.strides};
  const std::int64_t bytes = byte_size(dtype);
  for_each_part(make_walk_along(shape, strides, 0), kMaxLaunch, [&](const Walk& part) {
    auto* target = static_cast<std::byte*>(to.data) + part.base[0] * bytes;
    const void* const starts[] = {target};
    const std::int64_t elements = elements_of_unit(part, bytes, starts);
    const Walk units = of_units(part, elements);
    visit_unit(elements * bytes, [&]<class U>(Type<U>) {
      U pattern;
      for (std::int64_t i = 0; i < elements; ++i)
        std::memcpy(reinterpret_cast<std::byte*>(&pattern) + i * bytes, value, static_cast<std::size_t>(bytes));
      launch(context.stream(), fill_units<U>, {.blocks = blocks_of(units.numel()), .threads = kCopyThreads},
             reinterpret_cast<U*>(target), Offsets<1>(units, 0), static_cast<std::uint32_t>(units.numel()), pattern);
    });
  });
}

void register_copy(OpTable& table) {
  static constexpr KernelEntry kEntries[] = {{op::copy, copy}, {op::cat, cat}, {op::pad_to, pad_to}};
  add_kernels(table, kEntries);
}

}  // namespace sherd::cuda
