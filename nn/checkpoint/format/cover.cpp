// The number of boxes that hold an element is a function known by its changes. Along dim 0 it changes where a box
// begins, by +1 over the box's extent in the other dims, and where it ends, by -1. Subtract the box of the full tensor:
// the boxes cover it exactly if the changes at each of these places cancel out, which is the same question with one dim
// less.
//
//   0   2     5   dim 0
//   +---+-----+
//   | a |  b  |    at 0:  + a - full    each on [0, 4) of dim 1, so they cancel out
//   |   |     |    at 2:  - a + b
//   +---+-----+    at 5:  - b + full
//
// This is exact for any boxes (a pinwheel of five has no straight split at all), and the first place where changes do
// not cancel is the first element that is held wrongly.
#include "nn/checkpoint/format/cover.h"

#include <algorithm>
#include <vector>

namespace sherd::ckpt {

namespace {

/// Where a box begins or ends along one dim.
struct BoxEdge {
  std::int64_t at = 0;
  const Box* box = nullptr;
  int sign = 0;
};

/// The first element over dims dim.. at which the signed boxes do not add up to 0, and what they add up to.
std::optional<Miscount> first_nonzero(std::span<const BoxEdge> boxes, int dim) {
  if (dim == boxes[0].box->shape.size()) {
    std::int64_t sum = 0;
    for (const BoxEdge& edge : boxes) sum += edge.sign;
    return sum == 0 ? std::nullopt : std::optional(Miscount{{}, sum});
  }
  std::vector<BoxEdge> edges;
  edges.reserve(2 * boxes.size());
  for (const auto& [at, box, sign] : boxes) {
    edges.push_back({box->offset[dim], box, sign});
    edges.push_back({box->offset[dim] + box->shape[dim], box, -sign});
  }
  std::sort(edges.begin(), edges.end(), [](const BoxEdge& a, const BoxEdge& b) { return a.at < b.at; });
  for (auto begin = edges.begin(); begin != edges.end();) {
    const auto end = std::find_if(begin, edges.end(), [&](const BoxEdge& edge) { return edge.at != begin->at; });
    if (auto found = first_nonzero({begin, end}, dim + 1)) {
      found->element.insert(0, begin->at);
      return found;
    }
    begin = end;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Miscount> first_miscount(std::span<const Box* const> boxes, const Shape& shape) {
  const Box full = whole_box(shape);
  std::vector<BoxEdge> signed_boxes;
  signed_boxes.reserve(boxes.size() + 1);
  for (const Box* box : boxes)
    if (numel(*box) > 0) signed_boxes.push_back({0, box, 1});
  if (numel(full) > 0) signed_boxes.push_back({0, &full, -1});
  if (signed_boxes.empty()) return std::nullopt;
  auto found = first_nonzero(signed_boxes, 0);
  if (found) ++found->boxes;
  return found;
}

}  // namespace sherd::ckpt
