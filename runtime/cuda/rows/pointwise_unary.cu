// Pointwise rows of one tensor: the functors of op/pointwise.h.
#include "runtime/cuda/rows/pointwise_kernels.h"
#include "runtime/op/attr_types.h"

namespace sherd::cuda {

namespace {

using namespace pointwise;

using Unary = detail::Family<1, AddScalar, MulScalar, PowScalar, Clamp, LogicalNot, Neg, Abs, Sign, Square, Exp<Math>,
                             Log<Math>, Sqrt, Rsqrt, Reciprocal, Sin<Math>, Cos<Math>, Tanh<Math>, Erf<Math>,
                             Sigmoid<Math>, Relu, Silu<Math>, Gelu<Math>, GeluTanh<Math>>;

template <class F>
void kernel(const KernelCall& call) {
  Unary::run(call, F{}, {0, 0});
}

void logical_not(const KernelCall& call) { Unary::run_flags<LogicalNot>(call, call.in[0].dtype()); }

template <class F>
void with_constant(const KernelCall& call) {
  const double value = call.attrs.as<ScalarAttrs>().value;
  Unary::run(call, F{value}, {value, 0});
}

void clamp(const KernelCall& call) {
  const auto& attrs = call.attrs.as<ClampAttrs>();
  Unary::run(call, Clamp{attrs.low, attrs.high}, {attrs.low, attrs.high});
}

constexpr KernelEntry kEntries[] = {
    {op::add_scalar, with_constant<AddScalar>},
    {op::mul_scalar, with_constant<MulScalar>},
    {op::pow_scalar, with_constant<PowScalar>},
    {op::clamp, clamp},
    {op::logical_not, logical_not},
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
    {op::erf, kernel<Erf<Math>>},
    {op::sigmoid, kernel<Sigmoid<Math>>},
    {op::relu, kernel<Relu>},
    {op::silu, kernel<Silu<Math>>},
    {op::gelu, kernel<Gelu<Math>>},
    {op::gelu_tanh, kernel<GeluTanh<Math>>},
};

}  // namespace

void register_pointwise_unary(OpTable& table) { add_kernels(table, kEntries); }

}  // namespace sherd::cuda
