#include "runtime/op/rows/matmul_layout.h"

#include <algorithm>

#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

MatrixLayout layout_of(std::int64_t rows, std::int64_t columns, std::int64_t row, std::int64_t column) {
  if ((column == 1 || columns <= 1) && (row >= columns || rows <= 1))
    return {true, false, std::max<std::int64_t>(rows <= 1 ? columns : row, 1)};
  if ((row == 1 || rows <= 1) && (column >= rows || columns <= 1))
    return {true, true, std::max<std::int64_t>(columns <= 1 ? rows : column, 1)};
  return {};
}

Shape batch_dims(const Dims& dims) { return Shape(std::span(dims.begin(), dims.end() - 2)); }

// How many trailing dims of `shape` can be walked as one dim with a fixed stride.
int uniform_dims(const Shape& shape, const Strides& strides) {
  if (shape.empty()) return 0;
  int first = shape.size() - 1;
  while (first > 0 && strides[first - 1] == strides[first] * shape[first]) --first;
  return shape.size() - first;
}

// If one B serves the whole batch and A's problems follow each other at the distance of its rows, all of it is one
// tall product.
bool is_one_product(const Shape& batch, const BatchedMatrix& a, const BatchedMatrix& b, std::int64_t m) {
  if (batch.empty() || a.matrix.transposed) return false;
  for (const std::int64_t stride : b.batch)
    if (stride != 0) return false;
  return uniform_dims(batch, a.batch) == batch.size() && a.batch.back() == m * a.matrix.ld;
}

}  // namespace

MatrixLayout matrix_layout(const TensorMeta& t) {
  const int n = t.ndim();
  return layout_of(t.shape[n - 2], t.shape[n - 1], t.step(n - 2), t.step(n - 1));
}

MatrixLayout rows_layout(const TensorMeta& t) {
  const int last = t.ndim() - 1;
  std::int64_t rows = 1, row = t.shape[last];  // stride of the flattened dim, once a dim of size > 1 is met
  for (int d = last - 1; d >= 0; --d) {
    if (t.shape[d] == 1) continue;
    if (rows == 1) row = t.step(d);
    else if (t.step(d) != row * rows) return {};
    rows *= t.shape[d];
  }
  return layout_of(rows, t.shape[last], row, t.step(last));
}

BatchedMatrix batched_matrix(const TensorMeta& t, const Shape& batch) {
  MatrixLayout matrix = matrix_layout(t);
  const Strides strides = matrix.usable ? t.steps() : contiguous_strides(t.shape);
  if (!matrix.usable) matrix = dense_layout(t);
  return {matrix, broadcast_strides(batch_dims(t.shape), batch_dims(strides), batch)};
}

ProductCalls::ProductCalls(Shape dims, BatchedMatrix a, BatchedMatrix b, std::int64_t rows, std::int64_t columns)
    : m(rows), batch(1), count(1) {
  // Batch dims of size 1 do not matter for the strides of the others.
  for (int d = dims.size() - 1; d >= 0; --d)
    if (dims[d] == 1)
      for (Dims* each : {&dims, &a.batch, &b.batch}) each->erase(d);
  if (is_one_product(dims, a, b, rows)) {
    m *= numel(dims);
    return;
  }
  const int inner = std::min(uniform_dims(dims, a.batch), uniform_dims(dims, b.batch));
  const int outer = dims.size() - inner;
  for (const int d : Numbers<int>(outer, dims.size())) batch *= dims[d];
  if (inner > 0) {
    stride_a = a.batch.back();
    stride_b = b.batch.back();
  }
  stride_c = rows * columns;
  for (const int d : up_to(outer)) {
    count *= dims[d];
    outer_.push_back(dims[d]);
    outer_a_.push_back(a.batch[d]);
    outer_b_.push_back(b.batch[d]);
  }
}

ProductCalls::Offsets ProductCalls::offsets(std::int64_t i) const {
  Offsets at{0, 0, i * batch * stride_c};
  for (int d = outer_.size() - 1; d >= 0; --d) {
    at.a += i % outer_[d] * outer_a_[d];
    at.b += i % outer_[d] * outer_b_[d];
    i /= outer_[d];
  }
  return at;
}

}  // namespace sherd
