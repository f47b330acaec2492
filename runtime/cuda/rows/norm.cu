// layer_norm and rms_norm. Forward: a team per row, which stays in registers between the statistics and the result.
// Backward: a block walks rows r, r + blocks, ...; it loads its next row while it works on this one, and every thread
// sums the gradients of weight and bias of its own columns, so that they leave the block once; a second kernel adds the
// blocks' sums in order.
//
// Bytes: forward reads x and writes y; backward reads grad and x and writes dx, and the blocks' sums are 4 % more at
// 16384 rows of 2048. Rows that do not fit the registers of a block (beyond 8192 elements backward, forward 16384 of 16
// bits) and rows of odd lengths are read once more for each pass, backward element by element.
#include "runtime/cuda/device/context.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/column_sums.h"
#include "runtime/cuda/rows/dense.h"
#include "runtime/cuda/rows/row.h"
#include "runtime/op/rows/norm_attrs.h"

namespace sherd::cuda {

namespace {

constexpr int kLargestNormTeam = 512;  // leaves 128 registers to each thread

/// weight or bias at a row's element `at`, or `absent` where there is none.
template <class R, int kN>
__device__ void load_affine(const typename R::T* from, std::int64_t at, typename R::A absent, typename R::A (&to)[kN]) {
  if (from) {
    load_values<R::kIsHeld>(from + at, to);
  } else {
#pragma unroll
    for (int j = 0; j < kN; ++j) to[j] = absent;
  }
}

// ---- forward ----

template <class T>
struct Forward {
  using A = Compute<T>;
  const T *x, *weight, *bias;  // [rows, d], [d] or null, [d] or null
  T* y;
  A *mean, *rstd;  // [rows]; mean of layer_norm only
  std::int64_t rows, d;
  A eps;
};

template <class R, bool kCentred>
__global__ void norm_kernel(Forward<typename R::T> f, int team_size) {
  using A = typename R::A;
  auto& scratch = shared<TeamScratch<A>>();
  const Team team{team_size};
  const bool active = team.row() < f.rows;
  const std::int64_t first = active ? team.row() * f.d : 0;
  R row({f.x}, first, active ? f.d : 0, team);
  const A size = static_cast<A>(f.d);
  A mean{};
  if constexpr (kCentred) {
    A sum{};
    row.each([&](int, std::int64_t, auto& v) {
      for (const A value : v[0]) sum += value;
    });
    mean = team.sum(sum, scratch.values) / size;
  }
  A squares{};
  row.each([&](int, std::int64_t, auto& v) {
    for (const A value : v[0]) squares = std::fma(value - mean, value - mean, squares);
  });
  const A rstd = A{1} / std::sqrt(team.sum(squares, scratch.values) / size + f.eps);
  row.each([&](int, std::int64_t at, auto& v) {
    constexpr int kN = sizeof v[0] / sizeof(A);
    A weight[kN];
    load_affine<R>(f.weight, at, A{1}, weight);
#pragma unroll
    for (int j = 0; j < kN; ++j) v[0][j] = (v[0][j] - mean) * rstd * weight[j];
    if constexpr (kCentred) {
      A bias[kN];
      load_affine<R>(f.bias, at, A{}, bias);
#pragma unroll
      for (int j = 0; j < kN; ++j) v[0][j] += bias[j];
    }
    store_values(f.y + first + at, v[0]);
  });
  if (!active || team.rank() != 0) return;
  if constexpr (kCentred) f.mean[team.row()] = mean;
  f.rstd[team.row()] = rstd;
}

template <bool kCentred>
void norm_forward(const KernelCall& call) {
  const Tensor& x = call.in[0];
  const std::int64_t d = x.shape().back(), rows = d == 0 ? 0 : x.numel() / d;
  Context& context = context_of(call);
  const cudaStream_t stream = context.stream();
  const Dense in(context, x), weight(context, call.in[1]), bias(context, kCentred ? call.in[2] : Tensor());
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using A = Compute<T>;
    const Forward<T> f{in.data<T>(),
                       weight.data<T>(),
                       bias.data<T>(),
                       call.out[0].mutable_data<T>(),
                       kCentred ? call.out[1].mutable_data<A>() : nullptr,
                       call.out[kCentred ? 2 : 1].mutable_data<A>(),
                       rows,
                       d,
                       static_cast<A>(call.attrs.as<NormAttrs>().eps)};
    visit_row<T, 1, 4>(d, are_aligned(f.x, f.weight, f.bias, f.y), kLargestNormTeam, [&]<class R>(Type<R>) {
      const TeamGrid grid = row_grid<R>(rows, d, kLargestNormTeam);
      launch(stream, norm_kernel<R, kCentred>,
             {.blocks = grid.blocks, .threads = grid.threads, .shared_bytes = sizeof(TeamScratch<A>)}, f, grid.team);
    });
  });
}

// ---- backward ----

template <class T>
struct Backward {
  using A = Compute<T>;
  const T *grad, *x, *weight;  // [rows, d], [rows, d], [d] or null
  const A *mean, *rstd;        // [rows]; mean of layer_norm only
  T* dx;
  A* partial;  // [blocks, 1 or 2, d]: dweight, dbias
  std::int64_t rows, d;
};

/// Sums of a thread's columns over its block's rows: in registers for held rows, else in the block's part of `partial`,
/// where every thread keeps to its own columns too.
template <class R, bool kCentred>
struct AffineSums {
  using A = typename R::A;
  static constexpr int kSlots = R::kIsHeld ? R::kHeld : 1;
  A dweight[kSlots][R::kVector], dbias[kSlots][R::kVector];

  __device__ void clear(const Backward<typename R::T>& b, A* to) {
    if constexpr (R::kIsHeld) {
#pragma unroll
      for (int k = 0; k < kSlots; ++k)
#pragma unroll
        for (int j = 0; j < R::kVector; ++j) dweight[k][j] = dbias[k][j] = A{};
    } else {
      for (std::int64_t c = thread_index(); c < (kCentred ? 2 : 1) * b.d; c += block_threads()) to[c] = A{};
      sync_block();
    }
  }
  __device__ void add(const Backward<typename R::T>& b, A* to, int slot, std::int64_t at, int j, A grad, A normal) {
    A& w = R::kIsHeld ? dweight[slot][j] : to[at + j];
    w = std::fma(grad, normal, w);
    if constexpr (kCentred) {
      A& bias = R::kIsHeld ? dbias[slot][j] : to[b.d + at + j];
      bias += grad;
    }
  }
  __device__ void store(const Backward<typename R::T>& b, A* to) const {
    if constexpr (R::kIsHeld)
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        const std::int64_t at = (thread_index() + std::int64_t{k} * block_threads()) * R::kVector;
        if (at >= b.d) continue;
#pragma unroll
        for (int j = 0; j < R::kVector; ++j) {
          to[at + j] = dweight[k][j];
          if constexpr (kCentred) to[b.d + at + j] = dbias[k][j];
        }
      }
  }
};

// With g = grad * weight and h the normalised row:
//   dx = rstd * (g - [mean of g] - h * mean of g * h),  dweight += grad * h,  dbias += grad;
// the bracket and dbias are layer_norm's only.
template <class R, bool kCentred>
__global__ void norm_backward_kernel(Backward<typename R::T> b) {
  using T = typename R::T;
  using A = typename R::A;
  auto& scratch = shared<TeamScratch<A>>();
  const Team team{block_threads()};
  A* const to = b.partial + std::int64_t{block_index()} * (kCentred ? 2 : 1) * b.d;
  AffineSums<R, kCentred> sums;
  sums.clear(b, to);
  const auto load_row = [&](std::int64_t r) {
    return R({b.grad, b.x}, r < b.rows ? r * b.d : 0, r < b.rows ? b.d : 0, team);
  };
  const A size = static_cast<A>(b.d);
  R row = load_row(block_index());
  for (std::int64_t r = block_index(); r < b.rows; r += grid_blocks()) {
    // Registers allow a second row only where a row takes one access per thread.
    constexpr bool kAhead = R::kHeld <= 1;
    const std::int64_t after = r + grid_blocks();
    R next;
    if constexpr (kAhead) next = load_row(after);
    const A mean = kCentred ? b.mean[r] : A{}, rstd = b.rstd[r];
    A sum_g{}, sum_gh{};
    // In place: grad becomes g, x becomes h. Rows that are not held do it again in the second pass.
    row.each([&](int slot, std::int64_t at, auto& v) {
      A weight[R::kVector];
      load_affine<R>(b.weight, at, A{1}, weight);
#pragma unroll
      for (int j = 0; j < R::kVector; ++j) {
        const A grad = v[0][j], normal = (v[1][j] - mean) * rstd;
        sums.add(b, to, slot, at, j, grad, normal);
        v[0][j] = grad * weight[j];
        v[1][j] = normal;
        if constexpr (kCentred) sum_g += v[0][j];
        sum_gh = std::fma(v[0][j], normal, sum_gh);
      }
    });
    const A mean_g = kCentred ? team.sum(sum_g, scratch.values) / size : A{};
    const A mean_gh = team.sum(sum_gh, scratch.values) / size;
    row.each([&](int, std::int64_t at, auto& v) {
      if constexpr (!R::kIsHeld) {
        A weight[R::kVector];
        load_affine<R>(b.weight, at, A{1}, weight);
#pragma unroll
        for (int j = 0; j < R::kVector; ++j) {
          v[0][j] *= weight[j];
          v[1][j] = (v[1][j] - mean) * rstd;
        }
      }
      A slopes[R::kVector];
#pragma unroll
      for (int j = 0; j < R::kVector; ++j) slopes[j] = (v[0][j] - mean_g - v[1][j] * mean_gh) * rstd;
      store_values<T>(b.dx + r * b.d + at, slopes);
    });
    if constexpr (kAhead) row = next;
    else row = load_row(after);
  }
  sums.store(b, to);
}

/// Threads of a block and blocks, which follow from the shape only: four rows per block at least, and no more blocks
/// than a large device runs at once.
struct BackwardGrid {
  unsigned threads = kWarp, blocks = 0;
  BackwardGrid(std::int64_t rows, std::int64_t accesses) {
    constexpr std::int64_t kRowsPerBlock = 4, kThreadsOfDevice = 528 * 256;
    while (threads < kLargestNormTeam && threads < accesses) threads *= 2;
    blocks = static_cast<unsigned>(std::min((rows + kRowsPerBlock - 1) / kRowsPerBlock, kThreadsOfDevice / threads));
  }
};

template <class R, bool kCentred>
void run_backward(const KernelCall& call, Backward<typename R::T> b) {
  using T = typename R::T;
  using A = typename R::A;
  constexpr int kSums = kCentred ? 2 : 1;
  Context& context = context_of(call);
  constexpr int kLoopSteps = 4;  // of a thread, at least, where a row is not held
  const BackwardGrid grid(b.rows, R::kIsHeld ? b.d / R::kVector : b.d / kLoopSteps);
  const std::int64_t num_partials = std::max<std::int64_t>(grid.blocks, 1) * kSums * b.d;  // of no rows: zeros
  const Workspace partial(context, num_partials * static_cast<std::int64_t>(sizeof(A)));
  b.partial = partial.as<A>();
  launch(context.stream(), norm_backward_kernel<R, kCentred>,
         {.blocks = grid.blocks, .threads = grid.threads, .shared_bytes = sizeof(TeamScratch<A>)}, b);
  for (int s = 0; s < kSums; ++s)
    column_sums<T>(context.stream(), b.partial + s * b.d, grid.blocks, kSums * b.d, b.d,
                   call.out[static_cast<std::size_t>(s + 1)].mutable_data<T>());
}

template <bool kCentred>
void norm_backward(const KernelCall& call) {
  const Tensor& x = call.in[1];
  const std::int64_t d = x.shape().back(), rows = d == 0 ? 0 : x.numel() / d;
  Context& context = context_of(call);
  const Dense grads(context, call.in[0]), in(context, x), weight(context, call.in[2]);
  const Dense mean(context, kCentred ? call.in[3] : Tensor()), rstd(context, call.in[kCentred ? 4 : 3]);
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using A = Compute<T>;
    const Backward<T> b{grads.data<T>(), in.data<T>(),   weight.data<T>(),
                        mean.data<A>(),  rstd.data<A>(), call.out[0].mutable_data<T>(),
                        nullptr,         rows,           d};
    if constexpr (!std::is_same_v<T, double>) {
      constexpr int kV = kVecElements<T>;
      if (are_aligned(b.grad, b.x, b.weight, b.dx) && d % kV == 0) {
        constexpr int kMost = 16 / kV;
        if (d <= kV * kLargestNormTeam) return run_backward<Row<T, 2, kV, 1>, kCentred>(call, b);
        if (d <= kMost * kV * kLargestNormTeam) return run_backward<Row<T, 2, kV, kMost>, kCentred>(call, b);
      }
    }
    run_backward<Row<T, 2, 1, 0>, kCentred>(call, b);
  });
}

constexpr KernelEntry kNormEntries[] = {
    {op::layer_norm, norm_forward<true>},
    {op::layer_norm_backward, norm_backward<true>},
    {op::rms_norm, norm_forward<false>},
    {op::rms_norm_backward, norm_backward<false>},
};

}  // namespace

void register_norm(OpTable& table) { add_kernels(table, kNormEntries); }

}  // namespace sherd::cuda
