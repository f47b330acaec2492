#include "nn/checkpoint/format/box.h"

#include <algorithm>
#include <limits>

#include "runtime/tensor/indices.h"

namespace sherd::ckpt {

Box whole_box(const Shape& shape) { return {Dims::filled(shape.size(), 0), shape}; }

Box rows_box(const Shape& shape, std::int64_t row, std::int64_t count) {
  Box box = whole_box(shape);
  box.offset[0] = row;
  box.shape[0] = count;
  return box;
}

bool is_inside(const Box& box, const Shape& shape) {
  if (box.offset.size() != shape.size() || box.shape.size() != shape.size()) return false;
  for (const int d : indices(shape))
    if (box.offset[d] < 0 || box.shape[d] < 0 || box.shape[d] > shape[d] || box.offset[d] > shape[d] - box.shape[d])
      return false;
  return true;
}

bool holds(const Box& box, const Dims& element) {
  for (const int d : indices(element))
    if (element[d] < box.offset[d] || element[d] - box.offset[d] >= box.shape[d]) return false;
  return true;
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both = a;
  for (const int d : indices(a.shape)) {
    both.offset[d] = std::max(a.offset[d], b.offset[d]);
    both.shape[d] = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]) - both.offset[d];
    if (both.shape[d] <= 0) return std::nullopt;
  }
  return both;
}

// Prints refused boxes too, whose numbers may be any.
std::string to_string(const Box& box) {
  std::string text;
  for (const int d : indices(box.shape)) {
    std::int64_t end = 0;
    if (__builtin_add_overflow(box.offset[d], box.shape[d], &end)) end = std::numeric_limits<std::int64_t>::max();
    text += fmt::format("{}{}:{}", d > 0 ? ", " : "", box.offset[d], end);
  }
  return "[" + text + "]";
}

void for_each_run(const Box& part, const Box& a, const Box& b,
                  const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& copy) {
  const int ndim = part.shape.size();
  const Strides in_a = contiguous_strides(a.shape), in_b = contiguous_strides(b.shape);
  // Dims after `split` are complete in both, so a run continues through them.
  int split = ndim - 1;
  std::int64_t run = 1;
  while (split > 0 && part.shape[split] == a.shape[split] && part.shape[split] == b.shape[split])
    run *= part.shape[split--];
  if (ndim > 0) run *= part.shape[split];
  std::int64_t at_a = 0, at_b = 0, runs = 1;
  for (const int d : up_to(ndim)) {
    at_a += (part.offset[d] - a.offset[d]) * in_a[d];
    at_b += (part.offset[d] - b.offset[d]) * in_b[d];
    if (d < split) runs *= part.shape[d];
  }
  Dims index = Dims::filled(ndim, 0);
  for (std::int64_t i = 0; i < runs; ++i) {
    copy(at_a, at_b, run);
    for (int d = split - 1; d >= 0; --d) {
      at_a += in_a[d];
      at_b += in_b[d];
      if (++index[d] < part.shape[d]) break;
      at_a -= part.shape[d] * in_a[d];
      at_b -= part.shape[d] * in_b[d];
      index[d] = 0;
    }
  }
}

}  // namespace sherd::ckpt
