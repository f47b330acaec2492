#include "runtime/cpu/tile.h"

#include <algorithm>

#include "runtime/cpu/convert.h"

namespace sherd::cpu {

Walk collapse(const Shape& shape, const Strides& strides) {
  Walk walk;
  int n = 0;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    if (n > 0 && walk.stride[n - 1] == shape[i] * strides[i]) {
      walk.size[n - 1] *= shape[i];
      walk.stride[n - 1] = strides[i];
    } else {
      walk.size[n] = shape[i];
      walk.stride[n++] = strides[i];
    }
  }
  if (n == 0) {
    walk.size[0] = 1;
    walk.stride[0] = 1;
    n = 1;
  }
  walk.ndim = n;
  return walk;
}

namespace {

template <class C, class S>
void load_run(const S* from, std::int64_t stride, std::int64_t count, C* to) {
  if (stride == 1) {
    convert_row(from, count, to);
  } else if (stride == 0) {
    std::fill_n(to, count, convert<C>(*from));
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<C>(from[i * stride]);
  }
}

template <class C, class S>
void load(const S* data, const Walk& walk, std::int64_t start, std::int64_t count, C* to) {
  const int last = walk.ndim - 1;
  std::int64_t index[kMaxDims];
  std::int64_t at = 0;
  std::int64_t rest = start;
  for (int d = last; d >= 0; --d) {
    index[d] = d == 0 ? rest : rest % walk.size[d];
    rest /= walk.size[d];
    at += index[d] * walk.stride[d];
  }
  while (true) {
    const std::int64_t run = std::min(count, walk.size[last] - index[last]);
    load_run(data + at, walk.stride[last], run, to);
    to += run;
    count -= run;
    if (count == 0) return;
    at -= index[last] * walk.stride[last];
    index[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      at += walk.stride[d];
      if (++index[d] < walk.size[d]) break;
      at -= index[d] * walk.stride[d];
      index[d] = 0;
    }
  }
}

}  // namespace

template <class C>
TileReader<C>::TileReader(const void* data, DType dtype, const Shape& shape, const Strides& strides)
    : data_(static_cast<const std::byte*>(data)), dtype_(dtype), walk_(collapse(shape, strides)) {
  dense_ = walk_.ndim == 1 && (walk_.stride[0] == 1 || walk_.size[0] == 1);
}

template <class C>
TileReader<C>::TileReader(const Tensor& tensor, const Shape& to)
    : TileReader(tensor.raw(), tensor.dtype(), to, broadcast_strides(tensor.shape(), tensor.strides(), to)) {}

template <class C>
const C* TileReader<C>::read(std::int64_t start, std::int64_t count, C* buffer) const {
  if (direct()) return reinterpret_cast<const C*>(data_) + start;
  visit_dtype(dtype_, [&]<class S>(Type<S>) {
    const S* data = reinterpret_cast<const S*>(data_);
    if (walk_.ndim == 1) load_run(data + start * walk_.stride[0], walk_.stride[0], count, buffer);
    else load(data, walk_, start, count, buffer);
  });
  return buffer;
}

template <class C>
void write_tile(void* data, DType dtype, std::int64_t start, const C* values, std::int64_t count, bool accumulate) {
  visit_dtype(dtype, [&]<class T>(Type<T>) {
    T* out = static_cast<T*>(data) + start;
    if (!accumulate) return convert_row(values, count, out);
    for (std::int64_t i = 0; i < count; ++i) out[i] = add_rounded(out[i], convert<T>(values[i]));
  });
}

template class TileReader<float>;
template class TileReader<double>;
template class TileReader<std::int64_t>;
template void write_tile(void*, DType, std::int64_t, const float*, std::int64_t, bool);
template void write_tile(void*, DType, std::int64_t, const double*, std::int64_t, bool);
template void write_tile(void*, DType, std::int64_t, const std::int64_t*, std::int64_t, bool);

}  // namespace sherd::cpu
