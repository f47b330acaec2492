#pragma once
// Layouts as attributes. Equal layouts are one object, so identity is what they are compared by.
#include "dtensor/spec.h"
#include "runtime/op/attr_text.h"

namespace sherd {

template <>
struct AttrValue<const Spec*> : AttrIdentity<const Spec*> {
  static void print(const Spec* const& spec, AttrWriter& out) { out.raw(spec->describe()); }
  /// Always Error.
  [[noreturn]] static void read(const Spec*&, AttrReader& in) {
    in.fail_because("a layout is of a mesh, which its text does not say");
  }
};

}  // namespace sherd
