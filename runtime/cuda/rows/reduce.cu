// Reductions. As on the CPU, a few elements are combined in the compute type and the rest in a wide one (f64 or i64);
// the order is fixed by shapes and strides (reduce_plan.h). A result that is cut into parts gets them from a second
// kernel, in order.
//
// Bytes: the input once; partial results are less than 1 % of it. Sums, maxima and minima of f32, bf16 and f16 read
// vectors of 16 bytes, four in flight per thread; all else one element at a time, whose neighbours are other threads'.
// var reads its input twice, for the mean and then for the squares of what is left: rows, whose team finds them in the
// cache the second time, in one kernel; columns and rows in parts in two.
#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/copy.h"
#include "runtime/cuda/rows/reduce_device.h"
#include "runtime/cuda/rows/row_team.h"
#include "runtime/op/rows/folds.h"
#include "runtime/op/rows/reduce_attrs.h"

namespace sherd::cuda {

namespace {

template <class C>
using Wide = std::conditional_t<std::is_floating_point_v<C>, double, std::int64_t>;

// ---- what is combined ----

using namespace folds;

/// Whether its elements are read as vectors where that can be.
template <class R>
constexpr bool kVectors = std::is_same_v<R, Sum> || std::is_same_v<R, Largest> || std::is_same_v<R, Smallest>;

/// A fold that is chosen when the kernel runs: for elements of any dtype, where reading decides the time.
struct Chosen {
  enum class Kind { product, largest, smallest, any, all };
  Kind kind;
  template <class T>
  __device__ T identity() const {
    switch (kind) {
      case Kind::product: return Product::identity<T>();
      case Kind::largest: return Largest::identity<T>();
      case Kind::smallest: return Smallest::identity<T>();
      case Kind::any: return Any::identity<T>();
      default: return All::identity<T>();
    }
  }
  template <class T>
  __device__ T combine(T a, T b) const {
    switch (kind) {
      case Kind::product: return Product::combine(a, b);
      case Kind::largest: return Largest::combine(a, b);
      case Kind::smallest: return Smallest::combine(a, b);
      case Kind::any: return Any::combine(a, b);
      default: return All::combine(a, b);
    }
  }
};

template <class R>
struct Combine {
  R r;
  template <class T>
  __device__ T operator()(T a, T b) const {
    return r.combine(a, b);
  }
};

// ---- writing ----

template <class T>
__device__ T add_rounded(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(pointwise::plus(std::int64_t{a}, std::int64_t{b}));
  else if constexpr (std::is_floating_point_v<T>) return a + b;
  else return cast<T>(cast<float>(a) + cast<float>(b));
}

template <class T, class W>
__device__ void put_as(void* out, std::int64_t at, W value, bool accumulate) {
  T* const to = static_cast<T*>(out) + at;
  T rounded = cast<T>(value);
  if constexpr (!std::is_same_v<T, bool>)
    if (accumulate) rounded = add_rounded(*to, rounded);
  *to = rounded;
}

/// Where results go: to the output, or to the parts in the order [result, part].
template <class W>
struct Sink {
  void* out;
  DType dtype;
  bool accumulate;
  double divisor;
  IndexWalk where;
  W* partial;
  std::int64_t parts;

  __device__ void put(std::int64_t result, std::int64_t part, W value) const {
    if (parts > 1) partial[result * parts + part] = value;
    else write(result, value);
  }
  __device__ void write(std::int64_t result, W value) const {
    if constexpr (std::is_floating_point_v<W>)
      if (divisor != 1) value /= divisor;
    const std::int64_t at = where.offset(result);
    switch (dtype) {
      case DType::f64: return put_as<double>(out, at, value, accumulate);
      case DType::f32: return put_as<float>(out, at, value, accumulate);
      case DType::bf16: return put_as<bf16>(out, at, value, accumulate);
      case DType::f16: return put_as<f16>(out, at, value, accumulate);
      case DType::i64: return put_as<std::int64_t>(out, at, value, accumulate);
      case DType::i32: return put_as<std::int32_t>(out, at, value, accumulate);
      case DType::u8: return put_as<std::uint8_t>(out, at, value, accumulate);
      case DType::boolean: return put_as<bool>(out, at, value, accumulate);
    }
  }
};

// ---- what of an element is combined ----

struct Itself {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
  __device__ Itself of_result(std::int64_t) const { return {}; }
};

/// The square of the distance from a mean, in f64.
struct SquareFrom {
  double mean;
  template <class T>
  __device__ double operator()(T x) const {
    const double apart = static_cast<double>(x) - mean;
    return apart * apart;
  }
  __device__ SquareFrom of_result(std::int64_t) const { return *this; }
};
/// The same where every result's mean is in memory.
struct SquareFromMeans {
  const double* means;
  IndexWalk where;
  __device__ SquareFrom of_result(std::int64_t result) const { return {means[where.offset(result)]}; }
};

// ---- kernels ----

/// Combines items begin, begin + apart, ... before end of one result into `total`, kLoads at a time.
template <class R, class Reader, class Term, class W, int kN>
__device__ void combine_items(const R& r, const Reader& reader, const Term& term, const IndexWalk& reduced,
                              std::int64_t base, std::int64_t begin, std::int64_t end, int apart, W (&total)[kN]) {
  using C = typename Reader::C;
  using Few = decltype(term(C{}));
  for (std::int64_t i = begin; i < end; i += std::int64_t{kLoads} * apart) {
    std::int64_t at[kLoads];
    C values[kLoads][kN];
    const std::int64_t left = (end - i + apart - 1) / apart;
    const int count = left < kLoads ? static_cast<int>(left) : kLoads;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) at[u] = u < count ? base + reduced.offset(i + std::int64_t{u} * apart) : base;
    reader.read(at, count, values);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      Few few = r.template identity<Few>();
#pragma unroll
      for (int u = 0; u < kLoads; ++u)
        if (u < count) few = r.combine(few, term(values[u][j]));
      total[j] = r.combine(total[j], static_cast<W>(few));
    }
  }
}

/// Total of one part of a result's items, in every thread of the team. Teams without a result take part.
template <class R, class W, class Reader, class Terms>
__device__ W team_total(const R& r, const Reader& reader, const Terms& terms, const Work& work, std::int64_t result,
                        std::int64_t part, Team team, W* scratch) {
  constexpr int kN = Reader::kN;
  W totals[kN];
#pragma unroll
  for (int j = 0; j < kN; ++j) totals[j] = r.template identity<W>();
  if (result < work.results) {
    const auto term = terms.of_result(result);
    const std::int64_t base = work.kept.offset(result), begin = part * work.items_per_part;
    const std::int64_t end = begin + work.items_per_part < work.items ? begin + work.items_per_part : work.items;
    combine_items(r, reader, term, work.reduced, base, begin + team.rank(), end, team.size, totals);
    if (part == work.parts - 1)
      for (std::int64_t t = team.rank(); t < work.tail; t += team.size)
        totals[0] = r.combine(totals[0], static_cast<W>(term(reader.one(base + work.items * kN + t))));
  }
#pragma unroll
  for (int j = 1; j < kN; ++j) totals[0] = r.combine(totals[0], totals[j]);
  return team.fold(totals[0], r.template identity<W>(), scratch, Combine<R>{r});
}

template <class R, class Reader, class Terms>
__global__ void reduce_rows_kernel(R r, Reader reader, Terms terms, Work work, Sink<Wide<typename Reader::C>> sink) {
  using W = Wide<typename Reader::C>;
  auto& scratch = shared<TeamScratch<W>>();
  const Team team{work.team};
  const std::int64_t result = team.row() / work.parts, part = team.row() % work.parts;
  const W total = team_total(r, reader, terms, work, result, part, team, scratch.values);
  if (result < work.results && team.rank() == 0) sink.put(result, part, total);
}

/// Rows that are not cut into parts: both sums of a row by one team.
template <class Reader>
__global__ void var_rows_kernel(Reader reader, Work work, Sink<double> means, Sink<double> variances) {
  auto& scratch = shared<TeamScratch<double>>();
  const Team team{work.team};
  const std::int64_t result = team.row();
  const double sum = team_total(Sum{}, reader, Itself{}, work, result, 0, team, scratch.values);
  const SquareFrom square{sum / means.divisor};
  const double total = team_total(Sum{}, reader, square, work, result, 0, team, scratch.values);
  if (result >= work.results || team.rank() != 0) return;
  means.write(result, sum);
  variances.write(result, total);
}

template <class W, int kN>
struct ColumnScratch {
  W values[ReducePlan::kBlock][kN];
};

template <class R, class Reader, class Terms>
__global__ void reduce_columns_kernel(R r, Reader reader, Terms terms, Work work, Sink<Wide<typename Reader::C>> sink) {
  using W = Wide<typename Reader::C>;
  constexpr int kN = Reader::kN;
  auto& scratch = shared<ColumnScratch<W, kN>>();
  const int lane_id = thread_index() & (work.lanes - 1), group = thread_index() / work.lanes;
  const int groups = block_threads() / work.lanes;
  const std::int64_t outers = work.results / work.inner;
  const std::int64_t tile = block_index() % work.tiles, rest = block_index() / work.tiles;
  const std::int64_t outer = rest % outers, part = rest / outers;
  const std::int64_t column = (tile * work.lanes + lane_id) * kN;
  const std::int64_t result = outer * work.inner + column;
  W(&totals)[kN] = scratch.values[thread_index()];
  {
    W mine[kN];
#pragma unroll
    for (int j = 0; j < kN; ++j) mine[j] = r.template identity<W>();
    if (column < work.inner) {
      const std::int64_t begin = part * work.items_per_part;
      const std::int64_t end = begin + work.items_per_part < work.items ? begin + work.items_per_part : work.items;
      combine_items(r, reader, terms.of_result(result), work.reduced, work.kept.offset(result), begin + group, end,
                    groups, mine);
    }
#pragma unroll
    for (int j = 0; j < kN; ++j) totals[j] = mine[j];
  }
  for (int half = groups / 2; half > 0; half /= 2) {
    sync_block();
    if (group >= half) continue;
#pragma unroll
    for (int j = 0; j < kN; ++j)
      totals[j] = r.combine(totals[j], scratch.values[thread_index() + half * work.lanes][j]);
  }
  if (group == 0 && column < work.inner)
#pragma unroll 1
    for (int j = 0; j < kN; ++j) sink.put(result + j, part, totals[j]);
}

/// The parts of every result in order: a team per result.
template <class R, class W>
__global__ void combine_parts_kernel(R r, Sink<W> sink, std::int64_t results, int team_size) {
  auto& scratch = shared<TeamScratch<W>>();
  const Team team{team_size};
  const std::int64_t result = team.row();
  W total = r.template identity<W>();
  if (result < results)
    for (std::int64_t p = team.rank(); p < sink.parts; p += team.size)
      total = r.combine(total, sink.partial[result * sink.parts + p]);
  total = team.fold(total, r.template identity<W>(), scratch.values, Combine<R>{r});
  if (result < results && team.rank() == 0) sink.write(result, total);
}

// ---- calls ----

/// Where results go, and what floats are divided by first.
struct Target {
  void* data;
  DType dtype;
  bool accumulate = false;
  double divisor = 1;
};
Target target_of(const KernelCall& call, double divisor = 1) {
  return {call.out[0].raw(), call.out[0].dtype(), call.accumulate, divisor};
}

template <class R, class Reader, class Terms = Itself>
void run(Context& context, const ReducePlan& plan, R r, const Reader& reader, const Target& to,
         const Terms& terms = {}) {
  using W = Wide<typename Reader::C>;
  const Workspace partial(context, plan.parts > 1 ? plan.results * plan.parts * std::int64_t{sizeof(W)} : 0);
  const Sink<W> sink{to.data, to.dtype, to.accumulate, to.divisor, plan.out, partial.as<W>(), plan.parts};
  if (plan.columns)
    launch(context.stream(), reduce_columns_kernel<R, Reader, Terms>,
           {.blocks = plan.blocks, .shared_bytes = sizeof(ColumnScratch<W, Reader::kN>)}, r, reader, terms, Work(plan),
           sink);
  else
    launch(context.stream(), reduce_rows_kernel<R, Reader, Terms>,
           {.blocks = plan.blocks, .threads = plan.threads, .shared_bytes = sizeof(TeamScratch<W>)}, r, reader, terms,
           Work(plan), sink);
  if (plan.parts == 1) return;
  const TeamGrid grid = team_grid(plan.results, plan.parts, 1, ReducePlan::kBlock);
  launch(context.stream(), combine_parts_kernel<R, W>,
         {.blocks = grid.blocks, .threads = grid.threads, .shared_bytes = sizeof(TeamScratch<W>)}, r, sink,
         plan.results, grid.team);
}

template <class R, class T>
bool run_by_vectors(const KernelCall& call, std::uint64_t mask, bool mean) {
  const Tensor& x = call.in[0];
  constexpr int kN = kVecElements<T>;
  if (reinterpret_cast<std::uintptr_t>(x.raw()) % 16 != 0) return false;
  const ReducePlan plan = plan_reduction(x.shape(), x.strides(), mask, kN);
  if (plan.vector != kN) return false;
  run(context_of(call), plan, R{}, VectorReader<T>{x.data<T>()},
      target_of(call, mean ? static_cast<double>(plan.count) : 1));
  return true;
}

/// Reduces the dims of `mask`: R where vectors can be read, `any` (R, or a Chosen that does the same) elsewhere.
template <class R, class AnyR>
void reduce(const KernelCall& call, std::uint64_t mask, AnyR any, bool mean = false) {
  const Tensor& x = call.in[0];
  if (call.out[0].numel() == 0) return;
  if constexpr (kVectors<R>) {
    if (x.dtype() == DType::f32 && run_by_vectors<R, float>(call, mask, mean)) return;
    if (x.dtype() == DType::bf16 && run_by_vectors<R, bf16>(call, mask, mean)) return;
    if (x.dtype() == DType::f16 && run_by_vectors<R, f16>(call, mask, mean)) return;
  }
  const ReducePlan plan = plan_reduction(x.shape(), x.strides(), mask, 1);
  const Target to = target_of(call, mean ? static_cast<double>(plan.count) : 1);
  if (x.dtype() == DType::f64) run(context_of(call), plan, any, AnyReader<double>{x.raw(), x.dtype()}, to);
  else if (is_floating(x.dtype())) run(context_of(call), plan, any, AnyReader<float>{x.raw(), x.dtype()}, to);
  else run(context_of(call), plan, any, AnyReader<std::int64_t>{x.raw(), x.dtype()}, to);
}

std::uint64_t dims_of(const KernelCall& call) { return call.attrs.as<ReduceAttrs>().dims; }

template <class R, Chosen::Kind kKind>
void over_dims(const KernelCall& call) {
  reduce<R>(call, dims_of(call), Chosen{kKind});
}

void sum(const KernelCall& call) { reduce<Sum>(call, dims_of(call), Sum{}); }
void mean(const KernelCall& call) { reduce<Sum>(call, dims_of(call), Sum{}, true); }

void sum_to(const KernelCall& call) {
  const Shape &from = call.in[0].shape(), &to = call.attrs.as<SumToAttrs>().shape;
  const int lead = from.size() - to.size();
  std::uint64_t mask = 0;
  for (int d = 0; d < from.size(); ++d)
    if (d < lead || to[d - lead] == 1) mask |= std::uint64_t{1} << d;
  reduce<Sum>(call, mask, Sum{});
}

/// What the sums of var are divided by.
double mean_divisor(const ReducePlan& plan) { return static_cast<double>(plan.count); }
double variance_divisor(const ReducePlan& plan, const VarAttrs& attrs) {
  const auto left = static_cast<double>(plan.count - attrs.correction);
  return left > 0 ? left : std::numeric_limits<double>::quiet_NaN();
}

template <class Reader>
bool var_by_rows(const KernelCall& call, const ReducePlan& plan, const Reader& reader) {
  if (plan.columns || plan.parts > 1 || plan.vector != Reader::kN) return false;
  const auto sink = [&](const Tensor& to, double divisor) {
    return Sink<double>{to.raw(), to.dtype(), false, divisor, plan.out, nullptr, 1};
  };
  launch(context_of(call).stream(), var_rows_kernel<Reader>,
         {.blocks = plan.blocks, .threads = plan.threads, .shared_bytes = sizeof(TeamScratch<double>)}, reader,
         Work(plan), sink(call.out[1], mean_divisor(plan)),
         sink(call.out[0], variance_divisor(plan, call.attrs.as<VarAttrs>())));
  return true;
}

template <class T>
bool var_by_vectors(const KernelCall& call) {
  const Tensor& x = call.in[0];
  if (x.dtype() != dtype_of<T> || reinterpret_cast<std::uintptr_t>(x.raw()) % 16 != 0) return false;
  const ReducePlan plan =
      plan_reduction(x.shape(), x.strides(), call.attrs.as<VarAttrs>().reduce.dims, VectorReader<T>::kN);
  return var_by_rows(call, plan, VectorReader<T>{x.data<T>()});
}

template <class C>
void var_of(const KernelCall& call) {
  Context& context = context_of(call);
  const Tensor &x = call.in[0], &mean = call.out[1];
  const auto& attrs = call.attrs.as<VarAttrs>();
  const ReducePlan plan = plan_reduction(x.shape(), x.strides(), attrs.reduce.dims, 1);
  const AnyReader<C> elements{x.raw(), x.dtype()};
  if (var_by_rows(call, plan, elements)) return;
  const Workspace means(context, plan.results * static_cast<std::int64_t>(sizeof(double)));
  run(context, plan, Sum{}, elements, {.data = means.data(), .dtype = DType::f64, .divisor = mean_divisor(plan)});
  run(context, plan, Sum{}, elements, target_of(call, variance_divisor(plan, attrs)),
      SquareFromMeans{means.as<const double>(), plan.out});
  strided_convert(context, mean.shape(), DType::f64, {means.data(), mean.strides()}, mean.dtype(), layout_of(mean),
                  false);
}

void var(const KernelCall& call) {
  if (call.out[0].numel() == 0) return;
  if (var_by_vectors<float>(call) || var_by_vectors<bf16>(call) || var_by_vectors<f16>(call)) return;
  if (call.in[0].dtype() == DType::f64) var_of<double>(call);
  else var_of<float>(call);
}

constexpr KernelEntry kReduceEntries[] = {
    {op::var, var},
    {op::sum, sum},
    {op::sum_to, sum_to},
    {op::mean, mean},
    {op::max, over_dims<Largest, Chosen::Kind::largest>},
    {op::min, over_dims<Smallest, Chosen::Kind::smallest>},
    {op::prod, over_dims<Product, Chosen::Kind::product>},
    {op::any, over_dims<Any, Chosen::Kind::any>},
    {op::all, over_dims<All, Chosen::Kind::all>},
};

}  // namespace

void register_reduce(OpTable& table) { add_kernels(table, kReduceEntries); }

}  // namespace sherd::cuda
