// The k largest elements of each line along a dim: the line with its places, sorted up to the k-th. No two entries are
// equal in that order, so any correct sort gives the same result.
#include <algorithm>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rows/reduce_plan.h"
#include "runtime/cpu/tile.h"
#include "runtime/cpu/workspace.h"
#include "runtime/op/rows/gather.h"

namespace sherd::cpu {

namespace {

template <class C>
struct Entry {
  C value;
  std::int64_t place;
};

struct Before {
  template <class C>
  bool operator()(const Entry<C>& a, const Entry<C>& b) const {
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    if (a_is_nan != b_is_nan) return a_is_nan;
    if (!a_is_nan && a.value != b.value) return a.value > b.value;
    return a.place < b.place;
  }
};

void topk(const KernelCall& call) {
  const Tensor &x = call.in[0], &values = call.out[0];
  const auto& attrs = call.attrs.as<TopKAttrs>();
  if (values.numel() == 0) return;
  auto* const places = call.out[1].mutable_data<std::int64_t>();
  const std::int64_t n = x.shape()[attrs.dim], k = attrs.k;
  std::int64_t inner = 1;
  for (int d = attrs.dim + 1; d < x.ndim(); ++d) inner *= x.shape()[d];
  const ReducePlan plan = plan_reduction(x.shape(), x.strides(), std::uint64_t{1} << attrs.dim, true);
  visit_compute(x.dtype(), [&]<class C>(Type<C>) {
    const TileReader<C> reader(x.raw(), x.dtype(), plan.shape, plan.strides);
    parallel_for(plan.outer, std::max<std::int64_t>(kReduceGrain / 4 / n, 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   auto* const entries = thread_workspace<Entry<C>>(WorkspaceUse::row, n);
                   C buffer[kTile];
                   for (std::int64_t line = begin; line < end; ++line) {
                     for (std::int64_t i = 0; i < n; i += kTile) {
                       const std::int64_t run = std::min(kTile, n - i);
                       const C* from = reader.read(line * n + i, run, buffer);
                       for (std::int64_t j = 0; j < run; ++j) entries[i + j] = {from[j], i + j};
                     }
                     std::partial_sort(entries, entries + k, entries + n, Before{});
                     for (std::int64_t j = 0; j < k; ++j) {
                       const std::int64_t to = (line / inner * k + j) * inner + line % inner;
                       write_tile(values.raw(), values.dtype(), to, &entries[j].value, 1);
                       places[to] = entries[j].place;
                     }
                   }
                 });
  });
}

}  // namespace

void register_topk(OpTable& table) { table.kernel(op::topk, Device::Kind::cpu, topk); }

}  // namespace sherd::cpu
