// Random rows from Philox4x32-10 (op/philox.h), with the bits of the CPU: element i lies in block i / 4, word i % 4,
// whatever the launch. A thread draws two blocks, eight elements. Uniform values and dropout's masks are those of the
// CPU bit for bit; normal ones differ by the rounding of the logarithm.
#include <bit>
#include <cmath>

#include "runtime/cuda/copy.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/launch.h"
#include "runtime/op/attr_types.h"
#include "runtime/op/philox.h"

namespace sherd::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr int kGroup = 8;  // elements of a thread

/// What draws: the key, and the step on the device (null: step 0).
struct Source {
  std::uint64_t key;
  const std::int64_t* step;
};

Source source_of(std::uint64_t key, const KernelCall& call, std::size_t step_input) {
  const bool has_step = step_input < call.in.size() && call.in[step_input].defined();
  return {key, has_step ? call.in[step_input].data<std::int64_t>() : nullptr};
}

__device__ std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
__device__ std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }
/// [0, 1), 24 bits.
__device__ float unit(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
}

__device__ void draw_words(const Source& source, std::uint64_t block, std::uint32_t (&words)[4]) {
  const auto step = source.step ? static_cast<std::uint64_t>(*source.step) : 0;
  const auto drawn = philox4x32({low(block), high(block), low(step), high(step)}, {low(source.key), high(source.key)});
  for (std::size_t i = 0; i < 4; ++i) words[i] = drawn[i];
}

struct Uniform {
  float low, width, high, below;  // below: the largest value under `high`, the interval is half open
  Uniform(float a, float b) : low(a), width(b - a), high(b), below(std::nextafter(b, a)) {}
  __device__ void operator()(const std::uint32_t (&words)[4], float (&values)[4]) const {
    for (int i = 0; i < 4; ++i) {
      const float x = std::fma(unit(words[i]), width, low);
      values[i] = x < high ? x : below;
    }
  }
};

/// sin(2 pi u) and cos(2 pi u) for 0 <= u < 1: the nearest quarter turn is taken off, which is exact, and two
/// polynomials on [-pi/4, pi/4] cover what is left, as on the CPU.
__device__ void turn(float u, float& sine, float& cosine) {
  constexpr float kShift = 12582912.0f;  // adding 1.5 * 2^23 rounds to the nearest integer
  const float shifted = 4.0f * u + kShift;
  const float angle = (4.0f * u - (shifted - kShift)) * 1.57079632679489662f;
  const std::int32_t quadrant = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kShift);
  const float s = angle * angle;
  float sin = -1.9515295891e-4f;
  sin = std::fma(sin, s, 8.3321608736e-3f);
  sin = std::fma(sin, s, -1.6666654611e-1f);
  sin = std::fma(sin * s, angle, angle);
  float cos = 2.443315711809948e-5f;
  cos = std::fma(cos, s, -1.388731625493765e-3f);
  cos = std::fma(cos, s, 4.166664568298827e-2f);
  cos = std::fma(cos * s, s, std::fma(-0.5f, s, 1.0f));
  const bool odd = (quadrant & 1) != 0;
  sine = odd ? cos : sin;
  cosine = odd ? sin : cos;
  if (quadrant & 2) sine = -sine;
  if ((quadrant + 1) & 2) cosine = -cosine;
}

struct Normal {
  float mean, std;
  Normal(float a, float b) : mean(a), std(b) {}
  __device__ void operator()(const std::uint32_t (&words)[4], float (&values)[4]) const {
    for (int i = 0; i < 4; i += 2) {
      const float u = unit(words[i]) + 0x1p-24f;  // (0, 1]: the logarithm is finite
      const float radius = std::sqrt(-2.0f * Math::log(u));
      float sine, cosine;
      turn(unit(words[i + 1]), sine, cosine);
      values[i] = std::fma(radius * cosine, std, mean);
      values[i + 1] = std::fma(radius * sine, std, mean);
    }
  }
};

/// The eight values of a thread: global elements [8 group, 8 group + 8).
template <class Transform>
__device__ void draw_group(const Source& source, const Transform& transform, std::uint64_t group,
                           float (&values)[kGroup]) {
  for (std::uint64_t half = 0; half < 2; ++half) {
    std::uint32_t words[4];
    float drawn[4];
    draw_words(source, 2 * group + half, words);
    transform(words, drawn);
    for (std::uint64_t i = 0; i < 4; ++i) values[4 * half + i] = drawn[i];
  }
}

/// Elements of one call: `count` from global element `first` on. Aligned: every thread's eight are whole and on a
/// boundary of vectors, but for the last's.
struct Range {
  std::int64_t first, count;
  bool aligned;
};

Range range_of(std::int64_t first, const Tensor& out, const void* in) {
  const auto bits = reinterpret_cast<std::uintptr_t>(out.raw()) | reinterpret_cast<std::uintptr_t>(in);
  return {first, out.numel(), first % kGroup == 0 && bits % 16 == 0};
}

unsigned blocks_of(const Range& range) {
  if (range.count == 0) return 0;
  const std::int64_t groups = (range.first + range.count - 1) / kGroup - range.first / kGroup + 1;
  return static_cast<unsigned>((groups + kThreads - 1) / kThreads);
}

template <class T, class Transform>
__global__ void draw_kernel(T* out, Range range, Source source, Transform transform) {
  const std::int64_t group = range.first / kGroup + grid_thread();
  const std::int64_t at = group * kGroup - range.first;
  if (at >= range.count) return;
  float values[kGroup];
  draw_group(source, transform, static_cast<std::uint64_t>(group), values);
  if (range.aligned && at + kGroup <= range.count) {
    Vec<T, kGroup> v;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = cast<T>(values[i]);
    store_vec(out + at, v);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (at + i >= 0 && at + i < range.count) out[at + i] = cast<T>(values[i]);
  }
}

template <class T>
__global__ void dropout_kernel(const T* x, T* out, Range range, Source source, float p, Compute<T> scale) {
  using C = Compute<T>;
  const std::int64_t group = range.first / kGroup + grid_thread();
  const std::int64_t at = group * kGroup - range.first;
  if (at >= range.count) return;
  bool kept[kGroup];
  for (std::uint64_t half = 0; half < 2; ++half) {
    std::uint32_t words[4];
    draw_words(source, 2 * static_cast<std::uint64_t>(group) + half, words);
    for (std::uint64_t i = 0; i < 4; ++i) kept[4 * half + i] = unit(words[i]) >= p;
  }
  if (range.aligned && at + kGroup <= range.count) {
    Vec<T, kGroup> v = load_vec<kGroup>(x + at);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = from_compute<T>(kept[i] ? to_compute(v[i]) * scale : C{0});
    store_vec(out + at, v);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (at + i >= 0 && at + i < range.count)
        out[at + i] = from_compute<T>(kept[i] ? to_compute(x[at + i]) * scale : C{0});
  }
}

/// Calls fn(Type<T>{}) with the type of a floating dtype.
template <class Fn>
void visit_float(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::f64: return fn(Type<double>{});
    case DType::bf16: return fn(Type<bf16>{});
    case DType::f16: return fn(Type<f16>{});
    default: return fn(Type<float>{});
  }
}

template <class Transform>
void draw(const KernelCall& call) {
  const auto& attrs = call.attrs.as<RandomAttrs>();
  const Tensor& out = call.out[0];
  const Range range = range_of(attrs.first, out, nullptr);
  visit_float(out.dtype(), [&]<class T>(Type<T>) {
    launch(context_of(call).stream(), draw_kernel<T, Transform>, {.blocks = blocks_of(range), .threads = kThreads},
           out.mutable_data<T>(), range, source_of(attrs.key, call, 0), Transform(attrs.a, attrs.b));
  });
}

void dropout(const KernelCall& call) {
  const auto& attrs = call.attrs.as<DropoutAttrs>();
  const Tensor& out = call.out[0];
  Context& context = context_of(call);
  const Dense x(context, call.in[0]);
  const Range range = range_of(attrs.first, out, x.data());
  const float p = attrs.p;
  visit_float(out.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const C scale = p < 1 ? C{1} / (C{1} - static_cast<C>(p)) : C{0};
    launch(context.stream(), dropout_kernel<T>, {.blocks = blocks_of(range), .threads = kThreads},
           static_cast<const T*>(x.data()), out.mutable_data<T>(), range, source_of(attrs.key, call, 1), p, scale);
  });
}

}  // namespace

void register_random(OpTable& table) {
  static constexpr KernelEntry kEntries[] = {
      {"random_normal", draw<Normal>}, {"random_uniform", draw<Uniform>}, {"dropout", dropout}};
  add_kernels(table, kEntries);
}

}  // namespace sherd::cuda
