#include "runtime/cuda/rows/fill_rows.h"

#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"

namespace sherd::cuda {

namespace {

// A block takes whole rows, its threads the columns. Bits are copied, so elements are unsigned integers of their size.
template <class Bits>
__global__ void fill_rows_kernel(Bits* to, std::int64_t rows, std::int64_t n, std::int64_t ld, std::int64_t all_rows,
                                 std::int64_t stride, const Bits* row) {
  for (std::int64_t i = block_index(); i < all_rows; i += grid_blocks()) {
    Bits* into = to + i / rows * stride + i % rows * ld;
    for (std::int64_t j = thread_index(); j < n; j += block_threads()) into[j] = row ? row[j] : Bits{0};
  }
}

template <class Bits>
void fill_as(cudaStream_t stream, void* to, std::int64_t rows, std::int64_t n, std::int64_t ld, std::int64_t batch,
             std::int64_t stride, const void* row) {
  launch(stream, fill_rows_kernel<Bits>, {.blocks = blocks_for(rows * batch, 1), .threads = n < 128 ? 32u : 256u},
         static_cast<Bits*>(to), rows, n, ld, rows * batch, stride, static_cast<const Bits*>(row));
}

}  // namespace

void fill_rows(cudaStream_t stream, DType dtype, void* to, std::int64_t rows, std::int64_t n, std::int64_t ld,
               std::int64_t batch, std::int64_t stride, const void* row) {
  switch (byte_size(dtype)) {
    case 2: return fill_as<std::uint16_t>(stream, to, rows, n, ld, batch, stride, row);
    case 4: return fill_as<std::uint32_t>(stream, to, rows, n, ld, batch, stride, row);
    default: return fill_as<std::uint64_t>(stream, to, rows, n, ld, batch, stride, row);
  }
}

}  // namespace sherd::cuda
