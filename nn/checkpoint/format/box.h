#pragma once
// A box of a tensor: the elements [offset, offset + shape), row-major. A rank's shard of a distributed tensor is one,
// over however many axes it is sharded.
//
//   w [4,6]      rank 1's box: offset [0,3], shape [2,3]
//     . . . x x x
//     . . . x x x
//     . . . . . .
//     . . . . . .
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/tensor/shape.h"

namespace sherd::ckpt {

struct Box {
  Dims offset;
  Shape shape;
  friend bool operator==(const Box&, const Box&) = default;
};

Box whole_box(const Shape& shape);
/// Rows row .. row + count of a tensor that has dims.
Box rows_box(const Shape& shape, std::int64_t row, std::int64_t count);
inline std::int64_t numel(const Box& box) { return numel(box.shape); }
/// Whether the box is inside a tensor of `shape`.
bool is_inside(const Box& box, const Shape& shape);
/// Whether the box contains `element`, an index of as many dims.
bool holds(const Box& box, const Dims& element);
/// The elements that both hold, if there are any.
std::optional<Box> intersection(const Box& a, const Box& b);
/// "[0:2, 3:6]".
std::string to_string(const Box& box);

/// The elements of `part` in runs that are contiguous both in `a` and in `b`, which hold it: calls
/// copy(first element in a, first element in b, elements) in row-major order.
void for_each_run(const Box& part, const Box& a, const Box& b,
                  const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& copy);

}  // namespace sherd::ckpt
