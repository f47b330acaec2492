// The collectives' arithmetic: reductions in rank order. The loop runs over blocks that fit the first-level cache: an
// accumulator block takes every rank's input in turn and is then scaled, added and rounded into the output.
#include "runtime/cpu/kernels.h"

#include <array>

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

template <class T, class Op, class Length>
void reduce_block(std::span<const std::byte* const> inputs, std::int64_t at, T* out, Length length,
                  const Reduction& reduction) {
  using A = Accumulator<T>;
  std::array<A, kBlock> acc;
  const auto input = [&](std::size_t rank) { return reinterpret_cast<const T*>(inputs[rank]) + at; };
  const T* first = input(0);
  for (std::int64_t i = 0; i < length; ++i) acc[static_cast<std::size_t>(i)] = static_cast<A>(first[i]);
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    const T* in = input(rank);
    for (std::int64_t i = 0; i < length; ++i) {
      A& a = acc[static_cast<std::size_t>(i)];
      a = Op::apply(a, static_cast<A>(in[i]));
    }
  }
  if constexpr (is_floating(dtype_of<T>)) {
    const A factor = static_cast<A>(reduction.factor);
    if (reduction.factor != 1.0)
      for (std::int64_t i = 0; i < length; ++i) acc[static_cast<std::size_t>(i)] *= factor;
  }
  if (reduction.accumulate) {
    for (std::int64_t i = 0; i < length; ++i) {
      A& a = acc[static_cast<std::size_t>(i)];
      a = Sum::apply(static_cast<A>(out[i]), a);
    }
  }
  for (std::int64_t i = 0; i < length; ++i) out[i] = static_cast<T>(acc[static_cast<std::size_t>(i)]);
}

template <class T, class Op>
void reduce_all(std::span<const std::byte* const> inputs, T* out, std::int64_t count, const Reduction& reduction) {
  std::int64_t at = 0;
  for (; at + kBlock <= count; at += kBlock)
    reduce_block<T, Op>(inputs, at, out + at, std::integral_constant<std::int64_t, kBlock>{}, reduction);
  if (at < count) reduce_block<T, Op>(inputs, at, out + at, count - at, reduction);
}

}  // namespace

void reduce_ranks(DType dtype, std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count,
                  const Reduction& reduction) {
  visit_dtype(dtype, [&]<class T>(Type<T>) {
    T* typed = reinterpret_cast<T*>(out);
    switch (reduction.kind) {
      case ReduceKind::sum:
      case ReduceKind::avg: return reduce_all<T, Sum>(inputs, typed, count, reduction);
      case ReduceKind::product: return reduce_all<T, Product>(inputs, typed, count, reduction);
      case ReduceKind::max: return reduce_all<T, Max>(inputs, typed, count, reduction);
      case ReduceKind::min: return reduce_all<T, Min>(inputs, typed, count, reduction);
    }
  });
}

}  // namespace sherd::cpu
