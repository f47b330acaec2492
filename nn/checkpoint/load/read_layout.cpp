#include "nn/checkpoint/load/read_layout.h"

#include <algorithm>

#include "nn/checkpoint/format/safetensors.h"
#include "runtime/tensor/indices.h"

namespace sherd::ckpt {

namespace {

/// Where the shards of a dim begin, in order.
std::vector<std::int64_t> begins_of_shards(const Spec& spec, int dim, std::int64_t size) {
  const DeviceMesh mesh = spec.mesh();
  std::vector<std::int64_t> begins;
  for (const int rank : up_to(mesh.num_ranks()))
    begins.push_back(spec.range_at(dim, size, mesh.coordinates_of(rank)).begin);
  std::ranges::sort(begins);
  return begins;
}

/// Whether some piece has elements of two shards of the dim.
bool cuts_a_piece(const Spec& spec, int dim, std::int64_t size, const std::vector<const PieceEntry*>& pieces) {
  const std::vector<std::int64_t> begins = begins_of_shards(spec, dim, size);
  return std::ranges::any_of(pieces, [&](const PieceEntry* piece) {
    const std::int64_t first = piece->box.offset[dim];
    const auto next = std::ranges::upper_bound(begins, first);
    return next != begins.end() && *next < first + piece->box.shape[dim];
  });
}

}  // namespace

const Spec* read_layout(const Tensor& value, const Shape& shape, const std::vector<const PieceEntry*>& pieces) {
  if (!value.is_distributed() || value.shape() != shape || byte_count(value.dtype(), shape) <= kBlockBytes)
    return nullptr;
  const Spec& own = Spec::from(value);
  if (own.is_partial() || own.lists_rows()) return nullptr;  // lists are of rows that one rank computes with
  if (std::ranges::any_of(pieces, [&](const PieceEntry* piece) { return piece->shape != shape; })) return nullptr;
  const Spec* layout = &own;
  for (const int dim : Numbers<int>(1, shape.size())) {
    if (own.num_shards(dim) == 1 || !cuts_a_piece(own, dim, shape[dim], pieces)) continue;
    for (const int axis : own.axes_of(dim)) layout = layout->with(axis, Shard(0));
  }
  return layout == &own || layout->num_shards(0) > shape[0] ? nullptr : layout;
}

}  // namespace sherd::ckpt
