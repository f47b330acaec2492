#pragma once
// Element types, their promotion (PyTorch's table), and the two 16-bit floats with one conversion rule each.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "runtime/tensor/error.h"

namespace sherd {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u8, boolean };
inline constexpr int kNumDTypes = 8;

constexpr std::int64_t byte_size(DType t) {
  constexpr std::uint64_t sizes = 0x01'01'04'08'02'02'04'08;  // f64's is the last byte; no branch, and no table to load
  return static_cast<std::int64_t>(sizes >> (8 * static_cast<int>(t)) & 0xff);
}
constexpr bool is_floating(DType t) { return t <= DType::f16; }
/// "f64" "f32" "bf16" "f16" "i64" "i32" "u8" "bool".
std::string_view name(DType t);
/// Inverse of name(); throws Error on anything else.
DType dtype_from_name(std::string_view text);
/// Result type of a binary op on two tensors, by PyTorch's table.
DType promote(DType a, DType b);

/// Round-to-nearest-even bfloat16. Denormals are kept, NaN stays NaN: the one rule for every cast.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
                  : static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE half; round-to-nearest-even, denormals kept, overflow to infinity.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  explicit f16(float x);
  explicit operator float() const;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

template <class T>
struct Type {
  using type = T;
};

/// Calls fn(Type<T>{}) with the C++ type of `t`.
template <class Fn>
decltype(auto) visit_dtype(DType t, Fn&& fn) {
  switch (t) {
    case DType::f64: return fn(Type<double>{});
    case DType::f32: return fn(Type<float>{});
    case DType::bf16: return fn(Type<bf16>{});
    case DType::f16: return fn(Type<f16>{});
    case DType::i64: return fn(Type<std::int64_t>{});
    case DType::i32: return fn(Type<std::int32_t>{});
    case DType::u8: return fn(Type<std::uint8_t>{});
    case DType::boolean: return fn(Type<bool>{});
  }
  fail("unknown dtype {}", static_cast<int>(t));
}
/// The same for the floating dtypes; infer has refused the others.
template <class Fn>
decltype(auto) visit_floating(DType t, Fn&& fn) {
  switch (t) {
    case DType::f64: return fn(Type<double>{});
    case DType::f32: return fn(Type<float>{});
    case DType::bf16: return fn(Type<bf16>{});
    case DType::f16: return fn(Type<f16>{});
    default: fail("{} is not a floating-point type", name(t));
  }
}

/// One conversion between any two element types: floats to integers truncate, anything to bool is != 0.
template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<From, bf16> || std::is_same_v<From, f16>) {
    return convert<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{};
  } else if constexpr (std::is_same_v<To, bf16> || std::is_same_v<To, f16>) {
    return To(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return static_cast<To>(static_cast<std::int64_t>(x));
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace sherd
