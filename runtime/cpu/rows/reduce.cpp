// Reductions. Three levels keep rounding small and order fixed: lanes of the compute type inside a block, blocks into
// a wide accumulator (f64 or i64), and, where there are few results, fixed splits of the reduced dims whose partial
// results are combined in order. Every cut depends on the problem's size only, so the bits do not depend on threads.
#include <algorithm>
#include <limits>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rows/reduce_plan.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/tile.h"
#include "runtime/op/rows/folds.h"
#include "runtime/op/rows/reduce_attrs.h"

namespace sherd::cpu {

namespace {

using namespace folds;

constexpr std::int64_t kSerialReduce = 1 << 17;  // elements: less than 10 us, which waking a second thread costs
constexpr std::int64_t kLanes = 32;
constexpr std::int64_t kRowsPerFlush = 64;  // rows added in the compute type before they go to the wide sum

template <class C>
using Wide = std::conditional_t<std::is_floating_point_v<C>, double, std::int64_t>;

template <class R, class C>
C reduce_block(const C* x, std::int64_t n) {
  C lanes[kLanes];
  std::fill_n(lanes, kLanes, R::template identity<C>());
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = R::combine(lanes[l], x[i + l]);
  for (std::int64_t l = 0; i < n; ++i, ++l) lanes[l] = R::combine(lanes[l], x[i]);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
    for (std::int64_t l = 0; l < width; ++l) lanes[l] = R::combine(lanes[l], lanes[l + width]);
  return lanes[0];
}

/// One reduction over the plan's walk. A unit is (outer index, tile of inner, split of the reduced dims).
template <class R, class C>
class Reduction {
 public:
  using W = Wide<C>;

  Reduction(const KernelCall& call, const ReducePlan& plan, bool mean)
      : call_(call),
        plan_(plan),
        reader_(call.in[0].raw(), call.in[0].dtype(), plan.shape, plan.strides),
        divisor_(mean ? static_cast<double>(plan.count) : 1) {}

  void run() const {
    const std::int64_t units = plan_.outer * plan_.tiles * plan_.splits, width = plan_.width;
    const std::int64_t work = std::max<std::int64_t>(std::min(plan_.rows_per_split, plan_.count) * width, 1);
    const bool small = plan_.outer * plan_.count * plan_.inner < kSerialReduce;
    const std::int64_t grain = small ? units : std::max<std::int64_t>(kReduceGrain / work, 1);
    if (plan_.splits == 1) {
      parallel_for(units, grain, [this](std::int64_t begin, std::int64_t end) {
        W sums[kTile];
        for (std::int64_t u = begin; u < end; ++u) {
          reduce_unit(u, sums);
          write(u, sums);
        }
      });
      return;
    }
    auto* partial = reinterpret_cast<W*>(call_.exec.scratch);
    parallel_for(units, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t u = begin; u < end; ++u) reduce_unit(u, partial + u * width);
    });
    for (std::int64_t u = 0; u < units; u += plan_.splits) {
      W* sums = partial + u * width;
      for (std::int64_t s = 1; s < plan_.splits; ++s)
        for (std::int64_t j = 0; j < width; ++j) sums[j] = R::combine(sums[j], sums[s * width + j]);
      write(u / plan_.splits, sums);
    }
  }

 private:
  void reduce_unit(std::int64_t unit, W* sums) const {
    const std::int64_t split = unit % plan_.splits, tile = unit / plan_.splits % plan_.tiles;
    const std::int64_t outer = unit / plan_.splits / plan_.tiles;
    const std::int64_t begin = split * plan_.rows_per_split, end = std::min(plan_.count, begin + plan_.rows_per_split);
    if (plan_.inner == 1) *sums = reduce_row(outer * plan_.count + begin, end - begin);
    else reduce_columns(outer, tile * plan_.width, begin, end, sums);
  }

  W reduce_row(std::int64_t start, std::int64_t n) const {
    C buffer[kTile];
    W sum = R::template identity<W>();
    for (std::int64_t i = 0; i < n; i += kTile) {
      const std::int64_t run = std::min(kTile, n - i);
      sum = R::combine(sum, static_cast<W>(reduce_block<R>(reader_.read(start + i, run, buffer), run)));
    }
    return sum;
  }

  // Rows [begin, end) of the columns from `column` on. Narrow rows are read several at a time.
  void reduce_columns(std::int64_t outer, std::int64_t column, std::int64_t begin, std::int64_t end, W* sums) const {
    const std::int64_t width = std::min(plan_.width, plan_.inner - column);
    const std::int64_t rows_per_read = plan_.tiles == 1 ? std::min(kTile / width, kRowsPerFlush) : 1;
    C buffer[kTile], block[kTile];
    std::fill_n(sums, width, R::template identity<W>());
    for (std::int64_t flush = begin; flush < end; flush += kRowsPerFlush) {
      const std::int64_t last = std::min(end, flush + kRowsPerFlush);
      std::fill_n(block, width, R::template identity<C>());
      for (std::int64_t r = flush; r < last; r += rows_per_read) {
        const std::int64_t rows = std::min(rows_per_read, last - r);
        const C* x = reader_.read((outer * plan_.count + r) * plan_.inner + column, rows * width, buffer);
        for (std::int64_t k = 0; k < rows; ++k, x += width)
          for (std::int64_t j = 0; j < width; ++j) block[j] = R::combine(block[j], x[j]);
      }
      for (std::int64_t j = 0; j < width; ++j) sums[j] = R::combine(sums[j], static_cast<W>(block[j]));
    }
  }

  void write(std::int64_t unit, W* sums) const {
    const std::int64_t column = unit % plan_.tiles * plan_.width, outer = unit / plan_.tiles;
    const std::int64_t width = std::min(plan_.width, plan_.inner - column);
    if constexpr (std::is_floating_point_v<W>)
      if (divisor_ != 1)
        for (std::int64_t j = 0; j < width; ++j) sums[j] /= divisor_;
    const Tensor& out = call_.out[0];
    write_tile(out.raw(), out.dtype(), outer * plan_.inner + column, sums, width, call_.accumulate);
  }

  const KernelCall& call_;
  const ReducePlan& plan_;
  const TileReader<C> reader_;
  const double divisor_;
};

template <class R>
void reduce(const KernelCall& call, std::uint64_t mask, bool mean = false) {
  const Tensor& x = call.in[0];
  if (call.out[0].numel() == 0) return;
  const ReducePlan plan = plan_reduction(x.shape(), x.strides(), mask);
  visit_compute(x.dtype(), [&]<class C>(Type<C>) { Reduction<R, C>(call, plan, mean).run(); });
}

template <class R>
void over_dims(const KernelCall& call) {
  reduce<R>(call, call.attrs.as<ReduceAttrs>().dims);
}

void mean(const KernelCall& call) { reduce<Sum>(call, call.attrs.as<ReduceAttrs>().dims, true); }

void sum_to(const KernelCall& call) {
  reduce<Sum>(call, sum_to_mask(call.in[0].shape(), call.attrs.as<SumToAttrs>().shape));
}

// Position of the first largest of n values.
template <class C>
std::int64_t argmax_row(const TileReader<C>& reader, std::int64_t start, std::int64_t n) {
  C buffer[kTile];
  C best{};
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < n; i += kTile) {
    const std::int64_t run = std::min(kTile, n - i);
    const C* x = reader.read(start + i, run, buffer);
    if (i == 0) best = x[0];
    for (std::int64_t k = 0; k < run; ++k)
      if (x[k] > best || (x[k] != x[k] && best == best)) {
        best = x[k];
        at = i + k;
      }
  }
  return at;
}

void argmax(const KernelCall& call) {
  const Tensor& x = call.in[0];
  auto* out = call.out[0].mutable_data<std::int64_t>();
  if (call.out[0].numel() == 0) return;
  const ReducePlan plan = plan_reduction(x.shape(), x.strides(), call.attrs.as<ReduceAttrs>().dims, true);
  visit_compute(x.dtype(), [&]<class C>(Type<C>) {
    const TileReader<C> reader(x.raw(), x.dtype(), plan.shape, plan.strides);
    parallel_for(plan.outer, std::max<std::int64_t>(kReduceGrain / plan.count, 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t o = begin; o < end; ++o) out[o] = argmax_row(reader, o * plan.count, plan.count);
                 });
  });
}

}  // namespace

void register_reduce(OpTable& table) {
  using enum Device::Kind;
  table.kernel(op::sum, cpu, over_dims<Sum>, reduce_scratch);
  table.kernel(op::sum_to, cpu, sum_to, sum_to_scratch);
  table.kernel(op::mean, cpu, mean, reduce_scratch);
  table.kernel(op::max, cpu, over_dims<Largest>, reduce_scratch);
  table.kernel(op::min, cpu, over_dims<Smallest>, reduce_scratch);
  table.kernel(op::prod, cpu, over_dims<Product>, reduce_scratch);
  table.kernel(op::any, cpu, over_dims<Any>, reduce_scratch);
  table.kernel(op::all, cpu, over_dims<All>, reduce_scratch);
  table.kernel(op::argmax, cpu, argmax);
}

}  // namespace sherd::cpu
