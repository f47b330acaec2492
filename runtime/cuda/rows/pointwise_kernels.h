#pragma once
// The kernels behind the pointwise rows (op/pointwise_list.h), for the files that instantiate them. Two paths:
//
//   vectors   one dtype, every input dense or constant along the last dim: 16 bytes per access; a kernel per functor
//             and dtype (f32, bf16, f16). Rows of a larger tensor and broadcasts of either dim are such inputs. Not for
//             functors whose arithmetic takes longer than their memory (kBoundByMemory).
//   elements  any dtypes and strides: an element per access, dtypes and functor chosen when it runs; a kernel per
//   compute
//             type and number of inputs.
#include <type_traits>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/elements.h"
#include "runtime/cuda/rows/walk.h"
#include "runtime/op/rows/pointwise_list.h"

namespace sherd::cuda::detail {

inline constexpr unsigned kThreads = 256;

template <class F, class C, int kIn>
inline constexpr bool kComputes = kIn == 1   ? std::is_invocable_v<F, C>
                                  : kIn == 2 ? std::is_invocable_v<F, C, C>
                                             : std::is_invocable_v<F, C, C, C>;

template <class F, class C>
__device__ auto apply(const F& f, const C (&x)[1]) {
  return f(x[0]);
}
template <class F, class C>
__device__ auto apply(const F& f, const C (&x)[2]) {
  return f(x[0], x[1]);
}
template <class F, class C>
__device__ auto apply(const F& f, const C (&x)[3]) {
  return f(x[0], x[1], x[2]);
}

// ---- vectors ----

template <int kIn>
struct VectorArgs {
  const void* in[kIn];
  void* out[2];
  Offsets<kIn> offsets;  // of units of a vector
  std::uint32_t units;   // whole vectors
  std::uint32_t total;   // units, and one for each element after them
  bool constant[kIn];    // along the last dim
};

template <class S, class C, int V>
__device__ void load_run(const void* data, std::int64_t at, bool constant, C (&x)[V]) {
  const S* p = static_cast<const S*>(data) + at;
  if (constant) {
    const C value = cast<C>(*p);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = value;
  } else {
    const Vec<S, V> v = load_vec<V>(p);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = cast<C>(v[i]);
  }
}

/// False for what computes a hundred instructions per element, and is rare: vectors would multiply its code.
template <class F>
inline constexpr bool kBoundByMemory = true;
template <class M>
inline constexpr bool kBoundByMemory<pointwise::Sin<M>> = false;
template <class M>
inline constexpr bool kBoundByMemory<pointwise::Cos<M>> = false;
template <>
inline constexpr bool kBoundByMemory<pointwise::PowScalar> = false;

/// Enough loads in flight: two of the only input, or one of each.
template <int kIn>
inline constexpr int kVectorsOfThread = kIn == 1 ? 2 : 1;

// First is the dtype of the first input, T of the others and of the results.
template <class F, class T, class First, int kIn>
__global__ void vector_pointwise(F f, VectorArgs<kIn> args) {
  using C = Compute<T>;
  constexpr int V = kVecElements<T>, kItems = kVectorsOfThread<kIn>;
  constexpr bool two = std::is_same_v<decltype(apply(f, std::declval<const C(&)[kIn]>())), pointwise::Two<C>>;
  const auto load = [&](std::int64_t(&at)[kIn], C(&x)[kIn][V]) {
    load_run<First>(args.in[0], at[0], args.constant[0], x[0]);
#pragma unroll
    for (int k = 1; k < kIn; ++k) load_run<T>(args.in[k], at[k], args.constant[k], x[k]);
  };
  C x[kItems][kIn][V];
  const std::uint32_t first =
      static_cast<std::uint32_t>(block_index()) * (kThreads * kItems) + static_cast<std::uint32_t>(thread_index());
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const std::uint32_t unit = first + static_cast<std::uint32_t>(item) * kThreads;
    if (unit >= args.units) continue;
    std::int64_t at[kIn];
    args.offsets.at(unit, at);
    load(at, x[item]);
  }
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const std::uint32_t unit = first + static_cast<std::uint32_t>(item) * kThreads;
    if (unit >= args.total) return;
    if (unit < args.units) {
      Vec<T, V> y, z;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        C element[kIn];
#pragma unroll
        for (int k = 0; k < kIn; ++k) element[k] = x[item][k][i];
        if constexpr (two) {
          const auto values = apply(f, element);
          y[i] = from_compute<T>(values.first);
          z[i] = from_compute<T>(values.second);
        } else {
          y[i] = from_compute<T>(apply(f, element));
        }
      }
      store_vec(static_cast<T*>(args.out[0]) + std::int64_t{unit} * V, y);
      if constexpr (two) store_vec(static_cast<T*>(args.out[1]) + std::int64_t{unit} * V, z);
    } else {  // the tail of a walk of one dim
      const std::int64_t at = std::int64_t{args.units} * V + (unit - args.units);
      C element[kIn];
      element[0] = cast<C>(static_cast<const First*>(args.in[0])[args.constant[0] ? 0 : at]);
#pragma unroll
      for (int k = 1; k < kIn; ++k) element[k] = cast<C>(static_cast<const T*>(args.in[k])[args.constant[k] ? 0 : at]);
      if constexpr (two) {
        const auto values = apply(f, element);
        static_cast<T*>(args.out[0])[at] = from_compute<T>(values.first);
        static_cast<T*>(args.out[1])[at] = from_compute<T>(values.second);
      } else {
        static_cast<T*>(args.out[0])[at] = from_compute<T>(apply(f, element));
      }
    }
  }
}

inline bool is_aligned(const void* p, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

/// The start of operand `k` of a part of a walk.
inline std::byte* start_of(const Tensor& t, const Walk& walk, int k) {
  return static_cast<std::byte*>(t.raw()) + walk.base[k] * byte_size(t.dtype());
}

/// Launches the vector path on a part of the walk {output, inputs...} if it fits.
template <class T, class First, class F, int kIn>
bool run_vectors(const KernelCall& call, const Walk& walk, const F& f) {
  constexpr std::int64_t V = kVecElements<T>;
  constexpr unsigned kPerBlock = kThreads * kVectorsOfThread<kIn>;
  const std::int64_t inner = walk.inner();
  if (walk.ndim > 1 && inner % V != 0) return false;
  VectorArgs<kIn> args{};
  for (std::size_t k = 0; k < call.out.size(); ++k) {
    args.out[k] = start_of(call.out[k], walk, 0);
    if (call.out[k].dtype() != dtype_of<T> || !is_aligned(args.out[k], 16)) return false;
  }
  for (int k = 0; k < kIn; ++k) {
    const Tensor& t = call.in[static_cast<std::size_t>(k)];
    args.in[k] = start_of(t, walk, k + 1);
    if (t.dtype() != (k == 0 ? dtype_of<First> : dtype_of<T>)) return false;
    args.constant[k] = walk.inner_stride(k + 1) == 0;
    if (args.constant[k]) continue;
    if (walk.inner_stride(k + 1) != 1 && inner > 1) return false;
    if (!is_aligned(args.in[k], static_cast<std::size_t>(V * byte_size(t.dtype())))) return false;
    for (int d = 0; d + 1 < walk.ndim; ++d)
      if (walk.stride[d][k + 1] % V != 0) return false;
  }
  const std::int64_t total = walk.numel();
  args.units = static_cast<std::uint32_t>(total / V);
  args.total = args.units + static_cast<std::uint32_t>(total % V);
  args.offsets = Offsets<kIn>(in_units(walk, V), 1);
  launch(context_of(call).stream(), vector_pointwise<F, T, First, kIn>,
         {.blocks = (args.total + kPerBlock - 1) / kPerBlock, .threads = kThreads}, f, args);
  return true;
}

// ---- elements ----

template <int kIn>
struct ElementArgs {
  const void* in[kIn];
  DType in_dtype[kIn];
  DType out_dtype;
  void* out[2];
  Offsets<kIn> offsets;
  std::uint32_t count;
  int functor;  // place in the list
  double constants[2];
};

template <class F>
__device__ F with_constants(const double (&c)[2]) {
  if constexpr (requires { F{c[0], c[1]}; }) return F{c[0], c[1]};
  else if constexpr (requires { F{c[0]}; }) return F{c[0]};
  else return F{};
}

template <class F, class C, int kIn, int N>
__device__ void compute(const double (&constants)[2], const C (&x)[kIn][N], C (&y)[N], C (&z)[N]) {
  if constexpr (kComputes<F, C, kIn>) {
    const F f = with_constants<F>(constants);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      C element[kIn];
#pragma unroll
      for (int k = 0; k < kIn; ++k) element[k] = x[k][i];
      const auto value = apply(f, element);
      if constexpr (std::is_same_v<decltype(value), const pointwise::Two<C>>) {
        y[i] = value.first;
        z[i] = value.second;
      } else {
        y[i] = value;
      }
    }
  }
}

template <class C, int kIn, class... Fs>
__global__ void element_pointwise(ElementArgs<kIn> args) {
  constexpr int N = 4;
  std::uint32_t index[N];
  std::int64_t at[kIn][N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    index[i] = static_cast<std::uint32_t>(block_index()) * (kThreads * N) + static_cast<std::uint32_t>(i) * kThreads +
               static_cast<std::uint32_t>(thread_index());
    std::int64_t offset[kIn];
    args.offsets.at(index[i] < args.count ? index[i] : 0, offset);  // element 0 is there and not written
#pragma unroll
    for (int k = 0; k < kIn; ++k) at[k][i] = offset[k];
  }
  C x[kIn][N] = {}, y[N] = {}, z[N] = {};
#pragma unroll
  for (int k = 0; k < kIn; ++k) load_elements(args.in[k], args.in_dtype[k], at[k], x[k]);
  int place = 0;
  ((place++ == args.functor ? compute<Fs>(args.constants, x, y, z) : void()), ...);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (index[i] >= args.count) return;
    store_element<false>(args.out[0], args.out_dtype, index[i], y[i]);
    if (args.out[1]) store_element<false>(args.out[1], args.out_dtype, index[i], z[i]);
  }
}

/// Functors of one number of inputs: they share the kernels of the element path.
template <int kIn, class... Fs>
struct Family {
  template <class F>
  static constexpr int place() {
    int i = 0, found = -1;
    const auto look = [&](bool is_it) {
      if (is_it) found = i;
      ++i;
    };
    (look(std::is_same_v<F, Fs>), ...);
    return found;
  }

  template <class F>
  static void run_elements(const KernelCall& call, DType dtype, const Walk& walk, const double (&constants)[2]) {
    static_assert(place<F>() >= 0);
    ElementArgs<kIn> args{};
    args.out_dtype = call.out[0].dtype();
    args.offsets = Offsets<kIn>(walk, 1);
    args.count = static_cast<std::uint32_t>(walk.numel());
    args.functor = place<F>();
    args.constants[0] = constants[0];
    args.constants[1] = constants[1];
    for (int k = 0; k < kIn; ++k) {
      const Tensor& t = call.in[static_cast<std::size_t>(k)];
      args.in[k] = start_of(t, walk, k + 1);
      args.in_dtype[k] = t.dtype();
    }
    for (std::size_t k = 0; k < call.out.size(); ++k) args.out[k] = start_of(call.out[k], walk, 0);
    visit_compute(dtype, [&]<class C>(Type<C>) {
      if constexpr (kComputes<F, C, kIn>)
        launch(context_of(call).stream(), element_pointwise<C, kIn, Fs...>,
               {.blocks = (args.count + 4 * kThreads - 1) / (4 * kThreads), .threads = kThreads}, args);
      else fail("{} is not defined for {}", call.op.name, name(dtype));
    });
  }

  static Walk walk_of(const KernelCall& call) {
    const Shape& shape = call.out[0].shape();
    Strides strides[1 + kIn] = {contiguous_strides(shape)};
    for (int k = 0; k < kIn; ++k) {
      const Tensor& t = call.in[static_cast<std::size_t>(k)];
      strides[k + 1] = broadcast_strides(t.shape(), t.strides(), shape);
    }
    return make_walk(shape, strides);
  }

  /// Rows of numbers, computed in the compute type of their result. First is the storage type of the first input where
  /// it is not that of the result.
  template <class F, class First = void>
  static void run(const KernelCall& call, [[maybe_unused]] const F& f, const double (&constants)[2]) {
    const DType dtype = call.out[0].dtype();
    for_each_part(walk_of(call), kMaxLaunch, [&](const Walk& part) {
      bool done = false;
      if constexpr (kBoundByMemory<F>) {
        const auto vectors = [&]<class T>(Type<T>) {
          using S = std::conditional_t<std::is_void_v<First>, T, First>;
          return run_vectors<T, S, F, kIn>(call, part, f);
        };
        if (dtype == DType::f32) done = vectors(Type<float>{});
        else if (dtype == DType::bf16) done = vectors(Type<bf16>{});
        else if (dtype == DType::f16) done = vectors(Type<f16>{});
      }
      if (!done) run_elements<F>(call, dtype, part, constants);
    });
  }

  /// Rows of flags, computed in the compute type of `dtype`.
  template <class F>
  static void run_flags(const KernelCall& call, DType dtype) {
    for_each_part(walk_of(call), kMaxLaunch, [&](const Walk& part) { run_elements<F>(call, dtype, part, {0, 0}); });
  }
};

// ---- rows ----

// The functors of kIn inputs among those of a list.
template <int kIn, class Entries, class... Fs>
struct FamilyOf;
template <int kIn, class... Fs>
struct FamilyOf<kIn, pointwise::List<>, Fs...> {
  using Type = Family<kIn, Fs...>;
};
template <int kIn, class E, class... Rest, class... Fs>
struct FamilyOf<kIn, pointwise::List<E, Rest...>, Fs...>
    : std::conditional_t<pointwise::kNumInputs<typename E::Functor> == kIn,
                         FamilyOf<kIn, pointwise::List<Rest...>, Fs..., typename E::Functor>,
                         FamilyOf<kIn, pointwise::List<Rest...>, Fs...>> {};

using PointwiseRows = pointwise::Rows<Math>;

template <class E>
void pointwise_row(const KernelCall& call) {
  using F = typename E::Functor;
  using Functors = typename FamilyOf<pointwise::kNumInputs<F>, PointwiseRows>::Type;
  if constexpr (E::computes == pointwise::Computes::in_promoted) {
    Functors::template run_flags<F>(call, pointwise::promoted(call.in));
  } else if constexpr (std::is_same_v<F, pointwise::Where>) {  // its first input is bool
    Functors::template run<F, bool>(call, F{}, {0, 0});
  } else {
    const std::array<double, 2> constants = pointwise::constants_of<F>(call.attrs);
    Functors::run(call, pointwise::functor_of<F>(constants), {constants[0], constants[1]});
  }
}

/// Registers the rows of kIn inputs.
template <int kIn>
void register_rows(OpTable& table) {
  PointwiseRows::for_each([&]<class E>(E) {
    if constexpr (pointwise::kNumInputs<typename E::Functor> == kIn)
      table.kernel(E::row, Device::Kind::cuda, pointwise_row<E>);
  });
}

}  // namespace sherd::cuda::detail
