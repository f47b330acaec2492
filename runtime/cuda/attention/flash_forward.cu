// Attention forward with an online softmax (Dao et al., "FlashAttention", 2022; "FlashAttention-2", 2023). A block owns
// 64 queries of a head and walks over tiles of 64 keys; the values of a tile travel while its scores are computed, the
// next keys while values are summed.
#include "runtime/cuda/attention/flash.h"

namespace sherd::cuda {

namespace {

using namespace flash;

constexpr int kForwardKeys = 64;  // per step
constexpr int kFragments = kForwardKeys / 8;

template <class T>
struct ForwardArguments {
  Heads<T> q, k, v, out;
  float* lse = nullptr;
  AttentionMask mask;
  int batches = 0, heads = 0, group = 0, tq = 0, width = 0, tiles = 0;  // width: K
  float scale = 0;                                                      // times log2(e)
};

template <class T, int K>
struct ForwardShared {
  T q[kRows * K], k[kForwardKeys * K], v[kForwardKeys * K];
};

// The state of a thread's two rows: exponents of two.
struct OnlineSoftmax {
  float largest[2] = {lowest<float>(), lowest<float>()}, total[2] = {0, 0};

  // Scores become weights; returns in `rescale` what older sums are multiplied by.
  template <int N>
  __device__ void take(float (&s)[N][4], float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[half];
#pragma unroll
      for (int n = 0; n < N; ++n) top = std::fmax(top, std::fmax(s[n][2 * half], s[n][2 * half + 1]));
      top = std::fmax(top, shuffle_xor(top, 1));
      top = std::fmax(top, shuffle_xor(top, 2));
      const float shift = top == lowest<float>() ? 0.0f : top;  // no key seen yet: weights of 0, not of 2^0
      rescale[half] = exp2_fast(largest[half] - shift);
      largest[half] = top;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[n][i] = exp2_fast(s[n][i] - shift);
          sum += s[n][i];
        }
      total[half] = std::fma(total[half], rescale[half], sum);
    }
  }
  // The sums of four lanes' columns.
  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += shuffle_xor(total[half], 1);
      total[half] += shuffle_xor(total[half], 2);
    }
  }
};

template <class T, int K>
__global__ void flash_forward_kernel(ForwardArguments<T> a) {
  auto& s = shared<ForwardShared<T, K>>();
  const BlockPlace at(block_index(), a.batches, a.heads, a.tiles, 1);
  const int first = at.tile * kRows, warp_first = warp_index() * 16;
  const T* const keys = a.k.at(at.b, at.head / a.group);
  const T* const values = a.v.at(at.b, at.head / a.group);
  const int last = first + kRows < a.tq ? first + kRows - 1 : a.tq - 1;
  const int end = a.mask.end(last);

  load_tile<K, kRows>(a.q, a.q.at(at.b, at.head), first, a.tq, a.width, s.q);
  load_tile<K, kForwardKeys>(a.k, keys, 0, a.mask.tk, a.width, s.k);
  cp_async_commit();
  float out[K / 8][4];
  clear(out);
  OnlineSoftmax softmax;
  for (int key = 0; key < end; key += kForwardKeys) {
    cp_async_wait<0>();
    sync_block();  // the keys are there, the values before have been used
    load_tile<K, kForwardKeys>(a.v, values, key, a.mask.tk, a.width, s.v);
    cp_async_commit();
    float scores[kFragments][4];
    clear(scores);
    add_rows_by_rows<T, K>(scores, s.q, warp_first, s.k);
    const bool all_seen = key + kForwardKeys <= a.mask.end(first);
#pragma unroll
    for (int n = 0; n < kFragments; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] *= a.scale;
        if (!all_seen && key + fragment_column(n, i) >= a.mask.end(first + warp_first + fragment_row(i)))
          scores[n][i] = lowest<float>();
      }
    float rescale[2];
    softmax.take(scores, rescale);
#pragma unroll
    for (int n = 0; n < K / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= rescale[i / 2];
    cp_async_wait<0>();
    sync_block();  // the values are there, the keys have been used
    if (key + kForwardKeys < end) load_tile<K, kForwardKeys>(a.k, keys, key + kForwardKeys, a.mask.tk, a.width, s.k);
    cp_async_commit();
    add_weights_by_rows<T, K>(out, scores, s.v, 0);
  }
  cp_async_wait<0>();
  softmax.finish();
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = softmax.total[half];
    inverse[half] = total == 0 ? 0.0f : 1.0f / total;  // a query that sees no key gives zeros
    const int query = first + warp_first + fragment_row(2 * half);
    if (query < a.tq && lane() % 4 == 0)
      a.lse[(std::int64_t{at.b} * a.heads + at.head) * a.tq + query] =
          total == 0 ? lowest<float>() : softmax.largest[half] * kLn2 + std::log(total);
  }
  store_rows(out, inverse, a.out, a.out.at(at.b, at.head), first + warp_first, a.tq, 0, a.width);
}

template <class T, int K>
void forward(cudaStream_t stream, const AttentionShape& n, const AttentionForward& t) {
  const int tiles = tiles_of(n.tq, kRows);
  const ForwardArguments<T> arguments{.q = {t.q, n.k},
                                      .k = {t.k, n.k},
                                      .v = {t.v, n.k},
                                      .out = {t.out, n.k},
                                      .lse = static_cast<float*>(t.lse),
                                      .mask = AttentionMask(n),
                                      .batches = n.b,
                                      .heads = n.h,
                                      .group = n.group(),
                                      .tq = n.tq,
                                      .width = n.k,
                                      .tiles = tiles,
                                      .scale = static_cast<float>(n.scale) * kLog2e};
  launch(stream, flash_forward_kernel<T, K>,
         {.blocks = attention_blocks(n.b, n.h, tiles, 1),
          .threads = kThreads,
          .shared_bytes = sizeof(ForwardShared<T, K>)},
         arguments);
}

}  // namespace

void flash_forward(cudaStream_t stream, const AttentionShape& shape, const AttentionForward& tensors) {
  flash::dispatch(shape, [&]<class T>(Type<T>, auto k) { forward<T, k.value>(stream, shape, tensors); });
}

}  // namespace sherd::cuda
