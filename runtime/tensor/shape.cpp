#include "runtime/tensor/shape.h"

#include <algorithm>

#include "runtime/tensor/error.h"

namespace sherd {

Dims::Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}

Dims::Dims(std::span<const std::int64_t> values) {
  check(values.size() <= kMaxDims, "a tensor has at most {} dims, got {}", kMaxDims, values.size());
  std::copy(values.begin(), values.end(), values_.begin());
  size_ = static_cast<int>(values.size());
}

void Dims::refuse_more() { fail("a tensor has at most {} dims", kMaxDims); }

void Dims::insert(int position, std::int64_t value) {
  if (size_ == kMaxDims) refuse_more();
  for (int i = size_; i > position; --i) (*this)[i] = (*this)[i - 1];
  (*this)[position] = value;
  ++size_;
}

void Dims::erase(int position) {
  for (int i = position; i + 1 < size_; ++i) (*this)[i] = (*this)[i + 1];
  --size_;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = Dims::filled(shape.size(), 1);
  for (int i = shape.size() - 2; i >= 0; --i) strides[i] = strides[i + 1] * std::max<std::int64_t>(shape[i + 1], 1);
  return strides;
}

Shape broadcast(const Shape& a, const Shape& b) {
  const int n = std::max(a.size(), b.size());
  Shape result = Dims::filled(n, 1);
  for (int i = 1; i <= n; ++i) {
    const std::int64_t da = i <= a.size() ? a[a.size() - i] : 1;
    const std::int64_t db = i <= b.size() ? b[b.size() - i] : 1;
    check(da == db || da == 1 || db == 1, "shapes {} and {} do not broadcast: {} and {} at dim -{}", a, b, da, db, i);
    result[n - i] = da == 1 ? db : da;
  }
  return result;
}

Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& to) {
  Strides result = Dims::filled(to.size(), 0);
  const int lead = to.size() - shape.size();
  for (int i = 0; i < shape.size(); ++i)
    if (shape[i] != 1) result[lead + i] = strides[i];
  return result;
}

int normalize_dim(int dim, int ndim) {
  const int limit = std::max(ndim, 1);  // a 0-d tensor accepts dims 0 and -1
  check(dim >= -limit && dim < limit, "dim {} is out of range for a tensor of {} dims", dim, ndim);
  return dim < 0 ? dim + limit : dim;
}

std::string to_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ",")); }

}  // namespace sherd
