#include <vector>

#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"
#include "tests/cuda/emulated_gpu/wrong_kernels.h"

namespace sherd::cuda {

namespace {

__global__ void half_at_the_barrier(float* memory) {
  if (thread_index() < 32) return;
  sync_block();
  memory[0] = 1;
}

__global__ void lanes_at_different_collectives(float* memory) {
  const float x = static_cast<float>(lane());
  memory[lane()] = lane() < 16 ? shuffle_xor(x, 1) : shuffle_down(x, 1);
}

__global__ void lane_beyond_the_warp(float* memory) { memory[lane()] = shuffle(1.0f, lane() + 1); }

__global__ void part_of_a_warp(float* memory) { memory[thread_index()] = warp_sum(1.0f); }

__global__ void misaligned_vector(float* memory) { memory[0] = load_vec<4>(memory + 1)[0]; }

__global__ void vector_beyond_the_end(float* memory) { memory[0] = load_vec<4>(memory + 64)[0]; }

struct Large {
  float values[100];
};
__global__ void more_shared_than_launched(float* memory) { memory[0] = shared<Large>().values[0]; }

__global__ void shared_beyond_its_end(float* memory) {
  auto* values = reinterpret_cast<float*>(shared_bytes(64 * sizeof(float)));
  values[thread_index() + 1] = memory[thread_index()];  // one too far
}

__global__ void copies_not_waited_for(float* memory) {
  cp_async_16(shared_bytes(16), memory);
  cp_async_commit();
}

__global__ void wild_address(float* memory) { memory[std::int64_t{1} << 40] = 1; }

__global__ void null_address(float* memory, float* nothing) { *nothing = memory[0]; }

__global__ void write_beyond_the_end(float* memory) { memory[64 + thread_index()] = 1; }

__global__ void takes_a_pointer(const float* p, float* memory) { memory[0] = p ? 1.0f : 0.0f; }

__global__ void copy_through_shared_kernel(const float* in, float* out, std::size_t bytes) {
  auto* values = reinterpret_cast<float*>(shared_bytes(bytes));
  values[thread_index()] = in[thread_index()];
  out[thread_index()] = values[thread_index()];
}

__global__ void fill_kernel(float* p, std::int64_t n, float value) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) p[i] = value;
}

__global__ void double_and_add_kernel(float* p, std::int64_t n, float term) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) p[i] = 2 * p[i] + term;
}

__global__ void count_kernel(std::uint32_t* counter) { atomic_add(counter, 1u); }

}  // namespace

const std::vector<WrongKernel>& wrong_kernels() {
  static const float on_the_host = 1;
  const auto with = [](void (*kernel)(float*), unsigned threads, std::size_t shared_bytes = 0) {
    return [=](cudaStream_t stream, float* memory) {
      launch(stream, kernel, {.threads = threads, .shared_bytes = shared_bytes}, memory);
    };
  };
  static const std::vector<WrongKernel> kernels = {
      {"HalfAtTheBarrier", "of 64 threads, 32 wait at sync_block()", with(half_at_the_barrier, 64)},
      {"LanesAtDifferentCollectives", "other lanes of the warp wait at", with(lanes_at_different_collectives, 32)},
      {"LaneBeyondTheWarp", "source lane 32", with(lane_beyond_the_warp, 32)},
      {"PartOfAWarp", "in a warp of 16 threads", with(part_of_a_warp, 48)},
      {"MisalignedVector", "not a multiple of 16", with(misaligned_vector, 1)},
      {"VectorBeyondTheEnd", "no allocation", with(vector_beyond_the_end, 1)},
      {"MoreSharedThanLaunched", "needs 400 bytes of shared memory, was launched with 16",
       with(more_shared_than_launched, 1, 16)},
      {"SharedBeyondItsEnd", "beyond its 256 bytes of shared memory", with(shared_beyond_its_end, 64, 256)},
      {"CopiesNotWaitedFor", "before 1 copies", with(copies_not_waited_for, 1, 16)},
      {"WildAddress", "illegal access", with(wild_address, 1)},
      {"NullAddress", "illegal access to",
       [](cudaStream_t stream, float* memory) { launch(stream, null_address, {.threads = 1}, memory, nullptr); }},
      {"WriteBeyondTheEnd", "beyond the end of the allocation of 256 bytes", with(write_beyond_the_end, 4)},
      {"PointerToTheHost", "points to host memory",
       [](cudaStream_t stream, float* memory) {
         launch(stream, takes_a_pointer, {.threads = 1}, &on_the_host, memory);
       }},
  };
  return kernels;
}

void copy_through_shared(cudaStream_t stream, const float* in, float* out, unsigned threads, std::size_t bytes) {
  launch(stream, copy_through_shared_kernel, {.threads = threads, .shared_bytes = bytes}, in, out, bytes);
}

void count_threads(cudaStream_t stream, std::uint32_t* counter, unsigned threads) {
  launch(stream, count_kernel, {.threads = threads}, counter);
}

void fill(cudaStream_t stream, float* p, std::int64_t n, float value) {
  launch(stream, fill_kernel, {.blocks = blocks_for(n, 64), .threads = 64}, p, n, value);
}

void double_and_add(cudaStream_t stream, float* p, std::int64_t n, float term) {
  launch(stream, double_and_add_kernel, {.blocks = blocks_for(n, 64), .threads = 64}, p, n, term);
}

}  // namespace sherd::cuda
