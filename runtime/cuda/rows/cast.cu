// Conversion between dtypes, with or without adding to what is there. Between f32 and the 16-bit floats, vectors of 16
// bytes on the narrower side; any other pair and any strides, element by element with the dtypes chosen at run time.
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/copy.h"
#include "runtime/cuda/rows/elements.h"
#include "runtime/cuda/rows/walk.h"

namespace sherd::cuda {

namespace {

constexpr unsigned kCastThreads = 256;
constexpr int kCastItems = 4;

template <class To, class From>
inline constexpr int kWidth = std::max(kVecElements<To>, kVecElements<From>);

// One vector of each thread, or one element of the tail of a walk of one dim.
template <class To, class From, bool add>
__global__ void convert_vectors(const From* from, To* to, Offsets<2> offsets, std::uint32_t units,
                                std::uint32_t total) {
  constexpr int V = kWidth<To, From>;
  const auto unit = static_cast<std::uint32_t>(grid_thread());
  if (unit < units) {
    std::int64_t at[2];
    offsets.at(unit, at);
    const Vec<From, V> x = load_vec<V>(from + at[1]);
    Vec<To, V> y;
    if constexpr (add) y = load_vec<V>(to + at[0]);
#pragma unroll
    for (int i = 0; i < V; ++i) store_as<add>(&y[i], x[i]);
    store_vec(to + at[0], y);
  } else if (unit < total) {
    const std::int64_t at = std::int64_t{units} * V + (unit - units);
    store_as<add>(to + at, from[at]);
  }
}

struct ConvertArgs {
  const void* from;
  void* to;
  DType from_dtype, to_dtype;
  Offsets<2> offsets;
  std::uint32_t count;
};

template <class C, bool add>
__global__ void convert_elements(ConvertArgs args) {
  std::uint32_t index[kCastItems];
  std::int64_t source[kCastItems], target[kCastItems];
#pragma unroll
  for (int i = 0; i < kCastItems; ++i) {
    index[i] = static_cast<std::uint32_t>(block_index()) * (kCastThreads * kCastItems) +
               static_cast<std::uint32_t>(i) * kCastThreads + static_cast<std::uint32_t>(thread_index());
    std::int64_t at[2];
    args.offsets.at(index[i] < args.count ? index[i] : 0, at);
    target[i] = at[0];
    source[i] = at[1];
  }
  C values[kCastItems] = {};
  load_elements(args.from, args.from_dtype, source, values);
#pragma unroll
  for (int i = 0; i < kCastItems; ++i)
    if (index[i] < args.count) store_element<add>(args.to, args.to_dtype, target[i], values[i]);
}

/// Calls fn(Type<To>{}, Type<From>{}) for the pairs that have a vector kernel. Equal dtypes are converted only to add.
template <class Fn>
bool visit_pair(DType to, DType from, const Fn& fn) {
  const auto is = [&](DType a, DType b) { return to == a && from == b; };
  if (is(DType::f32, DType::bf16)) return fn(Type<float>{}, Type<bf16>{});
  if (is(DType::bf16, DType::f32)) return fn(Type<bf16>{}, Type<float>{});
  if (is(DType::f32, DType::f16)) return fn(Type<float>{}, Type<f16>{});
  if (is(DType::f16, DType::f32)) return fn(Type<f16>{}, Type<float>{});
  if (is(DType::f32, DType::f32)) return fn(Type<float>{}, Type<float>{});
  if (is(DType::bf16, DType::bf16)) return fn(Type<bf16>{}, Type<bf16>{});
  if (is(DType::f16, DType::f16)) return fn(Type<f16>{}, Type<f16>{});
  return false;
}

bool is_aligned(const void* p, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(std::min<std::int64_t>(bytes, 16)) == 0;
}

template <class To, class From, bool add>
bool run_vectors(cudaStream_t stream, const Walk& walk, const From* from, To* to) {
  constexpr std::int64_t V = kWidth<To, From>;
  if (walk.inner_stride(0) != 1 || walk.inner_stride(1) != 1 || (walk.ndim > 1 && walk.inner() % V != 0)) return false;
  if (!is_aligned(from, V * static_cast<std::int64_t>(sizeof(From))) ||
      !is_aligned(to, V * static_cast<std::int64_t>(sizeof(To))))
    return false;
  for (int d = 0; d + 1 < walk.ndim; ++d)
    if (walk.stride[d][0] % V != 0 || walk.stride[d][1] % V != 0) return false;
  const std::int64_t units = walk.numel() / V, total = units + walk.numel() % V;
  launch(stream, convert_vectors<To, From, add>,
         {.blocks = static_cast<unsigned>((total + kCastThreads - 1) / kCastThreads), .threads = kCastThreads}, from,
         to, Offsets<2>(in_units(walk, V), 0), static_cast<std::uint32_t>(units), static_cast<std::uint32_t>(total));
  return true;
}

template <bool add>
void convert_strided(cudaStream_t stream, const Shape& shape, DType from_dtype, const Layout& from, DType to_dtype,
                     const Layout& to) {
  const Strides strides[] = {to.strides, from.strides};
  for_each_part(make_walk_along(shape, strides, 0), kMaxLaunch, [&](const Walk& part) {
    const void* source = static_cast<const std::byte*>(from.data) + part.base[1] * byte_size(from_dtype);
    void* target = static_cast<std::byte*>(to.data) + part.base[0] * byte_size(to_dtype);
    const bool done = visit_pair(to_dtype, from_dtype, [&]<class To, class From>(Type<To>, Type<From>) {
      if constexpr (!add && std::is_same_v<To, From>) return false;
      else return run_vectors<To, From, add>(stream, part, static_cast<const From*>(source), static_cast<To*>(target));
    });
    if (done) return;
    const auto count = static_cast<std::uint32_t>(part.numel());
    const ConvertArgs args{source, target, from_dtype, to_dtype, Offsets<2>(part, 0), count};
    // Integers stay exact, floats go to 16 bits in one rounding.
    visit_compute(from_dtype, [&]<class C>(Type<C>) {
      launch(stream, convert_elements<C, add>,
             {.blocks = (count + kCastThreads * kCastItems - 1) / (kCastThreads * kCastItems), .threads = kCastThreads},
             args);
    });
  });
}

void cast_kernel(const KernelCall& call) {
  const Tensor &from = call.in[0], &to = call.out[0];
  strided_convert(context_of(call), to.shape(), from.dtype(), layout_of(from), to.dtype(), layout_of(to),
                  call.accumulate);
}

}  // namespace

void strided_convert(Context& context, const Shape& shape, DType from_dtype, const Layout& from, DType to_dtype,
                     const Layout& to, bool add) {
  if (add) convert_strided<true>(context.stream(), shape, from_dtype, from, to_dtype, to);
  else convert_strided<false>(context.stream(), shape, from_dtype, from, to_dtype, to);
}

void register_cast(OpTable& table) { table.kernel(op::cast, Device::Kind::cuda, cast_kernel); }

}  // namespace sherd::cuda
