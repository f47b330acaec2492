// The numbers of device.h: casts against the CPU's conversion bit by bit, functions against long double, division.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "tests/cuda/cuda_test.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/numbers_kernels.h"

namespace sherd::cuda {

namespace {

class CudaNumbers : public CudaTest {};

constexpr DType kAll[] = {DType::f64, DType::f32, DType::bf16, DType::f16,
                          DType::i64, DType::i32, DType::u8,   DType::boolean};

// Values that round, overflow, are denormal or are not numbers; every pattern of the small types.
template <class T>
std::vector<T> interesting() {
  std::vector<T> values;
  if constexpr (std::is_same_v<T, bool>) {
    return values;
  } else if constexpr (sizeof(T) <= 2) {
    for (int bits = 0; bits < (sizeof(T) == 2 ? 65536 : 256); ++bits) {
      T value;
      std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
      values.push_back(value);
    }
  } else {
    std::mt19937_64 draw(7);
    for (int i = 0; i < 20000; ++i) {
      const std::uint64_t bits = draw();
      T value;
      std::memcpy(&value, &bits, sizeof value);
      values.push_back(value);
      values.push_back(static_cast<T>(static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-50));
      values.push_back(
          static_cast<T>(std::ldexp(static_cast<double>(bits % 65536) + 0.5, static_cast<int>(bits >> 58) - 40)));
    }
    for (const T value :
         {T(0), T(1), std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest(), std::numeric_limits<T>::min(),
          std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()})
      values.push_back(value);
  }
  return values;
}

// std::vector<bool> is no array.
struct Bytes {
  std::vector<std::uint8_t> data;
  std::int64_t n = 0;
};

Bytes inputs(DType type) {
  Bytes bytes;
  visit_dtype(type, [&](auto t) {
    using T = typename decltype(t)::type;
    if constexpr (std::is_same_v<T, bool>) {
      bytes.data = {0, 1, 1, 0};
      bytes.n = 4;
    } else {
      const std::vector<T> values = interesting<T>();
      bytes.n = static_cast<std::int64_t>(values.size());
      bytes.data.resize(values.size() * sizeof(T));
      std::memcpy(bytes.data.data(), values.data(), bytes.data.size());
    }
  });
  return bytes;
}

std::vector<std::uint8_t> converted(DType from_type, const Bytes& in, DType to_type) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(in.n * byte_size(to_type)));
  visit_dtype(from_type, [&](auto from) {
    using From = typename decltype(from)::type;
    visit_dtype(to_type, [&](auto to) {
      using To = typename decltype(to)::type;
      for (std::size_t i = 0; i < static_cast<std::size_t>(in.n); ++i) {
        From x;
        std::memcpy(static_cast<void*>(&x), in.data.data() + i * sizeof(From), sizeof x);
        const To y = convert<To>(x);
        std::memcpy(out.data() + i * sizeof(To), static_cast<const void*>(&y), sizeof y);
      }
    });
  });
  return out;
}

TEST_F(CudaNumbers, CastsAreTheCpusBitForBit) {
  const TestStream stream;
  for (const DType from : kAll) {
    const Bytes in = inputs(from);
    const DeviceArray<std::uint8_t> device_in(stream, in.data);
    for (const DType to : kAll) {
      const std::vector<std::uint8_t> expected = converted(from, in, to);
      const DeviceArray<std::uint8_t> device_out(expected.size());
      cast_all(stream, from, device_in.data(), to, device_out.data(), in.n);
      EXPECT_EQ(device_out.read(stream), expected) << name(from) << " to " << name(to);
    }
    const DeviceArray<std::uint8_t> again(in.data.size());
    through_compute(stream, from, device_in.data(), again.data(), in.n);
    const DType compute = from == DType::f64 ? DType::f64 : is_floating(from) ? DType::f32 : DType::i64;
    EXPECT_EQ(again.read(stream), converted(compute, {converted(from, in, compute), in.n}, from)) << name(from);
  }
}

// CUDA's guide gives at most 2 units in the last place for each of these in f32 and f64.
template <class T>
void check_functions() {
  struct Row {
    Function function;
    long double (*exact)(long double);
    T low, high;
  };
  const Row rows[] = {{Function::exp, std::exp, T(-20), T(20)}, {Function::log, std::log, T(0.001), T(1000)},
                      {Function::sin, std::sin, T(-10), T(10)}, {Function::cos, std::cos, T(-10), T(10)},
                      {Function::tanh, std::tanh, T(-5), T(5)}, {Function::erf, std::erf, T(-4), T(4)}};
  const TestStream stream;
  for (const Row& row : rows) {
    std::vector<T> values(1001);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = row.low + (row.high - row.low) * static_cast<T>(i) / 1000;
    const DeviceArray<T> in(stream, values), out(values.size());
    math(stream, row.function, in.data(), out.data(), 1001);
    const std::vector<T> result = out.read(stream);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T exact = static_cast<T>(row.exact(values[i]));
      const T unit = std::nextafter(std::fabs(exact), std::numeric_limits<T>::infinity()) - std::fabs(exact);
      ASSERT_LE(std::fabs(result[i] - exact), 2 * unit)
          << "function " << static_cast<int>(row.function) << " at " << values[i];
    }
  }
}

TEST_F(CudaNumbers, FunctionsOfFloats) { check_functions<float>(); }
TEST_F(CudaNumbers, FunctionsOfDoubles) { check_functions<double>(); }

TEST_F(CudaNumbers, DivisionByAMultiplication) {
  const TestStream stream;
  constexpr std::uint32_t kSteps[] = {1, 65537, 1048573};
  constexpr std::int64_t n = 2048;
  const DeviceArray<std::uint32_t> quotient(n), rest(n);
  for (const std::uint32_t divisor :
       {1u, 2u, 3u, 5u, 7u, 64u, 641u, 1000u, 65535u, 65536u, 65537u, 0x3fffffffu, 0x40000001u, 0x7fffffffu})
    for (const std::uint32_t step : kSteps) {
      divide_all(stream, divisor, step, quotient.data(), rest.data(), n);
      const std::vector<std::uint32_t> q = quotient.read(stream), r = rest.read(stream);
      for (std::uint32_t i = 0; i < n; ++i) {
        if (std::uint64_t{i} * step >= 0x80000000u) break;
        ASSERT_EQ(q[i], i * step / divisor) << i * step << " / " << divisor;
        ASSERT_EQ(r[i], i * step % divisor) << i * step << " % " << divisor;
      }
    }
}

}  // namespace

}  // namespace sherd::cuda
