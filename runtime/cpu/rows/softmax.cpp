#include "runtime/cpu/rows/softmax.h"

#include "runtime/cpu/dense.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/lines.h"
#include "runtime/cpu/scratch.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::cpu {

namespace {

struct Softmax {
  template <class A>
  void operator()(const std::array<const A*, 1>& in, std::int64_t n, A* y) const {
    const A largest = row_max(in[0], n);
    exp_row(in[0], largest, n, y);
    const A scale = A{1} / row_sum(y, n);
    for (std::int64_t j = 0; j < n; ++j) y[j] *= scale;
  }
};

struct LogSoftmax {
  template <class A>
  void operator()(const std::array<const A*, 1>& in, std::int64_t n, A* y) const {
    const A largest = row_max(in[0], n);
    exp_row(in[0], largest, n, y);
    const A log_sum = Math::log(row_sum(y, n));
    for (std::int64_t j = 0; j < n; ++j) y[j] = (in[0][j] - largest) - log_sum;
  }
};

// Inputs of the backward rows: gradient, result of the forward row.
struct SoftmaxBackward {
  template <class A>
  void operator()(const std::array<const A*, 2>& in, std::int64_t n, A* dx) const {
    const auto [grad, y] = in;
    const A dot = row_dot(grad, y, n);
    for (std::int64_t j = 0; j < n; ++j) dx[j] = y[j] * (grad[j] - dot);
  }
};

struct LogSoftmaxBackward {
  template <class A>
  void operator()(const std::array<const A*, 2>& in, std::int64_t n, A* dx) const {
    const auto [grad, y] = in;
    const A total = row_sum(grad, n);
    for (std::int64_t j = 0; j < n; ++j) dx[j] = std::fma(-total, Math::exp(y[j]), grad[j]);
  }
};

template <class Line, std::size_t N>
void line_kernel(const KernelCall& c) {
  const Tensor& out = c.out[0];
  const Lines lines = Lines::along(out.shape(), c.attrs.as<DimAttrs>().dim);
  ScratchCursor scratch(c.exec);
  visit_floating(out.dtype(), [&]<class T>(Type<T>) {
    std::array<const T*, N> in;
    for (std::size_t i = 0; i < N; ++i) in[i] = scratch.dense<T>(c.in[i]);
    map_lines(lines, in, out.mutable_data<T>(), Line{});
  });
}

}  // namespace

void register_softmax(OpTable& table) {
  table.kernel(op::softmax, Device::Kind::cpu, line_kernel<Softmax, 1>, dense_scratch);
  table.kernel(op::softmax_backward, Device::Kind::cpu, line_kernel<SoftmaxBackward, 2>, dense_scratch);
  table.kernel(op::log_softmax, Device::Kind::cpu, line_kernel<LogSoftmax, 1>, dense_scratch);
  table.kernel(op::log_softmax_backward, Device::Kind::cpu, line_kernel<LogSoftmaxBackward, 2>, dense_scratch);
}

}  // namespace sherd::cpu
