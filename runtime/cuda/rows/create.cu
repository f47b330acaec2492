// Rows that make tensors from nothing: full and arange.
#include <cstring>

#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/copy.h"
#include "runtime/cuda/rows/elements.h"
#include "runtime/op/rows/create_attrs.h"

namespace sherd::cuda {

namespace {

void full(const KernelCall& call) {
  const Tensor& to = call.out[0];
  visit_dtype(to.dtype(), [&]<class T>(Type<T>) {
    const T element = convert<T>(call.attrs.as<FullAttrs>().value);
    strided_fill(context_of(call), to.dtype(), to.shape(), layout_of(to), &element);
  });
}

__global__ void arange_kernel(void* to, DType dtype, std::int64_t count) {
  for (std::int64_t i = grid_thread(); i < count; i += grid_threads()) store_element<false>(to, dtype, i, i);
}

void arange(const KernelCall& call) {
  const Tensor& to = call.out[0];
  launch(context_of(call).stream(), arange_kernel, {.blocks = blocks_for(to.numel(), 256)}, to.raw(), to.dtype(),
         to.numel());
}

}  // namespace

void register_create(OpTable& table) {
  static constexpr KernelEntry kEntries[] = {{op::full, full}, {op::arange, arange}};
  add_kernels(table, kEntries);
}

}  // namespace sherd::cuda
