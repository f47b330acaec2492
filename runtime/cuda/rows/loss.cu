// Cross entropy over rows of logits. Forward is one pass with a running maximum and sum; the rows' losses are added by
// one block in a fixed order, in f64. linear_cross_entropy makes the logits of some rows at a time (loss_chunk_rows in
// runtime/op/rows/loss.h), so that neither it nor its derivative, which is made of other rows, holds all of them.
//
// Bytes: forward reads the logits, backward reads them and writes their gradient.
#include "runtime/op/rows/loss.h"

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/faults.h"
#include "runtime/cuda/gemm/gemm.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/dense.h"
#include "runtime/cuda/rows/row.h"
#include "runtime/op/rows/id_shard.h"
#include "runtime/op/rows/loss_attrs.h"

namespace sherd::cuda {

namespace {

constexpr int kLargestLossTeam = 512;  // leaves 128 registers to each thread

/// Target class of each row. The logits may hold a shard of the classes. A class out of range is reported and counts as
/// ignored.
struct Targets {
  const void* data;
  bool wide;
  std::int64_t ignore_index;
  IdShard classes;
  FaultSink faults;

  __device__ std::int64_t at(std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
  __device__ bool counts(std::int64_t target) const { return target != ignore_index && classes.exists(target); }
  __device__ void report(std::int64_t i, std::int64_t target) const {
    if (target != ignore_index && !classes.exists(target)) report_fault(faults, i, target, classes.total);
  }
};

Targets targets_of(const KernelCall& call, const Tensor& tensor, const Dense& dense, std::int64_t columns) {
  const auto& attrs = call.attrs.as<CrossEntropyAttrs>();
  return {dense.raw(), tensor.dtype() == DType::i64, attrs.ignore_index, IdShard::part_of(attrs.part, columns),
          context_of(call).faults().sink(call.op, "target")};
}

// ---- forward ----

/// Rows first, first + 1, ... of the whole problem, whose logits start at `logits`.
template <class R, class Out>
__global__ void loss_rows_kernel(const typename R::T* logits, std::int64_t first, std::int64_t rows, Targets targets,
                                 Out out, int team_size) {
  using A = typename R::A;
  auto& scratch = shared<TeamScratch<A>>();
  const Team team{team_size};
  const std::int64_t r = team.row(), i = first + r, v = targets.classes.here;
  const bool active = r < rows;
  const std::int64_t target = active ? targets.at(i) : targets.ignore_index;
  const bool counts = active && targets.counts(target);
  R row({logits}, counts ? r * v : 0, counts ? v : 0, team);
  OnlineSum<A> total;
  row.each([&](int, std::int64_t, auto& values) { total.add(values[0]); });
  total.fold(team, scratch.values);
  if (!active || team.rank() != 0) return;
  targets.report(i, target);
  const bool is_here = counts && targets.classes.is_here(target);
  const A at_target = is_here ? to_compute(logits[r * v + target - targets.classes.first]) : A{};
  out.put(i, counts, {total.largest, total.sum, at_target});
}

struct MeanScratch {
  double values[kWarp];
  std::int64_t counts[kWarp];
};

/// One block: the mean of the losses over the targets that count, and their number.
template <class A>
__global__ void mean_loss_kernel(const A* losses, std::int64_t rows, Targets targets, A* mean, A* count) {
  auto& scratch = shared<MeanScratch>();
  double sum = 0;
  std::int64_t n = 0;
#pragma unroll 4
  for (std::int64_t i = thread_index(); i < rows; i += block_threads()) {
    sum += static_cast<double>(losses[i]);
    n += targets.counts(targets.at(i));
  }
  sum = block_sum(sum, scratch.values);
  n = block_sum(n, scratch.counts);
  if (thread_index() != 0) return;
  *mean = n == 0 ? A{} : static_cast<A>(sum / static_cast<double>(n));
  *count = static_cast<A>(n);
}

template <class T, class Out>
void loss_rows(Context& context, const T* logits, std::int64_t first, std::int64_t rows, const Targets& targets,
               const Out& out) {
  const std::int64_t v = targets.classes.here;
  visit_row<T, 1, 0>(v, are_aligned(logits), kLargestLossTeam, [&]<class R>(Type<R>) {
    const TeamGrid grid = row_grid<R>(rows, v, kLargestLossTeam);
    launch(context.stream(), loss_rows_kernel<R, Out>,
           {.blocks = grid.blocks, .threads = grid.threads, .shared_bytes = sizeof(TeamScratch<Compute<T>>)}, logits,
           first, rows, targets, out, grid.team);
  });
}

/// The same for logits x weight^T, of which a chunk of rows is held at a time.
template <class T, class Out>
void loss_rows_of_product(const KernelCall& call, const Targets& targets, const Out& out) {
  Context& context = context_of(call);
  const Tensor &x = call.in[0], &weight = call.in[1];
  const std::int64_t v = weight.shape()[0], k = weight.shape()[1], rows = call.in[2].numel();
  const std::int64_t chunk = std::min(loss_chunk_rows(v, Device::Kind::cuda), rows);
  const Dense in(context, x), factors(context, weight);
  const Workspace logits(context, chunk * v * static_cast<std::int64_t>(sizeof(T)));
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t m = std::min(chunk, rows - first);
    const auto product = logits_product<Gemm>(x.dtype(), m, weight.shape());
    if (v > 0) gemm(context, product, in.data<T>() + first * k, factors.raw(), logits.data());
    loss_rows(context, logits.as<const T>(), first, m, targets, out);
  }
}

template <class A>
void mean_loss(const KernelCall& call, const A* losses, std::int64_t rows, const Targets& targets) {
  launch(context_of(call).stream(), mean_loss_kernel<A>, {.threads = 512, .shared_bytes = sizeof(MeanScratch)}, losses,
         rows, targets, call.out[0].mutable_data<A>(), call.out[2].mutable_data<A>());
}

void cross_entropy(const KernelCall& call) {
  Context& context = context_of(call);
  const std::int64_t v = call.in[0].shape().back(), rows = call.in[1].numel();
  const Dense logits(context, call.in[0]), classes(context, call.in[1]);
  const Targets targets = targets_of(call, call.in[1], classes, v);
  visit_floating(call.in[0].dtype(), [&]<class T>(Type<T>) {
    using A = Compute<T>;
    const Workspace losses(context, rows * static_cast<std::int64_t>(sizeof(A)));
    loss_rows(context, logits.data<T>(), 0, rows, targets,
              LossOut<Math, A>{call.out[1].mutable_data<A>(), losses.as<A>()});
    mean_loss(call, losses.as<const A>(), rows, targets);
  });
}

void linear_cross_entropy(const KernelCall& call) {
  Context& context = context_of(call);
  const std::int64_t rows = call.in[2].numel();
  const Dense classes(context, call.in[2]);
  const Targets targets = targets_of(call, call.in[2], classes, call.in[1].size(0));
  visit_floating(call.in[0].dtype(), [&]<class T>(Type<T>) {
    using A = Compute<T>;
    const Workspace losses(context, rows * static_cast<std::int64_t>(sizeof(A)));
    loss_rows_of_product<T>(call, targets, LossOut<Math, A>{call.out[1].mutable_data<A>(), losses.as<A>()});
    mean_loss(call, losses.as<const A>(), rows, targets);
  });
}

template <class A>
PartsOut<A> parts_out(const KernelCall& call) {
  return {call.out[0].mutable_data<A>(), call.out[1].mutable_data<A>(), call.out[2].mutable_data<A>()};
}

void cross_entropy_parts(const KernelCall& call) {
  Context& context = context_of(call);
  const Dense logits(context, call.in[0]), classes(context, call.in[1]);
  const Targets targets = targets_of(call, call.in[1], classes, call.in[0].shape().back());
  visit_floating(call.in[0].dtype(), [&]<class T>(Type<T>) {
    loss_rows(context, logits.data<T>(), 0, call.in[1].numel(), targets, parts_out<Compute<T>>(call));
  });
}

void linear_cross_entropy_parts(const KernelCall& call) {
  Context& context = context_of(call);
  const Dense classes(context, call.in[2]);
  const Targets targets = targets_of(call, call.in[2], classes, call.in[1].size(0));
  visit_floating(call.in[0].dtype(),
                 [&]<class T>(Type<T>) { loss_rows_of_product<T>(call, targets, parts_out<Compute<T>>(call)); });
}

// ---- backward ----

/// d = (exp(x - lse) - [is target]) * grad / count; d may be the logits' own memory.
template <class R>
__global__ void loss_backward_kernel(const typename R::T* logits, const typename R::A* lse, const typename R::A* grad,
                                     const typename R::A* count, typename R::T* d, std::int64_t rows, Targets targets,
                                     int team_size) {
  using A = typename R::A;
  const Team team{team_size};
  const std::int64_t r = team.row(), v = targets.classes.here;
  if (r >= rows) return;  // the team meets nowhere
  const std::int64_t target = targets.at(r);
  if (team.rank() == 0) targets.report(r, target);
  const bool counts = targets.counts(target);
  const std::int64_t column = target - targets.classes.first;  // none if it is not here
  const A scale = *grad / (*count > A{1} ? *count : A{1});
  const ShiftedExp<A> exp(lse[r]);
  R row({logits}, r * v, v, team);
  row.each([&](int, std::int64_t at, auto& values) {
    constexpr int kN = sizeof values[0] / sizeof(A);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      A slope = exp(values[0][j]) * scale;
      if (at + j == column) slope -= scale;
      values[0][j] = counts ? slope : A{};
    }
    store_values(d + r * v + at, values[0]);
  });
}

void cross_entropy_backward(const KernelCall& call) {
  Context& context = context_of(call);
  const Tensor& logits = call.in[1];
  const std::int64_t v = logits.shape().back(), rows = call.in[2].numel();
  const Dense in(context, logits), classes(context, call.in[2]), lse(context, call.in[3]);
  const Targets targets = targets_of(call, call.in[2], classes, v);
  visit_floating(logits.dtype(), [&]<class T>(Type<T>) {
    using A = Compute<T>;
    T* const d = call.out[0].mutable_data<T>();
    visit_row<T, 1, 0>(v, are_aligned(in.data<T>(), d), kLargestLossTeam, [&]<class R>(Type<R>) {
      const TeamGrid grid = row_grid<R>(rows, v, kLargestLossTeam);
      launch(context.stream(), loss_backward_kernel<R>, {.blocks = grid.blocks, .threads = grid.threads}, in.data<T>(),
             lse.data<A>(), call.in[0].data<A>(), call.in[4].data<A>(), d, rows, targets, grid.team);
    });
  });
}

constexpr KernelEntry kLossEntries[] = {
    {op::cross_entropy, cross_entropy},
    {op::cross_entropy_backward, cross_entropy_backward},
    {op::linear_cross_entropy, linear_cross_entropy},
    {op::cross_entropy_parts, cross_entropy_parts},
    {op::linear_cross_entropy_parts, linear_cross_entropy_parts},
};

}  // namespace

void register_loss(OpTable& table) { add_kernels(table, kLossEntries); }

}  // namespace sherd::cuda
