#include "tests/support/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace sherd::testing {

namespace {

double rounded(double x) { return static_cast<double>(static_cast<float>(bf16(static_cast<float>(x)))); }

double one_value(Draw kind, std::mt19937_64& random) {
  // Not the library's distributions: those differ between standard libraries.
  const auto uniform = [&random] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  switch (kind) {
    case Draw::positive: return 0.5 + 1.5 * uniform();
    case Draw::unit: return 1.8 * uniform() - 0.9;
    default: break;
  }
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += uniform();
  return std::abs(sum) < 0.01 ? 0.5 : sum;
}

std::vector<double> values(const Arg& arg, std::mt19937_64& random) {
  std::vector<double> v(static_cast<std::size_t>(numel(arg.shape)));
  if (arg.draw == Draw::distinct) {
    std::iota(v.begin(), v.end(), 0.0);
    std::shuffle(v.begin(), v.end(), random);
    const double middle = static_cast<double>(v.size() / 2) - 0.5;
    for (double& x : v) x = (x - middle) / 32;
    return v;
  }
  for (double& x : v) {
    if (arg.draw == Draw::ids) x = static_cast<double>(random() % static_cast<std::uint64_t>(arg.high));
    else if (arg.draw == Draw::flags) x = static_cast<double>(random() & 1u);
    else if (arg.draw == Draw::bytes) x = static_cast<double>(random() & 255u);
    else x = rounded(one_value(arg.draw, random));
  }
  return v;
}

Tensor filled(const std::vector<double>& v, const Shape& shape, DType dtype) {
  Tensor t = Tensor::empty(shape, dtype);
  visit_dtype(dtype, [&]<class T>(Type<T>) {
    T* to = t.mutable_data<T>();
    for (std::size_t i = 0; i < v.size(); ++i) to[i] = convert<T>(v[i]);
  });
  return t;
}

// Copies t's elements into the window of a garbage-filled storage of `elements`.
Tensor placed(const Tensor& t, std::int64_t elements, const Strides& strides, std::int64_t offset) {
  Ref<Storage> storage = Storage::allocate(elements * byte_size(t.dtype()), MemoryCategory::activations);
  visit_dtype(t.dtype(), [&]<class T>(Type<T>) {
    T* to = reinterpret_cast<T*>(storage->write());
    T garbage{};
    if constexpr (is_floating(dtype_of<T>)) garbage = convert<T>(std::numeric_limits<double>::quiet_NaN());
    else garbage = std::numeric_limits<T>::max();
    std::fill(to, to + elements, garbage);
    const auto v = t.to_vector<double>();
    Dims index = Dims::filled(t.ndim(), 0);
    for (double x : v) {
      std::int64_t at = offset;
      for (int d = 0; d < t.ndim(); ++d) at += index[d] * strides[d];
      to[at] = convert<T>(x);
      for (int d = t.ndim() - 1; d >= 0 && ++index[d] == t.shape()[d]; --d) index[d] = 0;
    }
  });
  return Tensor::over(std::move(storage), t.shape(), strides, offset, t.dtype());
}

}  // namespace

Tensor draw(const Arg& arg, DType dtype, std::uint64_t seed) {
  if (arg.draw == Draw::absent) return {};
  std::mt19937_64 random(seed);
  if (arg.is_statistic && dtype != DType::f64) dtype = DType::f32;
  const DType type = arg.draw == Draw::ids     ? DType::i64
                     : arg.draw == Draw::flags ? DType::boolean
                     : arg.draw == Draw::bytes ? DType::u8
                                               : dtype;
  return filled(values(arg, random), arg.shape, type);
}

Tensor dense_copy(const Tensor& t) { return t.defined() ? converted(t, t.dtype()) : Tensor(); }

Tensor converted(const Tensor& t, DType dtype) { return filled(t.to_vector<double>(), t.shape(), dtype); }

Tensor with_reversed_strides(const Tensor& t) {
  Strides strides = Dims::filled(t.ndim(), 1);
  std::int64_t step = 1;
  for (int d = 0; d < t.ndim(); ++d) {
    strides[d] = step;
    step *= std::max<std::int64_t>(t.shape()[d], 1);
  }
  return placed(t, step, strides, 0);
}

Tensor with_gaps(const Tensor& t) {
  Strides strides = Dims::filled(t.ndim(), 2);
  std::int64_t step = 2, offset = 3;
  for (int d = t.ndim() - 1; d >= 0; --d) {
    strides[d] = step;
    step *= t.shape()[d] + 1;
  }
  return placed(t, step + offset, strides, offset);
}

Tensor with_zero_strides(const Tensor& t) {
  if (t.ndim() == 0 || t.numel() == 0) return t;
  Strides strides = Dims::filled(t.ndim(), 0);
  strides[t.ndim() - 1] = t.strides()[t.ndim() - 1];
  return Tensor::over(t.storage(), t.shape(), strides, t.offset(), t.dtype());
}

}  // namespace sherd::testing
