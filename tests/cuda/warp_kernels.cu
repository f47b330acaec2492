#include "tests/cuda/warp_kernels.h"

#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"

namespace sherd::cuda {

namespace {

__global__ void warp_collectives_kernel(const std::int64_t* in, std::int64_t* out) {
  const std::int64_t x = in[lane()];
  const std::int64_t rows[] = {shuffle(x, (5 * lane() + 3) % kWarp),
                               shuffle_xor(x, 7),
                               shuffle_down(x, 9),
                               warp_sum(x),
                               warp_max(x),
                               ballot(x % 2 != 0)};
  for (int i = 0; i < 6; ++i) out[i * kWarp + lane()] = rows[i];
}

__global__ void histogram_kernel(const std::int32_t* values, std::int64_t n, std::uint32_t* counts,
                                 std::int32_t* extremes) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) {
    atomic_add(&counts[values[i]], 1u);
    atomic_max(&extremes[0], values[i]);
    atomic_min(&extremes[1], values[i]);
  }
}

template <class T>
struct Tiles {
  T a[16][16];
  T b[16][8];
};

template <class T>
__global__ void multiply_kernel(const T* a, const T* b, float* c) {
  auto& tiles = shared<Tiles<T>>();
  cp_async_16(&tiles.a[lane() / 2][lane() % 2 * 8], a + lane() * 8);
  cp_async_commit();
  cp_async_16(&tiles.b[lane() % 16][0], b + lane() % 16 * 8);
  cp_async_commit();
  cp_async_wait<1>();
  sync_block();
  std::uint32_t a_fragment[4], b_fragment[2];
  ldmatrix<4>(a_fragment, &tiles.a[lane() % 16][lane() / 16 * 8]);
  cp_async_wait<0>();
  sync_block();
  ldmatrix<2, true>(b_fragment, &tiles.b[lane() % 16][0]);
  float sums[4] = {};
  mma_m16n8k16<T>(sums, a_fragment, b_fragment);
  for (int i = 0; i < 4; ++i) c[(lane() / 4 + i / 2 * 8) * 8 + lane() % 4 * 2 + i % 2] = sums[i];
}

template <class T, int N, Cache cache>
__global__ void copy_kernel(const T* in, T* out, std::int64_t n) {
  for (std::int64_t i = grid_thread() * N; i < n; i += grid_threads() * N)
    store_vec<cache>(out + i, load_vec<N, cache>(in + i));
}

template <class T, int N>
void copy_as(cudaStream_t stream, bool streamed, const void* in, void* out, std::int64_t n) {
  const Grid grid = {.blocks = blocks_for(n / N, 32), .threads = 32};
  launch(stream, streamed ? copy_kernel<T, N, Cache::stream> : copy_kernel<T, N, Cache::keep>, grid,
         static_cast<const T*>(in), static_cast<T*>(out), n);
}

template <class T>
void copy_of(cudaStream_t stream, int vector, bool streamed, const void* in, void* out, std::int64_t n) {
  if (vector == 1) return copy_as<T, 1>(stream, streamed, in, out, n);
  if (vector == 2) return copy_as<T, 2>(stream, streamed, in, out, n);
  if (vector == 4) return copy_as<T, 4>(stream, streamed, in, out, n);
  return copy_as<T, 8>(stream, streamed, in, out, n);
}

}  // namespace

void warp_collectives(cudaStream_t stream, const std::int64_t* in, std::int64_t* out) {
  launch(stream, warp_collectives_kernel, {.threads = 32}, in, out);
}

void histogram(cudaStream_t stream, const std::int32_t* values, std::int64_t n, std::uint32_t* counts,
               std::int32_t* extremes) {
  launch(stream, histogram_kernel, {.blocks = blocks_for(n, 64), .threads = 64}, values, n, counts, extremes);
}

void multiply(cudaStream_t stream, DType type, const void* a, const void* b, float* c) {
  if (type == DType::bf16)
    launch(stream, multiply_kernel<bf16>, {.threads = 32, .shared_bytes = sizeof(Tiles<bf16>)},
           static_cast<const bf16*>(a), static_cast<const bf16*>(b), c);
  else
    launch(stream, multiply_kernel<f16>, {.threads = 32, .shared_bytes = sizeof(Tiles<f16>)},
           static_cast<const f16*>(a), static_cast<const f16*>(b), c);
}

void copy_vectors(cudaStream_t stream, int bytes, int vector, bool streamed, const void* in, void* out,
                  std::int64_t n) {
  if (bytes == 1) return copy_of<std::uint8_t>(stream, vector, streamed, in, out, n);
  if (bytes == 2) return copy_of<bf16>(stream, vector, streamed, in, out, n);
  if (bytes == 4) return copy_of<float>(stream, vector, streamed, in, out, n);
  return copy_of<double>(stream, vector, streamed, in, out, n);
}

}  // namespace sherd::cuda
