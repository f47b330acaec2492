#include "tests/cuda/numbers_kernels.h"

#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"

namespace sherd::cuda {

namespace {

template <class From, class To>
__global__ void cast_kernel(const From* in, To* out, std::int64_t n) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) out[i] = cast<To>(in[i]);
}

template <class T>
__global__ void through_compute_kernel(const T* in, T* out, std::int64_t n) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) out[i] = from_compute<T>(to_compute(in[i]));
}

template <class T>
__global__ void math_kernel(Function function, const T* in, T* out, std::int64_t n) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) {
    const T x = in[i];
    switch (function) {
      case Function::exp: out[i] = Math::exp(x); break;
      case Function::log: out[i] = Math::log(x); break;
      case Function::sin: out[i] = Math::sin(x); break;
      case Function::cos: out[i] = Math::cos(x); break;
      case Function::tanh: out[i] = Math::tanh(x); break;
      case Function::erf: out[i] = Math::erf(x); break;
    }
  }
}

__global__ void divide_kernel(FastDivide divide, std::uint32_t step, std::uint32_t* quotient, std::uint32_t* rest,
                              std::int64_t n) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads())
    quotient[i] = divide.divide(static_cast<std::uint32_t>(i) * step, rest[i]);
}

Grid grid_of(std::int64_t n) { return {.blocks = blocks_for(n, 128), .threads = 128}; }

}  // namespace

void cast_all(cudaStream_t stream, DType in_type, const void* in, DType out_type, void* out, std::int64_t n) {
  visit_dtype(in_type, [&](auto from) {
    using From = typename decltype(from)::type;
    visit_dtype(out_type, [&](auto to) {
      using To = typename decltype(to)::type;
      launch(stream, cast_kernel<From, To>, grid_of(n), static_cast<const From*>(in), static_cast<To*>(out), n);
    });
  });
}

void through_compute(cudaStream_t stream, DType type, const void* in, void* out, std::int64_t n) {
  visit_dtype(type, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(stream, through_compute_kernel<T>, grid_of(n), static_cast<const T*>(in), static_cast<T*>(out), n);
  });
}

void math(cudaStream_t stream, Function function, const float* in, float* out, std::int64_t n) {
  launch(stream, math_kernel<float>, grid_of(n), function, in, out, n);
}

void math(cudaStream_t stream, Function function, const double* in, double* out, std::int64_t n) {
  launch(stream, math_kernel<double>, grid_of(n), function, in, out, n);
}

void divide_all(cudaStream_t stream, std::uint32_t divisor, std::uint32_t step, std::uint32_t* quotient,
                std::uint32_t* rest, std::int64_t n) {
  launch(stream, divide_kernel, grid_of(n), FastDivide(divisor), step, quotient, rest, n);
}

}  // namespace sherd::cuda
