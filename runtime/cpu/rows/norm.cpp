// layer_norm and rms_norm. The backward rows cut the input into blocks of rows; every block sums the gradients of
// weight and bias over its rows, and the blocks' sums are added in order, so the threads do not matter.
#include <cmath>

#include "runtime/cpu/dense.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/lines.h"
#include "runtime/cpu/rows/softmax.h"
#include "runtime/cpu/scratch.h"
#include "runtime/op/rows/norm_attrs.h"

namespace sherd::cpu {

namespace {

// D elements per row; mean stays 0 for rms_norm.
template <class A>
struct Statistics {
  A mean{}, rstd{};
};

template <class A>
Statistics<A> statistics(const A* x, std::int64_t d, A eps, bool centred) {
  Statistics<A> s;
  const A size = static_cast<A>(d);
  if (centred) s.mean = row_sum(x, d) / size;
  const Vec<A> mean = splat(s.mean);
  const auto vec_term = [&](std::int64_t j) {
    const Vec<A> v = load(x + j) - mean;
    return v * v;
  };
  const auto term = [&](std::int64_t j) { return (x[j] - s.mean) * (x[j] - s.mean); };
  s.rstd = A{1} / std::sqrt(row_sum<A>(d, vec_term, term) / size + eps);
  return s;
}

// weight and bias as accumulators, or null.
template <class T>
struct Affine {
  Affine(const Tensor& tensor, ScratchCursor& scratch, std::int64_t d, Accumulator<T>* buffer) {
    if (tensor.defined()) values = load_row(scratch.dense<T>(tensor), d, buffer);
  }
  const Accumulator<T>* values = nullptr;
};

template <class A, bool Weight, bool Bias>
void normalise(const A* __restrict x, const Statistics<A>& s, const A* __restrict weight, const A* __restrict bias,
               std::int64_t d, A* __restrict y) {
  for (std::int64_t j = 0; j < d; ++j) {
    A value = (x[j] - s.mean) * s.rstd;
    if constexpr (Weight) value *= weight[j];
    if constexpr (Bias) value += bias[j];
    y[j] = value;
  }
}

template <class A>
void normalise(const A* x, const Statistics<A>& s, const A* weight, const A* bias, std::int64_t d, A* y) {
  if (weight && bias) normalise<A, true, true>(x, s, weight, bias, d, y);
  else if (weight) normalise<A, true, false>(x, s, weight, bias, d, y);
  else if (bias) normalise<A, false, true>(x, s, weight, bias, d, y);
  else normalise<A, false, false>(x, s, weight, bias, d, y);
}

template <class T, bool Centred>
void forward(const KernelCall& c) {
  using A = Accumulator<T>;
  const Tensor& x = c.in[0];
  const std::int64_t d = x.shape().back(), rows = d == 0 ? 0 : x.numel() / d;
  ScratchCursor scratch(c.exec);
  const T* const in = scratch.dense<T>(x);
  const std::int64_t converted = std::is_same_v<T, A> ? 0 : d;
  const Affine<T> weight(c.in[1], scratch, d, scratch.take<A>(converted));
  const Affine<T> bias(Centred ? c.in[2] : Tensor(), scratch, d, scratch.take<A>(converted));
  T* const out = c.out[0].mutable_data<T>();
  A* const mean = Centred ? c.out[1].mutable_data<A>() : nullptr;
  A* const rstd = c.out[Centred ? 2 : 1].mutable_data<A>();
  const A eps = static_cast<A>(c.attrs.as<NormAttrs>().eps);
  parallel_for(rows, kLineGrain / std::max<std::int64_t>(d, 1), [&](std::int64_t begin, std::int64_t end) {
    constexpr bool direct = std::is_same_v<T, A>;
    A* const buffer = direct ? nullptr : thread_workspace<A>(WorkspaceUse::row, 2 * d);
    for (std::int64_t r = begin; r < end; ++r) {
      const A* row = load_row(in + r * d, d, buffer);
      const Statistics<A> s = statistics(row, d, eps, Centred);
      if constexpr (Centred) mean[r] = s.mean;
      rstd[r] = s.rstd;
      if constexpr (direct) {
        normalise(row, s, weight.values, bias.values, d, out + r * d);
      } else {
        normalise(row, s, weight.values, bias.values, d, buffer + d);
        convert_row(buffer + d, d, out + r * d);
      }
    }
  });
}

// One row of backward, in two passes. With g = grad * weight and h the normalised row:
//   dx = rstd * (g - [mean of g] - h * mean of g * h),  dweight += grad * h,  dbias += grad;
// the bracket and dbias are layer_norm's only.
template <class A, bool Centred, bool Weight>
struct BackwardRow {
  std::int64_t d;
  A *g, *h, *dweight, *dbias;

  void operator()(const A* grad, const A* x, const A* weight, Statistics<A> s, A* dx) const {
    Vec<A> sum_g{}, sum_gh{};
    A tail_g{}, tail_gh{};
    std::int64_t j = 0;
    const auto sums = [&](const auto& at, auto& total_g, auto& total_gh) {
      const auto row = at(grad + j);
      const auto normal = (at(x + j) - s.mean) * s.rstd;
      auto scaled = row;
      if constexpr (Weight) scaled = row * at(weight + j);
      put(g + j, scaled);
      put(h + j, normal);
      put(dweight + j, fma(row, normal, at(dweight + j)));
      if constexpr (Centred) {
        put(dbias + j, at(dbias + j) + row);
        total_g += scaled;
      }
      total_gh = fma(scaled, normal, total_gh);
    };
    for (; j + kLanes<A> <= d; j += kLanes<A>) sums([](const A* from) { return load(from); }, sum_g, sum_gh);
    for (; j < d; ++j) sums([](const A* from) { return *from; }, tail_g, tail_gh);

    const A size = static_cast<A>(d);
    const A mean_g = (sum_lanes<A>(sum_g) + tail_g) / size, mean_gh = (sum_lanes<A>(sum_gh) + tail_gh) / size;
    const auto slopes = [&](const auto& at) {
      auto slope = at(g + j) - at(h + j) * mean_gh;
      if constexpr (Centred) slope = slope - mean_g;
      put(dx + j, slope * s.rstd);
    };
    for (j = 0; j + kLanes<A> <= d; j += kLanes<A>) slopes([](const A* from) { return load(from); });
    for (; j < d; ++j) slopes([](const A* from) { return *from; });
  }

 private:
  static void put(A* to, Vec<A> v) { store<A>(to, v); }
  static void put(A* to, A v) { *to = v; }
};

// Blocks are large enough that adding up their sums is small change, and at most 64.
std::int64_t rows_per_block(std::int64_t rows) { return std::max<std::int64_t>(16, (rows + 63) / 64); }

template <class T, class A>
void add_blocks(const A* sums, std::int64_t blocks, std::int64_t stride, std::int64_t d, T* to) {
  for (std::int64_t j = 0; j < d; ++j) {
    A total{};
    for (std::int64_t b = 0; b < blocks; ++b) total += sums[b * stride + j];
    to[j] = convert<T>(total);
  }
}

template <class T, bool Centred, bool Weight>
void backward(const KernelCall& c) {
  using A = Accumulator<T>;
  const Tensor& x = c.in[1];
  const std::int64_t d = x.shape().back(), rows = d == 0 ? 0 : x.numel() / d;
  const std::int64_t block = rows_per_block(rows), blocks = num_chunks(rows, block);
  ScratchCursor scratch(c.exec);
  A* const sums = scratch.take<A>(blocks * 2 * d);  // per block: of dweight, of dbias
  const T *const grad = scratch.dense<T>(c.in[0]), *const in = scratch.dense<T>(x);
  const Affine<T> weight(c.in[2], scratch, d, scratch.take<A>(std::is_same_v<T, A> ? 0 : d));
  const A* const mean = Centred ? scratch.dense<A>(c.in[3]) : nullptr;
  const A* const rstd = scratch.dense<A>(c.in[Centred ? 4 : 3]);
  T* const dx = c.out[0].mutable_data<T>();
  parallel_for(rows, block, [&](std::int64_t begin, std::int64_t end) {
    A* const buffer = thread_workspace<A>(WorkspaceUse::row, 5 * d);
    A* const sum = sums + begin / block * 2 * d;
    std::fill(sum, sum + 2 * d, A{});
    const BackwardRow<A, Centred, Weight> row{d, buffer, buffer + d, sum, sum + d};
    for (std::int64_t r = begin; r < end; ++r) {
      const Statistics<A> s{Centred ? mean[r] : A{}, rstd[r]};
      const A* const g = load_row(grad + r * d, d, buffer + 2 * d);
      const A* const values = load_row(in + r * d, d, buffer + 3 * d);
      if constexpr (std::is_same_v<T, A>) {
        row(g, values, weight.values, s, dx + r * d);
      } else {
        row(g, values, weight.values, s, buffer + 4 * d);
        convert_row(buffer + 4 * d, d, dx + r * d);
      }
    }
  });
  add_blocks(sums, blocks, 2 * d, d, c.out[1].mutable_data<T>());
  if constexpr (Centred) add_blocks(sums + d, blocks, 2 * d, d, c.out[2].mutable_data<T>());
}

template <bool Centred>
void forward_kernel(const KernelCall& c) {
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) { forward<T, Centred>(c); });
}
template <bool Centred>
void backward_kernel(const KernelCall& c) {
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) {
    if (c.in[2].defined()) backward<T, Centred, true>(c);
    else backward<T, Centred, false>(c);
  });
}

std::int64_t accumulator_bytes(DType t) { return t == DType::f64 ? 8 : 4; }

// The affine parameters of 16-bit inputs are converted once per call.
std::int64_t affine_bytes(const TensorMeta& x, std::int64_t count) {
  return byte_size(x.dtype) > 2 ? 0 : count * ScratchCursor::rounded(x.shape.back() * 4);
}

}  // namespace

std::int64_t norm_scratch(const InferCall& call) { return dense_scratch(call) + affine_bytes(call.in[0], 2); }

std::int64_t norm_backward_scratch(const InferCall& call) {
  const TensorMeta& x = call.in[1];
  const std::int64_t d = x.shape.back(), rows = d == 0 ? 0 : x.numel() / d;
  const std::int64_t blocks = num_chunks(rows, rows_per_block(rows));
  return dense_scratch(call) + affine_bytes(x, 1) + ScratchCursor::rounded(blocks * 2 * d * accumulator_bytes(x.dtype));
}

void register_norm(OpTable& table) {
  register_softmax(table);
  table.kernel(op::layer_norm, Device::Kind::cpu, forward_kernel<true>, norm_scratch);
  table.kernel(op::layer_norm_backward, Device::Kind::cpu, backward_kernel<true>, norm_backward_scratch);
  table.kernel(op::rms_norm, Device::Kind::cpu, forward_kernel<false>, norm_scratch);
  table.kernel(op::rms_norm_backward, Device::Kind::cpu, backward_kernel<false>, norm_backward_scratch);
}

}  // namespace sherd::cpu
