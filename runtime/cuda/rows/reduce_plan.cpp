#include "runtime/cuda/rows/reduce_plan.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace sherd::cuda {

namespace {

constexpr std::int64_t kBlocks = 1024;        // enough to fill a device; a constant, so that bits depend on shapes only
constexpr std::int64_t kItemsPerThread = 16;  // at least, before a result is cut into parts
constexpr std::int64_t kNarrow = std::int64_t{1} << 31;

struct Dim {
  std::int64_t size, stride, out_stride;
};

// Memory order: the smallest stride last; dims of stride 0 are read again and again and come first.
void sort_by_stride(std::vector<Dim>& dims) {
  const auto rank = [](const Dim& d) { return d.stride == 0 ? kNarrow * kNarrow : std::abs(d.stride); };
  std::stable_sort(dims.begin(), dims.end(), [&](const Dim& a, const Dim& b) { return rank(a) > rank(b); });
}

IndexWalk walk_of(const std::vector<Dim>& dims, std::int64_t Dim::* stride) {
  Dims sizes, strides;
  for (const Dim& d : dims) {
    sizes.push_back(d.size);
    strides.push_back(d.*stride);
  }
  return {sizes, strides};
}

// Neighbours along the last dim are neighbours in memory, and every other dim steps by whole vectors.
bool holds_vectors(const IndexWalk& walk, int vector) {
  for (int d = 0; d + 1 < walk.ndim(); ++d)
    if (walk.stride(d) % vector != 0) return false;
  return walk.innermost_stride() == 1;
}
bool steps_by_vectors(const IndexWalk& walk, int vector) {
  for (int d = 0; d < walk.ndim(); ++d)
    if (walk.stride(d) % vector != 0) return false;
  return true;
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

int power_of_two(std::int64_t at_least, int most) {
  int p = 1;
  while (p < most && p < at_least) p *= 2;
  return p;
}

void cut(ReducePlan& plan, std::int64_t blocks, std::int64_t items_per_step) {
  const std::int64_t most = plan.items / (items_per_step * kItemsPerThread);
  plan.parts =
      std::clamp<std::int64_t>(kBlocks / std::max<std::int64_t>(blocks, 1), 1, std::max<std::int64_t>(most, 1));
  plan.items_per_part = std::max<std::int64_t>(divide_up(plan.items, plan.parts), 1);
  plan.parts = std::max<std::int64_t>(divide_up(plan.items, plan.items_per_part), 1);
}

}  // namespace

IndexWalk::IndexWalk(const Dims& sizes, const Dims& strides) {
  ndim_ = 0;
  std::int64_t total = 1;
  for (int d = 0; d < sizes.size(); ++d) {
    total *= sizes[d];
    if (ndim_ > 0 && strides_[ndim_ - 1] == sizes[d] * strides[d]) {
      wide_sizes_[ndim_ - 1] *= sizes[d];
      strides_[ndim_ - 1] = strides[d];
    } else {
      wide_sizes_[ndim_] = sizes[d];
      strides_[ndim_++] = strides[d];
    }
  }
  if (ndim_ == 0) ndim_ = 1;
  narrow_ = total < kNarrow;
  for (int d = 0; d < ndim_; ++d) narrow_ = narrow_ && wide_sizes_[d] < kNarrow;
  if (!narrow_) return;
  for (int d = 0; d < ndim_; ++d)
    sizes_[d] = FastDivide(static_cast<std::uint32_t>(std::max<std::int64_t>(wide_sizes_[d], 1)));
}

namespace {

struct Split {
  std::vector<Dim> kept, reduced;
};

Split split_dims(const Shape& shape, const Strides& strides, std::uint64_t mask) {
  Split split;
  std::int64_t out_stride = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    const bool is_reduced = ((mask >> d) & 1u) != 0;
    std::vector<Dim>& dims = is_reduced ? split.reduced : split.kept;
    if (shape[d] != 1) dims.insert(dims.begin(), {shape[d], strides[d], out_stride});
    if (!is_reduced) out_stride *= shape[d];
  }
  sort_by_stride(split.kept);
  sort_by_stride(split.reduced);
  return split;
}

ReducePlan plan_walks(const Split& split) {
  ReducePlan plan;
  for (const Dim& d : split.kept) plan.results *= d.size;
  for (const Dim& d : split.reduced) plan.count *= d.size;
  plan.kept = walk_of(split.kept, &Dim::stride);
  plan.out = walk_of(split.kept, &Dim::out_stride);
  plan.reduced = walk_of(split.reduced, &Dim::stride);
  plan.items = plan.items_per_part = plan.count;
  return plan;
}

void take_row_vectors(ReducePlan& plan, int vector) {
  const std::int64_t last_size = plan.reduced.innermost_size();
  if (vector == 1 || !holds_vectors(plan.reduced, vector) || !steps_by_vectors(plan.kept, vector) ||
      (plan.reduced.ndim() > 1 && last_size % vector != 0))
    return;
  Dims sizes, steps;
  for (int d = 0; d < plan.reduced.ndim(); ++d) {
    sizes.push_back(plan.reduced.size(d));
    steps.push_back(plan.reduced.stride(d));
  }
  const int last = sizes.size() - 1;
  sizes[last] = last_size / vector;
  steps[last] = vector;
  plan.vector = vector;
  plan.tail = last_size % vector;
  plan.items = plan.items_per_part = numel(sizes);
  plan.reduced = IndexWalk(sizes, steps);
}

void set_teams(ReducePlan& plan, int largest) {
  constexpr int kItemsAtOnce = 4;
  plan.team = power_of_two(divide_up(plan.items, kItemsAtOnce), largest);
  if (plan.team > kWarp) plan.threads = static_cast<unsigned>(plan.team);
}

std::int64_t teams_per_block(const ReducePlan& plan) { return static_cast<std::int64_t>(plan.threads) / plan.team; }

}  // namespace

ReducePlan plan_reduction(const Shape& shape, const Strides& strides, std::uint64_t mask, int vector) {
  const Split split = split_dims(shape, strides, mask);
  ReducePlan plan = plan_walks(split);
  if (plan.results == 0) return plan;
  const std::int64_t kept_step = std::abs(plan.kept.innermost_stride());
  const std::int64_t reduced_step = std::abs(plan.reduced.innermost_stride());
  if (kept_step != 0 && kept_step < reduced_step) {
    constexpr std::int64_t kNarrowColumns = 16, kFewElements = 4096;
    const std::int64_t inner = plan.kept.innermost_size();
    // A few columns of a few items would leave most of a block idle.
    plan.columns = inner >= kNarrowColumns || inner * plan.count >= kFewElements;
    if (plan.columns) plan.inner = inner;
  }
  if (plan.columns) {
    if (plan.inner % vector == 0 && holds_vectors(plan.kept, vector) && steps_by_vectors(plan.reduced, vector))
      plan.vector = vector;
    const std::int64_t accesses = plan.inner / plan.vector;
    plan.lanes = power_of_two(accesses, kWarp);
    plan.tiles = divide_up(accesses, plan.lanes);
    const std::int64_t blocks = plan.tiles * (plan.results / plan.inner);
    cut(plan, blocks, ReducePlan::kBlock / plan.lanes);
    plan.blocks = static_cast<unsigned>(blocks * plan.parts);
    return plan;
  }
  take_row_vectors(plan, vector);
  set_teams(plan, ReducePlan::kBlock);
  cut(plan, divide_up(plan.results, teams_per_block(plan)), plan.team);
  plan.blocks = static_cast<unsigned>(divide_up(plan.results * plan.parts, teams_per_block(plan)));
  return plan;
}

ReducePlan plan_whole_rows(const Shape& shape, const Strides& strides, std::uint64_t mask) {
  constexpr int kLargestTeam = 512;
  ReducePlan plan = plan_walks(split_dims(shape, strides, mask));
  set_teams(plan, kLargestTeam);
  plan.blocks = static_cast<unsigned>(divide_up(plan.results, teams_per_block(plan)));
  return plan;
}

}  // namespace sherd::cuda
