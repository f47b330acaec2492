// Cross entropy over rows of logits, whole or one chunk of a product at a time. Row losses are added in row order in
// f64, so neither chunks nor threads change the sum.
#include "runtime/op/loss.h"

#include "runtime/cpu/dense.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/lines.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/softmax.h"
#include "runtime/op/attr_types.h"

namespace sherd::cpu {

namespace {

class Targets {
 public:
  Targets(const Tensor& tensor, ScratchCursor& scratch, std::int64_t ignore_index)
      : data_(scratch.dense_raw(tensor)), wide_(tensor.dtype() == DType::i64), ignore_index_(ignore_index) {}
  std::int64_t operator[](std::int64_t i) const {
    return wide_ ? static_cast<const std::int64_t*>(data_)[i] : static_cast<const std::int32_t*>(data_)[i];
  }
  bool ignored(std::int64_t i) const { return (*this)[i] == ignore_index_; }
  /// Number of targets that count; throws Error naming the first that is no class.
  std::int64_t count(std::int64_t rows, std::int64_t vocabulary) const {
    std::int64_t n = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      if (ignored(i)) continue;
      const std::int64_t target = (*this)[i];
      check(target >= 0 && target < vocabulary,
            "target {} at position {} is not a class: classes are 0 to {}, and {} is ignored", target, i,
            vocabulary - 1, ignore_index_);
      ++n;
    }
    return n;
  }

 private:
  const void* data_;
  bool wide_;
  std::int64_t ignore_index_;
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

// log-sum-exp and loss of rows first, first + 1, ... of the whole problem, whose logits start at `logits`.
template <class T>
void loss_rows(const T* logits, std::int64_t first, std::int64_t rows, std::int64_t v, const Targets& targets,
               Accumulator<T>* lse, Accumulator<T>* losses) {
  using A = Accumulator<T>;
  parallel_for(rows, kLineGrain / std::max<std::int64_t>(v, 1), [&](std::int64_t begin, std::int64_t end) {
    A* const buffer = std::is_same_v<T, A> ? nullptr : thread_workspace<A>(WorkspaceUse::row, v);
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t i = first + r;
      if (targets.ignored(i)) {
        lse[i] = losses[i] = A{};
        continue;
      }
      const A* const row = load_row(logits + r * v, v, buffer);
      const A largest = row_max(row, v);
      const A log_sum = Math::log(sum_of_exp(row, largest, v));
      lse[i] = largest + log_sum;
      losses[i] = (largest - row[targets[i]]) + log_sum;
    }
  });
}

template <class A>
void mean_loss(const A* losses, std::int64_t rows, std::int64_t count, const KernelCall& c) {
  double total = 0;
  for (std::int64_t i = 0; i < rows; ++i) total += static_cast<double>(losses[i]);
  *c.out[0].mutable_data<A>() = count == 0 ? A{} : static_cast<A>(total / static_cast<double>(count));
  *c.out[2].mutable_data<A>() = static_cast<A>(count);
}

void cross_entropy_kernel(const KernelCall& c) {
  const std::int64_t v = c.in[0].shape().back(), rows = c.in[1].numel();
  ScratchCursor scratch(c.exec);
  const Targets targets(c.in[1], scratch, c.attrs.as<CrossEntropyAttrs>().ignore_index);
  const std::int64_t count = targets.count(rows, v);
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) {
    using A = Accumulator<T>;
    A* const losses = scratch.take<A>(rows);
    loss_rows(scratch.dense<T>(c.in[0]), 0, rows, v, targets, c.out[1].mutable_data<A>(), losses);
    mean_loss(losses, rows, count, c);
  });
}

void cross_entropy_backward_kernel(const KernelCall& c) {
  const Tensor& logits = c.in[1];
  const std::int64_t v = logits.shape().back(), rows = c.in[2].numel();
  ScratchCursor scratch(c.exec);
  const Targets targets(c.in[2], scratch, c.attrs.as<CrossEntropyAttrs>().ignore_index);
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
        slope[targets[r]] -= scale;
        if constexpr (!direct) convert_row(slope, v, to);
      }
    });
  });
}

void linear_cross_entropy_kernel(const KernelCall& c) {
  const Tensor &x = c.in[0], &weight = c.in[1];
  const std::int64_t v = weight.shape()[0], k = weight.shape()[1], rows = c.in[2].numel();
  ScratchCursor scratch(c.exec);
  const Targets targets(c.in[2], scratch, c.attrs.as<CrossEntropyAttrs>().ignore_index);
  const std::int64_t count = targets.count(rows, v), chunk = loss_chunk_rows(v);
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using A = Accumulator<T>;
    const T *const in = scratch.dense<T>(x), *const w = scratch.dense<T>(weight);
    A* const losses = scratch.take<A>(rows);
    T* const logits = scratch.take<T>(std::min(chunk, rows) * v);
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t m = std::min(chunk, rows - first);
      gemm({.dtype = x.dtype(),
            .result = x.dtype(),
            .transpose_b = true,
            .m = m,
            .n = v,
            .k = k,
            .lda = k,
            .ldb = k,
            .ldc = v},
           in + first * k, w, logits);
      loss_rows(logits, first, m, v, targets, c.out[1].mutable_data<A>(), losses);
    }
    mean_loss(losses, rows, count, c);
  });
}

std::int64_t losses_bytes(DType t, std::int64_t rows) {
  return ScratchCursor::rounded(rows * (t == DType::f64 ? 8 : 4));
}

}  // namespace

std::int64_t cross_entropy_scratch(const InferCall& call) {
  return dense_scratch(call) + losses_bytes(call.in[0].dtype(), call.in[1].numel());
}

std::int64_t linear_cross_entropy_scratch(const InferCall& call) {
  const Tensor &x = call.in[0], &weight = call.in[1];
  const std::int64_t rows = call.in[2].numel(), v = weight.shape()[0];
  return dense_scratch(call) + losses_bytes(x.dtype(), rows) +
         ScratchCursor::rounded(std::min(loss_chunk_rows(v), rows) * v * byte_size(x.dtype()));
}

void register_loss(OpTable& table) {
  table.kernel("cross_entropy", Device::Kind::cpu, cross_entropy_kernel, cross_entropy_scratch);
  table.kernel("cross_entropy_backward", Device::Kind::cpu, cross_entropy_backward_kernel, dense_scratch);
  table.kernel("linear_cross_entropy", Device::Kind::cpu, linear_cross_entropy_kernel, linear_cross_entropy_scratch);
}

}  // namespace sherd::cpu
