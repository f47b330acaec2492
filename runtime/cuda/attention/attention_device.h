#pragma once
// What the kernels of attention share: rows of a head, which keys a query sees, the place of a block. For .cu files.
#include "runtime/cuda/attention/attention_kernels.h"
#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"

namespace sherd::cuda {

/// HeadsView with its type. `wide`: rows can be read by 16 bytes, pieces of which lie all within K or all beyond.
template <class T>
struct Heads {
  T* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0, element = 0;
  bool wide = false;

  Heads() = default;
  Heads(const HeadsView& view, int k)
      : data(static_cast<T*>(view.data)),
        batch(view.batch),
        head(view.head),
        row(view.row),
        element(view.element),
        wide(element == 1 && ((batch | head | row | k) * static_cast<std::int64_t>(sizeof(T))) % 16 == 0 &&
             reinterpret_cast<std::uintptr_t>(data) % 16 == 0) {}
  __device__ T* at(int b, int h) const { return data + b * batch + h * head; }
};

/// [B, H, Tq] of statistics with any strides.
template <class C>
struct Statistics {
  const C* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0;

  Statistics() = default;
  explicit Statistics(const HeadsView& view)
      : data(static_cast<const C*>(view.data)), batch(view.batch), head(view.head), row(view.row) {}
  Statistics(const void* dense, const AttentionShape& shape)
      : data(static_cast<const C*>(dense)), batch(std::int64_t{shape.h} * shape.tq), head(shape.tq), row(1) {}
  __device__ C at(int b, int h, int t) const { return data[b * batch + h * head + t * row]; }
};

struct AttentionMask {
  int tk = 0, shift = 0;
  bool causal = false;

  AttentionMask() = default;
  explicit AttentionMask(const AttentionShape& shape)
      : tk(shape.tk), shift(shape.tk - shape.tq), causal(shape.causal) {}
  /// Keys that `query` sees: the first ones.
  __device__ int end(int query) const {
    if (!causal) return tk;
    const int seen = query + shift + 1;
    return seen < 0 ? 0 : seen > tk ? tk : seen;
  }
  /// The first query that sees `key`; may be beyond the last one.
  __device__ int first_query(int key) const { return !causal || key < shift ? 0 : key - shift; }
};

/// Block `index` of a grid over tiles of rows, heads and batch: all heads' last tiles come first, because under a
/// causal mask they are the longest for queries. `parts` blocks share a tile.
struct BlockPlace {
  int b, head, tile, part;
  __device__ BlockPlace(int index, int batches, int heads, int tiles, int parts) {
    part = index % parts;
    index /= parts;
    head = index % heads;
    index /= heads;
    b = index % batches;
    tile = tiles - 1 - index / batches;
  }
};

inline int tiles_of(int rows, int per_tile) { return (rows - 1) / per_tile + (rows > 0 ? 1 : 0); }

/// The grid of BlockPlace. Throws Error if no device has that many blocks.
inline dim3 attention_blocks(int batches, int heads, int tiles, int parts) {
  const std::int64_t blocks = std::int64_t{batches} * heads * tiles * parts;
  check(blocks < std::int64_t{1} << 31,
        "attention of {} batches, {} heads and {} tiles of rows is more than a grid holds", batches, heads, tiles);
  return {static_cast<unsigned>(blocks), 1, 1};
}

}  // namespace sherd::cuda
