#pragma once
// The loop of all pointwise kernels. It knows tensors and nothing of the function, which arrives as one pointer to a
// tight loop over plain arrays: a new pointwise row costs one such loop per compute type.
#include "runtime/cpu/tile.h"
#include "runtime/op/core/op.h"
#include "runtime/op/rows/pointwise.h"

namespace sherd::cpu {

inline constexpr std::size_t kMaxPointwiseInputs = 3;
inline constexpr std::size_t kMaxPointwiseOutputs = 2;

/// out[k][i] = functor(in[0][i], in[1][i], ...) for i < n. An output may be one of the inputs.
template <class C>
using PointwiseLoop = void (*)(const void* functor, const C* const* in, C* const* out, std::int64_t n);

/// Runs `loop` on the elements where they lie, if all tensors are dense, of the outputs' size and of type T; else does
/// nothing and says so.
template <class T>
bool run_dense(const KernelCall& call, const void* functor, PointwiseLoop<T> loop);

/// Runs `loop` over the broadcast inputs; outputs are dense and of one shape.
template <class C>
void run_pointwise(const KernelCall& call, const void* functor, PointwiseLoop<C> loop);

template <class F, class C>
void pointwise_loop(const void* functor, const C* const* in, C* const* out, std::int64_t n) {
  const F& f = *static_cast<const F*>(functor);
  const C* a = in[0];
  C* y = out[0];
  // ivdep: an output that is an input is so exactly, element by element.
  if constexpr (std::is_invocable_v<F, C, C, C>) {
    const C* b = in[1];
    const C* c = in[2];
    if constexpr (std::is_same_v<std::invoke_result_t<F, C, C, C>, pointwise::Two<C>>) {
      C* z = out[1];
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) {
        const pointwise::Two<C> two = f(a[i], b[i], c[i]);
        y[i] = two.first;
        z[i] = two.second;
      }
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i], c[i]);
    }
  } else if constexpr (std::is_invocable_v<F, C, C>) {
    const C* b = in[1];
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i]);
  }
}

template <class F, class C>
inline constexpr bool kComputes =
    std::is_invocable_v<F, C> || std::is_invocable_v<F, C, C> || std::is_invocable_v<F, C, C, C>;

/// Runs functor `f` in the compute type of `dtype`.
template <class F>
void run_pointwise_as(DType dtype, const KernelCall& call, const F& f) {
  visit_compute(dtype, [&]<class C>(Type<C>) {
    if constexpr (kComputes<F, C>) run_pointwise<C>(call, &f, pointwise_loop<F, C>);
    else fail("{} is not defined for {}", call.op.name, name(dtype));
  });
}

}  // namespace sherd::cpu
