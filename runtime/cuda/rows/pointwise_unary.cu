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
    {"add_scalar", with_constant<AddScalar>},
    {"mul_scalar", with_constant<MulScalar>},
    {"pow_scalar", with_constant<PowScalar>},
    {"clamp", clamp},
    {"logical_not", logical_not},
    {"neg", kernel<Neg>},
    {"abs", kernel<Abs>},
    {"sign", kernel<Sign>},
    {"square", kernel<Square>},
    {"exp", kernel<Exp<Math>>},
    {"log", kernel<Log<Math>>},
    {"sqrt", kernel<Sqrt>},
    {"rsqrt", kernel<Rsqrt>},
    {"reciprocal", kernel<Reciprocal>},
    {"sin", kernel<Sin<Math>>},
    {"cos", kernel<Cos<Math>>},
    {"tanh", kernel<Tanh<Math>>},
    {"erf", kernel<Erf<Math>>},
    {"sigmoid", kernel<Sigmoid<Math>>},
    {"relu", kernel<Relu>},
    {"silu", kernel<Silu<Math>>},
    {"gelu", kernel<Gelu<Math>>},
    {"gelu_tanh", kernel<GeluTanh<Math>>},
};

}  // namespace

void register_pointwise_unary(OpTable& table) { add_kernels(table, kEntries); }

}  // namespace sherd::cuda
