// Gathering elements by index and summing gradients back. An index out of range gives zeros and is reported
// (faults.h). The backward rows sort positions by row first, so that each element of the result is summed by one
// thread, in the order of the index, and written once: no float atomics, no zeroing pass, the bits of the CPU.
#include "runtime/cuda/device/faults.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/copy.h"
#include "runtime/cuda/rows/dense.h"
#include "runtime/cuda/rows/elements.h"
#include "runtime/cuda/rows/row_sort.h"
#include "runtime/cuda/rows/units.h"
#include "runtime/cuda/rows/walk.h"
#include "runtime/op/rows/id_shard.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::cuda {

namespace {

constexpr unsigned kIndexThreads = 256;
constexpr int kIndexItems = 4;

/// A tensor as [outer, entries, inner], the dims begin..end-1 being the entries, each with one stride; a tensor that
/// does not lie so is copied.
class Slices {
 public:
  Slices(Context& context, const Tensor& t, int begin, int end)
      : copies_(!lies_so(t, begin, end)), copy_(context, copies_ ? t.bytes() : 0) {
    const Layout layout = copies_ ? Layout{copy_.data(), contiguous_strides(t.shape())} : layout_of(t);
    if (copies_) strided_copy(context, t.dtype(), t.shape(), layout_of(t), layout);
    data = static_cast<const std::byte*>(layout.data);
    const auto side = [&](int from, int to, std::int64_t& size, std::int64_t& stride) {
      const Walk walk = side_of(t.shape(), layout.strides, from, to);
      size = walk.numel();
      stride = size == 1 ? 0 : walk.stride[0][0];
    };
    side(0, begin, outer, outer_stride);
    side(begin, end, entries, entry_stride);
    side(end, t.ndim(), inner, inner_stride);
    if (inner == 1) inner_stride = 1;
  }
  const std::byte* data;
  std::int64_t outer, entries, inner, outer_stride, entry_stride, inner_stride;

 private:
  static Walk side_of(const Shape& shape, const Strides& strides, int begin, int end) {
    Shape part;
    Strides of_part[1];
    for (int d = begin; d < end; ++d) {
      part.push_back(shape[d]);
      of_part[0].push_back(strides[d]);
    }
    return make_walk(part, of_part);
  }
  static bool lies_so(const Tensor& t, int begin, int end) {
    const auto is_one = [&](int from, int to) { return side_of(t.shape(), t.strides(), from, to).ndim == 1; };
    return is_one(0, begin) && is_one(begin, end) && is_one(end, t.ndim());
  }
  bool copies_;
  Workspace copy_;
};

// ---- gather: x [outer, rows, inner] -> out [outer, entries, inner] ----

struct GatherArgs {
  const void* ids;
  bool wide;
  IdShard rows;
  std::int64_t first_entry;                            // entries of this launch count from first_entry
  std::int64_t outer_stride, row_stride, unit_stride;  // in units
  FastDivide units, entries;
  std::uint32_t count;
  FaultSink faults;
};

template <class U>
__global__ void index_kernel(const U* x, U* out, GatherArgs a) {
  const std::uint32_t first = static_cast<std::uint32_t>(block_index()) * (kIndexThreads * kIndexItems) +
                              static_cast<std::uint32_t>(thread_index());
  U values[kIndexItems];
#pragma unroll
  for (int i = 0; i < kIndexItems; ++i) {
    const std::uint32_t n = first + static_cast<std::uint32_t>(i) * kIndexThreads;
    values[i] = U{};
    if (n >= a.count) continue;
    std::uint32_t unit, entry;
    const std::uint32_t outer = a.entries.divide(a.units.divide(n, unit), entry);
    const std::int64_t id = read_id(a.ids, a.wide, entry);
    if (a.rows.is_here(id)) {
      const U* const row = x + outer * a.outer_stride + (id - a.rows.first) * a.row_stride;
      values[i] = load_vec<1>(row + unit * a.unit_stride)[0];
    } else if (outer == 0 && unit == 0 && !a.rows.exists(id)) {
      report_fault(a.faults, a.first_entry + entry, id, a.rows.total);
    }
  }
#pragma unroll
  for (int i = 0; i < kIndexItems; ++i) {
    const std::uint32_t n = first + static_cast<std::uint32_t>(i) * kIndexThreads;
    if (n < a.count) store_vec(out + n, Vec<U, 1>{values[i]});
  }
}

bool divides(std::int64_t by, std::initializer_list<std::int64_t> values) {
  for (const std::int64_t v : values)
    if (v % by != 0) return false;
  return true;
}
std::int64_t address(const void* p) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p)); }

/// Elements of the widest unit that slices of `inner` dense elements are made of.
std::int64_t elements_of_unit(const Slices& x, const void* out, std::int64_t bytes) {
  if (x.inner_stride != 1) return 1;
  for (std::int64_t unit = 16; unit > bytes; unit /= 2)
    if (divides(unit / bytes, {x.inner, x.outer_stride, x.entry_stride}) &&
        divides(unit, {address(x.data), address(out)}))
      return unit / bytes;
  return 1;
}

void index_rows(const KernelCall& call, int dim, const VocabularyPart& part) {
  const Tensor &index = call.in[1], &out = call.out[0];
  if (out.numel() == 0) return;
  Context& context = context_of(call);
  const Slices x(context, call.in[0], dim, dim + 1);
  const Dense ids(context, index);
  const std::int64_t entries = index.numel(), bytes = byte_size(out.dtype());
  const std::int64_t elements = elements_of_unit(x, out.raw(), bytes), units = x.inner / elements;
  check(units <= kMaxLaunch, "{} of rows of {} elements: kernels take rows of 2^30", call.op.name, x.inner);
  GatherArgs args{};
  args.wide = index.dtype() == DType::i64;
  args.rows = IdShard::part_of(part, x.entries);
  args.outer_stride = x.outer_stride / elements;
  args.row_stride = x.entry_stride / elements;
  args.unit_stride = x.inner_stride;
  args.units = FastDivide(static_cast<std::uint32_t>(units));
  args.faults = context.faults().sink(call.op, "index");
  const auto id_bytes = byte_size(index.dtype());
  // All of it in one launch, or stretches of one outer slice's entries.
  const bool at_once = x.outer * entries * units <= kMaxLaunch;
  const std::int64_t stretch = at_once ? entries : std::max<std::int64_t>(kMaxLaunch / units, 1);
  visit_unit(elements * bytes, [&]<class U>(Type<U>) {
    for (std::int64_t o = 0; o < (at_once ? 1 : x.outer); ++o)
      for (std::int64_t e = 0; e < entries; e += stretch) {
        const std::int64_t here = std::min(stretch, entries - e);
        args.ids = static_cast<const std::byte*>(ids.raw()) + e * id_bytes;
        args.first_entry = e;
        args.entries = FastDivide(static_cast<std::uint32_t>(here));
        args.count = static_cast<std::uint32_t>((at_once ? x.outer : 1) * here * units);
        launch(context.stream(), index_kernel<U>,
               {.blocks = (args.count + kIndexThreads * kIndexItems - 1) / (kIndexThreads * kIndexItems),
                .threads = kIndexThreads},
               reinterpret_cast<const U*>(x.data) + o * args.outer_stride,
               static_cast<U*>(out.raw()) + (o * entries + e) * units, args);
      }
  });
}

// ---- scatter: grad [outer, entries, inner] -> out [outer, rows, inner] ----

struct ScatterArgs {
  const std::uint32_t *starts, *positions;
  std::int64_t outer_stride, entry_stride, inner_stride;
  FastDivide chunks, rows;  // vectors of a row; rows of the launch
  std::uint32_t count;
};

template <class T, int V, bool add>
__global__ void scatter_kernel(const T* grad, T* out, ScatterArgs a) {
  using C = Compute<T>;
  constexpr std::uint32_t kAhead = 4;  // loads in flight
  const auto n = static_cast<std::uint32_t>(grid_thread());
  if (n >= a.count) return;
  std::uint32_t chunk, row;
  const std::uint32_t outer = a.rows.divide(a.chunks.divide(n, chunk), row);
  const std::uint32_t begin = a.starts[row], end = a.starts[row + 1];
  if (add && begin == end) return;
  const T* const from = grad + outer * a.outer_stride + std::int64_t{chunk} * V * a.inner_stride;
  C sum[V] = {};
  std::uint32_t k = begin;
  for (; k + kAhead <= end; k += kAhead) {
    Vec<T, V> values[kAhead];
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) values[i] = load_vec<V>(from + a.positions[k + i] * a.entry_stride);
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i)
#pragma unroll
      for (int j = 0; j < V; ++j) sum[j] = add_rounded(sum[j], to_compute(values[i][j]));
  }
  for (; k < end; ++k) {
    const Vec<T, V> values = load_vec<V>(from + a.positions[k] * a.entry_stride);
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = add_rounded(sum[j], to_compute(values[j]));
  }
  T* const to = out + std::int64_t{n} * V;
  Vec<T, V> result;
  if constexpr (add) result = load_vec<V>(to);
#pragma unroll
  for (int j = 0; j < V; ++j) store_as<add>(&result[j], sum[j]);
  store_vec(to, result);
}

template <class T, int V, bool add>
void launch_scatter(Context& context, const Slices& grad, const RowSort& sorted, std::int64_t rows, T* out) {
  const std::int64_t chunks = grad.inner / V;
  ScatterArgs args{};
  args.positions = sorted.positions();
  args.outer_stride = grad.outer_stride;
  args.entry_stride = grad.entry_stride;
  args.inner_stride = grad.inner_stride;
  args.chunks = FastDivide(static_cast<std::uint32_t>(chunks));
  const bool at_once = grad.outer * rows * chunks <= kMaxLaunch;
  const std::int64_t stretch = at_once ? rows : std::max<std::int64_t>(kMaxLaunch / chunks, 1);
  for (std::int64_t o = 0; o < (at_once ? 1 : grad.outer); ++o)
    for (std::int64_t r = 0; r < rows; r += stretch) {
      const std::int64_t here = std::min(stretch, rows - r);
      args.starts = sorted.starts() + r;
      args.rows = FastDivide(static_cast<std::uint32_t>(here));
      args.count = static_cast<std::uint32_t>((at_once ? grad.outer : 1) * here * chunks);
      launch(context.stream(), scatter_kernel<T, V, add>,
             {.blocks = (args.count + kIndexThreads - 1) / kIndexThreads, .threads = kIndexThreads},
             reinterpret_cast<const T*>(grad.data) + o * grad.outer_stride, out + (o * rows + r) * grad.inner, args);
    }
}

/// The dims begin..end-1 of the gradient belong to the index.
void scatter_sum(const KernelCall& call, int begin, int end, const IdShard& rows) {
  const Tensor &grad = call.in[0], &index = call.in[1], &out = call.out[0];
  if (out.numel() == 0) return;
  Context& context = context_of(call);
  const Dense ids(context, index);
  const RowSort sorted(context, ids.raw(), index.dtype(), index.numel(), rows, context.faults().sink(call.op, "index"));
  const Slices slices(context, grad, begin, end);
  check(slices.inner <= kMaxLaunch, "{} of rows of {} elements: kernels take rows of 2^30", call.op.name, slices.inner);
  visit_dtype(grad.dtype(), [&]<class T>(Type<T>) {
    constexpr int V = kVecElements<T>;
    T* const to = out.mutable_data<T>();
    const auto run = [&]<int width>(std::integral_constant<int, width>) {
      if (call.accumulate) launch_scatter<T, width, true>(context, slices, sorted, rows.here, to);
      else launch_scatter<T, width, false>(context, slices, sorted, rows.here, to);
    };
    const bool vectors = slices.inner_stride == 1 &&
                         divides(V, {slices.inner, slices.outer_stride, slices.entry_stride}) &&
                         divides(16, {address(slices.data), address(to)});
    if (vectors) run(std::integral_constant<int, V>{});
    else run(std::integral_constant<int, 1>{});
  });
}

void embedding(const KernelCall& call) { index_rows(call, 0, call.attrs.as<EmbeddingAttrs>().part); }

void embedding_backward(const KernelCall& call) {
  scatter_sum(call, 0, call.in[1].ndim(), IdShard::part_of(call.attrs.as<EmbeddingAttrs>().part, call.out[0].size(0)));
}

void index_select(const KernelCall& call) { index_rows(call, call.attrs.as<DimAttrs>().dim, {}); }

void index_select_backward(const KernelCall& call) {
  const int dim = call.attrs.as<PadToAttrs>().dim;
  scatter_sum(call, dim, dim + 1, IdShard::all(call.out[0].size(dim)));
}

}  // namespace

void register_index(OpTable& table) {
  static constexpr KernelEntry kEntries[] = {{op::embedding, embedding},
                                             {op::embedding_backward, embedding_backward},
                                             {op::index_select, index_select},
                                             {op::index_select_backward, index_select_backward}};
  add_kernels(table, kEntries);
}

}  // namespace sherd::cuda
