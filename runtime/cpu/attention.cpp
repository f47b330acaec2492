// Attention in tiles with an online softmax (Dao et al., "FlashAttention", 2022): a tile of queries meets one tile of
// keys after the other, so of the Tq x Tk matrix only one tile per thread exists at a time. Backward computes the tiles
// again from the saved log-sum-exp. Letters as in op/attention.cpp.
//
// Work is shared out by (batch, head), in backward by (batch, key head): there the gradients of keys and values are
// summed over the heads of the group and over queries in order, by one thread.
#include <limits>

#include "runtime/cpu/heads.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rope.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/softmax.h"
#include "runtime/cpu/tile_gemm.h"
#include "runtime/cpu/transpose.h"
#include "runtime/cpu/workspace.h"
#include "runtime/op/attr_types.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kQueries = 32;  // per tile
constexpr std::int64_t kKeys = 64;     // per tile

struct Sizes {
  std::int64_t b, h, g, tq, tk, k;
  std::int64_t group() const { return h / g; }
  std::int64_t key_tiles() const { return num_chunks(tk, kKeys); }
  /// Elements of a head's keys packed by pack_transposed.
  std::int64_t packed() const { return key_tiles() * kKeys * k; }
};

Sizes sizes_of(const Tensor& q, const Tensor& k) {
  return {q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3)};
}

// Which keys a query sees.
struct Mask {
  bool causal;
  std::int64_t tk, shift;  // causal: query i sees keys up to i + shift
  std::int64_t visible(std::int64_t query) const {
    return causal ? std::clamp<std::int64_t>(query + shift + 1, 0, tk) : tk;
  }
};

constexpr std::int64_t whole_vectors(std::int64_t n) { return (n + 7) / 8 * 8; }

struct Tile {
  std::int64_t first_query, queries, first_key, keys;
  /// Columns a product computes; the packed keys are padded for it.
  std::int64_t columns() const { return whole_vectors(keys); }
  /// Keys of the tile that its query i sees.
  std::int64_t visible(std::int64_t i, const Mask& mask) const {
    return std::clamp<std::int64_t>(mask.visible(first_query + i) - first_key, 0, keys);
  }
};

// x [T, K] times `scale` -> tiles [K, kKeys], each zero beyond the last row: the right factor of a product with rows of
// queries.
template <class T>
void pack_transposed(const T* x, std::int64_t row, std::int64_t rows, std::int64_t k, Accumulator<T> scale,
                     Accumulator<T>* to) {
  for (std::int64_t first = 0; first < rows; first += kKeys, to += kKeys * k) {
    const std::int64_t here = std::min(kKeys, rows - first);
    transpose_tile(x + first * row, row, here, k, scale, to, kKeys);
    for (std::int64_t c = 0; c < k; ++c) std::fill(to + c * kKeys + here, to + (c + 1) * kKeys, Accumulator<T>{});
  }
}

// Calls fn(tile) for the tiles of keys that some query of [first, first + queries) sees.
template <class Fn>
void for_visible_tiles(std::int64_t first, std::int64_t queries, const Mask& mask, const Fn& fn) {
  const std::int64_t end = mask.visible(first + queries - 1);
  for (std::int64_t key = 0; key < end; key += kKeys) fn(Tile{first, queries, key, std::min(kKeys, end - key)});
}

// ---- forward ----

// What a tile of queries has seen so far: sums [queries, K] and normalisers, relative to the largest score per row.
template <class A>
struct OnlineSoftmax {
  A* sums = nullptr;
  A largest[kQueries]{}, total[kQueries]{};

  void reset(std::int64_t queries, std::int64_t k) {
    std::fill(sums, sums + queries * k, A{});
    std::fill(largest, largest + kQueries, std::numeric_limits<A>::lowest());
    std::fill(total, total + kQueries, A{});
  }
  // Turns the scores of a tile into weights, zero where a query sees no key. Older sums are rescaled to the new maxima.
  void take(const Tile& tile, const Mask& mask, A* scores, std::int64_t k) {
    A top[kQueries], rescale[kQueries];
    for (std::int64_t i = 0; i < kQueries; ++i) top[i] = largest[i];
    for (std::int64_t i = 0; i < tile.queries; ++i) {
      const std::int64_t visible = tile.visible(i, mask);
      if (visible == 0) continue;
      A* const row = scores + i * kKeys;
      // Whole vectors: what is masked repeats a score until the weights are made.
      std::fill(row + visible, row + whole_vectors(visible), row[0]);
      top[i] = std::max(top[i], row_max(row, whole_vectors(visible)));
    }
    for (std::int64_t i = 0; i < kQueries; ++i) rescale[i] = Math::exp(largest[i] - top[i]);
    for (std::int64_t i = 0; i < tile.queries; ++i) {
      const std::int64_t visible = tile.visible(i, mask);
      A* const row = scores + i * kKeys;
      exp_row(row, top[i], whole_vectors(visible), row);
      std::fill(row + visible, row + tile.columns(), A{});
      total[i] = total[i] * rescale[i] + row_sum<A>(row, whole_vectors(visible));
      largest[i] = top[i];
      if (tile.first_key > 0 && rescale[i] != A{1})
        for (std::int64_t c = 0; c < k; ++c) sums[i * k + c] *= rescale[i];
    }
  }
};

// One head: `keys` packed and scaled, `values` rows.
template <class T>
struct ForwardHead {
  using A = Accumulator<T>;
  const Sizes& n;
  Mask mask;
  const A* keys;
  RowsOf<A> values;
  A *scores, *query_buffer;
  OnlineSoftmax<A> state;

  void tile_of_queries(const T* q, std::int64_t q_row, std::int64_t first, T* out, A* lse) {
    const std::int64_t queries = std::min(kQueries, n.tq - first);
    const RowsOf<A> rows = load_rows(q + first * q_row, q_row, queries, n.k, query_buffer);
    state.reset(queries, n.k);
    for_visible_tiles(first, queries, mask, [&](const Tile& tile) {
      tile_gemm<A>(queries, tile.columns(), n.k, {rows.data, rows.row, 1}, keys + tile.first_key * n.k, kKeys, scores,
                   kKeys, false);
      state.take(tile, mask, scores, n.k);
      tile_gemm<A>(queries, n.k, tile.keys, {scores, kKeys, 1}, values.data + tile.first_key * values.row, values.row,
                   state.sums, n.k, true);
    });
    for (std::int64_t i = 0; i < queries; ++i) {
      // A query that sees no key gives zeros.
      const A inverse = state.total[i] == A{} ? A{} : A{1} / state.total[i];
      for (std::int64_t c = 0; c < n.k; ++c) out[(first + i) * n.k + c] = convert<T>(state.sums[i * n.k + c] * inverse);
      lse[first + i] = state.largest[i] + Math::log(state.total[i]);
    }
  }
};

template <class T>
void forward(const KernelCall& c) {
  using A = Accumulator<T>;
  const Sizes n = sizes_of(c.in[0], c.in[1]);
  const auto& attrs = c.attrs.as<AttentionAttrs>();
  ScratchCursor scratch(c.exec);
  const Heads<T> q(c.in[0], scratch), k(c.in[1], scratch), v(c.in[2], scratch);
  T* const out = c.out[0].mutable_data<T>();
  A* const lse = c.out[1].mutable_data<A>();
  parallel_for(n.b * n.h, 1, [&](std::int64_t begin, std::int64_t end) {
    constexpr bool converts = !std::is_same_v<T, A>;
    const std::int64_t values_size = converts ? n.tk * n.k : 0;
    A* const work =
        thread_workspace<A>(WorkspaceUse::tiles, n.packed() + values_size + kQueries * kKeys + 2 * kQueries * n.k);
    A* const values_buffer = work + n.packed();
    A* const scores = values_buffer + values_size;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t b = task / n.h, h = task % n.h, g = h / n.group();
      pack_transposed(k.at(b, g), k.row, n.tk, n.k, static_cast<A>(attrs.scale), work);
      ForwardHead<T> head{n,
                          {attrs.causal, n.tk, n.tk - n.tq},
                          work,
                          load_rows(v.at(b, g), v.row, n.tk, n.k, values_buffer),
                          scores,
                          scores + kQueries * kKeys,
                          {.sums = scores + kQueries * kKeys + kQueries * n.k}};
      for (std::int64_t first = 0; first < n.tq; first += kQueries)
        head.tile_of_queries(q.at(b, h), q.row, first, out + task * n.tq * n.k, lse + task * n.tq);
    }
  });
}

// ---- backward ----

// With weights P = exp(scale Q K^T - lse), result O and its gradient G (the packed keys are scaled already):
//   dV = P^T G,   dP = G V^T,   dS = scale P (dP - rowsum(G O)),   dQ = dS K,   dK = dS^T Q.
template <class T>
struct BackwardHead {
  using A = Accumulator<T>;
  const Sizes& n;
  Mask mask;
  A scale;
  const A *keys_packed, *values_packed;
  RowsOf<A> keys;
  A *dk, *dv;                          // [Tk, K], summed over the queries of the group
  A *weights, *dweights;               // [kQueries, kKeys]
  A *query_buffer, *grad_buffer, *dq;  // [kQueries, K]

  // weights (scaled scores) becomes P, dweights becomes dS.
  void softmax_gradient(const Tile& tile, const A* lse, const A* dot) const {
    for (std::int64_t i = 0; i < tile.queries; ++i) {
      A* const __restrict p = weights + i * kKeys, * const __restrict d = dweights + i * kKeys;
      const std::int64_t visible = tile.visible(i, mask), columns = whole_vectors(visible);
      const A shift = lse[tile.first_query + i], dot_i = dot[i];
      for (std::int64_t j = 0; j < columns; ++j) p[j] = Math::exp(p[j] - shift);
      for (std::int64_t j = 0; j < columns; ++j) d[j] = p[j] * (d[j] - dot_i) * scale;
      std::fill(p + visible, p + tile.columns(), A{});
      std::fill(d + visible, d + tile.columns(), A{});
    }
  }

  void tile_of_queries(const Heads<T>& q, const Heads<T>& grad, const Heads<T>& out, std::int64_t b, std::int64_t h,
                       std::int64_t first, const A* lse, T* dq_out) const {
    const std::int64_t queries = std::min(kQueries, n.tq - first);
    // The result is needed for its products with the gradient only; dq's place holds it until then.
    A dot[kQueries];
    const RowsOf<A> g = load_rows(grad.at(b, h, first), grad.row, queries, n.k, grad_buffer);
    const RowsOf<A> o = load_rows(out.at(b, h, first), out.row, queries, n.k, dq);
    for (std::int64_t i = 0; i < queries; ++i) dot[i] = row_dot(g.data + i * g.row, o.data + i * o.row, n.k);
    const RowsOf<A> rows = load_rows(q.at(b, h, first), q.row, queries, n.k, query_buffer);
    std::fill(dq, dq + queries * n.k, A{});
    for_visible_tiles(first, queries, mask, [&](const Tile& tile) {
      const std::int64_t packed = tile.first_key * n.k, columns = tile.columns();
      tile_gemm<A>(queries, columns, n.k, {rows.data, rows.row, 1}, keys_packed + packed, kKeys, weights, kKeys, false);
      tile_gemm<A>(queries, columns, n.k, {g.data, g.row, 1}, values_packed + packed, kKeys, dweights, kKeys, false);
      softmax_gradient(tile, lse, dot);
      tile_gemm<A>(tile.keys, n.k, queries, {weights, 1, kKeys}, g.data, g.row, dv + packed, n.k, true);
      tile_gemm<A>(tile.keys, n.k, queries, {dweights, 1, kKeys}, rows.data, rows.row, dk + packed, n.k, true);
      tile_gemm<A>(queries, n.k, tile.keys, {dweights, kKeys, 1}, keys.data + tile.first_key * keys.row, keys.row, dq,
                   n.k, true);
    });
    for (std::int64_t i = 0; i < queries * n.k; ++i) dq_out[first * n.k + i] = convert<T>(dq[i]);
  }
};

// Parts of the thread's buffer for one key head.
template <class T>
struct BackwardBuffers {
  using A = Accumulator<T>;
  static constexpr bool converts = !std::is_same_v<T, A>;
  explicit BackwardBuffers(const Sizes& n) {
    const std::int64_t rows = converts ? n.tk * n.k : 0, tile = kQueries * kKeys, queries = kQueries * n.k;
    A* at = thread_workspace<A>(WorkspaceUse::tiles, 2 * n.packed() + 3 * rows + 2 * tile + 3 * queries);
    const auto take = [&](std::int64_t count) { return std::exchange(at, at + count); };
    keys_packed = take(n.packed());
    values_packed = take(n.packed());
    keys = take(rows);
    dk = take(rows);
    dv = take(rows);
    weights = take(tile);
    dweights = take(tile);
    query_buffer = take(queries);
    grad_buffer = take(queries);
    dq = take(queries);
  }
  A *keys_packed, *values_packed, *keys, *dk, *dv, *weights, *dweights, *query_buffer, *grad_buffer, *dq;
};

template <class T>
void backward(const KernelCall& c) {
  using A = Accumulator<T>;
  const Sizes n = sizes_of(c.in[1], c.in[2]);
  const auto& attrs = c.attrs.as<AttentionAttrs>();
  ScratchCursor scratch(c.exec);
  const Heads<T> grad(c.in[0], scratch), q(c.in[1], scratch), k(c.in[2], scratch), v(c.in[3], scratch);
  const Heads<T> out(c.in[4], scratch);
  const A* const lse = scratch.dense<A>(c.in[5]);
  T *const dq = c.out[0].mutable_data<T>(), *const dk = c.out[1].mutable_data<T>(),
           *const dv = c.out[2].mutable_data<T>();
  parallel_for(n.b * n.g, 1, [&](std::int64_t begin, std::int64_t end) {
    BackwardBuffers<T> buffers(n);
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t b = task / n.g, g = task % n.g, size = n.tk * n.k;
      // The sums are built in the results themselves when these have the accumulator's type.
      if constexpr (!buffers.converts) {
        buffers.dk = dk + task * size;
        buffers.dv = dv + task * size;
      }
      std::fill(buffers.dk, buffers.dk + size, A{});
      std::fill(buffers.dv, buffers.dv + size, A{});
      pack_transposed(k.at(b, g), k.row, n.tk, n.k, static_cast<A>(attrs.scale), buffers.keys_packed);
      pack_transposed(v.at(b, g), v.row, n.tk, n.k, A{1}, buffers.values_packed);
      const RowsOf<A> keys = load_rows(k.at(b, g), k.row, n.tk, n.k, buffers.keys);
      const BackwardHead<T> head{n,
                                 {attrs.causal, n.tk, n.tk - n.tq},
                                 static_cast<A>(attrs.scale),
                                 buffers.keys_packed,
                                 buffers.values_packed,
                                 keys,
                                 buffers.dk,
                                 buffers.dv,
                                 buffers.weights,
                                 buffers.dweights,
                                 buffers.query_buffer,
                                 buffers.grad_buffer,
                                 buffers.dq};
      for (std::int64_t h = g * n.group(); h < (g + 1) * n.group(); ++h) {
        const std::int64_t queries = (b * n.h + h) * n.tq;
        for (std::int64_t first = 0; first < n.tq; first += kQueries)
          head.tile_of_queries(q, grad, out, b, h, first, lse + queries, dq + queries * n.k);
      }
      if constexpr (buffers.converts)
        for (std::int64_t i = 0; i < size; ++i) {
          dk[task * size + i] = convert<T>(buffers.dk[i]);
          dv[task * size + i] = convert<T>(buffers.dv[i]);
        }
    }
  });
}

void attention_kernel(const KernelCall& c) {
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) { forward<T>(c); });
}
void attention_backward_kernel(const KernelCall& c) {
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) { backward<T>(c); });
}

}  // namespace

std::int64_t attention_scratch(const InferCall& call) {
  std::int64_t bytes = 0;
  for (const Tensor& t : call.in) bytes += heads_scratch_bytes(t);
  return bytes;
}

std::int64_t attention_backward_scratch(const InferCall& call) {
  std::int64_t bytes = dense_scratch_bytes(call.in[5]);
  for (const Tensor& t : call.in.first(5)) bytes += heads_scratch_bytes(t);
  return bytes;
}

void register_attention(OpTable& table) {
  table.kernel("scaled_dot_product_attention", Device::Kind::cpu, attention_kernel, attention_scratch);
  table.kernel("scaled_dot_product_attention_backward", Device::Kind::cpu, attention_backward_kernel,
               attention_backward_scratch);
  register_rope(table);
}

}  // namespace sherd::cpu
