#pragma once
// A row of one or two dense tensors as the threads of a team see it: each thread walks vectors of neighbours, in the
// compute type. Short rows stay in registers between passes (kHeld vectors per thread and input); long ones are read
// again by every pass. For .cu files.
#include "runtime/cuda/rows/row_team.h"

namespace sherd::cuda {

/// kN elements in the compute type from an address that is aligned if `kAligned`.
template <bool kAligned, int kN, class T>
__device__ void load_values(const T* from, Compute<T> (&to)[kN]) {
  if constexpr (kAligned && kN > 1) {
    const Vec<T, kN> raw = load_vec<kN>(from);
#pragma unroll
    for (int j = 0; j < kN; ++j) to[j] = to_compute(raw[j]);
  } else {
#pragma unroll
    for (int j = 0; j < kN; ++j) to[j] = to_compute(from[j]);
  }
}
/// Rounds kN values and stores them at an aligned address.
template <class T, int kN>
__device__ void store_values(T* to, const Compute<T> (&values)[kN]) {
  Vec<T, kN> raw;
#pragma unroll
  for (int j = 0; j < kN; ++j) raw[j] = from_compute<T>(values[j]);
  store_vec(to, raw);
}

/// What reads a row: kInputs tensors of T, kVector elements per access.
///   kHeld > 0   the length is a multiple of kVector and at most kHeld * kVector * team size; all inputs are aligned
///   kHeld = 0   any length; single elements lead to the first aligned one and follow the last whole vector
/// kVector = 1 takes any address.
template <class TType, int kNumInputs, int kVectorElements, int kHeldVectors>
class Row {
 public:
  using T = TType;
  using A = Compute<T>;
  static constexpr int kInputs = kNumInputs, kVector = kVectorElements, kHeld = kHeldVectors;
  static constexpr bool kIsHeld = kHeld > 0;

  Row() = default;
  /// Elements [first, first + n) of the inputs; n = 0 for a team without a row.
  __device__ Row(const T* const (&in)[kInputs], std::int64_t first, std::int64_t n, Team team)
      : n_(n), rank_(team.rank()), size_(team.size) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) in_[i] = in[i] + first;
    if constexpr (kIsHeld) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k)
        if (place(k) < n_)
#pragma unroll
          for (int i = 0; i < kInputs; ++i) load_values<true>(in_[i] + place(k), values_[k][i]);
    } else {
      head_ = (kVector - first % kVector) % kVector;
      if (head_ > n_) head_ = n_;
    }
  }

  /// Calls fn(slot, at, values) for this thread's part: values[input][j] belongs to element at + j of the row; their
  /// number is kVector or 1. In a held row, `slot` is a constant 0..kHeld-1 and changed values are kept.
  template <class Fn>
  __device__ void each(Fn fn) {
    if constexpr (kIsHeld) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k)
        if (place(k) < n_) fn(k, place(k), values_[k]);
    } else {
      each_single(0, head_, fn);
      const std::int64_t whole = head_ + (n_ - head_) / kVector * kVector;
      constexpr int kSteps = kInputs == 1 ? 4 : 2;  // accesses in flight per input
      const std::int64_t apart = std::int64_t{size_} * kVector;
      for (std::int64_t at = head_ + std::int64_t{rank_} * kVector; at < whole; at += kSteps * apart) {
        A values[kSteps][kInputs][kVector];
#pragma unroll
        for (int u = 0; u < kSteps; ++u)
          if (at + u * apart < whole)
#pragma unroll
            for (int i = 0; i < kInputs; ++i) load_values<true>(in_[i] + at + u * apart, values[u][i]);
#pragma unroll
        for (int u = 0; u < kSteps; ++u)
          if (at + u * apart < whole) fn(0, at + u * apart, values[u]);
      }
      each_single(whole, n_, fn);
    }
  }

 private:
  __device__ std::int64_t place(int k) const { return (rank_ + std::int64_t{k} * size_) * kVector; }
  template <class Fn>
  __device__ void each_single(std::int64_t begin, std::int64_t end, Fn& fn) {
    for (std::int64_t at = begin + rank_; at < end; at += size_) {
      A values[kInputs][1];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) values[i][0] = to_compute(in_[i][at]);
      fn(0, at, values);
    }
  }

  const T* in_[kInputs];
  std::int64_t n_ = 0, head_ = 0;
  int rank_ = 0, size_ = 1;
  A values_[kIsHeld ? kHeld : 1][kInputs][kIsHeld ? kVector : 1];
};

/// Calls fn(Type<Row<...>>{}) with the reader that rows of n elements want: held if they fit a team of `largest`
/// threads, by vectors if the tensors' addresses allow it. f64 is read element by element, to keep the kernels few.
template <class T, int kInputs, int kHeld, class Fn>
void visit_row(std::int64_t n, bool aligned, int largest, const Fn& fn) {
  if constexpr (!std::is_same_v<T, double>) {
    constexpr int kV = kVecElements<T>;
    if (aligned && n % kV == 0 && n <= std::int64_t{kHeld} * kV * largest)
      return fn(Type<Row<T, kInputs, kV, kHeld>>{});
    if (aligned) return fn(Type<Row<T, kInputs, kV, 0>>{});
  }
  fn(Type<Row<T, kInputs, 1, 0>>{});
}

/// Teams for rows of n elements read by R.
template <class R>
TeamGrid row_grid(std::int64_t rows, std::int64_t n, int largest) {
  constexpr int kPerThread = R::kIsHeld ? R::kHeld : 8;
  return team_grid(rows, (n + R::kVector - 1) / R::kVector, kPerThread, largest);
}

template <class... P>
bool are_aligned(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// exp(x - shift): in f32 a subtraction, a product and the device's power of two, half of what its exp takes.
template <class A>
struct ShiftedExp {
  A shift;
  __device__ explicit ShiftedExp(A s) : shift(s) {}
  __device__ A operator()(A x) const {
    constexpr float kLog2E = 1.44269504088896340736f;
    if constexpr (std::is_same_v<A, float>) return std::exp2((x - shift) * kLog2E);
    else return std::exp(x - shift);
  }
};

/// Largest value and sum of exp(x - largest) of values that come a few at a time (Milakov and Gimelshein, "Online
/// normalizer calculation for softmax", 2018).
template <class A>
struct OnlineSum {
  A largest = lowest<A>(), sum{};

  template <int kN>
  __device__ void add(const A (&x)[kN]) {
    A top = largest;
#pragma unroll
    for (int j = 0; j < kN; ++j) top = MaxOf{}(x[j], top);
    move_to(top);
    const ShiftedExp<A> exp(base(top));
#pragma unroll
    for (int j = 0; j < kN; ++j) sum += exp(x[j]);
  }
  /// The same sum from a larger maximum.
  __device__ void move_to(A top) {
    if (top == largest) return;
    sum *= std::exp(largest - base(top));
    largest = top;
  }
  /// Leaves the whole team's maximum and sum in every thread.
  __device__ void fold(Team team, A* scratch) {
    move_to(team.max(largest, scratch));
    sum = team.sum(sum, scratch);
  }

 private:
  // Values of minus infinity so far: exp(-inf - 0) is the 0 that they add.
  __device__ static A base(A top) { return top == lowest<A>() ? A{} : top; }
};

}  // namespace sherd::cuda
