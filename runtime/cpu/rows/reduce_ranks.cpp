// The collectives' arithmetic: reductions in rank order. The loop runs over blocks that fit the first-level cache: an
// accumulator block takes every rank's input in turn and is then scaled, added and rounded into the output.
#include "runtime/cpu/kernels.h"

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/comm/board/elements.h"
#include "runtime/cpu/simd.h"

namespace sherd::cpu {

using comm::Reduction;

namespace {

constexpr std::int64_t kBlock = 512;

template <class T>
inline constexpr bool is_half = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

// bool accumulates as a byte that is 0 or 1: max is `or`, min is `and`.
template <class T>
using Accumulator = std::conditional_t<is_half<T>, float, std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>;

// Integers wrap as unsigned numbers do, hence are exact modulo 2^bits whatever the order.
template <class A>
struct Unsigned {
  using type = A;
};
template <>
struct Unsigned<std::int64_t> {
  using type = std::uint64_t;
};
template <>
struct Unsigned<std::int32_t> {
  using type = std::uint32_t;
};
template <>
struct Unsigned<std::uint8_t> {
  using type = std::uint32_t;
};
template <class A>
using Wrapping = typename Unsigned<A>::type;

struct Sum {
  template <class A>
  static A apply(A a, A x) {
    return static_cast<A>(static_cast<Wrapping<A>>(a) + static_cast<Wrapping<A>>(x));
  }
};
struct Product {
  template <class A>
  static A apply(A a, A x) {
    return static_cast<A>(static_cast<Wrapping<A>>(a) * static_cast<Wrapping<A>>(x));
  }
};
// x != x lets a NaN in; once in, no comparison replaces it.
struct Max {
  template <class A>
  static A apply(A a, A x) {
    return (x > a || x != x) ? x : a;
  }
};
struct Min {
  template <class A>
  static A apply(A a, A x) {
    return (x < a || x != x) ? x : a;
  }
};

template <class A>
using Block = std::array<A, kBlock>;

/// Calls fn with the C++ type of a dtype that an output of floats may have.
template <class Fn>
void visit_floating(DType dtype, Fn&& fn) {
  visit_dtype(dtype, [&]<class T>(Type<T>) {
    if constexpr (is_floating(dtype_of<T>)) fn(Type<T>{});
  });
}

template <class A, class Length>
void round_to(DType dtype, Block<A>& values, Length length) {
  visit_floating(dtype, [&]<class W>(Type<W>) {
    for (std::int64_t i = 0; i < length; ++i) {
      A& value = values[static_cast<std::size_t>(i)];
      value = convert<A>(convert<W>(value));
    }
  });
}

// An output that is wider than the sum, f64 of f32, is added to in its own type.
template <class U, class A, class Length>
void store(const Block<A>& acc, U* out, Length length, bool accumulate) {
  using Wider = std::conditional_t<(sizeof(U) > sizeof(A)), U, A>;
  for (std::int64_t i = 0; i < length; ++i) {
    const Wider value = convert<Wider>(acc[static_cast<std::size_t>(i)]);
    out[i] = convert<U>(accumulate ? Sum::apply(convert<Wider>(out[i]), value) : value);
  }
}

// The usual case in one pass: two ranks, nothing to round on the way, nothing to add to. A factor of 1 changes no bits.
template <class T, class Op, class U>
void reduce_pair(const T* a, const T* b, U* out, std::int64_t count, Accumulator<T> factor) {
  using A = Accumulator<T>;
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = convert<U>(Op::apply(static_cast<A>(a[i]), static_cast<A>(b[i])) * factor);
}

// The same past the caches. Vectors go out as they are made, so that loads and stores overlap.
void stream_sum(const float* a, const float* b, float* out, std::int64_t count, float factor) {
  const std::uintptr_t misaligned = -reinterpret_cast<std::uintptr_t>(out) % kVecBytes;
  std::int64_t i = std::min(count, static_cast<std::int64_t>(misaligned / sizeof(float)));
  reduce_pair<float, Sum>(a, b, out, i, factor);
  for (; i + kLanes<float> <= count; i += kLanes<float>) stream(out + i, (load(a + i) + load(b + i)) * splat(factor));
  reduce_pair<float, Sum>(a + i, b + i, out + i, count - i, factor);
}

template <class T, class Op, class Length>
void reduce_block(std::span<const std::byte* const> inputs, std::int64_t at, std::byte* out, Length length,
                  const Reduction& reduction) {
  using A = Accumulator<T>;
  constexpr bool is_float = is_floating(dtype_of<T>);
  // A wire as wide as the sum loses nothing.
  const bool rounds_inputs =
      is_float && byte_size(reduction.wire) < static_cast<std::int64_t>(sizeof(A)) && reduction.wire != reduction.in;
  const bool rounds_result =
      is_float && byte_size(reduction.wire) < static_cast<std::int64_t>(sizeof(A)) && reduction.wire != reduction.out;
  alignas(64) Block<A> acc;
  const auto load = [&](std::size_t rank, Block<A>& block) {
    const T* in = reinterpret_cast<const T*>(inputs[rank]) + at;
    for (std::int64_t i = 0; i < length; ++i) block[static_cast<std::size_t>(i)] = static_cast<A>(in[i]);
    if constexpr (is_float)
      if (rounds_inputs) round_to(reduction.wire, block, length);
  };
  load(0, acc);
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    alignas(64) Block<A> in;
    load(rank, in);
    for (std::int64_t i = 0; i < length; ++i) {
      const auto k = static_cast<std::size_t>(i);
      acc[k] = Op::apply(acc[k], in[k]);
    }
  }
  if constexpr (is_float) {
    const A factor = static_cast<A>(reduction.factor);
    if (reduction.factor != 1.0)
      for (std::int64_t i = 0; i < length; ++i) acc[static_cast<std::size_t>(i)] *= factor;
    if (rounds_result) round_to(reduction.wire, acc, length);
    visit_floating(reduction.out,
                   [&]<class U>(Type<U>) { store(acc, reinterpret_cast<U*>(out) + at, length, reduction.accumulate); });
  } else {
    T* typed = reinterpret_cast<T*>(out) + at;
    if (reduction.accumulate)
      for (std::int64_t i = 0; i < length; ++i)
        typed[i] = static_cast<T>(Sum::apply(static_cast<A>(typed[i]), acc[static_cast<std::size_t>(i)]));
    else
      for (std::int64_t i = 0; i < length; ++i) typed[i] = static_cast<T>(acc[static_cast<std::size_t>(i)]);
  }
}

template <class T, class Op>
void reduce_all(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count,
                const Reduction& reduction) {
  if constexpr (is_floating(dtype_of<T>)) {
    const bool is_exact = byte_size(reduction.wire) >= static_cast<std::int64_t>(sizeof(Accumulator<T>)) ||
                          (reduction.wire == reduction.in && reduction.wire == reduction.out);
    if (inputs.size() == 2 && is_exact && !reduction.accumulate)
      return visit_floating(reduction.out, [&]<class U>(Type<U>) {
        reduce_pair<T, Op>(reinterpret_cast<const T*>(inputs[0]), reinterpret_cast<const T*>(inputs[1]),
                           reinterpret_cast<U*>(out), count, static_cast<Accumulator<T>>(reduction.factor));
      });
  }
  std::int64_t at = 0;
  for (; at + kBlock <= count; at += kBlock)
    reduce_block<T, Op>(inputs, at, out, std::integral_constant<std::int64_t, kBlock>{}, reduction);
  if (at < count) reduce_block<T, Op>(inputs, at, out, count - at, reduction);
}

// What is reduced into the first-level cache is streamed from there.
void stream_blocks(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count,
                   const Reduction& reduction) {
  constexpr std::int64_t kStreamed = 2048;
  alignas(64) std::array<std::byte, kStreamed * 8> block;
  std::vector<const std::byte*> at(inputs.begin(), inputs.end());
  for (std::int64_t left = count; left > 0; left -= kStreamed) {
    const std::int64_t n = std::min(left, kStreamed);
    reduce_ranks(at, block.data(), n, reduction, false);
    const auto bytes = static_cast<std::size_t>(n * byte_size(reduction.out));
    comm::stream_bytes(out, block.data(), bytes);
    out += bytes;
    for (const std::byte*& input : at) input += n * byte_size(reduction.in);
  }
}

bool is_f32_sum_of_two(std::span<const std::byte* const> inputs, const Reduction& r) {
  return inputs.size() == 2 && (r.kind == ReduceKind::sum || r.kind == ReduceKind::avg) && r.in == DType::f32 &&
         r.wire == DType::f32 && r.out == DType::f32;
}

}  // namespace

void reduce_ranks(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count,
                  const Reduction& reduction, bool streams) {
  if (streams && !reduction.accumulate) {
    if (is_f32_sum_of_two(inputs, reduction) && reinterpret_cast<std::uintptr_t>(out) % sizeof(float) == 0)
      stream_sum(reinterpret_cast<const float*>(inputs[0]), reinterpret_cast<const float*>(inputs[1]),
                 reinterpret_cast<float*>(out), count, static_cast<float>(reduction.factor));
    else stream_blocks(inputs, out, count, reduction);
    return comm::end_stream();
  }
  visit_dtype(reduction.in, [&]<class T>(Type<T>) {
    switch (reduction.kind) {
      case ReduceKind::sum:
      case ReduceKind::avg: return reduce_all<T, Sum>(inputs, out, count, reduction);
      case ReduceKind::product: return reduce_all<T, Product>(inputs, out, count, reduction);
      case ReduceKind::max: return reduce_all<T, Max>(inputs, out, count, reduction);
      case ReduceKind::min: return reduce_all<T, Min>(inputs, out, count, reduction);
    }
  });
}

}  // namespace sherd::cpu
