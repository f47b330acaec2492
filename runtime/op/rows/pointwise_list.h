#pragma once
// Which functor of pointwise.h computes which row: the one list, for the kernels of every backend.
#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include "runtime/op/core/op.h"
#include "runtime/op/rows/pointwise.h"
#include "runtime/op/rows/pointwise_attrs.h"
#include "runtime/tensor/dtype.h"

namespace sherd::pointwise {

/// Which dtype decides the compute type of a row.
enum class Computes : std::uint8_t {
  in_result,    ///< that of its result
  in_promoted,  ///< the one its inputs promote to; the result is bool
};

template <const Op& kRow, class F, Computes kComputes = Computes::in_result>
struct Entry {
  using Functor = F;
  static constexpr const Op& row = kRow;
  static constexpr Computes computes = kComputes;
};
template <const Op& kRow, class F>
using Flag = Entry<kRow, F, Computes::in_promoted>;

template <class... Entries>
struct List {
  /// Calls visit(Entry{}) for each.
  template <class Visit>
  static constexpr void for_each(const Visit& visit) {
    (visit(Entries{}), ...);
  }
};

/// Every row that is a functor. M: the backend's transcendental functions.
template <class M>
using Rows = List<  //
    Entry<op::add, Add>, Entry<op::sub, Sub>, Entry<op::mul, Mul>, Entry<op::div, Div>, Entry<op::maximum, Maximum>,
    Entry<op::minimum, Minimum>, Entry<op::where, Where>,
    // with constants
    Entry<op::add_scalar, AddScalar>, Entry<op::mul_scalar, MulScalar>, Entry<op::pow_scalar, PowScalar>,
    Entry<op::clamp, Clamp>, Entry<op::clamp_backward, ClampBackward>,
    // comparisons and logic
    Flag<op::equal, Equal>, Flag<op::not_equal, NotEqual>, Flag<op::less, Less>, Flag<op::less_equal, LessEqual>,
    Flag<op::logical_and, LogicalAnd>, Flag<op::logical_or, LogicalOr>, Flag<op::logical_not, LogicalNot>,
    // of one tensor
    Entry<op::neg, Neg>, Entry<op::abs, Abs>, Entry<op::sign, Sign>, Entry<op::square, Square>, Entry<op::exp, Exp<M>>,
    Entry<op::log, Log<M>>, Entry<op::sqrt, Sqrt>, Entry<op::rsqrt, Rsqrt>, Entry<op::reciprocal, Reciprocal>,
    Entry<op::sin, Sin<M>>, Entry<op::cos, Cos<M>>, Entry<op::tanh, Tanh<M>>, Entry<op::erf, Erf<M>>,
    Entry<op::sigmoid, Sigmoid<M>>, Entry<op::relu, Relu>, Entry<op::silu, Silu<M>>, Entry<op::gelu, Gelu<M>>,
    Entry<op::gelu_tanh, GeluTanh<M>>, Entry<op::swiglu, Swiglu<M>>,
    // their derivatives
    Entry<op::tanh_backward, TanhBackward>, Entry<op::sigmoid_backward, SigmoidBackward>,
    Entry<op::relu_backward, ReluBackward>, Entry<op::silu_backward, SiluBackward<M>>,
    Entry<op::gelu_backward, GeluBackward<M>>, Entry<op::gelu_tanh_backward, GeluTanhBackward<M>>,
    Entry<op::swiglu_backward, SwigluBackward<M>>>;

/// How many tensors a functor takes; every functor can take floats.
template <class F>
inline constexpr int kNumInputs = std::is_invocable_v<F, float>          ? 1
                                  : std::is_invocable_v<F, float, float> ? 2
                                                                         : 3;

/// The constants of a functor, from the attributes of a call; zeros if it has fewer.
template <class F>
std::array<double, 2> constants_of(AttrsView attrs) {
  if constexpr (requires(double x) { F{x, x}; }) {
    const auto& range = attrs.as<ClampAttrs>();
    return {range.low, range.high};
  } else if constexpr (requires(double x) { F{x}; }) {
    return {attrs.as<ScalarAttrs>().value, 0};
  } else {
    return {};
  }
}

template <class F>
F functor_of(const std::array<double, 2>& constants) {
  if constexpr (requires(double x) { F{x, x}; }) return F{constants[0], constants[1]};
  else if constexpr (requires(double x) { F{x}; }) return F{constants[0]};
  else return F{};
}

inline DType promoted(std::span<const Tensor> tensors) {
  DType dtype = tensors[0].dtype();
  for (const Tensor& t : tensors) dtype = promote(dtype, t.dtype());
  return dtype;
}

}  // namespace sherd::pointwise
