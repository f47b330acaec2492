#pragma once
// The tensors in arguments and results of forward(), to look at or to replace: tensors, and vectors, arrays, pairs,
// tuples, optionals, maps of them, and structs that say with one line which of their members may hold tensors:
//
//   struct Output {
//     Tensor logits;
//     std::map<std::string, Tensor> losses;
//     static constexpr std::tuple tensor_members{&Output::logits, &Output::losses};
//   };
#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/op/core/tensor.h"

namespace sherd::nn {

/// A struct that lists pointers to members.
template <class T>
concept HasTensorMembers = requires { T::tensor_members; };

/// Whether values of a type may hold tensors that can be replaced.
template <class T>
struct HoldsTensors : std::bool_constant<HasTensorMembers<T>> {};
template <>
struct HoldsTensors<Tensor> : std::true_type {};
template <class T>
struct HoldsTensors<std::vector<T>> : HoldsTensors<T> {};
template <class T, std::size_t N>
struct HoldsTensors<std::array<T, N>> : HoldsTensors<T> {};
template <class T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <class... T>
struct HoldsTensors<std::tuple<T...>> : std::disjunction<HoldsTensors<T>...> {};
template <class A, class B>
struct HoldsTensors<std::pair<A, B>> : std::disjunction<HoldsTensors<A>, HoldsTensors<B>> {};
template <class Key, class T, class... Rest>
struct HoldsTensors<std::map<Key, T, Rest...>> : HoldsTensors<T> {};
template <class Key, class T, class... Rest>
struct HoldsTensors<std::unordered_map<Key, T, Rest...>> : HoldsTensors<T> {};

/// Which argument of forward() a tensor is part of, or which element of the vector, array, tuple, pair, map or struct
/// that it returns.
struct TensorPlace {
  std::size_t index = 0;
  std::size_t count = 1;  ///< arguments, or elements; a single result is one
};

/// Replaces one tensor; never called for undefined ones.
using TensorMap = std::function<void(Tensor&, TensorPlace)>;

/// Casts a floating-point tensor; leaves others alone.
void cast_floating(Tensor& tensor, DType dtype);

/// Calls `each(value, index, count)` for the values of a map in the order of their keys, so that ranks agree on it;
/// keys that have no order come as the map has them.
template <class Map, class Each>
void for_each_value(Map& map, Each&& each) {
  using Key = typename std::remove_const_t<Map>::key_type;
  std::size_t index = 0;
  if constexpr (requires { typename std::remove_const_t<Map>::hasher; } && std::totally_ordered<Key>) {
    std::vector<decltype(&*map.begin())> items;
    for (auto& item : map) items.push_back(&item);
    std::ranges::sort(items, [](const auto* a, const auto* b) { return a->first < b->first; });
    for (const auto item : items) each(item->second, index++, map.size());
  } else {
    for (auto& item : map) each(item.second, index++, map.size());
  }
}

/// Calls `each(element, index, count)` for what a vector, optional, pair, tuple, map or struct is made of.
template <class T, class Each>
void for_each_element(T& value, Each&& each) {
  using Value = std::remove_const_t<T>;
  [[maybe_unused]] std::size_t index = 0;
  if constexpr (HasTensorMembers<Value>) {
    std::apply([&](auto... member) { (each(value.*member, index++, sizeof...(member)), ...); }, Value::tensor_members);
  } else if constexpr (requires { typename Value::mapped_type; }) {
    for_each_value(value, each);
  } else if constexpr (requires { value.begin(); }) {
    for (auto&& item : value) each(item, index++, value.size());
  } else if constexpr (requires { value.has_value(); }) {
    if (value) each(*value, index, 1);
  } else {
    std::apply([&](auto&... item) { (each(item, index++, sizeof...(item)), ...); }, value);
  }
}

/// Calls `map` for every defined tensor in `value`, all at one place.
template <class T>
void map_tensors(T& value, const TensorMap& map, TensorPlace place) {
  if constexpr (std::is_same_v<T, Tensor>) {
    if (value.defined()) map(value, place);
  } else if constexpr (HoldsTensors<T>::value) {
    for_each_element(value, [&](auto& element, std::size_t, std::size_t) { map_tensors(element, map, place); });
  }
}

/// The same for the result of forward(): elements of a vector, pair, tuple, map or struct have places of their own.
template <class T>
void map_result(T& result, const TensorMap& map) {
  if constexpr (std::is_same_v<T, Tensor>) {
    map_tensors(result, map, {});
  } else if constexpr (HoldsTensors<T>::value) {
    for_each_element(result, [&](auto& element, std::size_t index, std::size_t count) {
      map_tensors(element, map, {index, count});
    });
  }
}

using TensorVisitor = std::function<void(const Tensor&)>;

/// Calls `visit` for every defined tensor in `value`. Numbers, enumerators, pointers and texts hold none; any other
/// type that does not say what it holds does not compile, so that no hook misses a tensor.
template <class T>
void visit_tensors(const T& value, const TensorVisitor& visit) {
  if constexpr (std::is_same_v<T, Tensor>) {
    if (value.defined()) visit(value);
  } else if constexpr (std::is_scalar_v<T> || std::is_convertible_v<const T&, std::string_view>) {
    (void)value, (void)visit;
  } else {
    static_assert(
        HasTensorMembers<T> || requires { value.begin(); } || requires { value.has_value(); } ||
            requires { std::tuple_size<T>::value; },
        "give the struct `static constexpr std::tuple tensor_members{&Struct::member, ...};`: the members that "
        "may hold tensors");
    for_each_element(value, [&](const auto& element, std::size_t, std::size_t) { visit_tensors(element, visit); });
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
