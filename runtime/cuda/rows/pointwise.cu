// Pointwise rows of two and three tensors: the functors of op/pointwise.h.
#include "runtime/cuda/rows/pointwise_kernels.h"
#include "runtime/op/attr_types.h"

namespace sherd::cuda {

namespace {

using namespace pointwise;

using Binary = detail::Family<2, Add, Sub, Mul, Div, Maximum, Minimum, ClampBackward, Equal, NotEqual, Less, LessEqual,
                              LogicalAnd, LogicalOr, TanhBackward, SigmoidBackward, ReluBackward, SiluBackward<Math>,
                              GeluBackward<Math>, GeluTanhBackward<Math>, Swiglu<Math>>;
using Ternary = detail::Family<3, Where, SwigluBackward<Math>>;

template <class F>
void kernel(const KernelCall& call) {
  Binary::run(call, F{}, {0, 0});
}

// Computed in the type its inputs promote to; the result is bool.
template <class F>
void comparison(const KernelCall& call) {
  Binary::run_flags<F>(call, promote(call.in[0].dtype(), call.in[1].dtype()));
}

void clamp_backward(const KernelCall& call) {
  const auto& attrs = call.attrs.as<ClampAttrs>();
  Binary::run(call, ClampBackward{attrs.low, attrs.high}, {attrs.low, attrs.high});
}

void where(const KernelCall& call) { Ternary::run<Where, bool>(call, {}, {0, 0}); }

void swiglu_backward(const KernelCall& call) { Ternary::run(call, SwigluBackward<Math>{}, {0, 0}); }

constexpr KernelEntry kEntries[] = {
    {op::add, kernel<Add>},
    {op::sub, kernel<Sub>},
    {op::mul, kernel<Mul>},
    {op::div, kernel<Div>},
    {op::maximum, kernel<Maximum>},
    {op::minimum, kernel<Minimum>},
    {op::clamp_backward, clamp_backward},
    {op::where, where},
    {op::equal, comparison<Equal>},
    {op::not_equal, comparison<NotEqual>},
    {op::less, comparison<Less>},
    {op::less_equal, comparison<LessEqual>},
    {op::logical_and, comparison<LogicalAnd>},
    {op::logical_or, comparison<LogicalOr>},
    {op::tanh_backward, kernel<TanhBackward>},
    {op::sigmoid_backward, kernel<SigmoidBackward>},
    {op::relu_backward, kernel<ReluBackward>},
    {op::silu_backward, kernel<SiluBackward<Math>>},
    {op::gelu_backward, kernel<GeluBackward<Math>>},
    {op::gelu_tanh_backward, kernel<GeluTanhBackward<Math>>},
    {op::swiglu, kernel<Swiglu<Math>>},
    {op::swiglu_backward, swiglu_backward},
};

}  // namespace

void register_pointwise(OpTable& table) { add_kernels(table, kEntries); }

}  // namespace sherd::cuda
