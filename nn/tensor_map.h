#pragma once
// Replaces the tensors in arguments and results of forward(): tensors, vectors, pairs, tuples, optionals of them.
#include <cstddef>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/op/tensor.h"

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

/// Which argument of forward() a tensor is part of, or which element of the vector, tuple or pair that it returns.
struct TensorPlace {
  std::size_t index = 0;
  std::size_t count = 1;  ///< arguments, or elements; a single result is one
};

/// Replaces one tensor; never called for undefined ones.
using TensorMap = std::function<void(Tensor&, TensorPlace)>;

/// Casts a floating-point tensor; leaves others alone.
void cast_floating(Tensor& tensor, DType dtype);

/// Calls `map` for every defined tensor in `value`, all at one place.
template <class T>
void map_tensors(T& value, const TensorMap& map, TensorPlace place) {
  if constexpr (std::is_same_v<T, Tensor>) {
    if (value.defined()) map(value, place);
  } else if constexpr (HoldsTensors<T>::value) {
    if constexpr (requires { value.begin(); }) {
      for (auto& item : value) map_tensors(item, map, place);
    } else if constexpr (requires { value.has_value(); }) {
      if (value) map_tensors(*value, map, place);
    } else {
      std::apply([&](auto&... item) { (map_tensors(item, map, place), ...); }, value);
    }
  }
}

/// The same for the result of forward(): elements of a vector, pair or tuple have places of their own.
template <class T>
void map_result(T& result, const TensorMap& map) {
  if constexpr (requires { result.begin(); }) {
    for (std::size_t i = 0; i < result.size(); ++i) map_tensors(result[i], map, {i, result.size()});
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::size_t i = 0;
    std::apply([&](auto&... item) { (map_tensors(item, map, {i++, sizeof...(item)}), ...); }, result);
  } else {
    map_tensors(result, map, {});
  }
}

/// One argument of a call, mapped if there is a map. Holds the mapped copy during the call.
template <class T>
class MappedArgument {
 public:
  MappedArgument(std::remove_reference_t<T>& argument, const TensorMap* map, TensorPlace place) : argument_(argument) {
    if constexpr (kHolds) {
      if (!map) return;
      copy_.emplace(static_cast<T&&>(argument));
      map_tensors(*copy_, *map, place);
    } else {
      (void)map, (void)place;
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
