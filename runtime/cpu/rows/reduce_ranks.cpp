// The collectives' arithmetic: reductions in the order of a balanced tree (sum_order.h). The loop runs over blocks that
// fit the first-level cache: a block of the sum takes four inputs at a time, read in registers, and is then scaled,
// rounded and stored or added once.
#include "runtime/cpu/kernels.h"

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/comm/board/elements.h"
#include "runtime/comm/group/sum_order.h"
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

template <class A, class Length>
void round_to(DType dtype, Block<A>& values, Length length) {
  visit_floating(dtype, [&]<class W>(Type<W>) {
    for (std::int64_t i = 0; i < length; ++i) {
      A& value = values[static_cast<std::size_t>(i)];
      value = convert<A>(convert<W>(value));
    }
  });
}

// An output that is wider than the sum, f64 of f32, is added to in its own type. A factor of 1 changes no bits.
template <class U, class A, class Length>
void store(const Block<A>& acc, A factor, U* out, Length length, bool accumulate) {
  using Wider = std::conditional_t<(sizeof(U) > sizeof(A)), U, A>;
  for (std::int64_t i = 0; i < length; ++i) {
    const Wider value = convert<Wider>(Product::apply(acc[static_cast<std::size_t>(i)], factor));
    out[i] = convert<U>(accumulate ? Sum::apply(convert<Wider>(out[i]), value) : value);
  }
}

// Neighbouring leaves of the tree from the one with this number on, combined in registers: elements, or vectors of
// them.
template <class Op, int N, class Leaf>
auto combine(const Leaf& leaf, int first = 0) {
  if constexpr (N == 1) return leaf(first);
  else {
    constexpr int kLeft = static_cast<int>(left_leaves(N));
    return Op::apply(combine<Op, kLeft>(leaf, first), combine<Op, N - kLeft>(leaf, first + kLeft));
  }
}
template <class Op, class A, class X, int N>
A combine_at(std::array<const X*, N> in, std::int64_t i) {
  return combine<Op, N>([&](int k) { return static_cast<A>(in[static_cast<std::size_t>(k)][i]); });
}

// How many leaves are read at once: two, and of sums of floats, which matter for speed, four and eight as well.
template <class T, class Op>
inline constexpr bool is_usual = std::is_same_v<Op, Sum> && is_floating(dtype_of<T>);
template <class T, class Op>
bool fits_registers(std::size_t leaves) {
  return leaves <= 2 || (is_usual<T, Op> && (leaves == 4 || leaves == 8));
}

/// Calls fn with such a number as a constant.
template <class T, class Op, class Fn>
void with_leaves(std::size_t n, Fn&& fn) {
  if (n == 1) return fn(std::integral_constant<int, 1>{});
  if (n == 2) return fn(std::integral_constant<int, 2>{});
  if constexpr (is_usual<T, Op>) {
    if (n == 4) return fn(std::integral_constant<int, 4>{});
    fn(std::integral_constant<int, 8>{});
  }
}

template <class X, int N>
std::array<const X*, N> typed(std::span<const std::byte* const> inputs, std::int64_t at) {
  std::array<const X*, N> all;
  for (std::size_t k = 0; k < N; ++k) all[k] = reinterpret_cast<const X*>(inputs[k]) + at;
  return all;
}

// The usual case in one pass: two ranks, nothing to round on the way, nothing to add to. A factor of 1 changes no bits.
// Where it is inlined g++ 12 does not vectorise it.
template <class T, class U>
[[gnu::noinline]] void sum_pair(const T* a, const T* b, U* out, std::int64_t count, Accumulator<T> factor) {
  using A = Accumulator<T>;
  for (std::int64_t i = 0; i < count; ++i) out[i] = convert<U>((static_cast<A>(a[i]) + static_cast<A>(b[i])) * factor);
}

// Sums of f32 in one pass, by vectors; past the caches they go out as they are made, so that loads and stores overlap.
template <bool kStreams, int N>
void sum_vectors(const std::array<const float*, N>& in, float* out, std::int64_t count, float factor) {
  const auto plain = [&](std::int64_t i) { out[i] = combine_at<Sum, float, float, N>(in, i) * factor; };
  std::int64_t i = 0;
  if constexpr (kStreams)
    for (; i < count && reinterpret_cast<std::uintptr_t>(out + i) % kVecBytes != 0; ++i) plain(i);
  for (; i + kLanes<float> <= count; i += kLanes<float>) {
    const auto sum = combine<Sum, N>([&](int k) { return load(in[static_cast<std::size_t>(k)] + i); }) * splat(factor);
    if constexpr (kStreams) stream(out + i, sum);
    else cpu::store<float>(out + i, sum);
  }
  for (; i < count; ++i) plain(i);
}

bool is_sum_of_floats(std::span<const std::byte* const> inputs, const Reduction& r) {
  return inputs.size() > 1 && fits_registers<float, Sum>(inputs.size()) &&
         (r.kind == ReduceKind::sum || r.kind == ReduceKind::avg) && r.in == DType::f32 && r.wire == DType::f32 &&
         r.out == DType::f32;
}

template <bool kStreams>
void sum_floats(std::span<const std::byte* const> inputs, float* out, std::int64_t count, const Reduction& r) {
  with_leaves<float, Sum>(inputs.size(), [&]<int N>(std::integral_constant<int, N>) {
    sum_vectors<kStreams, N>(typed<float, N>(inputs, 0), out, count, static_cast<float>(r.factor));
  });
}

// A block of what the inputs give, which are leaves of one subtree, in the type of the sum.
template <class T, class Op, class Length>
class Subtree {
 public:
  using A = Accumulator<T>;

  Subtree(std::int64_t at, Length length, const Reduction& reduction)
      : at_(at), length_(length), rounds_(rounds_to_wire(reduction, reduction.in)), wire_(reduction.wire) {}

  void sum(std::span<const std::byte* const> inputs, Block<A>& out) const {
    if (fits_registers<T, Op>(inputs.size())) return leaves(inputs, out);
    const std::size_t left = left_leaves(inputs.size());
    sum(inputs.first(left), out);
    alignas(64) Block<A> right;
    sum(inputs.subspan(left), right);
    for (std::int64_t i = 0; i < length_; ++i) {
      const auto k = static_cast<std::size_t>(i);
      out[k] = Op::apply(out[k], right[k]);
    }
  }

  // A wire as wide as the sum loses nothing.
  static bool rounds_to_wire(const Reduction& reduction, DType end) {
    return is_floating(dtype_of<T>) && byte_size(reduction.wire) < static_cast<std::int64_t>(sizeof(A)) &&
           reduction.wire != end;
  }

 private:
  static constexpr std::size_t kMostLeaves = 8;

  void leaves(std::span<const std::byte* const> inputs, Block<A>& out) const {
    if constexpr (is_floating(dtype_of<T>))
      if (rounds_) return rounded_leaves(inputs, out);
    with_leaves<T, Op>(inputs.size(),
                       [&]<int N>(std::integral_constant<int, N>) { fill<T, N>(typed<T, N>(inputs, at_), out); });
  }

  void rounded_leaves(std::span<const std::byte* const> inputs, Block<A>& out) const {
    alignas(64) std::array<Block<A>, kMostLeaves> blocks;
    std::array<const std::byte*, kMostLeaves> rounded{};
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      fill<T, 1>(typed<T, 1>(inputs.subspan(k), at_), blocks[k]);
      round_to(wire_, blocks[k], length_);
      rounded[k] = reinterpret_cast<const std::byte*>(blocks[k].data());
    }
    with_leaves<T, Op>(inputs.size(),
                       [&]<int N>(std::integral_constant<int, N>) { fill<A, N>(typed<A, N>(rounded, 0), out); });
  }

  template <class X, int N>
  void fill(std::array<const X*, N> in, Block<A>& out) const {
    for (std::int64_t i = 0; i < length_; ++i) out[static_cast<std::size_t>(i)] = combine_at<Op, A, X, N>(in, i);
  }

  std::int64_t at_;
  Length length_;
  bool rounds_;
  DType wire_;
};

template <class T, class Op, class Length>
void reduce_block(std::span<const std::byte* const> inputs, std::int64_t at, std::byte* out, Length length,
                  const Reduction& reduction) {
  using A = Accumulator<T>;
  using Tree = Subtree<T, Op, Length>;
  alignas(64) Block<A> acc;
  Tree(at, length, reduction).sum(inputs, acc);
  if constexpr (is_floating(dtype_of<T>)) {
    A factor = static_cast<A>(reduction.factor);
    if (Tree::rounds_to_wire(reduction, reduction.out)) {
      for (std::int64_t i = 0; i < length; ++i) acc[static_cast<std::size_t>(i)] *= factor;
      factor = 1;
      round_to(reduction.wire, acc, length);
    }
    visit_floating(reduction.out, [&]<class U>(Type<U>) {
      store(acc, factor, reinterpret_cast<U*>(out) + at, length, reduction.accumulate);
    });
  } else {
    store(acc, A{1}, reinterpret_cast<T*>(out) + at, length, reduction.accumulate);
  }
}

template <class T, class Op>
void reduce_all(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count,
                const Reduction& reduction) {
  if constexpr (is_usual<T, Op>) {
    const bool is_exact = byte_size(reduction.wire) >= static_cast<std::int64_t>(sizeof(Accumulator<T>)) ||
                          (reduction.wire == reduction.in && reduction.wire == reduction.out);
    if (is_exact && !reduction.accumulate) {
      if (is_sum_of_floats(inputs, reduction))
        return sum_floats<false>(inputs, reinterpret_cast<float*>(out), count, reduction);
      if (inputs.size() == 2)
        return visit_floating(reduction.out, [&]<class U>(Type<U>) {
          sum_pair(reinterpret_cast<const T*>(inputs[0]), reinterpret_cast<const T*>(inputs[1]),
                   reinterpret_cast<U*>(out), count, static_cast<Accumulator<T>>(reduction.factor));
        });
    }
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

}  // namespace

void reduce_ranks(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count,
                  const Reduction& reduction, bool streams) {
  if (streams && !reduction.accumulate) {
    if (is_sum_of_floats(inputs, reduction) && reinterpret_cast<std::uintptr_t>(out) % sizeof(float) == 0)
      sum_floats<true>(inputs, reinterpret_cast<float*>(out), count, reduction);
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
