#pragma once
// The attributes of a call as bytes, to find its plan by: what their visitor shows, without padding and without memory
// from the heap.
#include <array>
#include <cstring>
#include <string_view>

#include "runtime/op/attrs.h"
#include "runtime/tensor/error.h"

namespace sherd {

class AttrKey final : public AttrVisitor {
 public:
  explicit AttrKey(const Attrs& attrs) { attrs.visit(*this); }
  void field(const char*, bool value) override { put(value); }
  void field(const char*, std::int64_t value) override { put(value); }
  void field(const char*, double value) override { put(value); }
  void field(const char*, const Dims& value) override {
    put(static_cast<std::int64_t>(value.size()));
    for (std::int64_t d : value) put(d);
  }
  void field(const char*, DType value) override { put(value); }
  void field(const char*, const char* value) override { put(std::hash<std::string_view>{}(value)); }

  std::uint64_t hash() const { return hash_; }
  friend bool operator==(const AttrKey& a, const AttrKey& b) {
    return a.size_ == b.size_ && std::memcmp(a.bytes_.data(), b.bytes_.data(), a.size_) == 0;
  }

 private:
  template <class T>
  void put(const T& value) {
    // Attribute structs are at most kMaxAttrBytes long, and numbers that a field widens double in size.
    check(size_ + sizeof(T) <= bytes_.size(), "attributes show more than {} bytes", bytes_.size());
    std::memcpy(bytes_.data() + size_, &value, sizeof(T));
    size_ += sizeof(T);
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15u;
    hash_ ^= hash_ >> 29;
  }

  std::array<std::byte, 2 * kMaxAttrBytes> bytes_;
  std::size_t size_ = 0;
  std::uint64_t hash_ = 0x243f6a8885a308d3u;
};

}  // namespace sherd
