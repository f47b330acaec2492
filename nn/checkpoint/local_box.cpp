#include "nn/checkpoint/local_box.h"

#include <algorithm>

#include "dtensor/spec.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::ckpt {

Box local_box(const Tensor& value) {
  if (!value.is_distributed()) return whole_box(value.shape());
  const Spec& spec = Spec::from(value);
  check(!spec.is_partial(), "checkpoint: {} is Partial, so no rank has its values; redistribute() it first",
        describe(value));
  return {spec.local_offset(value.shape()), spec.local_shape(value.shape())};
}

namespace {

// The elements [begin, end) of the leading `dims` dims, in their order, and all of the others.
void add_boxes(std::vector<Box>& boxes, const Box& of, int dim, int dims, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  std::int64_t inner = 1;  // elements of the leading dims behind this one
  for (const int d : Numbers<int>(dim + 1, dims)) inner *= of.shape[d];
  const auto within = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    Box one = of;
    one.offset[dim] = index;
    one.shape[dim] = 1;
    add_boxes(boxes, one, dim + 1, dims, from, to);
  };
  std::int64_t first = begin / inner;
  const std::int64_t last = end / inner;
  if (begin % inner != 0) {
    within(first, begin % inner, first == last ? end % inner : inner);
    if (first == last) return;
    ++first;
  }
  if (first < last) {
    Box whole = of;
    whole.offset[dim] = first;
    whole.shape[dim] = last - first;
    boxes.push_back(whole);
  }
  if (end % inner != 0) within(last, 0, end % inner);
}

}  // namespace

std::vector<LocalPart> local_parts(const Tensor& value, const Shape& shape) {
  const Box own = local_box(value);
  const Tensor local = value.local().detach();
  if (value.shape() == shape) return {{own, local}};
  std::vector<Box> boxes;
  add_boxes(boxes, whole_box(shape), 0, shape.size() - value.ndim() + 1, own.offset[0], own.offset[0] + own.shape[0]);
  if (boxes.empty()) boxes.push_back(rows_box(shape, 0, 0));
  std::vector<LocalPart> parts;
  std::int64_t row = 0;
  for (const Box& box : boxes) {
    const std::int64_t rows = numel(box) == 0 ? 0 : numel(box) * own.shape[0] / local.numel();
    parts.push_back({box, view(narrow(local, 0, row, rows), box.shape)});
    row += rows;
  }
  return parts;
}

std::vector<int> replica_axes(const Tensor& value) {
  const Spec& spec = Spec::from(value);
  const DeviceMesh mesh = spec.mesh(), root = mesh.root();
  std::vector<bool> shards(static_cast<std::size_t>(root.ndim()), false);  // by root axis
  for (const int a : up_to(mesh.ndim()))
    if (spec.placement(a).is_shard())
      for (const int r : mesh.root_axes(a)) shards[static_cast<std::size_t>(r)] = true;
  std::vector<int> axes;
  for (const int r : up_to(root.ndim()))
    if (!shards[static_cast<std::size_t>(r)] && root.size(r) > 1) axes.push_back(r);
  return axes;
}

bool saves_box(const Tensor& value, int rank) {
  if (!value.is_distributed()) return rank == 0;
  const DeviceMesh root = Spec::from(value).mesh().root();
  return std::ranges::all_of(replica_axes(value), [&](int axis) { return root.coordinate(axis) == 0; });
}

}  // namespace sherd::ckpt
