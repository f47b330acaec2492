#include "runtime/cpu/rows/pointwise_loop.h"

#include <algorithm>

#include "runtime/cpu/parallel.h"

namespace sherd::cpu {

namespace {

// A fork and join costs 1.5 us while the pool is awake; a chunk of the cheapest rows takes 3 us.
constexpr std::int64_t kGrain = 1 << 14;

// Same type everywhere and the same order of elements: the arrays themselves are the tile.
template <class T>
bool all_dense(const KernelCall& call, std::int64_t n) {
  for (const Tensor& t : call.out)
    if (t.impl()->meta.dtype != dtype_of<T>) return false;
  for (const Tensor& t : call.in) {
    const TensorImpl& in = *t.impl();  // asked in every call, and a kernel's inputs are never empty
    if (in.meta.dtype != dtype_of<T> || in.numel != n || !in.contiguous) return false;
  }
  return true;
}

template <class C>
struct Tiles {
  TileReader<C> readers[kMaxPointwiseInputs];
  const KernelCall& call;
  const void* functor;
  PointwiseLoop<C> loop;

  Tiles(const KernelCall& kernel_call, const void* f, PointwiseLoop<C> l) : call(kernel_call), functor(f), loop(l) {
    for (std::size_t k = 0; k < call.in.size(); ++k) readers[k] = TileReader<C>(call.in[k], call.out[0].shape());
  }

  void run(std::int64_t begin, std::int64_t end) const {
    C buffers[kMaxPointwiseInputs + kMaxPointwiseOutputs][kTile];
    for (std::int64_t i = begin; i < end; i += kTile) {
      const std::int64_t n = std::min(kTile, end - i);
      const C* in[kMaxPointwiseInputs];
      C* out[kMaxPointwiseOutputs];
      for (std::size_t k = 0; k < call.in.size(); ++k) in[k] = readers[k].read(i, n, buffers[k]);
      for (std::size_t k = 0; k < call.out.size(); ++k) out[k] = buffers[kMaxPointwiseInputs + k];
      loop(functor, in, out, n);
      for (std::size_t k = 0; k < call.out.size(); ++k)
        write_tile(call.out[k].raw(), call.out[k].dtype(), i, out[k], n);
    }
  }
};

// Dispatch has seen that the operand has bytes.
template <class T>
T* elements_of(const Tensor& operand) {
  const TensorImpl& of = *operand.impl();
  return reinterpret_cast<T*>(of.storage->read()) + of.meta.offset;
}

}  // namespace

template <class T>
bool run_dense(const KernelCall& call, const void* functor, PointwiseLoop<T> loop) {
  const std::int64_t n = call.out[0].numel();
  if (!all_dense<T>(call, n)) return false;
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    const T* in[kMaxPointwiseInputs];
    T* out[kMaxPointwiseOutputs];
    for (std::size_t k = 0; k < call.in.size(); ++k) in[k] = elements_of<T>(call.in[k]) + begin;
    for (std::size_t k = 0; k < call.out.size(); ++k) out[k] = elements_of<T>(call.out[k]) + begin;
    loop(functor, in, out, end - begin);
  };
  if (n <= kGrain) run(0, n);
  else parallel_for(n, kGrain, run);
  return true;
}

template <class C>
void run_pointwise(const KernelCall& call, const void* functor, PointwiseLoop<C> loop) {
  const std::int64_t n = call.out[0].numel();
  if (n == 0 || run_dense(call, functor, loop)) return;
  const Tiles<C> tiles(call, functor, loop);
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) { tiles.run(begin, end); });
}

template bool run_dense(const KernelCall&, const void*, PointwiseLoop<bf16>);
template bool run_dense(const KernelCall&, const void*, PointwiseLoop<f16>);
template void run_pointwise(const KernelCall&, const void*, PointwiseLoop<float>);
template void run_pointwise(const KernelCall&, const void*, PointwiseLoop<double>);
template void run_pointwise(const KernelCall&, const void*, PointwiseLoop<std::int64_t>);

}  // namespace sherd::cpu
