// The position of the largest element: a team finds the largest value first, then the first place that has it, so ties
// and NaNs fall as on the CPU in any order of threads. Bytes: the input once.
#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/reduce_device.h"
#include "runtime/cuda/rows/row_team.h"
#include "runtime/op/rows/reduce_attrs.h"

namespace sherd::cuda {

namespace {

template <class C>
struct ArgmaxScratch {
  C values[kWarp];
  std::int64_t places[kWarp];
};

struct FirstOf {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const { return a < b ? a : b; }
};

template <class C>
__global__ void argmax_kernel(AnyReader<C> reader, Work work, IndexWalk where, std::int64_t* out) {
  constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();
  auto& scratch = shared<ArgmaxScratch<C>>();
  const Team team{work.team};
  const std::int64_t result = team.row();
  C best = lowest<C>();
  std::int64_t place = kNowhere;
  if (result < work.results) {
    const std::int64_t base = work.kept.offset(result);
    for (std::int64_t i = team.rank(); i < work.items; i += std::int64_t{kLoads} * team.size) {
      std::int64_t at[kLoads];
      C values[kLoads][1];
      const std::int64_t left = (work.items - i + team.size - 1) / team.size;
      const int count = left < kLoads ? static_cast<int>(left) : kLoads;
#pragma unroll
      for (int u = 0; u < kLoads; ++u)
        at[u] = u < count ? base + work.reduced.offset(i + std::int64_t{u} * team.size) : base;
      reader.read(at, count, values);
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        if (u >= count) continue;
        const C x = values[u][0];
        if (place != kNowhere && !(x > best || (x != x && best == best))) continue;
        best = x;
        place = i + std::int64_t{u} * team.size;
      }
    }
  }
  const C largest = team.max(best, scratch.values);
  const bool mine = best == largest || (best != best && largest != largest);
  place = team.fold(mine ? place : kNowhere, kNowhere, scratch.places, FirstOf{});
  if (result < work.results && team.rank() == 0) out[where.offset(result)] = place;
}

template <class C>
void argmax_of(const KernelCall& call) {
  const Tensor& x = call.in[0];
  const ReducePlan plan = plan_whole_rows(x.shape(), x.strides(), call.attrs.as<ReduceAttrs>().dims);
  launch(context_of(call).stream(), argmax_kernel<C>,
         {.blocks = plan.blocks, .threads = plan.threads, .shared_bytes = sizeof(ArgmaxScratch<C>)},
         AnyReader<C>{x.raw(), x.dtype()}, Work(plan), plan.out, call.out[0].mutable_data<std::int64_t>());
}

void argmax(const KernelCall& call) {
  if (call.out[0].numel() == 0) return;
  const DType dtype = call.in[0].dtype();
  if (dtype == DType::f64) argmax_of<double>(call);
  else if (is_floating(dtype)) argmax_of<float>(call);
  else argmax_of<std::int64_t>(call);
}

constexpr KernelEntry kArgmaxEntries[] = {{op::argmax, argmax}};

}  // namespace

void register_argmax(OpTable& table) { add_kernels(table, kArgmaxEntries); }

}  // namespace sherd::cuda
