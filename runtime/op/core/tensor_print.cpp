// Printing of values, after PyTorch: one format for all elements, wide enough for the longest; long dims show their
// ends only.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/op/core/tensor.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

constexpr std::int64_t kEdge = 3;  // entries shown at either end of a long dim

bool is_cut(const Shape& shape, int dim) { return shape[dim] > 2 * kEdge; }

/// The text of row-major values: double for floats, int64 for the others, which stay exact.
template <class V>
class Printer {
 public:
  Printer(std::vector<V> values, const Tensor& t)
      : values_(std::move(values)), shape_(t.shape()), strides_(contiguous_strides(t.shape())), dtype_(t.dtype()) {
    choose_format();
    for_each_shown(0, 0, [this](V x) { width_ = std::max(width_, element(x).size()); });
  }

  std::string print() const { return nested(0, 0); }

 private:
  template <class Fn>
  void for_each_shown(int dim, std::int64_t at, const Fn& fn) const {
    if (dim == shape_.size()) return fn(values_[static_cast<std::size_t>(at)]);
    for (const std::int64_t i : up_to(shape_[dim]))
      if (!is_cut(shape_, dim) || i < kEdge || i >= shape_[dim] - kEdge)
        for_each_shown(dim + 1, at + i * strides_[dim], fn);
  }

  // Fixed point unless the magnitudes differ too much; integral values without decimals.
  void choose_format() {
    if constexpr (std::is_floating_point_v<V>) {
      double largest = 0, smallest = std::numeric_limits<double>::infinity();
      for_each_shown(0, 0, [&](double x) {
        if (!std::isfinite(x)) return;
        whole_ = whole_ && x == std::trunc(x);
        if (x == 0) return;
        largest = std::max(largest, std::abs(x));
        smallest = std::min(smallest, std::abs(x));
      });
      scientific_ = largest >= 1e8 || (!whole_ && largest > 0 && (smallest < 1e-4 || largest / smallest > 1e3));
    }
  }

  std::string element(std::int64_t x) const {
    if (dtype_ == DType::boolean) return x != 0 ? "true" : "false";
    return fmt::to_string(x);
  }

  std::string element(double x) const {
    if (std::isnan(x)) return "nan";
    if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
    if (scientific_) return fmt::format("{:.4e}", x);
    return whole_ ? fmt::format("{:.0f}.", x) : fmt::format("{:.4f}", x);
  }

  std::string nested(int dim, std::int64_t at) const {
    if (dim == shape_.size()) return fmt::format("{:>{}}", element(values_[static_cast<std::size_t>(at)]), width_);
    const bool rows = dim + 1 < shape_.size();
    // Rows on lines of their own, a blank line between matrices.
    std::string separator = ",";
    if (rows) {
      separator.append(static_cast<std::size_t>(shape_.size() - dim - 1), '\n');
      separator.append(static_cast<std::size_t>(dim + 1), ' ');
    } else {
      separator += ' ';
    }
    std::string text = "[";
    for (std::int64_t i = 0; i < shape_[dim]; ++i) {
      if (i > 0) text += separator;
      if (is_cut(shape_, dim) && i == kEdge) {
        text += "..." + separator;
        i = shape_[dim] - kEdge;
      }
      text += nested(dim + 1, at + i * strides_[dim]);
    }
    return text + "]";
  }

  std::vector<V> values_;
  Shape shape_;
  Strides strides_;
  DType dtype_;
  bool whole_ = true, scientific_ = false;
  std::size_t width_ = 0;
};

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return describe(tensor);
  if (tensor.is_distributed()) return fmt::format("{}, here {}", describe(tensor), to_string(tensor.local()));
  const std::string values = is_floating(tensor.dtype()) ? Printer(tensor.to_vector<double>(), tensor).print()
                                                         : Printer(tensor.to_vector<std::int64_t>(), tensor).print();
  return fmt::format("{} {}", values, describe(tensor));
}

}  // namespace sherd
