#pragma once
// Lists of ids that name rows, classes or places along a dim.
#include <algorithm>

#include "runtime/cpu/tile.h"
#include "runtime/op/core/op.h"
#include "runtime/op/rows/id_shard.h"

namespace sherd::cpu {

/// Calls fn(position, id) for an index in row-major order; throws Error naming the first id that does not exist.
template <class Fn>
void for_each_id(const KernelCall& call, const Tensor& index, const IdShard& ids, Fn&& fn) {
  const TileReader<std::int64_t> reader(index, index.shape());
  std::int64_t buffer[kTile];
  for (std::int64_t i = 0; i < index.numel(); i += kTile) {
    const std::int64_t n = std::min(kTile, index.numel() - i);
    const std::int64_t* list = reader.read(i, n, buffer);
    for (std::int64_t k = 0; k < n; ++k) {
      if (!ids.exists(list[k])) [[unlikely]]
        fail("{}: index {} at position {} is outside of 0..{}", call.op.name, list[k], i + k, ids.total - 1);
      fn(i + k, list[k]);
    }
  }
}

/// Checks them all: before any thread starts that counts on them.
inline void check_ids(const KernelCall& call, const Tensor& index, const IdShard& ids) {
  for_each_id(call, index, ids, [](std::int64_t, std::int64_t) {});
}

}  // namespace sherd::cpu
