#pragma once
// Attribute structs as data. A struct lists its fields once; text in both directions, equality and hash follow.
//
//   struct NarrowAttrs {
//     int dim = 0;
//     std::int64_t start = 0, length = 0;
//     static constexpr AttrField fields[] = {attr<&NarrowAttrs::dim>("dim"),
//                                            attr<&NarrowAttrs::start>("start").local(),
//                                            attr<&NarrowAttrs::length>("length").local()};
//   };
//
//   NarrowAttrs{0, 2, 4}  <->  "dim=0 start=2 length=4"
//
// Nothing here may depend on an address being unique: a program and the libraries that it opens may each have their own
// copy of what is inline. Kinds are compared by their C++ type.
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>

#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace sherd {

class AttrReader;
class AttrWriter;
struct AttrField;
struct AttrKind;

/// Says who sees that a field of an object's state (host_state.h) has changed between two calls of a captured step.
enum class SeenBy : std::uint8_t {
  guard,   ///< the replay: the step is recorded again
  error,   ///< the change is refused, or the replay is, with an Error that names it
  caller,  ///< nobody: no number depends on it, or whoever changes it is told to compile() again
};
inline std::string_view name(SeenBy seen) {
  constexpr std::string_view names[] = {"guard", "error", "caller"};
  return names[static_cast<std::size_t>(seen)];
}

/// Has a list of fields.
template <class T>
concept AttrStruct = requires { std::span<const AttrField>(T::fields); };

template <class T>
concept PlainAttr =
    std::same_as<T, bool> || std::same_as<T, int> || std::same_as<T, std::int64_t> || std::same_as<T, std::uint64_t> ||
    std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, Dims> || std::same_as<T, DType> ||
    std::same_as<T, Device> || std::same_as<T, std::string>;

/// A float has the bits of the equal double, and all NaNs are equal.
inline std::uint64_t attr_bits(double value) {
  return std::bit_cast<std::uint64_t>(value == value ? value : std::numeric_limits<double>::quiet_NaN());
}
inline std::uint64_t mix_attr_hash(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

/// How values of one type are written, read, compared and hashed. Specialise it, with these four, for other types; for
/// lists see attr_list.h. Text is written and read through attr_text.h.
template <class T>
struct AttrValue;
template <PlainAttr T>
struct AttrValue<T> {
  static void print(const T& value, AttrWriter& out);
  static void read(T& value, AttrReader& in);
  /// Floats by their bits, so that -0 is not 0.
  static bool equal(const T& a, const T& b) {
    if constexpr (std::is_floating_point_v<T>) return attr_bits(a) == attr_bits(b);
    else return a == b;
  }
  static std::uint64_t hash(const T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      return attr_bits(value);
    } else if constexpr (std::is_same_v<T, Dims>) {
      auto hash = static_cast<std::uint64_t>(value.size());
      for (const std::int64_t size : value) hash = mix_attr_hash(hash, static_cast<std::uint64_t>(size));
      return hash;
    } else if constexpr (std::is_same_v<T, Device>) {
      return (static_cast<std::uint64_t>(value.kind) << 8) | value.index;
    } else if constexpr (std::is_same_v<T, std::string>) {
      return std::hash<std::string>()(value);
    } else {
      return static_cast<std::uint64_t>(value);
    }
  }
};

/// Two of the four functions, equal and hash, for handles on unique objects such as interned layouts.
template <class T>
struct AttrIdentity {
  static bool equal(const T& a, const T& b) { return a == b; }
  static std::uint64_t hash(const T& value) { return std::hash<T>()(value); }
};

/// One field of a struct; see attr(). The functions take a pointer to the whole struct.
struct AttrField {
  std::string_view name;            ///< empty: a group, a struct whose fields stand among the struct's own
  const AttrKind* group = nullptr;  ///< then: the kind of that struct
  const void* (*at)(const void* object) = nullptr;  ///< its value
  void (*print)(const void* object, AttrWriter& out) = nullptr;
  void (*read)(void* object, AttrReader& in) = nullptr;
  bool (*equal)(const void* a, const void* b) = nullptr;
  std::uint64_t (*hash)(const void* object) = nullptr;
  bool is_local = false;
  bool is_optional = false;
  bool is_pace = false;
  SeenBy seen = SeenBy::caller;  ///< of fields of an object's state
  std::string_view why{};        ///< there: what reads it, or why nobody needs to see it

  /// It says when work may begin, and no value depends on it: two recordings of one step need not have it alike.
  constexpr AttrField pace() const {
    AttrField field = *this;
    field.is_pace = true;
    return field;
  }
  constexpr AttrField seen_by(SeenBy by, std::string_view reason) const {
    AttrField field = *this;
    field.seen = by;
    field.why = reason;
    return field;
  }
  /// Its value differs between ranks that run one program, such as the global index of a local element, or a factor
  /// made from the size of a local batch.
  constexpr AttrField local() const {
    AttrField field = *this;
    field.is_local = true;
    return field;
  }
  /// Left out of the text if it equals its value in a default-constructed struct; that is the value of a text without
  /// it.
  constexpr AttrField optional() const {
    AttrField field = *this;
    field.is_optional = true;
    return field;
  }
};

/// What is known of a struct of attributes.
struct AttrKind {
  const std::type_info& type;
  std::span<const AttrField> fields;
  std::size_t bytes = 0;
  const void* (*defaults)() = nullptr;                      ///< a default-constructed object
  void (*copy)(void* place, const void* object) = nullptr;  ///< null: its bytes
  void (*destroy)(void* object) = nullptr;                  ///< null: nothing to do

  friend bool operator==(const AttrKind& a, const AttrKind& b) { return &a == &b || a.type == b.type; }
};

namespace attr_detail {

template <auto Member>
struct MemberOf;
template <class Struct, class T, T Struct::* Member>
struct MemberOf<Member> {
  using Value = T;
  static const T& of(const void* object) { return static_cast<const Struct*>(object)->*Member; }
  static const void* at(const void* object) { return &of(object); }
  static void print(const void* object, AttrWriter& out) { AttrValue<T>::print(of(object), out); }
  static void read(void* object, AttrReader& in) { AttrValue<T>::read(static_cast<Struct*>(object)->*Member, in); }
  static bool equal(const void* a, const void* b) { return AttrValue<T>::equal(of(a), of(b)); }
  static std::uint64_t hash(const void* object) { return AttrValue<T>::hash(of(object)); }
};

template <class T>
const void* defaults() {
  static const T object{};
  return &object;
}
template <class T>
void copy(void* place, const void* object) {
  ::new (place) T(*static_cast<const T*>(object));
}
template <class T>
void destroy(void* object) {
  static_cast<T*>(object)->~T();
}

}  // namespace attr_detail

template <AttrStruct T>
inline constexpr AttrKind attr_kind{.type = typeid(T),
                                    .fields = T::fields,
                                    .bytes = sizeof(T),
                                    .defaults = attr_detail::defaults<T>,
                                    .copy = std::is_trivially_copyable_v<T> ? nullptr : attr_detail::copy<T>,
                                    .destroy = std::is_trivially_destructible_v<T> ? nullptr : attr_detail::destroy<T>};

/// The field `Member` of its struct, called `name`.
template <auto Member>
constexpr AttrField attr(std::string_view name) {
  using M = attr_detail::MemberOf<Member>;
  return {.name = name, .at = M::at, .print = M::print, .read = M::read, .equal = M::equal, .hash = M::hash};
}
/// The group `Member` of its struct. If it is optional, its fields are written all together or not at all.
template <auto Member>
constexpr AttrField attr() {
  AttrField field = attr<Member>({});
  field.group = &attr_kind<typename attr_detail::MemberOf<Member>::Value>;
  return field;
}

// ---- functions of whole structs ----

bool equal_attrs(const AttrKind& kind, const void* a, const void* b);
std::uint64_t hash_attrs(const AttrKind& kind, const void* object);
/// "{dim=0 start=2 length=4}"
void print_attrs(const AttrKind& kind, const void* object, AttrWriter& out);
void read_attrs(const AttrKind& kind, void* object, AttrReader& in);

/// For fields that are groups, and for the elements of lists.
template <AttrStruct T>
struct AttrValue<T> {
  static void print(const T& value, AttrWriter& out) { print_attrs(attr_kind<T>, &value, out); }
  static void read(T& value, AttrReader& in) { read_attrs(attr_kind<T>, &value, in); }
  static bool equal(const T& a, const T& b) { return equal_attrs(attr_kind<T>, &a, &b); }
  static std::uint64_t hash(const T& value) { return hash_attrs(attr_kind<T>, &value); }
};

}  // namespace sherd
