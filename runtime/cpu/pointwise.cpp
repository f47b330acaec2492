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
  std::string_view name;
  Kernel kernel;
};

constexpr Entry kEntries[] = {
    {"add", kernel<Add>},
    {"sub", kernel<Sub>},
    {"mul", kernel<Mul>},
    {"div", kernel<Div>},
    {"maximum", kernel<Maximum>},
    {"minimum", kernel<Minimum>},
    {"add_scalar", with_constant<AddScalar>},
    {"mul_scalar", with_constant<MulScalar>},
    {"pow_scalar", with_constant<PowScalar>},
    {"clamp", with_range<Clamp>},
    {"clamp_backward", with_range<ClampBackward>},
    {"where", kernel<Where>},
    {"equal", comparison<Equal>},
    {"not_equal", comparison<NotEqual>},
    {"less", comparison<Less>},
    {"less_equal", comparison<LessEqual>},
    {"logical_and", comparison<LogicalAnd>},
    {"logical_or", comparison<LogicalOr>},
    {"logical_not", comparison<LogicalNot>},
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
    {"tanh_backward", kernel<TanhBackward>},
    {"erf", kernel<Erf<Math>>},
    {"sigmoid", kernel<Sigmoid<Math>>},
    {"sigmoid_backward", kernel<SigmoidBackward>},
    {"relu", kernel<Relu>},
    {"relu_backward", kernel<ReluBackward>},
    {"silu", with_vectors<Silu<Math>, vectors::Silu>},
    {"silu_backward", with_vectors<SiluBackward<Math>, vectors::SiluBackward>},
    {"gelu", kernel<Gelu<Math>>},
    {"gelu_backward", kernel<GeluBackward<Math>>},
    {"gelu_tanh", with_vectors<GeluTanh<Math>, vectors::GeluTanh>},
    {"gelu_tanh_backward", with_vectors<GeluTanhBackward<Math>, vectors::GeluTanhBackward>},
    {"swiglu", with_vectors<Swiglu<Math>, vectors::Swiglu>},
    {"swiglu_backward", with_vectors<SwigluBackward<Math>, vectors::SwigluBackward>},
};

}  // namespace

void register_pointwise(OpTable& table) {
  for (const Entry& entry : kEntries) table.kernel(entry.name, Device::Kind::cpu, entry.kernel);
}

}  // namespace sherd::cpu
