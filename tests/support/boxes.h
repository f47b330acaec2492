#pragma once
// Boxes of tensors of up to three dims, for rows that know which elements of a full tensor they hold.
#include <string>
#include <vector>

#include "runtime/op/rows/ops.h"

namespace sherd::testing {

struct Box {
  Shape global, local;
  Dims offset;
  /// Its elements of `whole`, dense.
  Tensor of(Tensor whole) const {
    for (int d = 0; d < global.size(); ++d) whole = narrow(std::move(whole), d, offset[d], local[d]);
    return contiguous(std::move(whole));
  }
  std::string text() const { return to_string(local) + " at " + to_string(offset) + " of " + to_string(global); }
};

/// Every way to narrow or not to narrow each dim: runs within a block of four elements, across blocks, long ones,
/// single elements, and none.
inline std::vector<Box> boxes() {
  std::vector<Box> all;
  for (const Shape& global : {Shape{}, Shape{9}, Shape{1500}, Shape{7, 9}, Shape{8, 16}, Shape{3, 700}, Shape{2, 3, 4},
                              Shape{5, 6, 7}, Shape{3, 4, 32}, Shape{4, 1, 24}}) {
    std::vector<Box> found{{}};
    for (const std::int64_t n : global) {
      std::vector<Box> longer;
      for (const Box& box : found)
        for (const auto& [from, size] : {std::pair<std::int64_t, std::int64_t>{0, n}, {n / 2, n - n / 2}, {n / 3, 1}}) {
          Box next = box;
          next.global.push_back(n);
          next.local.push_back(size);
          next.offset.push_back(from);
          longer.push_back(next);
        }
      found = std::move(longer);
    }
    all.insert(all.end(), found.begin(), found.end());
  }
  all.push_back({{6, 8}, {2, 0}, {4, 8}});
  all.push_back({{6, 8}, {0, 8}, {6, 0}});
  return all;
}

}  // namespace sherd::testing
