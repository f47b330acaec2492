#pragma once
// A [B, H, T, K] tensor as attention reads it: rows of K dense elements, one per position, at any distances. That is
// what a projection [B, T, H, K] looks like with its middle dims swapped, so no copy is made of it.
#include "runtime/cpu/dense.h"
#include "runtime/cpu/simd.h"

namespace sherd::cpu {

inline bool has_dense_rows(const TensorMeta& t) { return t.size(3) <= 1 || t.step(3) == 1; }
/// Scratch that Heads wants for `t`.
inline std::int64_t heads_scratch_bytes(const TensorMeta& t) { return has_dense_rows(t) ? 0 : dense_scratch_bytes(t); }

template <class T>
struct Heads {
  Heads(const Tensor& t, ScratchCursor& scratch) {
    const bool as_is = has_dense_rows(t.meta());
    const Strides strides = as_is ? t.strides() : contiguous_strides(t.shape());
    data = as_is ? t.data<T>() : scratch.dense<T>(t);
    batch = strides[0];
    head = strides[1];
    row = strides[2];
  }
  const T* at(std::int64_t b, std::int64_t h, std::int64_t t = 0) const {
    return data + b * batch + h * head + t * row;
  }
  const T* data;
  std::int64_t batch, head, row;
};

/// The rows of a result, which are dense too.
template <class T>
struct HeadsOut {
  explicit HeadsOut(const Tensor& t)
      : data(t.mutable_data<T>()), batch(t.strides()[0]), head(t.strides()[1]), row(t.strides()[2]) {}
  T* at(std::int64_t b, std::int64_t h, std::int64_t t = 0) const { return data + b * batch + h * head + t * row; }
  T* data;
  std::int64_t batch, head, row;
};

/// Rows of one head as factors of products.
template <class P>
struct RowsOf {
  const P* data;
  std::int64_t row;
};

}  // namespace sherd::cpu
