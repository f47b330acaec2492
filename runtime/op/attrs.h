#pragma once
// Attributes of one op call: a small plain struct per op family, carried by value and type-erased. The struct's
// `visit` names its fields once; printing, comparing and hashing all follow from that.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace sherd {

/// Receives each field of an attribute struct by name.
class AttrVisitor {
 public:
  virtual void field(const char* name, bool value) = 0;
  virtual void field(const char* name, std::int64_t value) = 0;
  virtual void field(const char* name, double value) = 0;
  virtual void field(const char* name, const Dims& value) = 0;
  virtual void field(const char* name, DType value) = 0;
  virtual void field(const char* name, const char* value) = 0;
  /// A number that differs between ranks running the same program, such as the global index of a local
  /// element, or a factor made from the size of a local batch.
  virtual void local_field(const char* name, std::int64_t value) { field(name, value); }
  virtual void local_field(const char* name, double value) { field(name, value); }
  void field(const char* name, int value) { field(name, static_cast<std::int64_t>(value)); }
  void field(const char* name, std::uint64_t value) { field(name, static_cast<std::int64_t>(value)); }

 protected:
  ~AttrVisitor() = default;
};

/// An attribute struct is trivially copyable, at most kMaxAttrBytes, and has
/// `void visit(AttrVisitor& v) const { v.field("dim", dim); }`.
inline constexpr std::size_t kMaxAttrBytes = 144;

class Attrs {
 public:
  Attrs() = default;
  template <class T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, Attrs>)
  Attrs(const T& value) : kind_(&kind_of<T>) {  // NOLINT: implicit on purpose, rows are called with their struct
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMaxAttrBytes && alignof(T) <= 8);
    std::memcpy(bytes_, &value, sizeof(T));
  }

  /// The struct; asking for another type than was stored is a bug in the row.
  template <class T>
  const T& as() const {
    return *reinterpret_cast<const T*>(bytes_);
  }
  bool empty() const { return kind_ == nullptr; }
  void visit(AttrVisitor& visitor) const {
    if (kind_) kind_->visit(bytes_, visitor);
  }
  /// "dim=1 keep=true"; also what equality and hashing look at.
  std::string print() const;
  friend bool operator==(const Attrs& a, const Attrs& b) { return a.kind_ == b.kind_ && a.print() == b.print(); }

 private:
  struct Kind {
    void (*visit)(const std::byte*, AttrVisitor&);
  };
  template <class T>
  static constexpr Kind kind_of{
      [](const std::byte* bytes, AttrVisitor& visitor) { reinterpret_cast<const T*>(bytes)->visit(visitor); }};

  const Kind* kind_ = nullptr;
  alignas(8) std::byte bytes_[kMaxAttrBytes];
};

}  // namespace sherd
