#pragma once
// Replacing the tensors in what forward() takes or returns: tensors, vectors, pairs, tuples, optionals of them.
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace sherd::nn {

/// Whether values of a type may hold tensors that can be replaced.
template <class T>
struct HoldsTensors : std::false_type {};
template <>
struct HoldsTensors<Tensor> : std::true_type {};
template <class T>
struct HoldsTensors<std::vector<T>> : HoldsTensors<T> {};
template <class T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <class... T>
struct HoldsTensors<std::tuple<T...>> : std::disjunction<HoldsTensors<T>...> {};
template <class A, class B>
struct HoldsTensors<std::pair<A, B>> : std::disjunction<HoldsTensors<A>, HoldsTensors<B>> {};

/// Casts a floating-point tensor; leaves others alone.
void cast_floating(Tensor& tensor, DType dtype);

/// Casts every floating-point tensor in `value`; leaves everything else alone.
template <class T>
void cast_tensors(T& value, DType dtype) {
  if constexpr (std::is_same_v<T, Tensor>) {
    cast_floating(value, dtype);
  } else if constexpr (HoldsTensors<T>::value) {
    if constexpr (requires { value.begin(); }) {
      for (auto& item : value) cast_tensors(item, dtype);
    } else if constexpr (requires { value.has_value(); }) {
      if (value) cast_tensors(*value, dtype);
    } else {
      std::apply([&](auto&... item) { (cast_tensors(item, dtype), ...); }, value);
    }
  }
}

/// One argument of a call, cast if there is a type to cast it to. Keeps the copy that a cast needs for as long as the
/// call lasts.
template <class T>
class CastArgument {
 public:
  CastArgument(std::remove_reference_t<T>& argument, std::optional<DType> dtype) : argument_(argument) {
    if constexpr (kHolds) {
      if (!dtype) return;
      copy_.emplace(static_cast<T&&>(argument));
      cast_tensors(*copy_, *dtype);
    } else {
      (void)dtype;
    }
  }
  T&& get() {
    if constexpr (kHolds)
      if (copy_) return static_cast<T&&>(*copy_);
    return static_cast<T&&>(argument_);
  }

 private:
  using Value = std::remove_cvref_t<T>;
  static constexpr bool kHolds = HoldsTensors<Value>::value;
  std::remove_reference_t<T>& argument_;
  std::optional<std::conditional_t<kHolds, Value, bool>> copy_;
};

}  // namespace sherd::nn
