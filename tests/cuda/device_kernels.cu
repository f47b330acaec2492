#include "tests/cuda/device_kernels.h"

#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"

namespace sherd::cuda {

namespace {

template <class T>
__global__ void scale_kernel(const T* in, T* out, std::int64_t n, T factor) {
  for (std::int64_t i = grid_thread() * 4; i < n; i += grid_threads() * 4) {
    auto v = load_vec<4>(in + i);
    for (int k = 0; k < 4; ++k) v[k] *= factor;
    store_vec(out + i, v);
  }
}

struct Scratch {
  float values[32];
};

__global__ void block_reduce_kernel(const float* in, float* out) {
  auto& scratch = shared<Scratch>();
  const float x = in[grid_thread()];
  const float sum = block_sum(x, scratch.values);
  const float largest = block_max(x, scratch.values);
  if (thread_index() != 0) return;
  out[block_index()] = sum;
  out[grid_blocks() + block_index()] = largest;
}

__global__ void reverse_kernel(const int* in, int* out, bool barrier) {
  int* values = reinterpret_cast<int*>(shared_bytes(static_cast<std::size_t>(block_threads()) * sizeof(int)));
  values[thread_index()] = in[grid_thread()];
  if (barrier) sync_block();
  out[grid_thread()] = values[block_threads() - 1 - thread_index()];
}

__global__ void check_ids_kernel(FaultSink faults, const int* ids, int n, int limit) {
  const auto i = static_cast<int>(grid_thread());
  if (i < n && (ids[i] < 0 || ids[i] >= limit)) report_fault(faults, i, ids[i], limit);
}

}  // namespace

void scale(cudaStream_t stream, const float* in, float* out, std::int64_t n, double factor) {
  launch(stream, scale_kernel<float>, {.blocks = blocks_for(n / 4, 64), .threads = 64}, in, out, n,
         static_cast<float>(factor));
}

void block_reduce(cudaStream_t stream, const float* in, float* out, unsigned blocks, unsigned threads) {
  launch(stream, block_reduce_kernel, {.blocks = blocks, .threads = threads, .shared_bytes = sizeof(Scratch)}, in, out);
}

void check_ids(cudaStream_t stream, const FaultSink& faults, const int* ids, int n, int limit) {
  launch(stream, check_ids_kernel, {.blocks = static_cast<unsigned>(n + 63) / 64, .threads = 64}, faults, ids, n,
         limit);
}

void reverse(cudaStream_t stream, const int* in, int* out, unsigned blocks, unsigned threads, bool barrier) {
  launch(stream, reverse_kernel, {.blocks = blocks, .threads = threads, .shared_bytes = threads * sizeof(int)}, in, out,
         barrier);
}

}  // namespace sherd::cuda
