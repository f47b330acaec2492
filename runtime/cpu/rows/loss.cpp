// Cross entropy over rows of logits, whole or one chunk of a product at a time. Row losses are added in row order in
// f64, so neither chunks nor threads change the sum.
#include "runtime/op/rows/loss.h"

#include <limits>

#include "runtime/comm/group/sum_order.h"
#include "runtime/cpu/dense.h"
#include "runtime/cpu/gemm/gemm.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/lines.h"
#include "runtime/cpu/rows/softmax.h"
#include "runtime/cpu/scratch.h"
#include "runtime/op/rows/id_shard.h"
#include "runtime/op/rows/loss_attrs.h"

namespace sherd::cpu {

namespace {

class Targets {
 public:
  /// Targets of a call whose logits have `columns` columns.
  Targets(const KernelCall& c, const Tensor& tensor, std::int64_t columns, ScratchCursor& scratch)
      : data_(scratch.dense_raw(tensor)),
        wide_(tensor.dtype() == DType::i64),
        ignore_index_(c.attrs.as<CrossEntropyAttrs>().ignore_index),
        classes_(IdShard::part_of(c.attrs.as<CrossEntropyAttrs>().part, columns)) {}
  std::int64_t operator[](std::int64_t i) const {
    return wide_ ? static_cast<const std::int64_t*>(data_)[i] : static_cast<const std::int32_t*>(data_)[i];
  }
  bool ignored(std::int64_t i) const { return (*this)[i] == ignore_index_; }
  /// Whether one of the columns is target i, and which.
  bool is_here(std::int64_t i) const { return classes_.is_here((*this)[i]); }
  std::int64_t column(std::int64_t i) const { return (*this)[i] - classes_.first; }
  /// Number of targets that count, of rows [begin, end); throws Error naming the first that is no class.
  std::int64_t count(std::int64_t begin, std::int64_t end) const {
    std::int64_t n = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      if (ignored(i)) continue;
      const std::int64_t target = (*this)[i];
      check(classes_.exists(target), "target {} at position {} is not a class: classes are 0 to {}, and {} is ignored",
            target, i, classes_.total - 1, ignore_index_);
      ++n;
    }
    return n;
  }

 private:
  const void* data_;
  bool wide_;
  std::int64_t ignore_index_;
  IdShard classes_;
};

// Sum of exp(x - shift), a tile at a time.
template <class A>
A sum_of_exp(const A* x, A shift, std::int64_t n) {
  constexpr std::int64_t kTileElements = 512;
  A tile[kTileElements];
  A total{};
  for (std::int64_t j = 0; j < n; j += kTileElements) {
    const std::int64_t width = std::min(kTileElements, n - j);
    exp_row(x + j, shift, width, tile);
    total += row_sum<A>(tile, width);
  }
  return total;
}

/// Puts rows first, first + 1, ... of the whole problem, whose logits start at `logits`.
template <class T, class Out>
void put_rows(const T* logits, std::int64_t first, std::int64_t rows, std::int64_t v, const Targets& targets,
              const Out& out) {
  using A = Accumulator<T>;
  parallel_for(rows, kLineGrain / std::max<std::int64_t>(v, 1), [&](std::int64_t begin, std::int64_t end) {
    A* const buffer = std::is_same_v<T, A> ? nullptr : thread_workspace<A>(WorkspaceUse::row, v);
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t i = first + r;
      RowParts<A> parts{-std::numeric_limits<A>::infinity(), 0, 0};
      const bool counts = !targets.ignored(i);
      if (counts && v > 0) {
        const A* const row = load_row(logits + r * v, v, buffer);
        parts.largest = row_max(row, v);
        // Minus infinity everywhere: a part may hold nothing but columns that are masked.
        parts.sum = sum_of_exp(row, std::max(parts.largest, std::numeric_limits<A>::lowest()), v);
        if (targets.is_here(i)) parts.at_target = row[targets.column(i)];
      }
      out.put(i, counts, parts);
    }
  });
}

/// The same for logits x weight^T, of which a chunk of rows is held at a time, leaf after leaf.
template <class T, class Out>
void put_rows_of_product(const KernelCall& c, ScratchCursor& scratch, const Targets& targets, const Out& out) {
  const Tensor &x = c.in[0], &weight = c.in[1];
  const std::int64_t v = weight.shape()[0], k = weight.shape()[1], rows = c.in[2].numel(), chunk = loss_chunk_rows(v);
  const std::int64_t of_leaf = rows / c.attrs.as<CrossEntropyAttrs>().leaves;
  const T *const in = scratch.dense<T>(x), *const w = scratch.dense<T>(weight);
  T* const logits = scratch.take<T>(std::min(chunk, rows) * v);
  for (std::int64_t first = 0, m = 0; first < rows; first += m) {
    m = std::min(chunk, of_leaf - first % of_leaf);
    if (v > 0) gemm(logits_product<Gemm>(x.dtype(), m, weight.shape()), in + first * k, w, logits);
    put_rows(logits, first, m, v, targets, out);
  }
}

// ---- the loss: log-sum-exp, loss per row, and their mean ----

template <class A>
LossOut<Math, A> loss_out(const KernelCall& c, A* losses) {
  return {c.out[1].mutable_data<A>(), losses};
}

// Each leaf has a mean of its own, as on a rank of its own.
template <class A>
void mean_loss(const A* losses, std::int64_t rows, std::span<const std::int64_t> counts, const KernelCall& c) {
  const auto leaves = std::ssize(counts), of_leaf = rows / leaves;
  std::vector<A> means;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
    const std::int64_t count = counts[static_cast<std::size_t>(leaf)];
    double total = 0;
    for (std::int64_t i = 0; i < of_leaf; ++i) total += static_cast<double>(losses[leaf * of_leaf + i]);
    means.push_back(count == 0 ? A{} : static_cast<A>(total / static_cast<double>(count)));
    c.out[2].mutable_data<A>()[leaf] = static_cast<A>(count);
  }
  *c.out[0].mutable_data<A>() = sum_in_tree(std::span<const A>(means), std::plus<A>());
}

void cross_entropy_kernel(const KernelCall& c) {
  const std::int64_t v = c.in[0].shape().back(), rows = c.in[1].numel();
  ScratchCursor scratch(c.exec);
  const Targets targets(c, c.in[1], v, scratch);
  const std::int64_t count = targets.count(0, rows);
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) {
    auto* const losses = scratch.take<Accumulator<T>>(rows);
    put_rows(scratch.dense<T>(c.in[0]), 0, rows, v, targets, loss_out(c, losses));
    mean_loss(losses, rows, {&count, 1}, c);
  });
}

void linear_cross_entropy_kernel(const KernelCall& c) {
  const std::int64_t rows = c.in[2].numel();
  ScratchCursor scratch(c.exec);
  const Targets targets(c, c.in[2], c.in[1].shape()[0], scratch);
  const std::int64_t leaves = c.attrs.as<CrossEntropyAttrs>().leaves, of_leaf = rows / leaves;
  std::vector<std::int64_t> counts;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf)
    counts.push_back(targets.count(leaf * of_leaf, (leaf + 1) * of_leaf));
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) {
    auto* const losses = scratch.take<Accumulator<T>>(rows);
    put_rows_of_product<T>(c, scratch, targets, loss_out(c, losses));
    mean_loss(losses, rows, counts, c);
  });
}

// ---- parts: the three numbers per row ----

template <class A>
PartsOut<A> parts_out(const KernelCall& c) {
  return {c.out[0].mutable_data<A>(), c.out[1].mutable_data<A>(), c.out[2].mutable_data<A>()};
}

void cross_entropy_parts_kernel(const KernelCall& c) {
  const std::int64_t v = c.in[0].shape().back(), rows = c.in[1].numel();
  ScratchCursor scratch(c.exec);
  const Targets targets(c, c.in[1], v, scratch);
  targets.count(0, rows);  // before any thread starts
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) {
    put_rows(scratch.dense<T>(c.in[0]), 0, rows, v, targets, parts_out<Accumulator<T>>(c));
  });
}

void linear_cross_entropy_parts_kernel(const KernelCall& c) {
  ScratchCursor scratch(c.exec);
  const Targets targets(c, c.in[2], c.in[1].shape()[0], scratch);
  targets.count(0, c.in[2].numel());
  visit_floating(c.in[0].dtype(),
                 [&]<class T>(Type<T>) { put_rows_of_product<T>(c, scratch, targets, parts_out<Accumulator<T>>(c)); });
}

// ---- backward ----

void cross_entropy_backward_kernel(const KernelCall& c) {
  const Tensor& logits = c.in[1];
  const std::int64_t v = logits.shape().back(), rows = c.in[2].numel();
  ScratchCursor scratch(c.exec);
  const Targets targets(c, c.in[2], v, scratch);
  visit_floating(logits.dtype(), [&]<class T>(Type<T>) {
    using A = Accumulator<T>;
    const T* const in = scratch.dense<T>(logits);
    const A* const lse = scratch.dense<A>(c.in[3]);
    const A scale = *c.in[0].data<A>() / std::max(*c.in[4].data<A>(), A{1});
    T* const out = c.out[0].mutable_data<T>();
    parallel_for(rows, kLineGrain / std::max<std::int64_t>(v, 1), [&](std::int64_t begin, std::int64_t end) {
      constexpr bool direct = std::is_same_v<T, A>;
      A* const buffer = direct ? nullptr : thread_workspace<A>(WorkspaceUse::row, v);
      for (std::int64_t r = begin; r < end; ++r) {
        T* const to = out + r * v;
        if (targets.ignored(r)) {
          std::fill(to, to + v, T{});
          continue;
        }
        const A* const row = load_row(in + r * v, v, buffer);
        A* slope = buffer;
        if constexpr (direct) slope = to;
        for (std::int64_t j = 0; j < v; ++j) slope[j] = Math::exp(row[j] - lse[r]) * scale;
        if (targets.is_here(r)) slope[targets.column(r)] -= scale;
        if constexpr (!direct) convert_row(slope, v, to);
      }
    });
  });
}

std::int64_t losses_bytes(DType t, std::int64_t rows) {
  return ScratchCursor::rounded(rows * (t == DType::f64 ? 8 : 4));
}

}  // namespace

std::int64_t cross_entropy_scratch(const InferCall& call) {
  return dense_scratch(call) + losses_bytes(call.in[0].dtype, call.in[1].numel());
}

std::int64_t linear_cross_entropy_parts_scratch(const InferCall& call) {
  const std::int64_t rows = call.in[2].numel(), v = call.in[1].shape[0];
  return dense_scratch(call) +
         ScratchCursor::rounded(std::min(loss_chunk_rows(v), rows) * v * byte_size(call.in[0].dtype));
}

std::int64_t linear_cross_entropy_scratch(const InferCall& call) {
  return linear_cross_entropy_parts_scratch(call) + losses_bytes(call.in[0].dtype, call.in[2].numel());
}

void register_loss(OpTable& table) {
  table.kernel(op::cross_entropy, Device::Kind::cpu, cross_entropy_kernel, cross_entropy_scratch);
  table.kernel(op::cross_entropy_backward, Device::Kind::cpu, cross_entropy_backward_kernel, dense_scratch);
  table.kernel(op::linear_cross_entropy, Device::Kind::cpu, linear_cross_entropy_kernel, linear_cross_entropy_scratch);
  table.kernel(op::cross_entropy_parts, Device::Kind::cpu, cross_entropy_parts_kernel, dense_scratch);
  table.kernel(op::linear_cross_entropy_parts, Device::Kind::cpu, linear_cross_entropy_parts_kernel,
               linear_cross_entropy_parts_scratch);
}

}  // namespace sherd::cpu
