#include "tests/support/emulated_nccl/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "runtime/tensor/dtype.h"
#include "tests/support/emulated_gpu/random.h"

namespace sherd::cuda::nccl::fake {

namespace {

constexpr std::size_t kStretch = 8;  // elements that are summed in one order
using emulated::Random;

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

template <class T>
auto wide(T x) {
  if constexpr (kIsHalf<T>) return static_cast<float>(x);
  else return x;
}
template <class T, class W>
T narrow(W x) {
  return static_cast<T>(x);
}

template <class W>
W combine(RedOp op, W a, W b) {
  switch (op) {
    case RedOp::prod: return static_cast<W>(a * b);
    case RedOp::max:
      if constexpr (std::is_floating_point_v<W>) return std::fmax(a, b);
      else return std::max(a, b);
    case RedOp::min:
      if constexpr (std::is_floating_point_v<W>) return std::fmin(a, b);
      else return std::min(a, b);
    default: return static_cast<W>(a + b);
  }
}

template <class T>
T at(const std::byte* values, std::size_t i) {
  T value;
  std::memcpy(&value, values + i * sizeof(T), sizeof value);
  return value;
}
template <class T>
void put(std::byte* values, std::size_t i, T value) {
  std::memcpy(values + i * sizeof(T), &value, sizeof value);
}

std::vector<std::size_t> drawn_order(std::size_t parts, std::uint64_t seed) {
  std::vector<std::size_t> order(parts);
  std::iota(order.begin(), order.end(), 0u);
  Random random(seed);
  for (std::size_t i = parts; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

template <class T>
void reduce_typed(RedOp op, std::span<const std::byte* const> parts, std::byte* out, std::size_t count,
                  std::size_t first, std::uint64_t seed) {
  using W = decltype(wide(T{}));
  const auto size = static_cast<W>(parts.size());
  constexpr bool is_float = std::is_floating_point_v<W>;
  // An average of floats is a sum of parts that were divided; one of integers divides the sum.
  const auto part = [&](std::size_t p, std::size_t i) {
    const W value = wide(at<T>(parts[p], i));
    if constexpr (is_float) return op == RedOp::avg ? wide(narrow<T>(value * (W{1} / size))) : value;
    else return value;
  };
  std::vector<T> results(count);  // `out` may be one of the parts
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t stretch = (first + i) / kStretch;
    if (order.empty() || (first + i) % kStretch == 0) order = drawn_order(parts.size(), seed + stretch);
    W sum = part(order[0], i);
    for (std::size_t k = 1; k < order.size(); ++k) sum = wide(narrow<T>(combine(op, sum, part(order[k], i))));
    if constexpr (!is_float)
      if (op == RedOp::avg) sum = static_cast<W>(sum / size);
    results[i] = narrow<T>(sum);
  }
  for (std::size_t i = 0; i < count; ++i) put(out, i, results[i]);
}

template <class Fn>
void with_type(DataType type, Fn fn) {
  switch (type) {
    case DataType::int8: return fn(std::int8_t{});
    case DataType::uint8: return fn(std::uint8_t{});
    case DataType::int32: return fn(std::int32_t{});
    case DataType::uint32: return fn(std::uint32_t{});
    case DataType::int64: return fn(std::int64_t{});
    case DataType::uint64: return fn(std::uint64_t{});
    case DataType::float16: return fn(f16{});
    case DataType::float32: return fn(float{});
    case DataType::float64: return fn(double{});
    case DataType::bfloat16: return fn(bf16{});
    default: return;
  }
}

}  // namespace

bool is_reduced(DataType type) { return type <= DataType::bfloat16; }

void reduce_parts(DataType type, std::uint32_t op, std::span<const std::byte* const> parts, std::byte* out,
                  std::size_t count, std::size_t first, std::uint64_t seed) {
  with_type(type,
            [&](auto zero) { reduce_typed<decltype(zero)>(static_cast<RedOp>(op), parts, out, count, first, seed); });
}

void multiply(DataType type, std::byte* x, std::size_t count, const std::byte* factor) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < count; ++i) put(x, i, narrow<T>(wide(at<T>(x, i)) * wide(at<T>(factor, 0))));
  });
}

}  // namespace sherd::cuda::nccl::fake
