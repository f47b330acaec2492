// The CPU column of the pointwise rows: each is its functor (op/pointwise_list.h) in the loop of pointwise_loop.h.
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/math.h"
#include "runtime/cpu/pointwise_loop.h"
#include "runtime/cpu/silu_family.h"
#include "runtime/op/pointwise_list.h"

namespace sherd::cpu {

namespace {

using namespace pointwise;

// The functor on whole vectors of f32, where there is one: it takes every floating dtype but f64.
template <class F>
struct OnVectors {
  using Type = void;
};
template <>
struct OnVectors<Silu<Math>> {
  using Type = vectors::Silu;
};
template <>
struct OnVectors<SiluBackward<Math>> {
  using Type = vectors::SiluBackward;
};
template <>
struct OnVectors<GeluTanh<Math>> {
  using Type = vectors::GeluTanh;
};
template <>
struct OnVectors<GeluTanhBackward<Math>> {
  using Type = vectors::GeluTanhBackward;
};
template <>
struct OnVectors<Swiglu<Math>> {
  using Type = vectors::Swiglu;
};
template <>
struct OnVectors<SwigluBackward<Math>> {
  using Type = vectors::SwigluBackward;
};

template <class E>
void kernel(const KernelCall& call) {
  using F = typename E::Functor;
  using Vectors = typename OnVectors<F>::Type;
  const F f = functor_of<F>(constants_of<F>(call.attrs));
  const DType dtype = E::computes == Computes::in_promoted ? promoted(call.in) : call.out[0].dtype();
  if constexpr (std::is_void_v<Vectors>) run_pointwise_as(dtype, call, f);
  else if (dtype == DType::f64) run_pointwise<double>(call, &f, pointwise_loop<F, double>);
  else run_pointwise<float>(call, nullptr, vector_loop<Vectors>);
}

}  // namespace

void register_pointwise(OpTable& table) {
  Rows<Math>::for_each([&]<class E>(E) { table.kernel(E::row, Device::Kind::cpu, kernel<E>); });
}

}  // namespace sherd::cpu
