// Dims are ordered so that the destination is walked in memory order, then merged where both layouts allow. What is
// left is a row per outer index: memcpy when both rows are dense, blocks of the two fastest dims when source and
// destination disagree about which one is fast (a transpose), a plain loop otherwise.
#include "runtime/cpu/rows/strided_copy.h"

#include <algorithm>
#include <cstring>

#include "runtime/cpu/parallel.h"
#include "runtime/cpu/tile.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kGrain = 1 << 14;  // elements per chunk; below it a second thread does not pay
constexpr std::int64_t kBlock = 32;       // a block of 32 x 32 four-byte elements of both sides stays in L1

struct Pair {
  int ndim = 0;
  std::int64_t size[kMaxDims];
  std::int64_t from[kMaxDims];
  std::int64_t to[kMaxDims];
};

Pair pair_up(const Shape& shape, const Strides& from, const Strides& to) {
  int order[kMaxDims];
  int n = 0;
  for (int i = 0; i < shape.size(); ++i)
    if (shape[i] != 1) order[n++] = i;
  std::stable_sort(order, order + n, [&](int a, int b) { return to[a] > to[b]; });
  Pair p;
  for (int k = 0; k < n; ++k) {
    const int d = order[k];
    const int last = p.ndim - 1;
    if (last >= 0 && p.from[last] == shape[d] * from[d] && p.to[last] == shape[d] * to[d]) {
      p.size[last] *= shape[d];
      p.from[last] = from[d];
      p.to[last] = to[d];
    } else {
      p.size[p.ndim] = shape[d];
      p.from[p.ndim] = from[d];
      p.to[p.ndim++] = to[d];
    }
  }
  if (p.ndim == 0) {
    p.ndim = 1;
    p.size[0] = p.from[0] = p.to[0] = 1;
  }
  return p;
}

template <class T, bool kAdd>
void row(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride, std::int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    if constexpr (kAdd) {
      for (std::int64_t i = 0; i < n; ++i) to[i] = add_rounded(to[i], from[i]);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
    }
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    T& target = to[i * to_stride];
    if constexpr (kAdd) target = add_rounded(target, from[i * from_stride]);
    else target = from[i * from_stride];
  }
}

// The two innermost dims of a transpose: `from` is fast along dim n-2, `to` along dim n-1.
template <class T, bool kAdd>
void blocks(const Pair& p, const T* from, T* to) {
  const int a = p.ndim - 2;
  const int b = p.ndim - 1;
  for (std::int64_t i = 0; i < p.size[a]; i += kBlock)
    for (std::int64_t j = 0; j < p.size[b]; j += kBlock)
      for (std::int64_t k = i; k < std::min(i + kBlock, p.size[a]); ++k)
        row<T, kAdd>(from + k * p.from[a] + j * p.from[b], p.from[b], to + k * p.to[a] + j * p.to[b], p.to[b],
                     std::min(kBlock, p.size[b] - j));
}

template <class T, bool kAdd>
void copy_rows(const Pair& p, const T* from, T* to) {
  const bool transpose = p.ndim >= 2 && p.from[p.ndim - 1] > p.from[p.ndim - 2] && p.from[p.ndim - 2] > 0;
  const int inner = transpose ? 2 : 1;
  std::int64_t outer = 1;
  std::int64_t per_row = 1;
  for (int d = 0; d < p.ndim; ++d) (d < p.ndim - inner ? outer : per_row) *= p.size[d];
  parallel_for(outer, std::max<std::int64_t>(1, kGrain / per_row), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t rest = i, from_at = 0, to_at = 0;
      for (int d = p.ndim - inner - 1; d >= 0; --d) {
        from_at += rest % p.size[d] * p.from[d];
        to_at += rest % p.size[d] * p.to[d];
        rest /= p.size[d];
      }
      if (transpose) blocks<T, kAdd>(p, from + from_at, to + to_at);
      else row<T, kAdd>(from + from_at, p.from[p.ndim - 1], to + to_at, p.to[p.ndim - 1], p.size[p.ndim - 1]);
    }
  });
}

template <class T, bool kAdd>
void copy_as(const Pair& p, const void* from, void* to) {
  const auto* source = static_cast<const T*>(from);
  auto* target = static_cast<T*>(to);
  if (p.ndim > 1 || p.from[0] != 1 || p.to[0] != 1) return copy_rows<T, kAdd>(p, source, target);
  parallel_for(p.size[0], kGrain, [&](std::int64_t begin, std::int64_t end) {
    row<T, kAdd>(source + begin, 1, target + begin, 1, end - begin);
  });
}

}  // namespace

void strided_copy(DType dtype, const Shape& shape, const Layout& from, const Layout& to, bool accumulate) {
  if (numel(shape) == 0) return;
  const Pair p = pair_up(shape, from.strides, to.strides);
  if (accumulate) return visit_dtype(dtype, [&]<class T>(Type<T>) { copy_as<T, true>(p, from.data, to.data); });
  switch (byte_size(dtype)) {
    case 1: return copy_as<std::uint8_t, false>(p, from.data, to.data);
    case 2: return copy_as<std::uint16_t, false>(p, from.data, to.data);
    case 4: return copy_as<std::uint32_t, false>(p, from.data, to.data);
    default: return copy_as<std::uint64_t, false>(p, from.data, to.data);
  }
}

}  // namespace sherd::cpu
