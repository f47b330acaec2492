// softmax and log_softmax along any dim, and their derivatives. Lines along the last dim are rows of a team: read once
// into registers where they fit. Other lines are columns: 32 neighbours by 8 threads each, so that accesses are of
// neighbours in memory; a column is read twice.
//
// Bytes: forward reads and writes once (rows beyond 8192 elements of f32 read twice), backward reads two and writes
// one.
#include "runtime/cuda/device/context.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/dense.h"
#include "runtime/cuda/rows/row.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::cuda {

namespace {

constexpr int kLargestSoftmaxTeam = 512;  // leaves 128 registers to each thread

// ---- rows ----

template <class R, bool kLog>
__global__ void softmax_rows_kernel(const typename R::T* x, typename R::T* y, std::int64_t rows, std::int64_t n,
                                    int team_size) {
  using T = typename R::T;
  using A = typename R::A;
  auto& scratch = shared<TeamScratch<A>>();
  const Team team{team_size};
  const bool active = team.row() < rows;
  const std::int64_t first = active ? team.row() * n : 0;
  R row({x}, first, active ? n : 0, team);
  OnlineSum<A> total;
  if constexpr (R::kIsHeld) {
    row.each([&](int, std::int64_t, auto& v) {
      for (A& value : v[0]) total.largest = MaxOf{}(value, total.largest);
    });
    total.largest = team.max(total.largest, scratch.values);
    const ShiftedExp<A> exp(total.largest);
    row.each([&](int, std::int64_t, auto& v) {
      for (A& value : v[0]) {
        const A power = exp(value);
        total.sum += power;
        if constexpr (!kLog) value = power;
      }
    });
    total.sum = team.sum(total.sum, scratch.values);
  } else {
    row.each([&](int, std::int64_t, auto& v) { total.add(v[0]); });
    total.fold(team, scratch.values);
  }
  const A scale = A{1} / total.sum, log_sum = kLog ? std::log(total.sum) : A{};
  const ShiftedExp<A> exp(total.largest);
  row.each([&](int, std::int64_t at, auto& v) {
    for (A& value : v[0]) {
      if constexpr (kLog) value = (value - total.largest) - log_sum;
      else value = (R::kIsHeld ? value : exp(value)) * scale;
    }
    store_values<T>(y + first + at, v[0]);
  });
}

/// What the derivative sums: grad * y, or grad.
template <bool kLog, class A>
__device__ A slope_term(A grad, A y, A sum) {
  return kLog ? grad + sum : std::fma(grad, y, sum);
}
template <bool kLog, class A>
__device__ A slope(A grad, A y, A total) {
  return kLog ? std::fma(-total, std::exp(y), grad) : y * (grad - total);
}

template <class R, bool kLog>
__global__ void softmax_backward_rows_kernel(const typename R::T* grad, const typename R::T* y, typename R::T* dx,
                                             std::int64_t rows, std::int64_t n, int team_size) {
  using T = typename R::T;
  using A = typename R::A;
  auto& scratch = shared<TeamScratch<A>>();
  const Team team{team_size};
  const bool active = team.row() < rows;
  const std::int64_t first = active ? team.row() * n : 0;
  R row({grad, y}, first, active ? n : 0, team);
  A sum{};
  row.each([&](int, std::int64_t, auto& v) {
    constexpr int kN = sizeof v[0] / sizeof(A);
#pragma unroll
    for (int j = 0; j < kN; ++j) sum = slope_term<kLog>(v[0][j], v[1][j], sum);
  });
  const A total = team.sum(sum, scratch.values);
  row.each([&](int, std::int64_t at, auto& v) {
    constexpr int kN = sizeof v[0] / sizeof(A);
    A slopes[kN];
#pragma unroll
    for (int j = 0; j < kN; ++j) slopes[j] = slope<kLog>(v[0][j], v[1][j], total);
    store_values<T>(dx + first + at, slopes);
  });
}

// ---- columns ----

constexpr int kGroups = 8;  // threads per column; a block is as many warps, of 32 neighbouring columns

template <class A>
struct SoftmaxScratch {
  A values[kGroups][kWarp];
};

/// Folds one value of each thread over the threads of its column.
template <class A, class Fold>
__device__ A fold_column(A v, SoftmaxScratch<A>& scratch, Fold fold) {
  scratch.values[warp_index()][lane()] = v;
  sync_block();
  v = scratch.values[0][lane()];
  for (int g = 1; g < kGroups; ++g) v = fold(v, scratch.values[g][lane()]);
  sync_block();
  return v;
}

/// The column of the calling thread; `inner` apart lie its elements.
struct Column {
  std::int64_t index, first, n, inner;
  __device__ Column(std::int64_t columns, std::int64_t length, std::int64_t step)
      : index(std::int64_t{block_index()} * kWarp + lane()),
        first(index / step * length * step + index % step),
        n(index < columns ? length : 0),
        inner(step) {}
  /// Calls fn(offset) for this thread's elements.
  template <class Fn>
  __device__ void each(Fn fn) const {
#pragma unroll 4
    for (std::int64_t j = warp_index(); j < n; j += kGroups) fn(first + j * inner);
  }
};

template <class T, bool kLog>
__global__ void softmax_columns_kernel(const T* x, T* y, std::int64_t columns, std::int64_t n, std::int64_t inner) {
  using A = Compute<T>;
  auto& scratch = shared<SoftmaxScratch<A>>();
  const Column column(columns, n, inner);
  OnlineSum<A> total;
  column.each([&](std::int64_t at) {
    const A value[1] = {to_compute(x[at])};
    total.add(value);
  });
  total.move_to(fold_column(total.largest, scratch, MaxOf{}));
  total.sum = fold_column(total.sum, scratch, SumOf{});
  const A scale = A{1} / total.sum, log_sum = kLog ? std::log(total.sum) : A{};
  const ShiftedExp<A> exp(total.largest);
  column.each([&](std::int64_t at) {
    const A value = to_compute(x[at]);
    y[at] = from_compute<T>(kLog ? (value - total.largest) - log_sum : exp(value) * scale);
  });
}

template <class T, bool kLog>
__global__ void softmax_backward_columns_kernel(const T* grad, const T* y, T* dx, std::int64_t columns, std::int64_t n,
                                                std::int64_t inner) {
  using A = Compute<T>;
  auto& scratch = shared<SoftmaxScratch<A>>();
  const Column column(columns, n, inner);
  A sum{};
  column.each([&](std::int64_t at) { sum = slope_term<kLog>(to_compute(grad[at]), to_compute(y[at]), sum); });
  const A total = fold_column(sum, scratch, SumOf{});
  column.each(
      [&](std::int64_t at) { dx[at] = from_compute<T>(slope<kLog>(to_compute(grad[at]), to_compute(y[at]), total)); });
}

// ---- calls ----

struct Lines {
  std::int64_t outer = 1, length = 1, inner = 1;
  Lines(const Shape& shape, int dim) {
    for (int d = 0; d < shape.size(); ++d) (d < dim ? outer : d == dim ? length : inner) *= shape[d];
  }
  Grid column_grid(std::size_t shared_bytes) const {
    return {.blocks = static_cast<unsigned>((outer * inner + kWarp - 1) / kWarp),
            .threads = kGroups * kWarp,
            .shared_bytes = shared_bytes};
  }
};

template <bool kLog>
void softmax_forward(const KernelCall& call) {
  const Tensor& out = call.out[0];
  const Lines lines(out.shape(), call.attrs.as<DimAttrs>().dim);
  if (out.numel() == 0) return;
  Context& context = context_of(call);
  const cudaStream_t stream = context.stream();
  const Dense in(context, call.in[0]);
  visit_floating(out.dtype(), [&]<class T>(Type<T>) {
    const T* const x = in.data<T>();
    T* const y = out.mutable_data<T>();
    if (lines.inner > 1)
      return launch(stream, softmax_columns_kernel<T, kLog>, lines.column_grid(sizeof(SoftmaxScratch<Compute<T>>)), x,
                    y, lines.outer * lines.inner, lines.length, lines.inner);
    visit_row<T, 1, 4>(lines.length, are_aligned(x, y), kLargestSoftmaxTeam, [&]<class R>(Type<R>) {
      const TeamGrid grid = row_grid<R>(lines.outer, lines.length, kLargestSoftmaxTeam);
      launch(stream, softmax_rows_kernel<R, kLog>,
             {.blocks = grid.blocks, .threads = grid.threads, .shared_bytes = sizeof(TeamScratch<Compute<T>>)}, x, y,
             lines.outer, lines.length, grid.team);
    });
  });
}

template <bool kLog>
void softmax_gradient(const KernelCall& call) {
  const Tensor& out = call.out[0];
  const Lines lines(out.shape(), call.attrs.as<DimAttrs>().dim);
  if (out.numel() == 0) return;
  Context& context = context_of(call);
  const cudaStream_t stream = context.stream();
  const Dense grads(context, call.in[0]), results(context, call.in[1]);
  visit_floating(out.dtype(), [&]<class T>(Type<T>) {
    const T *const grad = grads.data<T>(), *const y = results.data<T>();
    T* const dx = out.mutable_data<T>();
    if (lines.inner > 1)
      return launch(stream, softmax_backward_columns_kernel<T, kLog>,
                    lines.column_grid(sizeof(SoftmaxScratch<Compute<T>>)), grad, y, dx, lines.outer * lines.inner,
                    lines.length, lines.inner);
    visit_row<T, 2, 2>(lines.length, are_aligned(grad, y, dx), kLargestSoftmaxTeam, [&]<class R>(Type<R>) {
      const TeamGrid grid = row_grid<R>(lines.outer, lines.length, kLargestSoftmaxTeam);
      launch(stream, softmax_backward_rows_kernel<R, kLog>,
             {.blocks = grid.blocks, .threads = grid.threads, .shared_bytes = sizeof(TeamScratch<Compute<T>>)}, grad, y,
             dx, lines.outer, lines.length, grid.team);
    });
  });
}

constexpr KernelEntry kSoftmaxEntries[] = {
    {op::softmax, softmax_forward<false>},
    {op::softmax_backward, softmax_gradient<false>},
    {op::log_softmax, softmax_forward<true>},
    {op::log_softmax_backward, softmax_gradient<true>},
};

}  // namespace

void register_softmax(OpTable& table) { add_kernels(table, kSoftmaxEntries); }

}  // namespace sherd::cuda
