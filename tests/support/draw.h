#pragma once
// Repeatable test values, rounded to bf16 (8 significant bits): every dtype sees the same numbers, up to some hundred
// distinct ones.
#include <cstdint>
#include <vector>

#include "runtime/op/core/tensor.h"

namespace sherd::testing {

enum class Draw : std::uint8_t {
  normal,    ///< around 0 with deviation 1, never 0
  positive,  ///< 0.5 to 2
  unit,      ///< -0.9 to 0.9
  distinct,  ///< no two equal or closer than 1/32, never 0: maxima and kinks stay where they are
  ids,       ///< integers 0 <= i < high, i64
  flags,     ///< bool
  bytes,     ///< u8
  absent,    ///< an optional input that is not given
};

/// One input of a case.
struct Arg {
  Draw draw = Draw::normal;
  Shape shape;
  std::int64_t high = 0;
  bool is_statistic = false;  ///< at least f32, as rows keep means and sums of 16-bit inputs
  bool is_floating() const { return draw < Draw::ids; }
};
inline Arg normal(const Shape& shape) { return {.draw = Draw::normal, .shape = shape}; }
inline Arg positive(const Shape& shape) { return {.draw = Draw::positive, .shape = shape}; }
inline Arg unit(const Shape& shape) { return {.draw = Draw::unit, .shape = shape}; }
inline Arg distinct(const Shape& shape) { return {.draw = Draw::distinct, .shape = shape}; }
inline Arg ids(const Shape& shape, std::int64_t high) { return {.draw = Draw::ids, .shape = shape, .high = high}; }
inline Arg flags(const Shape& shape) { return {.draw = Draw::flags, .shape = shape}; }
inline Arg statistic(const Shape& shape) { return {.draw = Draw::positive, .shape = shape, .is_statistic = true}; }
inline Arg absent() { return {.draw = Draw::absent, .shape = {}}; }

/// A dense tensor of `arg`; `dtype` is that of floating args. The same seed gives the same values in every dtype.
Tensor draw(const Arg& arg, DType dtype, std::uint64_t seed);
/// A dense copy with memory of its own.
Tensor dense_copy(const Tensor& t);
/// The same values converted to `dtype`, dense.
Tensor converted(const Tensor& t, DType dtype);

/// The same values behind other strides, in a larger storage whose other elements are NaN (or a huge integer).
Tensor with_reversed_strides(const Tensor& t);
Tensor with_gaps(const Tensor& t);
/// Row 0 along every dim but the last, repeated by stride 0.
Tensor with_zero_strides(const Tensor& t);

}  // namespace sherd::testing
