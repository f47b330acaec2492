#pragma once
// Tensors whose every element is a function of its place and the tensor's name: any box of one can be filled and
// checked without the rest of it.
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "nn/checkpoint/format/box.h"
#include "runtime/op/core/tensor.h"

namespace sherd::testing {

/// Exact in f32, and different for the next 16 million elements.
inline float numbered(std::size_t name_hash, std::int64_t element) {
  return static_cast<float>((static_cast<std::uint64_t>(element) * 7 + name_hash) % (1 << 24));
}

/// Calls visit(element of the box, element of the tensor, how many) for the rows of a box of a tensor of at most 2
/// dims.
template <class Visit>
void each_row(const Shape& shape, const ckpt::Box& box, const Visit& visit) {
  const bool is_matrix = shape.size() == 2;
  const std::int64_t columns = is_matrix ? shape[1] : 1, rows = shape.empty() ? 1 : box.shape[0];
  const std::int64_t first_row = shape.empty() ? 0 : box.offset[0], first = is_matrix ? box.offset[1] : 0;
  const std::int64_t width = is_matrix ? box.shape[1] : 1;
  for (std::int64_t row = 0; row < rows; ++row) visit(row * width, (first_row + row) * columns + first, width);
}

/// Into a dense f32 tensor of the host, which is a box of that tensor.
inline void fill_numbered(const std::string& name, const Shape& shape, const ckpt::Box& box, Tensor local) {
  const std::size_t hash = std::hash<std::string>()(name);
  if (local.numel() == 0) return;
  float* const out = local.mutable_data<float>();
  each_row(shape, box, [&](std::int64_t at, std::int64_t element, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out[at + i] = numbered(hash, element + i);
  });
}

/// Elements that are not those of fill_numbered().
inline std::int64_t count_wrong(const std::string& name, const Shape& shape, const ckpt::Box& box,
                                const Tensor& local) {
  const std::size_t hash = std::hash<std::string>()(name);
  std::int64_t wrong = 0;
  if (local.numel() == 0) return 0;
  const float* const values = local.data<float>();
  each_row(shape, box, [&](std::int64_t at, std::int64_t element, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float expected = numbered(hash, element + i);
      wrong += std::memcmp(values + at + i, &expected, sizeof(expected)) != 0;
    }
  });
  return wrong;
}

}  // namespace sherd::testing
