// Backward of attention in tiles of queries and keys, whose weights are computed again from the saved log-sum-exp. With
// weights P = 2^(scale log2(e) Q K^T - log2(e) lse), result O and its gradient G:
//   dV = P^T G,   dP = G V^T,   dS = scale P (dP - rowsum(G O)),   dQ = dS K,   dK = dS^T Q.
// Work is shared out by (batch, key head): the gradients of keys and values are summed over the heads of the group and
// over queries in order, by one thread.
#include "runtime/cpu/attention.h"
#include "runtime/cpu/exp2.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/workspace.h"
#include "runtime/op/attr_types.h"

namespace sherd::cpu {

namespace {

// A tile of queries against one packed tile of keys.
struct Tile {
  std::int64_t first_query, queries, first_key, keys;
};

// The thread's buffers for one key head.
template <class T>
struct Buffers {
  using A = Accumulator<T>;
  explicit Buffers(const AttentionSizes& n) {
    const std::int64_t padded = whole_vectors<A>(n.k), tile = kQueries * kKeys, queries = kQueries * padded;
    const std::int64_t rows = rows_serve<T>(n.k) ? 0 : n.tk * padded;
    A* at = thread_workspace<A>(WorkspaceUse::tiles, 2 * n.packed() + 3 * rows + 2 * tile + 4 * queries);
    const auto take = [&](std::int64_t count) { return std::exchange(at, at + count); };
    keys_packed = take(n.packed());
    values_packed = take(n.packed());
    keys = take(rows);
    dk = take(rows);
    dv = take(rows);
    weights = take(tile);
    dweights = take(tile);
    q = take(queries);
    grad = take(queries);
    out = take(queries);
    dq = take(queries);
  }
  A *keys_packed, *values_packed;  // kKeys columns per tile; the keys are scaled to exponents of two
  A *keys, *dk, *dv;               // [Tk, padded], if the tensors' rows do not serve
  A *weights, *dweights;           // [kQueries, kKeys]
  A *q, *grad, *out, *dq;          // [kQueries, padded]
};

// Rows that are written, `row` elements apart.
template <class A>
struct SumRows {
  A* data;
  std::int64_t row;
};

template <class T>
struct BackwardHead {
  using A = Accumulator<T>;
  const AttentionSizes& n;
  AttentionMask mask;
  A scale;
  std::int64_t padded;  // K in whole vectors: rows of dk, dv, dq
  Buffers<T> buffers;
  RowsOf<A> keys;
  SumRows<A> dk, dv;             // summed over the queries of the group
  std::int64_t summed_keys = 0;  // whose sums have started

  // One row: p (exponents) becomes P, d becomes dS; both zero beyond the last key that the query sees.
  static void gradient_row(A shift, A dot, A scale, std::int64_t visible, std::int64_t columns, A* p, A* d) {
    for (std::int64_t j = 0; j < columns; j += kLanes<A>) {
      const Vec<A> weight = exp2(load(p + j) - splat(shift));
      store<A>(p + j, weight);
      store<A>(d + j, weight * (load(d + j) - splat(dot)) * splat(scale));
    }
    mask_row(p, visible, kKeys, A{});
    mask_row(d, visible, kKeys, A{});
  }

  // P and dS of a tile.
  void weights_of(const Tile& tile, const RowsOf<A>& q, const RowsOf<A>& g, const A* lse, const A* dot) const {
    const std::int64_t packed = tile.first_key * n.k;
    for (std::int64_t i = 0; i < tile.queries; i += kBlockRows) {
      const std::int64_t here = std::min<std::int64_t>(kBlockRows, tile.queries - i);
      const std::int64_t columns = whole_vectors<A>(seen(tile, i + here - 1));
      A *const p = buffers.weights + i * kKeys, *const d = buffers.dweights + i * kKeys;
      tile_product<A>(here, columns, n.k, {q.data + i * q.row, q.row, 1}, buffers.keys_packed + packed, kKeys, {}, p,
                      kKeys);
      tile_product<A>(here, columns, n.k, {g.data + i * g.row, g.row, 1}, buffers.values_packed + packed, kKeys, {}, d,
                      kKeys);
      for (std::int64_t r = 0; r < here; ++r)
        gradient_row(lse[tile.first_query + i + r] * std::numbers::log2e_v<A>, dot[i + r], scale, seen(tile, i + r),
                     columns, p + r * kKeys, d + r * kKeys);
    }
  }

  std::int64_t seen(const Tile& tile, std::int64_t i) const {
    return mask.visible(tile.first_query + i, tile.first_key, tile.keys);
  }

  // to [keys, padded] += X^T right, for X [queries, keys]: a key takes the queries that see it. `fresh` sums start
  // here, those of the packed tile's other keys too.
  void add_transposed(const Tile& tile, bool fresh, const A* x, const RowsOf<A>& right, const SumRows<A>& to) const {
    const std::int64_t count = fresh ? std::min(kKeys, n.tk - tile.first_key) : tile.keys;
    for (std::int64_t j = 0; j < count; j += kBlockRows) {
      const std::int64_t here = std::min<std::int64_t>(kBlockRows, count - j);
      std::int64_t from = j < tile.keys ? 0 : tile.queries;
      if (mask.causal) from = std::clamp(tile.first_key + j - mask.shift - tile.first_query, from, tile.queries);
      A* const rows = to.data + (tile.first_key + j) * to.row;
      tile_product<A>(here, padded, tile.queries - from, {x + from * kKeys + j, 1, kKeys},
                      right.data + from * right.row, right.row, {fresh ? nullptr : rows, to.row}, rows, to.row);
    }
  }

  void add_to_dq(const Tile& tile) const {
    for (std::int64_t i = 0; i < tile.queries; i += kBlockRows) {
      const std::int64_t here = std::min<std::int64_t>(kBlockRows, tile.queries - i);
      A* const rows = buffers.dq + i * padded;
      tile_product<A>(here, padded, seen(tile, i + here - 1), {buffers.dweights + i * kKeys, kKeys, 1},
                      keys.data + tile.first_key * keys.row, keys.row, {tile.first_key == 0 ? nullptr : rows, padded},
                      rows, padded);
    }
  }

  void tile_of_queries(const Heads<T>& q, const Heads<T>& grad, const Heads<T>& out, std::int64_t b, std::int64_t h,
                       std::int64_t first, const A* lse, const HeadsOut<T>& dq) {
    const std::int64_t queries = std::min(kQueries, n.tq - first);
    const RowsOf<A> g = product_rows(grad.at(b, h, first), grad.row, queries, n.k, buffers.grad);
    const RowsOf<A> o = product_rows(out.at(b, h, first), out.row, queries, n.k, buffers.out);
    const RowsOf<A> rows = product_rows(q.at(b, h, first), q.row, queries, n.k, buffers.q);
    A dot[kQueries];
    for (std::int64_t i = 0; i < queries; ++i) dot[i] = row_dot(g.data + i * g.row, o.data + i * o.row, n.k);
    const std::int64_t end = mask.visible(first + queries - 1, 0, n.tk);
    for (std::int64_t key = 0; key < end; key += kKeys) {
      const Tile tile{first, queries, key, std::min(kKeys, end - key)};
      const bool fresh = key >= summed_keys;
      weights_of(tile, rows, g, lse, dot);
      add_transposed(tile, fresh, buffers.weights, g, dv);
      add_transposed(tile, fresh, buffers.dweights, rows, dk);
      add_to_dq(tile);
    }
    summed_keys = std::max(summed_keys, num_chunks(end, kKeys) * kKeys);
    if (end == 0) std::fill(buffers.dq, buffers.dq + queries * padded, A{});
    for (std::int64_t i = 0; i < queries; ++i) convert_row(buffers.dq + i * padded, n.k, dq.at(b, h, first + i));
  }
};

template <class T>
void backward(const KernelCall& c) {
  using A = Accumulator<T>;
  const AttentionSizes n = attention_sizes(c.in[1], c.in[2]);
  const auto& attrs = c.attrs.as<AttentionAttrs>();
  ScratchCursor scratch(c.exec);
  const Heads<T> grad(c.in[0], scratch), q(c.in[1], scratch), k(c.in[2], scratch), v(c.in[3], scratch);
  const Heads<T> out(c.in[4], scratch);
  const A* const lse = scratch.dense<A>(c.in[5]);
  const HeadsOut<T> dq(c.out[0]), dk(c.out[1]), dv(c.out[2]);
  const A scale = static_cast<A>(attrs.scale);
  const std::int64_t padded = whole_vectors<A>(n.k);
  parallel_for(n.b * n.g, 1, [&](std::int64_t begin, std::int64_t end) {
    const Buffers<T> buffers(n);
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t b = task / n.g, g = task % n.g;
      BackwardHead<T> head{.n = n,
                           .mask = {attrs.causal, n.tk, n.tk - n.tq},
                           .scale = scale,
                           .padded = padded,
                           .buffers = buffers,
                           .keys = product_rows(k.at(b, g), k.row, n.tk, n.k, buffers.keys),
                           .dk = {buffers.dk, padded},
                           .dv = {buffers.dv, padded}};
      // The sums are built in the results themselves where these serve.
      if constexpr (std::is_same_v<T, A>)
        if (rows_serve<T>(n.k)) {
          head.dk = {dk.at(b, g), dk.row};
          head.dv = {dv.at(b, g), dv.row};
        }
      pack_transposed(k.at(b, g), k.row, n.tk, n.k, scale * std::numbers::log2e_v<A>, buffers.keys_packed);
      pack_transposed(v.at(b, g), v.row, n.tk, n.k, A{1}, buffers.values_packed);
      for (std::int64_t h = g * n.group(); h < (g + 1) * n.group(); ++h) {
        const A* const row_lse = lse + (b * n.h + h) * n.tq;
        for (std::int64_t first = 0; first < n.tq; first += kQueries)
          head.tile_of_queries(q, grad, out, b, h, first, row_lse, dq);
      }
      for (const SumRows<A>& sums : {head.dk, head.dv})
        for (std::int64_t t = head.summed_keys; t < n.tk; ++t) std::fill_n(sums.data + t * sums.row, padded, A{});
      for (std::int64_t t = 0; t < n.tk && !rows_serve<T>(n.k); ++t) {
        convert_row(buffers.dk + t * padded, n.k, dk.at(b, g, t));
        convert_row(buffers.dv + t * padded, n.k, dv.at(b, g, t));
      }
    }
  });
}

}  // namespace

void attention_backward_kernel(const KernelCall& c) {
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) { backward<T>(c); });
}

}  // namespace sherd::cpu
