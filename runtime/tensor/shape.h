#pragma once
// Shapes and strides: a short inline list of integers, so that metadata never allocates.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include <fmt/format.h>

namespace sherd {

inline constexpr int kMaxDims = 8;

/// Up to kMaxDims integers by value. Used for shapes (elements per dim) and strides (elements per step).
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values);
  explicit Dims(std::span<const std::int64_t> values);
  static Dims filled(int count, std::int64_t value) {
    Dims result;
    for (int i = 0; i < count; ++i) result.push_back(value);
    return result;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t back() const { return values_[static_cast<std::size_t>(size_ - 1)]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  void push_back(std::int64_t value) {
    if (size_ == kMaxDims) refuse_more();
    values_[static_cast<std::size_t>(size_++)] = value;
  }
  void insert(int position, std::int64_t value);
  void erase(int position);
  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

 private:
  [[noreturn]] static void refuse_more();

  std::array<std::int64_t, kMaxDims> values_{};
  int size_ = 0;
};

using Shape = Dims;
using Strides = Dims;

/// Product of the dims; 1 for a 0-d shape.
inline std::int64_t numel(const Shape& shape) {
  std::int64_t n = 1;
  for (std::int64_t d : shape) n *= d;
  return n;
}
/// Row-major strides of a dense tensor.
Strides contiguous_strides(const Shape& shape);
/// True if walking `shape` in row-major order touches memory in order without gaps (size-1 dims are free).
inline bool is_contiguous(const Shape& shape, const Strides& strides) {
  std::int64_t expected = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return numel(shape) == 0;
    expected *= shape[i];
  }
  return true;
}
/// Common shape of two operands by the field's broadcasting rule; throws Error naming both shapes.
Shape broadcast(const Shape& a, const Shape& b);
/// Strides that read a tensor of `shape`/`strides` as if it had shape `to`: 0 along broadcast dims.
Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& to);
/// Maps a possibly negative dim to 0..ndim-1; throws Error naming both.
int normalize_dim(int dim, int ndim);
/// "[2,3]".
std::string to_string(const Dims& dims);

}  // namespace sherd

/// Dims as an argument of check() and fail(): text is made only when there is an error.
template <>
struct fmt::formatter<sherd::Dims> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const sherd::Dims& dims, Context& context) const {
    return fmt::formatter<std::string>::format(sherd::to_string(dims), context);
  }
};
