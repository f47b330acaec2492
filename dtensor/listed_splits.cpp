#include "dtensor/listed_splits.h"

#include <algorithm>
#include <numeric>

#include "dtensor/below.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

std::int64_t sum(std::span<const std::int64_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

ListedSplit innermost_split(const Spec* spec, int dim) {
  const std::span<const int> axes = spec->axes_of(dim);
  const std::span<const std::int64_t> rows = spec->rows_of(dim);
  ListedSplit split{.dim = dim, .axis = axes.back(), .rows = {}, .split = spec, .joined = nullptr};
  const auto ranks = static_cast<std::size_t>(spec->axis_size(split.axis));
  std::vector<std::int64_t> outer;
  for (std::size_t r = 0; r < rows.size(); r += ranks) outer.push_back(sum(rows.subspan(r, ranks)));
  std::size_t here = 0;  // among the shards of the outer splits
  for (const int axis : axes.first(axes.size() - 1))
    here = here * static_cast<std::size_t>(spec->axis_size(axis)) + static_cast<std::size_t>(spec->coordinate(axis));
  const std::span<const std::int64_t> own = rows.subspan(here * ranks, ranks);
  split.rows.assign(own.begin(), own.end());
  split.joined = spec->with(split.axis, Replicate());
  if (outer.size() > 1) split.joined = split.joined->with_rows(dim, outer);
  return split;
}

// The same on all ranks: of the largest local tensor.
std::int64_t largest_local_bytes(const Spec& spec, const Shape& shape, DType dtype) {
  std::int64_t bytes = byte_size(dtype);
  for (const int d : indices(shape)) {
    std::int64_t size = shape[d];
    if (const auto rows = spec.rows_of(d); !rows.empty()) size = *std::ranges::max_element(rows);
    else
      for (const int axis : spec.axes_of(d)) size = (size + spec.axis_size(axis) - 1) / spec.axis_size(axis);
    bytes *= size;
  }
  return bytes;
}

}  // namespace

std::vector<ListedSplit> listed_splits(const Spec* spec) {
  std::vector<ListedSplit> splits;
  for (const int dim : up_to(kMaxDims))
    while (!spec->rows_of(dim).empty()) spec = splits.emplace_back(innermost_split(spec, dim)).joined;
  return splits;
}

TransitionStep slice_step(const ListedSplit& split) {
  TransitionStep step;
  step.kind = TransitionStep::Kind::slice;
  step.axes.push_back(split.axis);
  step.from_dim = step.to_dim = split.dim;
  step.result = split.split;
  step.rows = split.rows;
  return step;
}

TransitionStep gather_step(const ListedSplit& split, const Shape& shape, DType dtype) {
  TransitionStep step = slice_step(split);
  step.kind = TransitionStep::Kind::all_gather;
  step.result = split.joined;
  step.bytes = largest_local_bytes(*split.joined, shape, dtype);
  return step;
}

Tensor gather_listed(Tensor x, const TransitionStep& step) {
  const int dim = step.from_dim;
  const std::int64_t most = *std::ranges::max_element(step.rows);
  const DeviceMesh mesh = step.result->mesh();
  CollectiveAttrs attrs{.group = name_group(mesh.group(step.axes[0]))};
  attrs.rows = most * std::ranges::ssize(step.rows);
  attrs.dim = dim;
  x = below(op::pad_to, PadToAttrs{dim, 0, most}, std::move(x));
  const Tensor all = below(op::all_gather, attrs, dense_below(std::move(x)));
  std::vector<Tensor> parts;
  for (const std::size_t r : indices(step.rows))
    parts.push_back(below(op::narrow, NarrowAttrs{dim, static_cast<std::int64_t>(r) * most, step.rows[r]}, all));
  return std::move(below(op::cat, DimAttrs{dim}, std::span<Tensor>(parts))[0]);
}

}  // namespace sherd
