#pragma once
// Values that a plan has by their texts, as flags and files spell them: made from a text, with an Error for a wrong
// one, and printed as a text that makes the same value.
#include <concepts>
#include <string>
#include <string_view>

#include "runtime/op/attrs/attr_text.h"

namespace sherd::nn {

/// A text of any type: so a value is made from a literal and from a string alike.
template <class T>
concept Text = std::convertible_to<T, std::string_view>;

template <class T>
concept TextValue = std::constructible_from<T, std::string_view> && requires(const T& value) {
  { value.text() } -> std::convertible_to<std::string>;
};

}  // namespace sherd::nn

namespace sherd {

template <nn::TextValue Value>
  requires(!PlainAttr<Value>)
struct AttrValue<Value> {
  static void print(const Value& value, AttrWriter& out) { out.name(value.text()); }
  static void read(Value& value, AttrReader& in) {
    const std::string text = in.name();
    try {
      value = Value(std::string_view(text));
    } catch (const Error& error) { in.fail_because(error.message()); }
  }
  static bool equal(const Value& a, const Value& b) { return a == b; }
  static std::uint64_t hash(const Value& value) { return std::hash<std::string>()(value.text()); }
};

}  // namespace sherd
