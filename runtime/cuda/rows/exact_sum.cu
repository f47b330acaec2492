// Sums without rounding (runtime/op/rows/exact_digits.h). A warp adds a row as the host's 32 lanes do, and its sum goes
// to the words by atomic additions of integers: nothing depends on timing. Bytes: the input once.
#include <cmath>
#include <limits>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/op/rows/exact_digits.h"

namespace sherd::cuda {

namespace {

constexpr std::int64_t kMostBlocks = 4096;

struct ExactScratch {
  double lanes[kWarp];
};

__device__ double power_of(double x, double p) {
  const double a = std::fabs(x);
  return p == 2 ? a * a : p == 1 ? a : p == 3 ? a * a * a : std::pow(a, p);
}

__global__ void clear_words_kernel(std::uint64_t* words) {
  for (std::int64_t i = grid_thread(); i < kExactWords; i += grid_threads()) words[i] = 0;
}

template <class T>
__global__ void exact_rows_kernel(const T* x, std::int64_t rows, std::int64_t inner, double p, std::uint64_t* words) {
  auto& scratch = shared<ExactScratch>();
  for (std::int64_t row = block_index(); row < rows; row += grid_blocks()) {
    double sum = 0;
    for (std::int64_t i = lane(); i < inner; i += kWarp) sum += power_of(cast<double>(x[row * inner + i]), p);
    scratch.lanes[lane()] = sum;
    sync_block();
    if (thread_index() == 0) {
      double total = 0;
      for (int l = 0; l < kWarp; ++l) total += scratch.lanes[l];
      for_each_digit(total, [words](std::size_t word, std::uint64_t n) { atomic_add(words + word, n); });
    }
    sync_block();  // the lanes have been used
  }
}

__global__ void exact_total_kernel(const std::int64_t* words, double* out) {
  const double infinity = std::numeric_limits<double>::infinity();
  const ExactSum sum = sum_of_digits(words);
  double total = std::ldexp(static_cast<double>(sum.number), sum.exponent);
  if (words[kExactInfinities] != 0) total = infinity;
  if (words[kExactNaNs] != 0) total = infinity - infinity;
  *out = total;
}

void exact_power_sum(const KernelCall& call) {
  Context& context = context_of(call);
  auto* const words = reinterpret_cast<std::uint64_t*>(call.out[0].mutable_data<std::int64_t>());
  launch(context.stream(), clear_words_kernel, {.threads = kWarp}, words);
  for (const Tensor& t : call.in) {
    if (!t.is_contiguous()) fail("exact_power_sum of {} needs dense tensors", describe(t));
    if (t.numel() == 0) continue;
    const std::int64_t rows = t.ndim() == 0 ? 1 : t.size(0);
    visit_dtype(t.dtype(), [&]<class T>(Type<T>) {
      if constexpr (is_floating(dtype_of<T>))
        launch(context.stream(), exact_rows_kernel<T>,
               {.blocks = static_cast<unsigned>(std::min(rows, kMostBlocks)),
                .threads = kWarp,
                .shared_bytes = sizeof(ExactScratch)},
               t.data<T>(), rows, t.numel() / rows, call.attrs.as<PowerSumAttrs>().p, words);
    });
  }
}

void exact_total(const KernelCall& call) {
  launch(context_of(call).stream(), exact_total_kernel, {.threads = 1}, call.in[0].data<std::int64_t>(),
         call.out[0].mutable_data<double>());
}

constexpr KernelEntry kExactEntries[] = {{op::exact_power_sum, exact_power_sum}, {op::exact_total, exact_total}};

}  // namespace

void register_exact_sum(OpTable& table) { add_kernels(table, kExactEntries); }

}  // namespace sherd::cuda
