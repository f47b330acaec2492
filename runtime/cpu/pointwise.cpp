// The CPU column of the pointwise rows: each is its functor of op/pointwise.h in the loop of pointwise_loop.h.
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/math.h"
#include "runtime/cpu/pointwise_loop.h"
#include "runtime/cpu/silu_family.h"
#include "runtime/op/attr_types.h"

namespace sherd::cpu {

namespace {

using namespace pointwise;

// Computed in the type of the result.
template <class F>
void kernel(const KernelCall& call) {
  run_pointwise_as(call.out[0].dtype(), call, F{});
}

// Computed in the type its inputs promote to; the result is bool.
template <class F>
void comparison(const KernelCall& call) {
  DType dtype = call.in[0].dtype();
  for (const Tensor& t : call.in) dtype = promote(dtype, t.dtype());
  run_pointwise_as(dtype, call, F{});
}

template <class F>
void with_constant(const KernelCall& call) {
  run_pointwise_as(call.out[0].dtype(), call, F{call.attrs.as<ScalarAttrs>().value});
}

template <class F>
void with_range(const KernelCall& call) {
  const auto& attrs = call.attrs.as<ClampAttrs>();
  run_pointwise_as(call.out[0].dtype(), call, F{attrs.low, attrs.high});
}

// Of floating dtypes: f64 by the functor, the others by whole vectors of f32.
template <class F, class OnVectors>
void with_vectors(const KernelCall& call) {
  const F f;
  if (call.out[0].dtype() == DType::f64) run_pointwise<double>(call, &f, pointwise_loop<F, double>);
  else run_pointwise<float>(call, nullptr, vector_loop<OnVectors>);
}

struct Entry {
  const Op& row;
  Kernel kernel;
};

constexpr Entry kEntries[] = {
    {op::add, kernel<Add>},
    {op::sub, kernel<Sub>},
    {op::mul, kernel<Mul>},
    {op::div, kernel<Div>},
    {op::maximum, kernel<Maximum>},
    {op::minimum, kernel<Minimum>},
    {op::add_scalar, with_constant<AddScalar>},
    {op::mul_scalar, with_constant<MulScalar>},
    {op::pow_scalar, with_constant<PowScalar>},
    {op::clamp, with_range<Clamp>},
    {op::clamp_backward, with_range<ClampBackward>},
    {op::where, kernel<Where>},
    {op::equal, comparison<Equal>},
    {op::not_equal, comparison<NotEqual>},
    {op::less, comparison<Less>},
    {op::less_equal, comparison<LessEqual>},
    {op::logical_and, comparison<LogicalAnd>},
    {op::logical_or, comparison<LogicalOr>},
    {op::logical_not, comparison<LogicalNot>},
    {op::neg, kernel<Neg>},
    {op::abs, kernel<Abs>},
    {op::sign, kernel<Sign>},
    {op::square, kernel<Square>},
    {op::exp, kernel<Exp<Math>>},
    {op::log, kernel<Log<Math>>},
    {op::sqrt, kernel<Sqrt>},
    {op::rsqrt, kernel<Rsqrt>},
    {op::reciprocal, kernel<Reciprocal>},
    {op::sin, kernel<Sin<Math>>},
    {op::cos, kernel<Cos<Math>>},
    {op::tanh, kernel<Tanh<Math>>},
    {op::tanh_backward, kernel<TanhBackward>},
    {op::erf, kernel<Erf<Math>>},
    {op::sigmoid, kernel<Sigmoid<Math>>},
    {op::sigmoid_backward, kernel<SigmoidBackward>},
    {op::relu, kernel<Relu>},
    {op::relu_backward, kernel<ReluBackward>},
    {op::silu, with_vectors<Silu<Math>, vectors::Silu>},
    {op::silu_backward, with_vectors<SiluBackward<Math>, vectors::SiluBackward>},
    {op::gelu, kernel<Gelu<Math>>},
    {op::gelu_backward, kernel<GeluBackward<Math>>},
    {op::gelu_tanh, with_vectors<GeluTanh<Math>, vectors::GeluTanh>},
    {op::gelu_tanh_backward, with_vectors<GeluTanhBackward<Math>, vectors::GeluTanhBackward>},
    {op::swiglu, with_vectors<Swiglu<Math>, vectors::Swiglu>},
    {op::swiglu_backward, with_vectors<SwigluBackward<Math>, vectors::SwigluBackward>},
};

}  // namespace

void register_pointwise(OpTable& table) {
  for (const Entry& entry : kEntries) table.kernel(entry.row, Device::Kind::cpu, entry.kernel);
}

}  // namespace sherd::cpu
