// Random rows from Philox4x32-10 (op/philox.h), with the bits of the CPU: element i of the whole lies in block i / 4,
// word i % 4, whatever part is drawn and whatever the launch. A thread makes eight elements: two blocks where runs
// begin and end on multiples of eight, else as many blocks as the eight lie in. Uniform values and dropout's masks are
// those of the CPU bit for bit; normal ones differ by the rounding of the logarithm.
#include <bit>
#include <cmath>

#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/dense.h"
#include "runtime/cuda/rows/walk.h"
#include "runtime/op/rows/element_runs.h"
#include "runtime/op/rows/philox.h"
#include "runtime/op/rows/random_attrs.h"

namespace sherd::cuda {

namespace {

constexpr unsigned kRandomThreads = 256;
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

/// The eight values of a thread: elements [8 group, 8 group + 8) of the whole.
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

/// Which elements of the whole a call draws, `count` of them. In groups: runs and their places are multiples of eight,
/// and so are the addresses, so every thread's eight are whole and vectors, but for the last's.
struct Part {
  std::int64_t first, count;
  ElementRuns runs;
  bool in_groups;
  FastDivide groups_per_run, runs_per_row;

  __device__ std::uint64_t group_of(std::int64_t thread) const {
    const std::int64_t start = first / kGroup;
    if (runs.run == 0) return static_cast<std::uint64_t>(start + thread);
    std::uint32_t within, row;
    const std::uint32_t outer =
        runs_per_row.divide(groups_per_run.divide(static_cast<std::uint32_t>(thread), within), row);
    return static_cast<std::uint64_t>(start + (outer * runs.outer_stride + row * runs.stride) / kGroup + within);
  }
};

Part part_of(std::int64_t first, const ElementRuns& runs, const Tensor& out, const void* in) {
  Part part{first, out.numel(), runs, false, {}, {}};
  const auto bits = reinterpret_cast<std::uintptr_t>(out.raw()) | reinterpret_cast<std::uintptr_t>(in);
  part.in_groups = bits % 16 == 0 && first % kGroup == 0;
  if (runs.run == 0) return part;
  const bool small = part.count / kGroup < kMaxLaunch;  // as the divisions want it
  part.in_groups =
      part.in_groups && small && runs.run % kGroup == 0 && runs.stride % kGroup == 0 && runs.outer_stride % kGroup == 0;
  if (!part.in_groups) return part;
  // A part is never larger than 2^30 groups, nor do counts beyond that matter.
  const auto bounded = [](std::int64_t n) { return static_cast<std::uint32_t>(std::min(n, kMaxLaunch)); };
  part.groups_per_run = FastDivide(bounded(runs.run / kGroup));
  part.runs_per_row = FastDivide(bounded(runs.count));
  return part;
}

unsigned blocks_of(const Part& part) {
  constexpr std::int64_t kPerBlock = std::int64_t{kGroup} * kRandomThreads;
  return static_cast<unsigned>((part.count + kPerBlock - 1) / kPerBlock);
}

/// Calls fn(element of the part, drawn value) for up to eight elements from `at` on, wherever they lie.
template <class Transform, class Fn>
__device__ void for_each_drawn(const Part& part, const Source& source, const Transform& transform, std::int64_t at,
                               const Fn& fn) {
  const std::int64_t end = at + kGroup < part.count ? at + kGroup : part.count;
  RunCursor cursor(part.first, part.runs, at);
  std::int64_t drawn = -1;
  float values[4] = {};
#pragma unroll 1
  for (; at < end; ++at) {
    const std::int64_t place = cursor.place(), block = place / 4;
    if (block != drawn) {
      std::uint32_t words[4];
      draw_words(source, static_cast<std::uint64_t>(block), words);
      transform(words, values);
      drawn = block;
    }
    const auto w = static_cast<int>(place % 4);
    fn(at, w < 2 ? (w == 0 ? values[0] : values[1]) : (w == 2 ? values[2] : values[3]));
    cursor.advance(1);
  }
}

template <class T, class Transform>
__global__ void draw_kernel(T* out, Part part, Source source, Transform transform) {
  const std::int64_t thread = grid_thread(), at = thread * kGroup;
  if (at >= part.count) return;
  if (!part.in_groups || at + kGroup > part.count)
    return for_each_drawn(part, source, transform, at, [&](std::int64_t i, float value) { out[i] = cast<T>(value); });
  float values[kGroup];
  draw_group(source, transform, part.group_of(thread), values);
  Vec<T, kGroup> v;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) v[i] = cast<T>(values[i]);
  store_vec(out + at, v);
}

/// [0, 1) as it is drawn.
struct Unit {
  __device__ void operator()(const std::uint32_t (&words)[4], float (&values)[4]) const {
    for (int i = 0; i < 4; ++i) values[i] = unit(words[i]);
  }
};

template <class T>
__global__ void dropout_kernel(const T* x, T* out, Part part, Source source, float p, Compute<T> scale) {
  using C = Compute<T>;
  const std::int64_t thread = grid_thread(), at = thread * kGroup;
  if (at >= part.count) return;
  if (!part.in_groups || at + kGroup > part.count)
    return for_each_drawn(part, source, Unit{}, at, [&](std::int64_t i, float value) {
      out[i] = from_compute<T>(value >= p ? to_compute(x[i]) * scale : C{0});
    });
  float values[kGroup];
  draw_group(source, Unit{}, part.group_of(thread), values);
  Vec<T, kGroup> v = load_vec<kGroup>(x + at);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) v[i] = from_compute<T>(values[i] >= p ? to_compute(v[i]) * scale : C{0});
  store_vec(out + at, v);
}

template <class Transform>
void draw(const KernelCall& call) {
  const auto& attrs = call.attrs.as<RandomAttrs>();
  const Tensor& out = call.out[0];
  const Part part = part_of(attrs.first, attrs.runs, out, nullptr);
  visit_floating(out.dtype(), [&]<class T>(Type<T>) {
    launch(context_of(call).stream(), draw_kernel<T, Transform>, {.blocks = blocks_of(part), .threads = kRandomThreads},
           out.mutable_data<T>(), part, source_of(attrs.key, call, 0), Transform(attrs.a, attrs.b));
  });
}

void dropout(const KernelCall& call) {
  const auto& attrs = call.attrs.as<DropoutAttrs>();
  const Tensor& out = call.out[0];
  Context& context = context_of(call);
  const Dense x(context, call.in[0]);
  const Part part = part_of(attrs.first, attrs.runs, out, x.raw());
  const float p = attrs.p;
  visit_floating(out.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const C scale = p < 1 ? C{1} / (C{1} - static_cast<C>(p)) : C{0};
    launch(context.stream(), dropout_kernel<T>, {.blocks = blocks_of(part), .threads = kRandomThreads}, x.data<T>(),
           out.mutable_data<T>(), part, source_of(attrs.stream_key(), call, 1), p, scale);
  });
}

}  // namespace

void register_random(OpTable& table) {
  static constexpr KernelEntry kEntries[] = {
      {op::random_normal, draw<Normal>}, {op::random_uniform, draw<Uniform>}, {op::dropout, dropout}};
  add_kernels(table, kEntries);
}

}  // namespace sherd::cuda
