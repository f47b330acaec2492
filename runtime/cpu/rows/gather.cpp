// Rows with an index per element. A line of the index, its elements along the row's dim, meets one line of x: threads
// own lines, and what one line writes twice it writes in order. Lines that are neighbours along the last dim are taken
// together, so that cache lines are used whole.
#include "runtime/op/rows/gather.h"

#include <array>
#include <cstring>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rows/ids.h"
#include "runtime/cpu/rows/strided_copy.h"
#include "runtime/cpu/workspace.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements
constexpr std::int64_t kNeighbours = 16;  // lines
constexpr std::size_t kMaxTensors = 3;    // that are walked together

/// Lines along `dim` of a shape, up to kNeighbours together, and where they lie in several tensors.
class LineBlocks {
 public:
  using Offsets = std::array<std::int64_t, kMaxTensors>;
  struct Block {
    std::int64_t lines;
    Offsets first;
  };

  LineBlocks(const Shape& shape, int dim, std::initializer_list<const Tensor*> tensors) : length(shape[dim]) {
    std::size_t t = 0;
    for (const Tensor* tensor : tensors) {
      strides_[t] = tensor->strides();
      along[t] = strides_[t][dim];
      if (dim != shape.size() - 1) aside[t] = strides_[t].back();
      ++t;
    }
    for (int d = 0; d < shape.size(); ++d) {
      const bool neighbours = d == shape.size() - 1 && d != dim;
      if (neighbours) width_ = shape[d];
      sizes_.push_back(d == dim ? 1 : neighbours ? num_chunks(shape[d], kNeighbours) : shape[d]);
    }
  }

  std::int64_t length;       ///< elements of a line
  Offsets along{}, aside{};  ///< from an element of a line to the next, and to that of the next line
  std::int64_t count() const { return numel(sizes_); }
  Block at(std::int64_t i) const {
    Block block{1, {}};
    for (int d = sizes_.size() - 1; d >= 0; --d) {
      std::int64_t place = i % sizes_[d];
      i /= sizes_[d];
      if (d == sizes_.size() - 1 && width_ > 0) {
        place *= kNeighbours;
        block.lines = std::min(kNeighbours, width_ - place);
      }
      for (std::size_t t = 0; t < kMaxTensors; ++t)
        if (!strides_[t].empty()) block.first[t] += place * strides_[t][d];
    }
    return block;
  }

 private:
  Shape sizes_;
  std::array<Strides, kMaxTensors> strides_;
  std::int64_t width_ = 0;  // of the last dim, whose lines are neighbours; 0: lines are alone
};

/// The index's entries by their offset.
class Entries {
 public:
  explicit Entries(const Tensor& index) : data_(index.raw()), wide_(index.dtype() == DType::i64) {}
  std::int64_t operator[](std::int64_t offset) const {
    return wide_ ? static_cast<const std::int64_t*>(data_)[offset] : static_cast<const std::int32_t*>(data_)[offset];
  }

 private:
  const void* data_;
  bool wide_;
};

/// Calls fn(Type<U>{}) with an unsigned type as large as an element: for kernels that only move them.
template <class Fn>
void visit_bits(DType dtype, const Fn& fn) {
  switch (byte_size(dtype)) {
    case 1: return fn(Type<std::uint8_t>{});
    case 2: return fn(Type<std::uint16_t>{});
    case 4: return fn(Type<std::uint32_t>{});
    default: return fn(Type<std::uint64_t>{});
  }
}

/// Calls fn(block) on the threads, and in a block fn decides the order.
template <class Fn>
void for_each_block(const LineBlocks& blocks, const Fn& fn) {
  parallel_for(blocks.count(), kGrain / std::max<std::int64_t>(blocks.length * kNeighbours, 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t b = begin; b < end; ++b) fn(blocks.at(b));
               });
}

/// Calls fn(offsets of the three tensors at this element, number of the element in its line, number of the line), line
/// elements in order.
template <class Fn>
void for_each_element(const LineBlocks& blocks, const LineBlocks::Block& block, const Fn& fn) {
  for (std::int64_t j = 0; j < blocks.length; ++j)
    for (std::int64_t w = 0; w < block.lines; ++w) {
      LineBlocks::Offsets at;
      for (std::size_t t = 0; t < kMaxTensors; ++t) at[t] = block.first[t] + j * blocks.along[t] + w * blocks.aside[t];
      fn(at, j, w);
    }
}

/// Where a line of a whole tensor begins that a line of the index belongs to.
std::int64_t line_start(const LineBlocks& blocks, const LineBlocks::Block& block, std::size_t tensor, std::int64_t w) {
  return block.first[tensor] + w * blocks.aside[tensor];
}

void gather(const KernelCall& call) {
  const Tensor &x = call.in[0], &index = call.in[1], &out = call.out[0];
  const int dim = call.attrs.as<DimAttrs>().dim;
  check_ids(call, index, IdShard::all(x.shape()[dim]));
  if (out.numel() == 0) return;
  const LineBlocks blocks(index.shape(), dim, {&index, &out, &x});
  const Entries ids(index);
  visit_bits(x.dtype(), [&]<class U>(Type<U>) {
    const auto* from = static_cast<const U*>(x.raw());
    auto* to = static_cast<U*>(out.raw());
    for_each_block(blocks, [&](const LineBlocks::Block& block) {
      for_each_element(blocks, block, [&](const LineBlocks::Offsets& at, std::int64_t, std::int64_t w) {
        to[at[1]] = from[line_start(blocks, block, 2, w) + ids[at[0]] * blocks.along[2]];
      });
    });
  });
}

/// Adds the source's lines to those of `out`. The 16-bit floats sum in f32 and round once.
void add_lines(const Tensor& index, const Tensor& source, const Tensor& out, int dim) {
  const LineBlocks blocks(index.shape(), dim, {&index, &source, &out});
  const std::int64_t rows = out.shape()[dim];
  const Entries ids(index);
  visit_dtype(out.dtype(), [&]<class T>(Type<T>) {
    const auto* from = static_cast<const T*>(source.raw());
    auto* to = static_cast<T*>(out.raw());
    for_each_block(blocks, [&](const LineBlocks::Block& block) {
      if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) {
        auto* const sums = thread_workspace<float>(WorkspaceUse::row, rows * kNeighbours);
        const auto for_each_sum = [&](const auto& fn) {
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t w = 0; w < block.lines; ++w)
              fn(sums[r * kNeighbours + w], to[line_start(blocks, block, 2, w) + r * blocks.along[2]]);
        };
        for_each_sum([](float& sum, const T& value) { sum = convert<float>(value); });
        for_each_element(blocks, block, [&](const LineBlocks::Offsets& at, std::int64_t, std::int64_t w) {
          sums[ids[at[0]] * kNeighbours + w] += convert<float>(from[at[1]]);
        });
        for_each_sum([](const float& sum, T& value) { value = convert<T>(sum); });
      } else {
        for_each_element(blocks, block, [&](const LineBlocks::Offsets& at, std::int64_t, std::int64_t w) {
          T& sum = to[line_start(blocks, block, 2, w) + ids[at[0]] * blocks.along[2]];
          sum = add_rounded(sum, from[at[1]]);
        });
      }
    });
  });
}

void gather_backward(const KernelCall& call) {
  const Tensor &grad = call.in[0], &index = call.in[1], &out = call.out[0];
  const int dim = call.attrs.as<GatherBackwardAttrs>().dim;
  check_ids(call, index, IdShard::all(out.shape()[dim]));
  if (out.numel() == 0) return;
  std::memset(out.raw(), 0, static_cast<std::size_t>(out.bytes()));
  if (index.numel() > 0) add_lines(index, grad, out, dim);
}

void copy_to(const Tensor& out, const Tensor& x) {
  strided_copy(x.dtype(), x.shape(), {x.raw(), x.strides()}, {out.raw(), out.strides()}, false);
}

void scatter_add(const KernelCall& call) {
  const Tensor &x = call.in[0], &index = call.in[1], &out = call.out[0];
  const int dim = call.attrs.as<DimAttrs>().dim;
  check_ids(call, index, IdShard::all(x.shape()[dim]));
  copy_to(out, x);
  if (index.numel() > 0) add_lines(index, call.in[2], out, dim);
}

void scatter(const KernelCall& call) {
  const Tensor &x = call.in[0], &index = call.in[1], &source = call.in[2], &out = call.out[0];
  const int dim = call.attrs.as<DimAttrs>().dim;
  check_ids(call, index, IdShard::all(x.shape()[dim]));
  copy_to(out, x);
  if (index.numel() == 0) return;
  const LineBlocks blocks(index.shape(), dim, {&index, &source, &out});
  const Entries ids(index);
  visit_bits(x.dtype(), [&]<class U>(Type<U>) {
    const auto* from = static_cast<const U*>(source.raw());
    auto* to = static_cast<U*>(out.raw());
    for_each_block(blocks, [&](const LineBlocks::Block& block) {
      for_each_element(blocks, block, [&](const LineBlocks::Offsets& at, std::int64_t, std::int64_t w) {
        to[line_start(blocks, block, 2, w) + ids[at[0]] * blocks.along[2]] = from[at[1]];
      });
    });
  });
}

void scatter_backward(const KernelCall& call) {
  const Tensor &grad = call.in[0], &index = call.in[1], &rest = call.out[0], &written = call.out[1];
  const int dim = call.attrs.as<DimAttrs>().dim;
  const std::int64_t rows = grad.shape()[dim];
  check_ids(call, index, IdShard::all(rows));
  copy_to(rest, grad);
  if (index.numel() == 0) return;
  const LineBlocks blocks(index.shape(), dim, {&index, &written, &rest});
  const Entries ids(index);
  visit_bits(grad.dtype(), [&]<class U>(Type<U>) {
    auto *to = static_cast<U*>(written.raw()), *slopes = static_cast<U*>(rest.raw());
    for_each_block(blocks, [&](const LineBlocks::Block& block) {
      // The j of the element that wrote each place last; entries of unwritten places are never read.
      auto* const last = thread_workspace<std::int64_t>(WorkspaceUse::row, rows * kNeighbours);
      using At = LineBlocks::Offsets;
      for_each_element(blocks, block,
                       [&](const At& at, std::int64_t j, std::int64_t w) { last[ids[at[0]] * kNeighbours + w] = j; });
      const auto slope = [&](std::int64_t id, std::int64_t w) -> U& {
        return slopes[line_start(blocks, block, 2, w) + id * blocks.along[2]];
      };
      for_each_element(blocks, block, [&](const At& at, std::int64_t j, std::int64_t w) {
        const std::int64_t id = ids[at[0]];
        to[at[1]] = last[id * kNeighbours + w] == j ? slope(id, w) : U{0};
      });
      for_each_element(blocks, block, [&](const At& at, std::int64_t, std::int64_t w) { slope(ids[at[0]], w) = U{0}; });
    });
  });
}

}  // namespace

void register_gather(OpTable& table) {
  using enum Device::Kind;
  table.kernel(op::gather, cpu, gather);
  table.kernel(op::gather_backward, cpu, gather_backward);
  table.kernel(op::scatter, cpu, scatter);
  table.kernel(op::scatter_backward, cpu, scatter_backward);
  table.kernel(op::scatter_add, cpu, scatter_add);
}

}  // namespace sherd::cpu
