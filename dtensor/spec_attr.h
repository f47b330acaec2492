#pragma once
// Layouts as attributes. Equal layouts are one object, so identity is what they are compared by.
#include "dtensor/spec.h"
#include "runtime/op/attrs/attr_text.h"

namespace sherd {

template <>
struct AttrValue<SpecRef> {
  static bool equal(const SpecRef& a, const SpecRef& b) { return a.get() == b.get(); }
  static std::uint64_t hash(const SpecRef& spec) { return std::hash<const Spec*>()(spec); }
  static void print(const SpecRef& spec, AttrWriter& out) { out.raw(spec->describe()); }
  /// Always Error.
  [[noreturn]] static void read(SpecRef&, AttrReader& in) {
    in.fail_because("a layout is of a mesh, which its text does not say");
  }
};

}  // namespace sherd
