// Attention backward on tensor cores. Weights are computed again from the saved log-sum-exp, with P the weights, G the
// gradient of the result and D its row sums with the result:
//   dV = P^T G,   dS = P (G V^T - D),   dQ = scale dS K,   dK = scale dS^T Q.
// Queries and keys have a kernel each, so every sum has one owner and a fixed order; that costs the scores twice, which
// atomics (whose order is chance) would save.
#include "runtime/cuda/attention/flash.h"

namespace sherd::cuda {

namespace {

using namespace flash;

template <class T>
struct BackwardArguments {
  Heads<T> grad, q, k, v, dq, dk, dv;
  Statistics<float> lse, dot;
  AttentionMask mask;
  int batches = 0, heads = 0, groups = 0, group = 0, tq = 0, width = 0, tiles = 0;  // width: K
  float scale = 0;
};

// Columns of a result that one block sums: more would not fit into registers.
template <int K>
constexpr int columns_of = K < 128 ? K : 128;

// ---- queries ----

constexpr int kKeys = 64;  // per step

template <class T, int K>
struct QueryShared {
  T q[kRows * K], grad[kRows * K], k[kKeys * K], v[kKeys * K];
};

template <class T, int K>
__global__ void flash_query_gradient(BackwardArguments<T> a) {
  constexpr int columns = columns_of<K>;
  auto& s = shared<QueryShared<T, K>>();
  const BlockPlace at(block_index(), a.batches, a.heads, a.tiles, K / columns);
  const int first = at.tile * kRows, warp_first = warp_index() * 16;
  const T* const keys = a.k.at(at.b, at.head / a.group);
  const T* const values = a.v.at(at.b, at.head / a.group);
  const int last = first + kRows < a.tq ? first + kRows - 1 : a.tq - 1;
  const int end = a.mask.end(last);

  load_tile<K, kRows>(a.q, a.q.at(at.b, at.head), first, a.tq, a.width, s.q);
  load_tile<K, kRows>(a.grad, a.grad.at(at.b, at.head), first, a.tq, a.width, s.grad);
  load_tile<K, kKeys>(a.k, keys, 0, a.mask.tk, a.width, s.k);
  load_tile<K, kKeys>(a.v, values, 0, a.mask.tk, a.width, s.v);
  cp_async_commit();
  float shift[2] = {0, 0}, dot[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first + warp_first + fragment_row(2 * half);
    if (query >= a.tq) continue;
    shift[half] = a.lse.at(at.b, at.head, query) * kLog2e;
    dot[half] = a.dot.at(at.b, at.head, query);
  }
  float sums[columns / 8][4];
  clear(sums);
  for (int key = 0; key < end; key += kKeys) {
    cp_async_wait<0>();
    sync_block();
    float p[kKeys / 8][4], ds[kKeys / 8][4];
    clear(p);
    clear(ds);
    add_rows_by_rows<T, K>(p, s.q, warp_first, s.k);
    add_rows_by_rows<T, K>(ds, s.grad, warp_first, s.v);
    const bool all_seen = key + kKeys <= a.mask.end(first) && first + kRows <= a.tq;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = first + warp_first + fragment_row(i);
        const bool seen = all_seen || (query < a.tq && key + fragment_column(n, i) < a.mask.end(query));
        const float weight = exp2_fast(std::fma(p[n][i], a.scale * kLog2e, -shift[i / 2]));
        ds[n][i] = seen ? weight * (ds[n][i] - dot[i / 2]) : 0.0f;
      }
    sync_block();  // the values have been used
    if (key + kKeys < end) load_tile<K, kKeys>(a.v, values, key + kKeys, a.mask.tk, a.width, s.v);
    add_weights_by_rows<T, K>(sums, ds, s.k, at.part * (columns / 8));
    sync_block();  // and now the keys
    if (key + kKeys < end) load_tile<K, kKeys>(a.k, keys, key + kKeys, a.mask.tk, a.width, s.k);
    cp_async_commit();
  }
  cp_async_wait<0>();
  store_rows(sums, {a.scale, a.scale}, a.dq, a.dq.at(at.b, at.head), first + warp_first, a.tq, at.part * columns,
             a.width);
}

// ---- keys and values ----

constexpr int kQueries = 32;  // per step: two results already take most registers

template <class T, int K>
struct KeyShared {
  struct Step {
    T q[kQueries * K], grad[kQueries * K];
    float shift[kQueries], dot[kQueries];
  };
  T k[kRows * K], v[kRows * K];
  Step steps[2];  // one is read while the next arrives
};

// The queries that meet a tile of keys, head after head of the group.
struct Steps {
  int first, per_head, count;
  __device__ Steps(const AttentionMask& mask, int key, int tq, int group)
      : first(mask.first_query(key) / kQueries * kQueries),
        per_head(first < tq ? (tq - first + kQueries - 1) / kQueries : 0),
        count(per_head * group) {}
};

template <class T, int K>
__device__ inline void load_step(const BackwardArguments<T>& a, const BlockPlace& at, const Steps& steps, int step,
                                 typename KeyShared<T, K>::Step& to) {
  const int head = at.head * a.group + step / steps.per_head;
  const int first = steps.first + step % steps.per_head * kQueries;
  load_tile<K, kQueries>(a.q, a.q.at(at.b, head), first, a.tq, a.width, to.q);
  load_tile<K, kQueries>(a.grad, a.grad.at(at.b, head), first, a.tq, a.width, to.grad);
  if (const int i = thread_index(); i < kQueries) {
    const bool there = first + i < a.tq;
    to.shift[i] = there ? a.lse.at(at.b, head, first + i) * kLog2e : 0.0f;
    to.dot[i] = there ? a.dot.at(at.b, head, first + i) : 0.0f;
  }
}

template <class T, int K>
__global__ void flash_key_gradient(BackwardArguments<T> a) {
  constexpr int columns = columns_of<K>;
  auto& s = shared<KeyShared<T, K>>();
  const BlockPlace at(block_index(), a.batches, a.groups, a.tiles, K / columns);
  const int first = (a.tiles - 1 - at.tile) * kRows;  // the first keys meet most queries
  const int warp_first = warp_index() * 16;
  const Steps steps(a.mask, first, a.tq, a.group);

  load_tile<K, kRows>(a.k, a.k.at(at.b, at.head), first, a.mask.tk, a.width, s.k);
  load_tile<K, kRows>(a.v, a.v.at(at.b, at.head), first, a.mask.tk, a.width, s.v);
  if (steps.count > 0) load_step<T, K>(a, at, steps, 0, s.steps[0]);
  cp_async_commit();
  float dk[columns / 8][4], dv[columns / 8][4];
  clear(dk);
  clear(dv);
  for (int step = 0; step < steps.count; ++step) {
    if (step + 1 < steps.count) load_step<T, K>(a, at, steps, step + 1, s.steps[(step + 1) % 2]);
    cp_async_commit();
    cp_async_wait<1>();
    sync_block();
    const auto& now = s.steps[step % 2];
    const int query = steps.first + step % steps.per_head * kQueries;
    float p[kQueries / 8][4], ds[kQueries / 8][4];  // transposed: rows are keys
    clear(p);
    clear(ds);
    add_rows_by_rows<T, K>(p, s.k, warp_first, now.q);
    add_rows_by_rows<T, K>(ds, s.v, warp_first, now.grad);
    const bool all_seen = first + kRows <= a.mask.end(query) && query + kQueries <= a.tq;
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = fragment_column(n, i);
        const bool seen =
            all_seen || (query + column < a.tq && first + warp_first + fragment_row(i) < a.mask.end(query + column));
        const float weight = exp2_fast(std::fma(p[n][i], a.scale * kLog2e, -now.shift[column]));
        p[n][i] = seen ? weight : 0.0f;
        ds[n][i] = seen ? weight * (ds[n][i] - now.dot[column]) : 0.0f;
      }
    add_weights_by_rows<T, K>(dv, p, now.grad, at.part * (columns / 8));
    add_weights_by_rows<T, K>(dk, ds, now.q, at.part * (columns / 8));
    sync_block();  // the step after next overwrites this one
  }
  cp_async_wait<0>();
  const int column = at.part * columns;
  store_rows(dv, {1.0f, 1.0f}, a.dv, a.dv.at(at.b, at.head), first + warp_first, a.mask.tk, column, a.width);
  store_rows(dk, {a.scale, a.scale}, a.dk, a.dk.at(at.b, at.head), first + warp_first, a.mask.tk, column, a.width);
}

template <class T, int K>
void backward(cudaStream_t stream, const AttentionShape& n, const AttentionBackward& t) {
  BackwardArguments<T> arguments{.grad = {t.grad, n.k},
                                 .q = {t.q, n.k},
                                 .k = {t.k, n.k},
                                 .v = {t.v, n.k},
                                 .dq = {t.dq, n.k},
                                 .dk = {t.dk, n.k},
                                 .dv = {t.dv, n.k},
                                 .lse = Statistics<float>(t.lse),
                                 .dot = Statistics<float>(t.dot, n),
                                 .mask = AttentionMask(n),
                                 .batches = n.b,
                                 .heads = n.h,
                                 .groups = n.g,
                                 .group = n.group(),
                                 .tq = n.tq,
                                 .width = n.k,
                                 .tiles = tiles_of(n.tq, kRows),
                                 .scale = static_cast<float>(n.scale)};
  constexpr int parts = K / columns_of<K>;
  launch(stream, flash_query_gradient<T, K>,
         {.blocks = attention_blocks(n.b, n.h, arguments.tiles, parts),
          .threads = kThreads,
          .shared_bytes = sizeof(QueryShared<T, K>)},
         arguments);
  arguments.tiles = tiles_of(n.tk, kRows);
  launch(stream, flash_key_gradient<T, K>,
         {.blocks = attention_blocks(n.b, n.g, arguments.tiles, parts),
          .threads = kThreads,
          .shared_bytes = sizeof(KeyShared<T, K>)},
         arguments);
}

}  // namespace

bool flash_takes(const AttentionShape& shape, std::size_t shared_bytes) {
  if ((shape.dtype != DType::bf16 && shape.dtype != DType::f16) || shape.k > 256) return false;
  std::size_t needed = 0;  // forward needs less
  flash::dispatch(shape, [&]<class T>(Type<T>, auto k) {
    needed = std::max(sizeof(QueryShared<T, k.value>), sizeof(KeyShared<T, k.value>));
  });
  return needed <= shared_bytes;
}

void flash_backward(cudaStream_t stream, const AttentionShape& shape, const AttentionBackward& tensors) {
  flash::dispatch(shape, [&]<class T>(Type<T>, auto k) { backward<T, k.value>(stream, shape, tensors); });
}

}  // namespace sherd::cuda
