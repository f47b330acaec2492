// Attention for every floating dtype and any K, without tensor cores: tiles of 32 x 32 scores in shared memory,
// computed in the compute type throughout. A block sums at most 128 columns of a result; where K is larger, several
// blocks share a tile of rows and each computes its weights anew. Backward as in flash_backward.cu.
#include "runtime/cuda/attention/attention_device.h"

namespace sherd::cuda {

namespace {

constexpr int kSide = 32;           // rows and columns of a tile of scores
constexpr int kTiledThreads = 256;  // 16 x 16; each has 2 x 2 of a tile, 16 apart
constexpr int kColumns = 128;       // of a result per block
constexpr int kPieces = kColumns / kSide;
constexpr int kThreadColumns = kColumns / 16;

template <class C>
struct Tile {
  C at[kSide][kSide + 1];  // odd rows: columns are in different banks
};

template <class C>
struct TiledShared {
  Tile<C> left, right, weights, other;
};

__device__ inline int thread_row(int i) { return thread_index() / 16 + 16 * i; }
__device__ inline int thread_column(int j) { return thread_index() % 16 + 16 * j; }

/// Rows of one head, of which `count` exist.
template <class T>
struct Rows {
  const T* data;
  std::int64_t row, element;
  int count;
  __device__ Rows(const Heads<T>& x, int b, int h, int rows)
      : data(x.at(b, h)), row(x.row), element(x.element), count(rows) {}
};

/// tile = rows from `first` on, columns from `column` on; zeros beyond.
template <class T, class C>
__device__ inline void load(const Rows<T>& x, int first, int column, int k, Tile<C>& tile) {
  for (int i = thread_index(); i < kSide * kSide; i += kTiledThreads) {
    const int r = i / kSide, c = i % kSide;
    const bool there = first + r < x.count && column + c < k;
    tile.at[r][c] = there ? to_compute(x.data[(first + r) * x.row + (column + c) * x.element]) : C{};
  }
}

/// sum = rows of x from `first_x` on times rows of y from `first_y` on: their 32 x 32 products.
template <class T, class C>
__device__ inline void multiply_rows(const Rows<T>& x, int first_x, const Rows<T>& y, int first_y, int k,
                                     TiledShared<C>& s, C (&sum)[2][2]) {
  for (auto& row : sum) row[0] = row[1] = C{};
  for (int column = 0; column < k; column += kSide) {
    sync_block();  // the tiles before have been used
    load(x, first_x, column, k, s.left);
    load(y, first_y, column, k, s.right);
    sync_block();
    for (int c = 0; c < kSide; ++c)
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
          sum[i][j] = std::fma(s.left.at[thread_row(i)][c], s.right.at[thread_column(j)][c], sum[i][j]);
  }
}

/// sums += weights [32, 32] times rows of x from `first` on, columns from `column` on.
template <class T, class C>
__device__ inline void add_weighted(const Tile<C>& weights, const Rows<T>& x, int first, int column, int k,
                                    Tile<C>& tile, C (&sums)[2][kThreadColumns]) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    if (column + piece * kSide >= k) continue;
    sync_block();  // the tile before has been used; the weights are there
    load(x, first, column + piece * kSide, k, tile);
    sync_block();
    for (int r = 0; r < kSide; ++r)
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
          sums[i][2 * piece + j] =
              std::fma(weights.at[thread_row(i)][r], tile.at[r][thread_column(j)], sums[i][2 * piece + j]);
  }
}

/// Writes sums times `scale[i]`.
template <class T, class C>
__device__ inline void store(const C (&sums)[2][kThreadColumns], const C (&scale)[2], const Heads<T>& x, int b, int h,
                             int first, int count, int column, int k) {
  T* const to = x.at(b, h);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < kThreadColumns; ++j) {
      const int row = first + thread_row(i), at = column + thread_column(j);
      if (row < count && at < k) to[row * x.row + at * x.element] = from_compute<T>(sums[i][j] * scale[i]);
    }
}

/// Over the 16 threads that share rows.
template <class C, class Fold>
__device__ inline C fold_row(C v, Fold fold) {
  for (int apart = 8; apart > 0; apart /= 2) v = fold(v, shuffle_xor(v, apart));
  return v;
}

template <class T>
struct TiledArguments {
  using C = Compute<T>;
  Heads<T> grad, q, k, v, out, dq, dk, dv;
  Statistics<C> lse, dot;
  C* new_lse = nullptr;
  AttentionMask mask;
  int batches = 0, heads = 0, groups = 0, group = 0, tq = 0, width = 0, tiles = 0, parts = 1;  // width: K
  C scale = 0;
};

template <class T>
__global__ void tiled_forward(TiledArguments<T> a) {
  using C = Compute<T>;
  auto& s = shared<TiledShared<C>>();
  const BlockPlace at(block_index(), a.batches, a.heads, a.tiles, a.parts);
  const int first = at.tile * kSide, column = at.part * kColumns;
  const Rows<T> q(a.q, at.b, at.head, a.tq);
  const Rows<T> k(a.k, at.b, at.head / a.group, a.mask.tk), v(a.v, at.b, at.head / a.group, a.mask.tk);
  const int end = a.mask.end(first + kSide < a.tq ? first + kSide - 1 : a.tq - 1);
  C sums[2][kThreadColumns] = {};
  C largest[2] = {lowest<C>(), lowest<C>()}, total[2] = {};
  for (int key = 0; key < end; key += kSide) {
    C p[2][2];
    multiply_rows(q, first, k, key, a.width, s, p);
    for (int i = 0; i < 2; ++i) {
      const int seen = a.mask.end(first + thread_row(i)) - key;
      for (int j = 0; j < 2; ++j) p[i][j] = thread_column(j) < seen ? p[i][j] * a.scale : lowest<C>();
      const C top =
          std::fmax(largest[i], fold_row(std::fmax(p[i][0], p[i][1]), [](C x, C y) { return std::fmax(x, y); }));
      const C shift = top == lowest<C>() ? C{} : top;  // no key seen yet: weights of 0, not of e^0
      const C rescale = Math::exp(largest[i] - shift);
      largest[i] = top;
      for (int j = 0; j < 2; ++j) s.weights.at[thread_row(i)][thread_column(j)] = p[i][j] = Math::exp(p[i][j] - shift);
      total[i] = std::fma(total[i], rescale, fold_row(p[i][0] + p[i][1], SumOf{}));
      for (C& sum : sums[i]) sum *= rescale;
    }
    add_weighted(s.weights, v, key, column, a.width, s.right, sums);
    sync_block();  // the weights have been used
  }
  C inverse[2];
  for (int i = 0; i < 2; ++i) {
    inverse[i] = total[i] == C{} ? C{} : C{1} / total[i];  // a query that sees no key gives zeros
    const int query = first + thread_row(i);
    if (query < a.tq && at.part == 0 && thread_column(0) == 0)
      a.new_lse[(std::int64_t{at.b} * a.heads + at.head) * a.tq + query] =
          total[i] == C{} ? lowest<C>() : largest[i] + Math::log(total[i]);
  }
  store(sums, inverse, a.out, at.b, at.head, first, a.tq, column, a.width);
}

/// The weight of a score and what it contributes to the gradient of the scores, zero where the key is not seen.
template <class C>
__device__ inline void weigh(C score, C scale, C lse, C dot, bool seen, C& weight, C& gradient) {
  weight = seen ? Math::exp(score * scale - lse) : C{};
  gradient = seen ? weight * (gradient - dot) : C{};
}

template <class T>
__global__ void tiled_query_gradient(TiledArguments<T> a) {
  using C = Compute<T>;
  auto& s = shared<TiledShared<C>>();
  const BlockPlace at(block_index(), a.batches, a.heads, a.tiles, a.parts);
  const int first = at.tile * kSide, column = at.part * kColumns;
  const Rows<T> q(a.q, at.b, at.head, a.tq), grad(a.grad, at.b, at.head, a.tq);
  const Rows<T> k(a.k, at.b, at.head / a.group, a.mask.tk), v(a.v, at.b, at.head / a.group, a.mask.tk);
  const int end = a.mask.end(first + kSide < a.tq ? first + kSide - 1 : a.tq - 1);
  C sums[2][kThreadColumns] = {};
  for (int key = 0; key < end; key += kSide) {
    C p[2][2], ds[2][2];
    multiply_rows(q, first, k, key, a.width, s, p);
    multiply_rows(grad, first, v, key, a.width, s, ds);
    for (int i = 0; i < 2; ++i) {
      const int query = first + thread_row(i);
      const bool there = query < a.tq;
      const C lse = there ? a.lse.at(at.b, at.head, query) : C{}, dot = there ? a.dot.at(at.b, at.head, query) : C{};
      for (int j = 0; j < 2; ++j) {
        weigh(p[i][j], a.scale, lse, dot, there && key + thread_column(j) < a.mask.end(query), p[i][j], ds[i][j]);
        s.weights.at[thread_row(i)][thread_column(j)] = ds[i][j];
      }
    }
    add_weighted(s.weights, k, key, column, a.width, s.right, sums);
    sync_block();
  }
  store(sums, {a.scale, a.scale}, a.dq, at.b, at.head, first, a.tq, column, a.width);
}

template <class T>
__global__ void tiled_key_gradient(TiledArguments<T> a) {
  using C = Compute<T>;
  auto& s = shared<TiledShared<C>>();
  const BlockPlace at(block_index(), a.batches, a.groups, a.tiles, a.parts);
  const int first = at.tile * kSide, column = at.part * kColumns;
  const Rows<T> k(a.k, at.b, at.head, a.mask.tk), v(a.v, at.b, at.head, a.mask.tk);
  C dk[2][kThreadColumns] = {}, dv[2][kThreadColumns] = {};
  for (int head = at.head * a.group; head < (at.head + 1) * a.group; ++head) {
    const Rows<T> q(a.q, at.b, head, a.tq), grad(a.grad, at.b, head, a.tq);
    for (int query = a.mask.first_query(first) / kSide * kSide; query < a.tq; query += kSide) {
      C p[2][2], ds[2][2];  // transposed: rows are keys
      multiply_rows(k, first, q, query, a.width, s, p);
      multiply_rows(v, first, grad, query, a.width, s, ds);
      for (int j = 0; j < 2; ++j) {
        const int column_query = query + thread_column(j);
        const bool there = column_query < a.tq;
        const C lse = there ? a.lse.at(at.b, head, column_query) : C{};
        const C dot = there ? a.dot.at(at.b, head, column_query) : C{};
        for (int i = 0; i < 2; ++i) {
          weigh(p[i][j], a.scale, lse, dot, there && first + thread_row(i) < a.mask.end(column_query), p[i][j],
                ds[i][j]);
          s.weights.at[thread_row(i)][thread_column(j)] = p[i][j];
          s.other.at[thread_row(i)][thread_column(j)] = ds[i][j];
        }
      }
      add_weighted(s.weights, grad, query, column, a.width, s.right, dv);
      add_weighted(s.other, q, query, column, a.width, s.right, dk);
      sync_block();
    }
  }
  store(dv, {C{1}, C{1}}, a.dv, at.b, at.head, first, a.mask.tk, column, a.width);
  store(dk, {a.scale, a.scale}, a.dk, at.b, at.head, first, a.mask.tk, column, a.width);
}

// One warp per row.
template <class T>
__global__ void row_dots(Heads<T> grad, Heads<T> out, Compute<T>* dot, int heads, int tq, int k, std::int64_t rows) {
  const std::int64_t row = grid_thread() / kWarp;
  if (row >= rows) return;
  const auto t = static_cast<int>(row % tq), h = static_cast<int>(row / tq % heads),
             b = static_cast<int>(row / tq / heads);
  const T* const x = grad.at(b, h) + t * grad.row;
  const T* const y = out.at(b, h) + t * out.row;
  Compute<T> sum{};
  for (int i = lane(); i < k; i += kWarp)
    sum = std::fma(to_compute(x[i * grad.element]), to_compute(y[i * out.element]), sum);
  sum = warp_sum(sum);
  if (lane() == 0) dot[row] = sum;
}

template <class T>
TiledArguments<T> arguments_of(const AttentionShape& n) {
  TiledArguments<T> a;
  a.mask = AttentionMask(n);
  a.batches = n.b;
  a.heads = n.h;
  a.groups = n.g;
  a.group = n.group();
  a.tq = n.tq;
  a.width = n.k;
  a.parts = n.k > 0 ? tiles_of(n.k, kColumns) : 1;
  a.scale = static_cast<Compute<T>>(n.scale);
  return a;
}

template <class T>
Grid grid_of(const TiledArguments<T>& a, int heads) {
  return {.blocks = attention_blocks(a.batches, heads, a.tiles, a.parts),
          .threads = kTiledThreads,
          .shared_bytes = sizeof(TiledShared<Compute<T>>)};
}

}  // namespace

void tiled_attention_forward(cudaStream_t stream, const AttentionShape& n, const AttentionForward& t) {
  visit_floating(n.dtype, [&]<class T>(Type<T>) {
    TiledArguments<T> a = arguments_of<T>(n);
    a.q = {t.q, n.k};
    a.k = {t.k, n.k};
    a.v = {t.v, n.k};
    a.out = {t.out, n.k};
    a.new_lse = static_cast<Compute<T>*>(t.lse);
    a.tiles = tiles_of(n.tq, kSide);
    launch(stream, tiled_forward<T>, grid_of(a, n.h), a);
  });
}

void tiled_attention_backward(cudaStream_t stream, const AttentionShape& n, const AttentionBackward& t) {
  visit_floating(n.dtype, [&]<class T>(Type<T>) {
    TiledArguments<T> a = arguments_of<T>(n);
    a.grad = {t.grad, n.k};
    a.q = {t.q, n.k};
    a.k = {t.k, n.k};
    a.v = {t.v, n.k};
    a.dq = {t.dq, n.k};
    a.dk = {t.dk, n.k};
    a.dv = {t.dv, n.k};
    a.lse = Statistics<Compute<T>>(t.lse);
    a.dot = Statistics<Compute<T>>(t.dot, n);
    a.tiles = tiles_of(n.tq, kSide);
    launch(stream, tiled_query_gradient<T>, grid_of(a, n.h), a);
    a.tiles = tiles_of(n.tk, kSide);
    launch(stream, tiled_key_gradient<T>, grid_of(a, n.g), a);
  });
}

void attention_row_dots(cudaStream_t stream, const AttentionShape& n, const AttentionBackward& t) {
  visit_floating(n.dtype, [&]<class T>(Type<T>) {
    const std::int64_t rows = n.query_rows();
    constexpr std::int64_t per_block = kTiledThreads / kWarp;
    launch(stream, row_dots<T>,
           {.blocks = {static_cast<unsigned>((rows + per_block - 1) / per_block), 1, 1}, .threads = kTiledThreads},
           Heads<T>(t.grad, n.k), Heads<T>(t.out, n.k), static_cast<Compute<T>*>(t.dot), n.h, n.tq, n.k, rows);
  });
}

}  // namespace sherd::cuda
