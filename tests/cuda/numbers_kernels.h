#pragma once
// Kernels that apply one function of device.h to each element. Pointers are device memory.
#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/tensor/dtype.h"

namespace sherd::cuda {

/// out[i] = cast<out_type>(in[i]).
void cast_all(cudaStream_t stream, DType in_type, const void* in, DType out_type, void* out, std::int64_t n);
/// out[i] = from_compute<in_type>(to_compute(in[i])): the same number again.
void through_compute(cudaStream_t stream, DType type, const void* in, void* out, std::int64_t n);

enum class Function { exp, log, sin, cos, tanh, erf };
void math(cudaStream_t stream, Function function, const float* in, float* out, std::int64_t n);
void math(cudaStream_t stream, Function function, const double* in, double* out, std::int64_t n);

/// quotient[i] = i * step / divisor, rest[i] the remainder.
void divide_all(cudaStream_t stream, std::uint32_t divisor, std::uint32_t step, std::uint32_t* quotient,
                std::uint32_t* rest, std::int64_t n);

}  // namespace sherd::cuda
