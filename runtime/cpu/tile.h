#pragma once
// Strided tensors seen as runs of plain values. Kernels compute on short contiguous tiles of one of three types:
// float (for f32, bf16, f16), double (f64) and int64 (integers and bool); reading converts, writing rounds once.
// A kernel then has three instantiations, whatever the dtypes and strides of its tensors.
#include <cstdint>

#include "runtime/op/core/tensor.h"

namespace sherd::cpu {

/// Elements of a tile: several tiles fit the first-level cache.
inline constexpr std::int64_t kTile = 512;

/// Calls fn(Type<C>{}) with the type that values of dtype `t` are computed in.
template <class Fn>
decltype(auto) visit_compute(DType t, Fn&& fn) {
  if (t == DType::f64) return fn(Type<double>{});
  if (is_floating(t)) return fn(Type<float>{});
  return fn(Type<std::int64_t>{});
}

/// a + b rounded to T: f32 inside for the 16-bit floats, wrapping for integers.
template <class T>
T add_rounded(T a, T b) {
  if constexpr (std::is_integral_v<T>) return convert<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  else if constexpr (std::is_floating_point_v<T>) return a + b;
  else return T(static_cast<float>(a) + static_cast<float>(b));
}

/// Dims with their strides, neighbours merged and size-1 dims dropped; at least one dim.
struct Walk {
  int ndim = 1;
  std::int64_t size[kMaxDims] = {1};
  std::int64_t stride[kMaxDims] = {1};
};
Walk collapse(const Shape& shape, const Strides& strides);

/// Reads elements start, start+1, ... of a strided tensor in row-major order, as C.
template <class C>
class TileReader {
 public:
  TileReader() = default;
  TileReader(const void* data, DType dtype, const Shape& shape, const Strides& strides);
  /// `tensor` broadcast to shape `to`.
  TileReader(const Tensor& tensor, const Shape& to);
  /// True if read() returns a pointer into the tensor and copies nothing.
  bool direct() const { return dense_ && dtype_ == dtype_of<C>; }
  /// Elements [start, start + count); in `buffer` unless direct().
  const C* read(std::int64_t start, std::int64_t count, C* buffer) const;

 private:
  const std::byte* data_ = nullptr;
  DType dtype_ = DType::f32;
  bool dense_ = false;
  Walk walk_;
};

/// Elements [start, start + count) of a dense tensor become `values`, rounded to `dtype`; with `accumulate` the
/// rounded values are added to what is there, and the sum rounded again.
template <class C>
void write_tile(void* data, DType dtype, std::int64_t start, const C* values, std::int64_t count,
                bool accumulate = false);

}  // namespace sherd::cpu
