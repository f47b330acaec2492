// Backward of attention in tiles of queries and keys, whose weights are computed again from the saved log-sum-exp. With
// weights P = 2^(scale log2(e) Q K^T - log2(e) lse), result O and its gradient G:
//   dV = P^T G,   dP = G V^T,   dS = scale P (dP - rowsum(G O)),   dQ = dS K,   dK = dS^T Q.
// Work is shared out by (batch, key head): the gradients of keys and values are summed over the heads of the group and
// over queries in order, by one thread.
#include "runtime/cpu/attention/attention.h"
#include "runtime/cpu/exp2.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/workspace.h"
#include "runtime/op/rows/attention_attrs.h"

namespace sherd::cpu {

namespace {

// A tile of queries against one packed tile of keys.
struct Tile {
  std::int64_t first_query, queries, first_key, keys;
};

// The thread's buffers for one key head. Left factors have their steps along the rows, right ones across them.
template <class T>
struct Buffers {
  using A = Accumulator<T>;
  using P = Packed<T>;
  explicit Buffers(const AttentionSizes& n) {
    const std::int64_t padded = whole_vectors<A>(n.k), tile = kQueries * kKeys, queries = kQueries * padded;
    const std::int64_t rows = rows_serve<T>(n.k) ? 0 : n.tk * padded, packed = packed_keys<T>(n);
    const std::int64_t rounded = kTogether<T> == 1 ? 0 : tile;
    A* at = thread_workspace<A>(WorkspaceUse::tiles, 2 * packed + 3 * rows + 2 * tile + 3 * rounded + 5 * queries);
    const auto take = [&](std::int64_t count) { return std::exchange(at, at + count); };
    keys_packed = packed_part<T>(take(packed));
    values_packed = packed_part<T>(take(packed));
    keys = packed_part<T>(take(rows));
    dk = take(rows);
    dv = take(rows);
    weights = take(tile);
    dweights = take(tile);
    weights_across = packed_part<T>(take(rounded));
    dweights_across = packed_part<T>(take(rounded));
    dweights_along = packed_part<T>(take(rounded));
    for (P** buffer : {&q_left, &q_right, &grad_left, &grad_right}) *buffer = packed_part<T>(take(queries));
    dq = take(queries);
  }
  P *keys_packed, *values_packed;                // kKeys columns per tile
  P* keys;                                       // right [Tk, padded], if the tensor's rows do not serve
  A *dk, *dv;                                    // [Tk, padded], likewise
  A *weights, *dweights;                         // [kQueries, kKeys]
  P *weights_across, *dweights_across;           // the same rounded to pairs of queries,
  P* dweights_along;                             // and of keys
  P *q_left, *q_right, *grad_left, *grad_right;  // [kQueries, padded]
  A* dq;                                         // [kQueries, padded]
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
  using P = Packed<T>;
  const AttentionSizes& n;
  AttentionMask mask;
  A scale, exponent_scale;  // of scores; what makes products with packed keys exponents of two
  std::int64_t padded;      // K in whole vectors: rows of dk, dv, dq
  Buffers<T> buffers;
  RowsOf<P> keys;
  SumRows<A> dk, dv;             // summed over the queries of the group
  std::int64_t summed_keys = 0;  // whose sums have started

  // One row: p (products with keys) becomes P, d becomes dS; both zero beyond the last key that the query sees.
  void gradient_row(A shift, A dot, std::int64_t visible, std::int64_t columns, A* p, A* d) const {
    for (std::int64_t j = 0; j < columns; j += kLanes<A>) {
      const Vec<A> weight = exp2(fma(load(p + j), splat(exponent_scale), splat(-shift)));
      store<A>(p + j, weight);
      store<A>(d + j, weight * (load(d + j) - splat(dot)) * splat(scale));
    }
    mask_row(p, visible, kKeys, A{});
    mask_row(d, visible, kKeys, A{});
  }

  // P and dS of a tile.
  void weights_of(const Tile& tile, const RowsOf<P>& q, const RowsOf<P>& g, const A* lse, const A* dot) const {
    const std::int64_t steps = steps_of<T>(n.k), packed = tile.first_key * steps;
    for (std::int64_t i = 0; i < tile.queries; i += kBlockRows) {
      const std::int64_t here = std::min<std::int64_t>(kBlockRows, tile.queries - i);
      const std::int64_t columns = whole_vectors<A>(seen(tile, i + here - 1));
      A *const p = buffers.weights + i * kKeys, *const d = buffers.dweights + i * kKeys;
      tile_product<P>(here, columns, steps, {q.data + i * q.row, q.row, 1}, buffers.keys_packed + packed, kKeys, {}, p,
                      kKeys);
      tile_product<P>(here, columns, steps, {g.data + i * g.row, g.row, 1}, buffers.values_packed + packed, kKeys, {},
                      d, kKeys);
      for (std::int64_t r = 0; r < here; ++r)
        gradient_row(lse[tile.first_query + i + r] * std::numbers::log2e_v<A>, dot[i + r], seen(tile, i + r), columns,
                     p + r * kKeys, d + r * kKeys);
    }
    if constexpr (kTogether<T> != 1) {
      round_across_rows(buffers.weights, kKeys, tile.queries, kKeys, buffers.weights_across, kKeys);
      round_across_rows(buffers.dweights, kKeys, tile.queries, kKeys, buffers.dweights_across, kKeys);
      round_rows(buffers.dweights, kKeys, tile.queries, kKeys, buffers.dweights_along, kKeys / kTogether<T>);
    }
  }

  // Rows of a tile as a left factor with its steps across them.
  static const P* across(const A* rows, const P* rounded) {
    if constexpr (kTogether<T> == 1) return rows;
    else return rounded;
  }

  std::int64_t seen(const Tile& tile, std::int64_t i) const {
    return mask.visible(tile.first_query + i, tile.first_key, tile.keys);
  }

  // to [keys, padded] += X^T right, for X [queries, keys]: a key takes the queries that see it, and those paired with
  // them. `fresh` sums start here, those of the packed tile's other keys too.
  void add_transposed(const Tile& tile, bool fresh, const P* x, const RowsOf<P>& right, const SumRows<A>& to) const {
    const std::int64_t count = fresh ? std::min(kKeys, n.tk - tile.first_key) : tile.keys;
    for (std::int64_t j = 0; j < count; j += kBlockRows) {
      const std::int64_t here = std::min<std::int64_t>(kBlockRows, count - j);
      std::int64_t from = j < tile.keys ? 0 : tile.queries;
      if (mask.causal) from = std::clamp(tile.first_key + j - mask.shift - tile.first_query, from, tile.queries);
      A* const rows = to.data + (tile.first_key + j) * to.row;
      const std::int64_t first = from / kTogether<T>, steps = steps_of<T>(tile.queries) - first;
      tile_product<P>(here, padded, steps, {x + first * kKeys + j, 1, kKeys}, right.data + first * right.row, right.row,
                      {fresh ? nullptr : rows, to.row}, rows, to.row);
    }
  }

  void add_to_dq(const Tile& tile) const {
    for (std::int64_t i = 0; i < tile.queries; i += kBlockRows) {
      const std::int64_t here = std::min<std::int64_t>(kBlockRows, tile.queries - i);
      A* const rows = buffers.dq + i * padded;
      TileA<P> left;
      if constexpr (kTogether<T> == 1) left = {buffers.dweights + i * kKeys, kKeys, 1};
      else left = {buffers.dweights_along + i * kKeys / kTogether<T>, kKeys / kTogether<T>, 1};
      tile_product<P>(here, padded, steps_of<T>(seen(tile, i + here - 1)), left,
                      keys.data + tile.first_key / kTogether<T> * keys.row, keys.row,
                      {tile.first_key == 0 ? nullptr : rows, padded}, rows, padded);
    }
  }

  // Widens the elements as it reads them.
  static A dot_of(const T* x, const T* y, std::int64_t count) {
    return row_sum<A>(
        count, [=](std::int64_t i) { return load_as_accumulators(x + i) * load_as_accumulators(y + i); },
        [=](std::int64_t i) { return convert<A>(x[i]) * convert<A>(y[i]); });
  }

  void tile_of_queries(const Heads<T>& q, const Heads<T>& grad, const Heads<T>& out, std::int64_t b, std::int64_t h,
                       std::int64_t first, const A* lse, const HeadsOut<T>& dq) {
    const std::int64_t queries = std::min(kQueries, n.tq - first);
    const T *const q_rows = q.at(b, h, first), *const g_rows = grad.at(b, h, first);
    const RowsOf<P> q_right = right_rows(q_rows, q.row, queries, n.k, buffers.q_right);
    const RowsOf<P> g_right = right_rows(g_rows, grad.row, queries, n.k, buffers.grad_right);
    RowsOf<P> q_left = q_right, g_left = g_right;  // of widened rows, which serve for both
    if constexpr (std::is_same_v<T, P> || kTogether<T> > 1) {
      q_left = left_rows(q_rows, q.row, queries, n.k, buffers.q_left);
      g_left = left_rows(g_rows, grad.row, queries, n.k, buffers.grad_left);
    }
    A dot[kQueries];
    for (std::int64_t i = 0; i < queries; ++i) dot[i] = dot_of(g_rows + i * grad.row, out.at(b, h, first + i), n.k);
    const std::int64_t end = mask.visible(first + queries - 1, 0, n.tk);
    for (std::int64_t key = 0; key < end; key += kKeys) {
      const Tile tile{first, queries, key, std::min(kKeys, end - key)};
      const bool fresh = key >= summed_keys;
      weights_of(tile, q_left, g_left, lse, dot);
      add_transposed(tile, fresh, across(buffers.weights, buffers.weights_across), g_right, dv);
      add_transposed(tile, fresh, across(buffers.dweights, buffers.dweights_across), q_right, dk);
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
                           .exponent_scale = left_to_scale<T>(scale * std::numbers::log2e_v<A>),
                           .padded = padded,
                           .buffers = buffers,
                           .keys = right_rows(k.at(b, g), k.row, n.tk, n.k, buffers.keys),
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
