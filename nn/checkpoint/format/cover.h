#pragma once
// Whether boxes cover a tensor: every element is in exactly one of them.
#include <cstdint>
#include <optional>
#include <span>

#include "nn/checkpoint/format/box.h"

namespace sherd::ckpt {

struct Miscount {
  Dims element;
  std::int64_t boxes = 0;  ///< that hold it: none, or more than one
};

/// The first element, in row-major order, that not exactly one of `boxes` holds; nothing if they cover the tensor. All
/// must be inside a tensor of `shape`. Takes 2^d n log n steps and memory for d n edges, for n boxes split along d
/// dims.
std::optional<Miscount> first_miscount(std::span<const Box* const> boxes, const Shape& shape);

}  // namespace sherd::ckpt
