#pragma once
// Attributes that may be unset, and that are lists, of plain values or of structs: "[2,3]", "[{piece=0
// offset=64},{piece=2 offset=0}]".
#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/op/attrs/attr_text.h"

namespace sherd {

/// For optional fields, which are left out of the text when they are unset.
template <class T>
struct AttrValue<std::optional<T>> {
  static void print(const std::optional<T>& value, AttrWriter& out) {
    if (value) AttrValue<T>::print(*value, out);
  }
  static void read(std::optional<T>& value, AttrReader& in) { AttrValue<T>::read(value.emplace(), in); }
  static bool equal(const std::optional<T>& a, const std::optional<T>& b) {
    return a.has_value() == b.has_value() && (!a || AttrValue<T>::equal(*a, *b));
  }
  static std::uint64_t hash(const std::optional<T>& value) { return value ? 1 + AttrValue<T>::hash(*value) : 0; }
};

template <class T>
struct AttrValue<std::vector<T>> {
  static void print(const std::vector<T>& values, AttrWriter& out) {
    out.raw("[");
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0) out.raw(",");
      AttrValue<T>::print(values[i], out);
    }
    out.raw("]");
  }
  static void read(std::vector<T>& values, AttrReader& in) {
    values.clear();
    in.list([&] { AttrValue<T>::read(values.emplace_back(), in); });
  }
  static bool equal(const std::vector<T>& a, const std::vector<T>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), AttrValue<T>::equal);
  }
  static std::uint64_t hash(const std::vector<T>& values) {
    std::uint64_t hash = values.size();
    for (const T& value : values) hash = mix_attr_hash(hash, AttrValue<T>::hash(value));
    return hash;
  }
};

}  // namespace sherd
