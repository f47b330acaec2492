#pragma once
// The operands of a product as matrix engines take them. Most strided layouts need no copy: a transposed matrix is a
// flag, a slice of columns a leading dimension, a broadcast batch a distance of 0. Others have to be made dense first.
#include <cstdint>

#include "runtime/tensor/meta.h"

namespace sherd {

/// A matrix as stored: rows `ld` elements apart, of the matrix or (transposed) of its transpose.
struct MatrixLayout {
  bool usable = false, transposed = false;
  std::int64_t ld = 1;
};
/// As a matrix of the last two dims.
MatrixLayout matrix_layout(const TensorMeta& t);
/// As a matrix with all dims but the last flattened into rows; not usable if their strides do not allow that.
MatrixLayout rows_layout(const TensorMeta& t);
/// As a dense copy of `t`, for both of the above.
inline MatrixLayout dense_layout(const TensorMeta& t) { return {true, false, t.shape.back()}; }

/// One operand of a batched product: its matrices, and how far apart they are along the result's batch dims.
struct BatchedMatrix {
  MatrixLayout matrix;
  Strides batch;  ///< 0 where broadcast
};
/// From `t`, or from a dense copy of it if its matrices are not usable; `batch` are the result's dims but the last
/// two.
BatchedMatrix batched_matrix(const TensorMeta& t, const Shape& batch);

/// [..., M, K] [..., K, N] -> dense [..., M, N] as the fewest calls of an engine that takes `batch` problems at fixed
/// distances.
class ProductCalls {
 public:
  ProductCalls(Shape batch, BatchedMatrix a, BatchedMatrix b, std::int64_t m, std::int64_t n);

  std::int64_t m;      ///< rows of one problem: those of the full batch if one B serves it and A's rows go on
  std::int64_t batch;  ///< problems of one call
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  std::int64_t count;  ///< calls
  /// Elements from the operands' first to those of call i.
  struct Offsets {
    std::int64_t a, b, c;
  };
  Offsets offsets(std::int64_t i) const;

 private:
  Shape outer_;  // batch dims that are walked call by call
  Strides outer_a_, outer_b_;
};

}  // namespace sherd
