// Multi-tensor optimizer kernels: a table of addresses and counts is the argument of a kernel, so one launch updates
// many tensors and a recorded launch needs nothing of the host. As on the CPU, tensors that follow each other in every
// list are one extent (parameters in one arena). A block takes kBlockElements of one extent; every element is
// independent, hence the bits do not depend on the cuts.
//
// Bytes per element: AdamW reads p, m, v, g and writes p, m, v (28 in f32); SGD with momentum 20; power_sum 1 read.
#include <cmath>
#include <span>
#include <vector>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "runtime/op/rows/optimizer_extents.h"

namespace sherd::cuda {

namespace {

constexpr int kMaxLists = kMaxOptimizerLists;
constexpr int kBatchExtents = 80;  // a Batch stays below the 4 KB that every device takes as arguments
constexpr std::int64_t kBlockElements = kPowerSumBlock;
constexpr unsigned kOptimizerThreads = 256;
constexpr int kV = 4;      // elements per access: 16 bytes of f32
constexpr int kSteps = 2;  // accesses in flight per list and thread

// ---- tables ----

using Extent = OptimizerExtent;

/// Extents of one launch and the running total of their blocks.
struct Batch {
  std::byte* at[kMaxLists][kBatchExtents];
  std::int64_t count[kBatchExtents];
  std::int32_t blocks[kBatchExtents];
  std::int32_t size = 0;
};

/// What one block works on: elements [begin, end) of an extent.
struct Range {
  int extent;
  std::int64_t begin, end;
};

__device__ inline Range range_of_block(const Batch& batch) {
  int low = 0, high = batch.size - 1;  // the first extent whose running total is above the block
  while (low < high) {
    const int middle = (low + high) / 2;
    if (batch.blocks[middle] > block_index()) high = middle;
    else low = middle + 1;
  }
  const int before = low == 0 ? 0 : batch.blocks[low - 1];
  const std::int64_t begin = (block_index() - before) * kBlockElements, count = batch.count[low];
  return {low, begin, begin + kBlockElements < count ? begin + kBlockElements : count};
}

std::int64_t blocks_of(const Extent& e) { return (e.count + kBlockElements - 1) / kBlockElements; }

/// Calls fn(batch, its types as an extent, its blocks) for all extents in order: as many per batch as fit and have the
/// same types.
template <class Fn>
void for_each_batch(std::span<const Extent> extents, const Fn& fn) {
  Batch batch{};
  std::int64_t blocks = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const Extent& e = extents[i];
    const int at = batch.size++;
    for (int l = 0; l < kMaxLists; ++l) batch.at[l][at] = e.at[l];
    batch.count[at] = e.count;
    batch.blocks[at] = static_cast<std::int32_t>(blocks += blocks_of(e));
    const Extent* next = i + 1 < extents.size() ? &extents[i + 1] : nullptr;
    if (next && batch.size < kBatchExtents && next->dtype == e.dtype && next->grad_dtype == e.grad_dtype) continue;
    fn(batch, e, static_cast<unsigned>(blocks));
    batch.size = 0;
    blocks = 0;
  }
}

/// Whether vectors of kV elements of T can be read at p.
template <class T>
__device__ bool is_aligned(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % alignof(Vec<T, kV>) == 0;
}

// ---- update rules ----

/// A 0-d f32 or f64 tensor on the device.
struct Scalar {
  explicit Scalar(const Tensor& t) : at(t.raw()), is_double(t.dtype() == DType::f64) {}
  const void* at;
  bool is_double;
  __device__ double read() const {
    return is_double ? *static_cast<const double*>(at) : double{*static_cast<const float*>(at)};
  }
};

/// Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2.
struct AdamW {
  static constexpr int kStates = 2;
  double keep, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, eps, scale;

  template <class T>
  __device__ void operator()(T& p, T (&state)[kStates], T g) const {
    const T grad = g * static_cast<T>(scale);
    const T m = std::fma(static_cast<T>(beta1), state[0], static_cast<T>(one_minus_beta1) * grad);
    const T v = std::fma(static_cast<T>(beta2), state[1], static_cast<T>(one_minus_beta2) * grad * grad);
    state[0] = m;
    state[1] = v;
    p = std::fma(p, static_cast<T>(keep), -(static_cast<T>(step_size) * m) / (std::sqrt(v) + static_cast<T>(eps)));
  }
};

template <int kNumStates>
struct Sgd {
  static constexpr int kStates = kNumStates;
  double lr, momentum, weight_decay, scale;
  bool nesterov;

  template <class T, int kSize>
  __device__ void operator()(T& p, T (&state)[kSize], T g) const {
    T update = g * static_cast<T>(scale) + static_cast<T>(weight_decay) * p;
    if constexpr (kStates > 0) {
      const T mu = static_cast<T>(momentum), velocity = mu * state[0] + update;
      state[0] = velocity;
      update = nesterov ? update + mu * velocity : velocity;
    }
    p = p - static_cast<T>(lr) * update;
  }
};

// The coefficients are computed once, by one thread: two powers in f64 would cost more than a block's elements.
__global__ void adamw_coefficients_kernel(AdamW* to, double beta1, double beta2, double eps, double weight_decay,
                                          Scalar lr_at, Scalar step_at, Scalar scale) {
  if (thread_index() != 0) return;
  // lr / correction1 * m / (sqrt(v) / root + eps), with root = sqrt(correction2) taken out of the fraction.
  const double lr = lr_at.read(), step = step_at.read();
  const double correction1 = 1 - std::pow(beta1, step), root = std::sqrt(1 - std::pow(beta2, step));
  *to = {1 - lr * weight_decay, beta1, 1 - beta1, beta2, 1 - beta2, lr / correction1 * root, eps * root, scale.read()};
}

template <class Rule>
__global__ void sgd_coefficients_kernel(Rule* to, Rule rule, Scalar lr, Scalar scale) {
  if (thread_index() != 0) return;
  rule.lr = lr.read();
  rule.scale = scale.read();
  *to = rule;
}

// ---- the update ----

template <class Rule, class T, class G>
__global__ void step_kernel(Batch batch, const Rule* rule_at) {
  constexpr int kStates = Rule::kStates, kPlaces = kStates > 0 ? kStates : 1;
  const Rule rule = *rule_at;
  if (!std::isfinite(rule.scale)) return;
  const Range range = range_of_block(batch);
  T* const p = reinterpret_cast<T*>(batch.at[0][range.extent]);
  const G* const g = reinterpret_cast<const G*>(batch.at[kStates + 1][range.extent]);
  T* s[kPlaces];
#pragma unroll
  for (int k = 0; k < kStates; ++k) s[k] = reinterpret_cast<T*>(batch.at[k + 1][range.extent]);

  bool vectors = is_aligned(p) && is_aligned(g);
#pragma unroll
  for (int k = 0; k < kStates; ++k) vectors = vectors && is_aligned(s[k]);
  const std::int64_t apart = std::int64_t{block_threads()} * kV;
  const std::int64_t whole = vectors ? range.begin + (range.end - range.begin) / kV * kV : range.begin;
  for (std::int64_t i = range.begin + thread_index() * kV; i < whole; i += kSteps * apart) {
    Vec<T, kV> values[kSteps], states[kSteps][kPlaces];
    Vec<G, kV> grads[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const std::int64_t at = i + u * apart;
      if (at >= whole) continue;
      values[u] = load_vec<kV, Cache::stream>(p + at);
      grads[u] = load_vec<kV, Cache::stream>(g + at);
#pragma unroll
      for (int k = 0; k < kStates; ++k) states[u][k] = load_vec<kV, Cache::stream>(s[k] + at);
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const std::int64_t at = i + u * apart;
      if (at >= whole) continue;
#pragma unroll
      for (int j = 0; j < kV; ++j) {
        T state[kPlaces];
#pragma unroll
        for (int k = 0; k < kStates; ++k) state[k] = states[u][k][j];
        rule(values[u][j], state, cast<T>(grads[u][j]));
#pragma unroll
        for (int k = 0; k < kStates; ++k) states[u][k][j] = state[k];
      }
      store_vec<Cache::stream>(p + at, values[u]);
#pragma unroll
      for (int k = 0; k < kStates; ++k) store_vec<Cache::stream>(s[k] + at, states[u][k]);
    }
  }
  for (std::int64_t at = whole + thread_index(); at < range.end; at += block_threads()) {
    T state[kPlaces];
#pragma unroll
    for (int k = 0; k < kStates; ++k) state[k] = s[k][at];
    T value = p[at];
    rule(value, state, cast<T>(g[at]));
    p[at] = value;
#pragma unroll
    for (int k = 0; k < kStates; ++k) s[k][at] = state[k];
  }
}

template <class Rule>
void update(const KernelCall& call, std::size_t n, const Rule* rule) {
  const cudaStream_t stream = context_of(call).stream();
  const auto with_grad = [&]<class T>(const Batch& batch, unsigned blocks, DType grad, Type<T>) {
    visit_floating(grad, [&]<class G>(Type<G>) {
      launch(stream, step_kernel<Rule, T, G>, {.blocks = blocks, .threads = kOptimizerThreads}, batch, rule);
    });
  };
  for_each_batch(optimizer_extents(call.in, n, Rule::kStates + 2),
                 [&](const Batch& batch, const Extent& types, unsigned blocks) {
                   if (types.dtype == DType::f64) with_grad(batch, blocks, types.grad_dtype, Type<double>{});
                   else with_grad(batch, blocks, types.grad_dtype, Type<float>{});
                 });
}

void adamw(const KernelCall& call) {
  const auto& a = call.attrs.as<AdamWAttrs>();
  const auto n = static_cast<std::size_t>(a.count);
  Context& context = context_of(call);
  const Workspace rule(context, sizeof(AdamW));
  launch(context.stream(), adamw_coefficients_kernel, {.threads = kWarp}, rule.as<AdamW>(), a.beta1, a.beta2, a.eps,
         a.weight_decay, Scalar(call.in[4 * n]), Scalar(call.in[4 * n + 1]), Scalar(call.in[4 * n + 2]));
  update(call, n, rule.as<const AdamW>());
}

template <int kStates>
void sgd_with(const KernelCall& call) {
  using Rule = Sgd<kStates>;
  const auto& a = call.attrs.as<SgdAttrs>();
  const auto n = static_cast<std::size_t>(a.count), scalars = (kStates + 2) * n;
  Context& context = context_of(call);
  const Workspace rule(context, sizeof(Rule));
  launch(context.stream(), sgd_coefficients_kernel<Rule>, {.threads = kWarp}, rule.as<Rule>(),
         Rule{0, a.momentum, a.weight_decay, 0, a.nesterov}, Scalar(call.in[scalars]), Scalar(call.in[scalars + 1]));
  update(call, n, rule.as<const Rule>());
}

void sgd(const KernelCall& call) {
  if (call.attrs.as<SgdAttrs>().momentum != 0) sgd_with<1>(call);
  else sgd_with<0>(call);
}

// ---- counts of steps ----

/// The 0-d f32 or f64 tensors of one launch.
struct Counts {
  void* at[kBatchExtents];
  bool is_double[kBatchExtents];
  std::int32_t size = 0;
};

__global__ void count_step_kernel(Counts counts, Scalar scale) {
  if (!std::isfinite(scale.read())) return;
  for (int i = thread_index(); i < counts.size; i += block_threads())
    if (counts.is_double[i]) *static_cast<double*>(counts.at[i]) += 1;
    else *static_cast<float*>(counts.at[i]) += 1;
}

void count_step(const KernelCall& call) {
  const auto n = static_cast<std::size_t>(call.attrs.as<CountStepAttrs>().count);
  const cudaStream_t stream = context_of(call).stream();
  for (std::size_t i = 0; i < n;) {
    Counts counts{};
    for (; i < n && counts.size < kBatchExtents; ++i) {
      counts.at[counts.size] = call.in[i].raw_to_write();
      counts.is_double[counts.size++] = call.in[i].dtype() == DType::f64;
    }
    launch(stream, count_step_kernel, {.threads = kWarp}, counts, Scalar(call.in[n]));
  }
}

// ---- sum of powers: a partial sum per block in f64, then one block adds the partials in order ----

struct PowerScratch {
  double values[kWarp];
};

template <bool kSquare>
struct Power {
  double p;
  __device__ double operator()(double x) const {
    if constexpr (kSquare) return x * x;
    const double a = std::fabs(x);
    return p == 1 || std::isinf(p) ? a : p == 3 ? a * a * a : std::pow(a, p);
  }
  __device__ double fold(double a, double b) const {
    if constexpr (kSquare) return a + b;
    return std::isinf(p) ? MaxOf{}(a, b) : a + b;
  }
};

template <class T, bool kSquare>
__global__ void power_sum_kernel(Batch batch, Power<kSquare> power, double* partials) {
  auto& scratch = shared<PowerScratch>();
  const Range range = range_of_block(batch);
  const T* const x = reinterpret_cast<const T*>(batch.at[0][range.extent]);
  const auto fold = [power](double a, double b) { return power.fold(a, b); };
  constexpr int kLoads = 4;
  double total = 0;
  const std::int64_t apart = std::int64_t{block_threads()} * kV;
  const std::int64_t whole = is_aligned(x) ? range.begin + (range.end - range.begin) / kV * kV : range.begin;
  for (std::int64_t i = range.begin + thread_index() * kV; i < whole; i += kLoads * apart) {
    Vec<T, kV> values[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      if (i + u * apart < whole) values[u] = load_vec<kV, Cache::stream>(x + i + u * apart);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      if (i + u * apart >= whole) continue;
#pragma unroll
      for (int j = 0; j < kV; ++j) total = fold(total, power(cast<double>(values[u][j])));
    }
  }
  for (std::int64_t i = whole + thread_index(); i < range.end; i += block_threads())
    total = fold(total, power(cast<double>(x[i])));
  total = block_fold(total, 0.0, scratch.values, fold);
  if (thread_index() == 0) partials[block_index()] = total;
}

template <bool kSquare>
__global__ void power_total_kernel(const double* partials, std::int64_t n, Power<kSquare> power, const double* before,
                                   double* out) {
  auto& scratch = shared<PowerScratch>();
  const auto fold = [power](double a, double b) { return power.fold(a, b); };
  double total = 0;
#pragma unroll 8
  for (std::int64_t i = thread_index(); i < n; i += block_threads()) total = fold(total, partials[i]);
  total = block_fold(total, 0.0, scratch.values, fold);
  if (thread_index() == 0) *out = before ? power.fold(*before, total) : total;
}

template <bool kSquare>
void power_sum_of(const KernelCall& call, std::span<const Tensor> tensors, const double* before, Power<kSquare> power) {
  std::vector<Extent> extents;
  std::int64_t blocks = 0;
  for (const Tensor& t : tensors) {
    if (!t.is_contiguous()) fail("power_sum of {} needs dense tensors", describe(t));
    if (t.numel() == 0) continue;
    extents.push_back({{static_cast<std::byte*>(t.raw())}, t.numel(), t.dtype(), t.dtype()});
    blocks += blocks_of(extents.back());
  }
  Context& context = context_of(call);
  const Workspace partials(context, blocks * static_cast<std::int64_t>(sizeof(double)));
  auto* to = partials.as<double>();
  for_each_batch(extents, [&](const Batch& batch, const Extent& types, unsigned batch_blocks) {
    visit_dtype(types.dtype, [&]<class T>(Type<T>) {
      if constexpr (is_floating(dtype_of<T>))
        launch(context.stream(), power_sum_kernel<T, kSquare>,
               {.blocks = batch_blocks, .threads = kOptimizerThreads, .shared_bytes = sizeof(PowerScratch)}, batch,
               power, to);
    });
    to += batch_blocks;
  });
  launch(context.stream(), power_total_kernel<kSquare>, {.threads = 1024, .shared_bytes = sizeof(PowerScratch)},
         partials.as<const double>(), blocks, power, before, call.out[0].mutable_data<double>());
}

void power_sum_of(const KernelCall& call, std::span<const Tensor> tensors, const double* before) {
  const double p = call.attrs.as<PowerSumAttrs>().p;
  if (p == 2) power_sum_of<true>(call, tensors, before, {p});
  else power_sum_of<false>(call, tensors, before, {p});
}
void power_sum(const KernelCall& call) { power_sum_of(call, call.in, nullptr); }
void power_sum_from(const KernelCall& call) {
  power_sum_of(call, call.in.subspan(1), call.in[0].defined() ? call.in[0].data<double>() : nullptr);
}

constexpr KernelEntry kOptimizerEntries[] = {{op::adamw, adamw},
                                             {op::sgd, sgd},
                                             {op::count_step, count_step},
                                             {op::power_sum, power_sum},
                                             {op::power_sum_from, power_sum_from}};

}  // namespace

void register_optimizer(OpTable& table) { add_kernels(table, kOptimizerEntries); }

}  // namespace sherd::cuda
