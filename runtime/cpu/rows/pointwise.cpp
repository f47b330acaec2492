// The CPU column of the pointwise rows: each is its functor (op/pointwise_list.h) in the loop of pointwise_loop.h.
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/math.h"
#include "runtime/cpu/rows/pointwise_loop.h"
#include "runtime/cpu/rows/silu_family.h"
#include "runtime/op/rows/pointwise_list.h"

namespace sherd::cpu {

namespace {

using namespace pointwise;

// The functor on whole vectors of f32, where there is one: it takes every floating dtype but f64.
template <class F>
struct OnVectors {
  using Type = void;
};
template <>
struct OnVectors<Add> {
  using Type = vectors::Add;
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

// Dense tensors of one 16-bit float are read and rounded by the loop itself, others a tile at a time.
template <class F>
void run_vectors(DType dtype, const KernelCall& call) {
  if (dtype == DType::bf16 && run_dense<bf16>(call, nullptr, vector_loop<F, bf16>)) return;
  if (dtype == DType::f16 && run_dense<f16>(call, nullptr, vector_loop<F, f16>)) return;
  run_pointwise<float>(call, nullptr, vector_loop<F, float>);
}

template <class E>
void kernel(const KernelCall& call) {
  using F = typename E::Functor;
  using Vectors = typename OnVectors<F>::Type;
  const F f = functor_of<F>(constants_of<F>(call.attrs));
  const DType dtype = E::computes == Computes::in_promoted ? promoted(call.in) : call.out[0].dtype();
  if constexpr (!std::is_void_v<Vectors>)
    if (is_floating(dtype) && dtype != DType::f64) return run_vectors<Vectors>(dtype, call);
  run_pointwise_as(dtype, call, f);
}

}  // namespace

void register_pointwise(OpTable& table) {
  Rows<Math>::for_each([&]<class E>(E) { table.kernel(E::row, Device::Kind::cpu, kernel<E>); });
}

}  // namespace sherd::cpu
