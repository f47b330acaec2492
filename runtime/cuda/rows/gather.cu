// Rows with an index per element. An index out of range reads zero, writes nothing and is reported (faults.h). Several
// entries of a line may name one place; then one thread does the work of all, in their order, so there are no float
// atomics and the bits are the CPU's:
//
//   short lines   a thread per entry compares it with its line; the first one (or the last, for scatter) does the work
//   long lines    entries sorted by place (row_sort.h), then a thread per place
#include "runtime/cuda/device/faults.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/copy.h"
#include "runtime/cuda/rows/dense.h"
#include "runtime/cuda/rows/elements.h"
#include "runtime/cuda/rows/row_sort.h"
#include "runtime/cuda/rows/units.h"
#include "runtime/cuda/rows/walk.h"
#include "runtime/op/rows/gather.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::cuda {

namespace {

constexpr unsigned kGatherThreads = 256;
constexpr std::int64_t kShortLine = 64;

/// The entries of an index, those of one launch, and the tensor whose places along `dim` they name.
struct Entries {
  const void* ids;
  bool wide;
  Offsets<4> offsets;  // in the index, its row-major position, the tensor but for `dim`, the number in its line
  std::int64_t base[4];
  std::int64_t length, id_step, position_step;  // of a line
  std::int64_t rows, row_step;                  // of the tensor
  std::uint32_t count;
  FaultSink faults;

  struct Entry {
    std::int64_t offset, position, line, number, id;
  };
  __device__ Entry at(std::uint32_t n) const {
    std::int64_t to[4];
    offsets.at(n, to);
    const std::int64_t offset = base[0] + to[0];
    return {offset, base[1] + to[1], base[2] + to[2], base[3] + to[3], read_id(ids, wide, offset)};
  }
  /// The id of another entry of the line.
  __device__ std::int64_t id_of(const Entry& e, std::int64_t number) const {
    return read_id(ids, wide, e.offset + (number - e.number) * id_step);
  }
  __device__ bool names_row(const Entry& e) const { return e.id >= 0 && e.id < rows; }
  __device__ void report(const Entry& e) const { report_fault(faults, e.position, e.id, rows); }
};

/// Calls fn(entries, grid) for parts of the index that one launch takes. `strides` and `rows` are the tensor's.
template <class Fn>
void for_each_launch(const KernelCall& call, const Tensor& index, int dim, const Strides& strides, std::int64_t rows,
                     const Fn& fn) {
  Strides operands[] = {index.strides(), contiguous_strides(index.shape()), strides, Dims::filled(index.ndim(), 0)};
  operands[2][dim] = 0;
  operands[3][dim] = 1;
  Entries entries{};
  entries.ids = index.raw();
  entries.wide = index.dtype() == DType::i64;
  entries.length = index.size(dim);
  entries.id_step = operands[0][dim];
  entries.position_step = operands[1][dim];
  entries.rows = rows;
  entries.row_step = strides[dim];
  entries.faults = context_of(call).faults().sink(call.op, "index");
  for_each_part(make_walk(index.shape(), operands), kMaxLaunch, [&](const Walk& part) {
    entries.offsets = Offsets<4>(part, 0);
    for (int k = 0; k < 4; ++k) entries.base[k] = part.base[k];
    entries.count = static_cast<std::uint32_t>(part.numel());
    fn(entries, Grid{.blocks = (entries.count + kGatherThreads - 1) / kGatherThreads, .threads = kGatherThreads});
  });
}

// ---- gather ----

template <class U>
__global__ void gather_kernel(const U* x, U* out, Entries entries) {
  const auto n = static_cast<std::uint32_t>(grid_thread());
  if (n >= entries.count) return;
  const Entries::Entry e = entries.at(n);
  const bool names_row = entries.names_row(e);
  out[e.position] = names_row ? x[e.line + e.id * entries.row_step] : U{};
  if (!names_row) entries.report(e);
}

void gather(const KernelCall& call) {
  const Tensor &x = call.in[0], &index = call.in[1], &out = call.out[0];
  const int dim = call.attrs.as<DimAttrs>().dim;
  visit_unit(byte_size(x.dtype()), [&]<class U>(Type<U>) {
    for_each_launch(call, index, dim, x.strides(), x.size(dim), [&](const Entries& entries, const Grid& grid) {
      launch(context_of(call).stream(), gather_kernel<U>, grid, static_cast<const U*>(x.raw()),
             static_cast<U*>(out.raw()), entries);
    });
  });
}

// ---- scatter ----

enum class Mode {
  write,  ///< places take the source's last element
  add,    ///< places take the sum of what they hold and the source's elements
  split,  ///< the derivative of write: what a place holds goes to the last entry, zero stays
};

/// Work of one place, whose entries' positions are given in order.
template <Mode mode, class T>
struct Place {
  T* place;
  const T* source;
  T* written;  // of split, by position
  Compute<T> sum{};

  __device__ void begin() {
    if constexpr (mode == Mode::add) sum = to_compute(*place);
  }
  __device__ void entry(std::int64_t position, bool is_last) {
    if constexpr (mode == Mode::add) sum = add_rounded(sum, to_compute(source[position]));
    if constexpr (mode == Mode::write)
      if (is_last) *place = source[position];
    if constexpr (mode == Mode::split) {
      written[position] = is_last ? *place : T{};
      if (is_last) *place = T{};
    }
  }
  __device__ void end() {
    if constexpr (mode == Mode::add) *place = from_compute<T>(sum);
  }
};

template <Mode mode, class T>
__global__ void short_lines_kernel(T* out, const T* source, T* written, Entries entries) {
  const auto n = static_cast<std::uint32_t>(grid_thread());
  if (n >= entries.count) return;
  const Entries::Entry e = entries.at(n);
  if (!entries.names_row(e)) {
    entries.report(e);
    if (mode == Mode::split) written[e.position] = T{};
    return;
  }
  Place<mode, T> place{out + e.line + e.id * entries.row_step, source, written};
  if constexpr (mode == Mode::add) {
    for (std::int64_t j = 0; j < e.number; ++j)
      if (entries.id_of(e, j) == e.id) return;
    place.begin();
    for (std::int64_t j = e.number; j < entries.length; ++j)
      if (entries.id_of(e, j) == e.id) place.entry(e.position + (j - e.number) * entries.position_step, false);
    place.end();
  } else {
    bool is_last = true;
    for (std::int64_t j = e.number + 1; j < entries.length; ++j) is_last = is_last && entries.id_of(e, j) != e.id;
    place.entry(e.position, is_last);
  }
}

/// Places as numbers of the dense result; one beyond the last for entries without.
__global__ void number_places(std::int32_t* numbers, std::int32_t none, Entries entries) {
  const auto n = static_cast<std::uint32_t>(grid_thread());
  if (n >= entries.count) return;
  const Entries::Entry e = entries.at(n);
  const bool names_row = entries.names_row(e);
  numbers[e.position] = names_row ? static_cast<std::int32_t>(e.line + e.id * entries.row_step) : none;
  if (!names_row) entries.report(e);
}

template <Mode mode, class T>
__global__ void places_kernel(T* out, const T* source, T* written, const std::uint32_t* starts,
                              const std::uint32_t* positions, std::int64_t places) {
  const std::int64_t n = grid_thread();
  if (n >= places) return;
  const std::uint32_t begin = starts[n], end = starts[n + 1];
  if (begin == end) return;
  Place<mode, T> place{out + n, source, written};
  place.begin();
  for (std::uint32_t k = begin; k < end; ++k) place.entry(positions[k], k + 1 == end);
  place.end();
}

/// `out` is dense and holds what places hold before; `source` and `written` are dense as the index would be.
template <Mode mode, class T>
void scatter_into(const KernelCall& call, const Tensor& index, int dim, const Tensor& out, const void* source,
                  void* written) {
  Context& context = context_of(call);
  T* const to = static_cast<T*>(out.raw());
  const auto* const from = static_cast<const T*>(source);
  T* const apart = static_cast<T*>(written);
  const std::int64_t places = out.numel(), count = index.numel();
  // What does not fit the sort is done entry by entry too, slowly.
  constexpr std::int64_t kSortable = std::int64_t{1} << 31;
  if (index.size(dim) <= kShortLine || places + 1 >= kSortable || count >= kSortable)
    return for_each_launch(call, index, dim, out.strides(), out.size(dim),
                           [&](const Entries& entries, const Grid& grid) {
                             launch(context.stream(), short_lines_kernel<mode, T>, grid, to, from, apart, entries);
                           });
  if (mode == Mode::split) context.fill(written, 0, count * byte_size(out.dtype()));
  const Workspace numbers(context, count * static_cast<std::int64_t>(sizeof(std::int32_t)));
  for_each_launch(call, index, dim, out.strides(), out.size(dim), [&](const Entries& entries, const Grid& grid) {
    launch(context.stream(), number_places, grid, numbers.as<std::int32_t>(), static_cast<std::int32_t>(places),
           entries);
  });
  const IdShard numbered{0, places, places + 1};  // the last is nobody's: left out, and reported already
  const RowSort sorted(context, numbers.data(), DType::i32, count, numbered, context.faults().sink(call.op, "place"));
  launch(context.stream(), places_kernel<mode, T>,
         {.blocks = static_cast<unsigned>((places + kGatherThreads - 1) / kGatherThreads), .threads = kGatherThreads},
         to, from, apart, sorted.starts(), sorted.positions(), places);
}

void copy_to(const KernelCall& call, const Tensor& out, const Tensor& x) {
  strided_copy(context_of(call), x.dtype(), x.shape(), layout_of(x), layout_of(out));
}

void scatter(const KernelCall& call) {
  const Tensor &x = call.in[0], &out = call.out[0];
  copy_to(call, out, x);
  if (call.in[1].numel() == 0) return;
  const Dense source(context_of(call), call.in[2]);
  visit_unit(byte_size(x.dtype()), [&]<class U>(Type<U>) {
    if constexpr (std::is_integral_v<U>)
      scatter_into<Mode::write, U>(call, call.in[1], call.attrs.as<DimAttrs>().dim, out, source.raw(), nullptr);
  });
}

void scatter_backward(const KernelCall& call) {
  const Tensor &grad = call.in[0], &rest = call.out[0], &written = call.out[1];
  copy_to(call, rest, grad);
  if (call.in[1].numel() == 0) return;
  visit_unit(byte_size(grad.dtype()), [&]<class U>(Type<U>) {
    if constexpr (std::is_integral_v<U>)
      scatter_into<Mode::split, U>(call, call.in[1], call.attrs.as<DimAttrs>().dim, rest, nullptr, written.raw());
  });
}

void add_into(const KernelCall& call, const Tensor& index, const Tensor& source, int dim) {
  if (index.numel() == 0) return;
  const Dense dense(context_of(call), source);
  visit_dtype(source.dtype(), [&]<class T>(Type<T>) {
    scatter_into<Mode::add, T>(call, index, dim, call.out[0], dense.raw(), nullptr);
  });
}

void scatter_add(const KernelCall& call) {
  copy_to(call, call.out[0], call.in[0]);
  add_into(call, call.in[1], call.in[2], call.attrs.as<DimAttrs>().dim);
}

void gather_backward(const KernelCall& call) {
  const Tensor& out = call.out[0];
  if (out.numel() > 0) context_of(call).fill(out.raw(), 0, out.bytes());
  add_into(call, call.in[1], call.in[0], call.attrs.as<GatherBackwardAttrs>().dim);
}

constexpr KernelEntry kGatherEntries[] = {{op::gather, gather},
                                          {op::gather_backward, gather_backward},
                                          {op::scatter, scatter},
                                          {op::scatter_backward, scatter_backward},
                                          {op::scatter_add, scatter_add}};

}  // namespace

void register_gather(OpTable& table) { add_kernels(table, kGatherEntries); }

}  // namespace sherd::cuda
