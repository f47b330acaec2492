// Attention with an online softmax (Dao et al., "FlashAttention", 2022): of the Tq x Tk matrix of scores only a few
// rows of one chunk of keys exist at a time, in the first-level cache. A tile of queries meets one chunk of keys after
// the other, so that the chunk is read from the second level. Work is shared out by (batch, head).
#include <limits>
#include <utility>

#include "runtime/cpu/attention/attention.h"
#include "runtime/cpu/exp2.h"
#include "runtime/cpu/math.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/workspace.h"
#include "runtime/op/rows/attention_attrs.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kChunk = 512;  // keys

// One head: scores of `keys` become exponents of two when they are multiplied by `scale`.
template <class T>
struct ForwardHead {
  using A = Accumulator<T>;
  using P = Packed<T>;
  const AttentionSizes& n;
  AttentionMask mask;
  const P* keys;
  A scale;
  RowsOf<P> values;
  std::int64_t padded;        // K in whole vectors
  A *scores, *sums;           // [kBlockRows, kChunk]; [kQueries, padded]
  P *weights, *query_buffer;  // [kBlockRows, kChunk] rounded to pairs; [kQueries, padded]
  A largest[kQueries]{}, total[kQueries]{};

  // The scores of a block of rows become weights, zero beyond the last key that a query sees; older sums are rescaled.
  // All rows take the same columns: loops whose length changes from row to row cost more than they save.
  template <int Rows>
  void take_rows(std::int64_t first, std::int64_t i, std::int64_t chunk, std::int64_t columns, A* rows) {
    A top[Rows], sum[Rows];
    for (int r = 0; r < Rows; ++r) {
      const std::int64_t visible = mask.visible(first + i + r, chunk, columns);
      mask_row(rows + r * kChunk, visible, columns, std::numeric_limits<A>::lowest());
      // A row that sees nothing gets weights of 0, not of 2^0.
      top[r] = visible == 0 ? A{} : std::max(largest[i + r], row_max(rows + r * kChunk, columns));
    }
    exp2_rows<Rows>(rows, kChunk, columns, top, sum);
    for (int r = 0; r < Rows; ++r) {
      if (sum[r] == A{}) continue;
      A& so_far = total[i + r];
      if (chunk > 0 && top[r] != largest[i + r]) {
        const A rescale = exp2(splat(largest[i + r] - top[r]))[0];
        so_far *= rescale;
        for (std::int64_t c = 0; c < padded; ++c) sums[(i + r) * padded + c] *= rescale;
      }
      so_far += sum[r];
      largest[i + r] = top[r];
    }
  }

  // `here` queries from `i` of the tile on against the keys of a chunk.
  void block(const RowsOf<P>& rows, std::int64_t first, std::int64_t i, std::int64_t here, std::int64_t chunk) {
    const std::int64_t keys_here = std::min(kChunk, n.tk - chunk);
    const std::int64_t last = mask.visible(first + i + here - 1, chunk, keys_here);
    if (last == 0 && chunk > 0) return;
    const std::int64_t columns = whole_vectors<A>(last);
    for (std::int64_t t = 0; t < columns; t += kKeys)
      tile_product<P>(here, std::min(kKeys, columns - t), steps_of<T>(n.k), {rows.data + i * rows.row, rows.row, 1},
                      keys + (chunk + t) * steps_of<T>(n.k), kKeys, {}, scores + t, kChunk);
    if constexpr (kTogether<T> != 1)
      for (std::int64_t r = 0; r < here; ++r)
        round_scaled_row<A>(scores + r * kChunk, scale, columns, scores + r * kChunk);
    constexpr int together = kBlockRows / 2;
    std::int64_t r = 0;
    for (; r + together <= here; r += together) take_rows<together>(first, i + r, chunk, columns, scores + r * kChunk);
    for (; r < here; ++r) take_rows<1>(first, i + r, chunk, columns, scores + r * kChunk);
    A* const to = sums + i * padded;
    TileA<P> left;
    if constexpr (kTogether<T> == 1) {
      left = {scores, kChunk, 1};
    } else {
      round_rows(scores, kChunk, here, columns, weights, kChunk / kTogether<T>);
      left = {weights, kChunk / kTogether<T>, 1};
    }
    tile_product<P>(here, padded, steps_of<T>(last), left, values.data + chunk / kTogether<T> * values.row, values.row,
                    {chunk == 0 ? nullptr : to, padded}, to, padded);
  }

  void tile_of_queries(const T* q, std::int64_t q_row, std::int64_t first, T* out, std::int64_t out_row, A* lse) {
    const std::int64_t queries = std::min(kQueries, n.tq - first);
    const RowsOf<P> rows = left_rows(q + first * q_row, q_row, queries, n.k, query_buffer);
    std::fill(largest, largest + queries, std::numeric_limits<A>::lowest());
    std::fill(total, total + queries, A{});
    const std::int64_t end = mask.visible(first + queries - 1, 0, n.tk);
    for (std::int64_t chunk = 0; chunk == 0 || chunk < end; chunk += kChunk)
      for (std::int64_t i = 0; i < queries; i += kBlockRows)
        block(rows, first, i, std::min<std::int64_t>(kBlockRows, queries - i), chunk);
    for (std::int64_t i = 0; i < queries; ++i) {
      // A query that sees no key gives zeros.
      const A inverse = total[i] == A{} ? A{} : A{1} / total[i];
      round_scaled_row(sums + i * padded, inverse, n.k, out + (first + i) * out_row);
    }
    for (std::int64_t i = 0; i < queries; ++i)
      lse[first + i] = largest[i] * std::numbers::ln2_v<A> + Math::log(total[i]);
  }
};

template <class T>
void forward(const KernelCall& c) {
  using A = Accumulator<T>;
  const AttentionSizes n = attention_sizes(c.in[0], c.in[1]);
  const auto& attrs = c.attrs.as<AttentionAttrs>();
  ScratchCursor scratch(c.exec);
  const Heads<T> q(c.in[0], scratch), k(c.in[1], scratch), v(c.in[2], scratch);
  const HeadsOut<T> out(c.out[0]);
  A* const lse = c.out[1].mutable_data<A>();
  const A scale = static_cast<A>(attrs.scale) * std::numbers::log2e_v<A>;
  parallel_for(n.b * n.h, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t padded = whole_vectors<A>(n.k), keys_size = packed_keys<T>(n);
    const std::int64_t values_size = rows_serve<T>(n.k) ? 0 : steps_of<T>(n.tk) * padded;
    A* at = thread_workspace<A>(WorkspaceUse::tiles,
                                keys_size + values_size + 2 * kBlockRows * kChunk + 2 * kQueries * padded);
    const auto take = [&](std::int64_t count) { return std::exchange(at, at + count); };
    Packed<T>* const keys = packed_part<T>(take(keys_size));
    Packed<T>* const values_buffer = packed_part<T>(take(values_size));
    A *const scores = take(kBlockRows * kChunk), *const sums = take(kQueries * padded);
    Packed<T>* const weights = packed_part<T>(take(kBlockRows * kChunk));
    Packed<T>* const query_buffer = packed_part<T>(take(kQueries * padded));
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t b = task / n.h, h = task % n.h, g = h / n.group();
      pack_transposed(k.at(b, g), k.row, n.tk, n.k, scale, keys);
      ForwardHead<T> head{.n = n,
                          .mask = {attrs.causal, n.tk, n.tk - n.tq},
                          .keys = keys,
                          .scale = left_to_scale<T>(scale),
                          .values = right_rows(v.at(b, g), v.row, n.tk, n.k, values_buffer),
                          .padded = padded,
                          .scores = scores,
                          .sums = sums,
                          .weights = weights,
                          .query_buffer = query_buffer};
      for (std::int64_t first = 0; first < n.tq; first += kQueries)
        head.tile_of_queries(q.at(b, h), q.row, first, out.at(b, h), out.row, lse + task * n.tq);
    }
  });
}

}  // namespace

void attention_forward_kernel(const KernelCall& c) {
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) { forward<T>(c); });
}

}  // namespace sherd::cpu
