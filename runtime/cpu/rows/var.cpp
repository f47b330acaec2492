// Variance and mean. A block of elements gives its own mean and squared distances from it; blocks are joined in order,
// then splits, by the formula of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing
// sample variances", 1979). All in f64, so that a mean much larger than the deviation does no harm. Bytes: the input
// once.
#include <algorithm>
#include <limits>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rows/reduce_plan.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/tile.h"
#include "runtime/op/rows/reduce_attrs.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kSerial = 1 << 15;  // elements: less than 10 us
constexpr std::int64_t kSums = 8;          // that run beside each other

// Sum of term(0), ..., term(n - 1).
template <class Term>
double sum_of(std::int64_t n, const Term& term) {
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= n; i += kSums)
    for (std::int64_t l = 0; l < kSums; ++l) sums[l] += term(i + l);
  for (std::int64_t l = 0; i < n; ++i, ++l) sums[l] += term(i);
  for (std::int64_t width = kSums / 2; width > 0; width /= 2)
    for (std::int64_t l = 0; l < width; ++l) sums[l] += sums[l + width];
  return sums[0];
}

/// Mean and sum of squared distances from it, of `count` elements for each of up to kTile columns.
struct Moments {
  double* mean;
  double* squares;
};

void join(std::int64_t width, const Moments& a, std::int64_t a_count, const Moments& b, std::int64_t b_count) {
  if (a_count == 0) {
    std::copy_n(b.mean, width, a.mean);
    std::copy_n(b.squares, width, a.squares);
    return;
  }
  const auto of_a = static_cast<double>(a_count), of_b = static_cast<double>(b_count);
  const double share = of_b / (of_a + of_b), weight = of_a * share;
  for (std::int64_t j = 0; j < width; ++j) {
    const double apart = b.mean[j] - a.mean[j];
    a.mean[j] += apart * share;
    a.squares[j] += b.squares[j] + apart * apart * weight;
  }
}

template <class C>
void block_moments(const C* x, std::int64_t rows, std::int64_t width, const Moments& m) {
  const auto n = static_cast<double>(rows);
  if (width == 1) {
    const double mean = sum_of(rows, [x](std::int64_t i) { return static_cast<double>(x[i]); }) / n;
    *m.mean = mean;
    *m.squares = sum_of(rows, [x, mean](std::int64_t i) {
      const double apart = static_cast<double>(x[i]) - mean;
      return apart * apart;
    });
    return;
  }
  std::fill_n(m.mean, width, 0.0);
  std::fill_n(m.squares, width, 0.0);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < width; ++j) m.mean[j] += static_cast<double>(x[r * width + j]);
  for (std::int64_t j = 0; j < width; ++j) m.mean[j] /= n;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < width; ++j) {
      const double apart = static_cast<double>(x[r * width + j]) - m.mean[j];
      m.squares[j] += apart * apart;
    }
}

/// The plan's units as in reduce.cpp: (outer index, tile of inner, split of the reduced dims).
template <class C>
class Variance {
 public:
  Variance(const KernelCall& call, const ReducePlan& plan)
      : call_(call), plan_(plan), reader_(call.in[0].raw(), call.in[0].dtype(), plan.shape, plan.strides) {}

  void run() const {
    const std::int64_t units = plan_.outer * plan_.tiles * plan_.splits;
    const std::int64_t work = std::max<std::int64_t>(std::min(plan_.rows_per_split, plan_.count) * plan_.width, 1);
    const bool small = plan_.outer * plan_.count * plan_.inner < kSerial;
    parallel_for(units, small ? units : std::max<std::int64_t>(kSerial / work, 1),
                 [this](std::int64_t begin, std::int64_t end) {
                   double mean[kTile], squares[kTile];
                   for (std::int64_t u = begin; u < end; ++u) {
                     const Moments m = plan_.splits == 1 ? Moments{mean, squares} : partial(u);
                     reduce_unit(u, m);
                     if (plan_.splits == 1) write(u, m);
                   }
                 });
    if (plan_.splits == 1) return;
    for (std::int64_t u = 0; u < units; u += plan_.splits) {
      const Moments total = partial(u);
      for (std::int64_t s = 1; s < plan_.splits; ++s)
        join(plan_.width, total, s * plan_.rows_per_split, partial(u + s), rows_of(s));
      write(u / plan_.splits, total);
    }
  }

 private:
  Moments partial(std::int64_t unit) const {
    auto* const all = reinterpret_cast<double*>(call_.exec.scratch);
    return {all + 2 * unit * plan_.width, all + (2 * unit + 1) * plan_.width};
  }
  std::int64_t rows_of(std::int64_t split) const {
    return std::min(plan_.rows_per_split, plan_.count - split * plan_.rows_per_split);
  }

  void reduce_unit(std::int64_t unit, const Moments& total) const {
    const std::int64_t split = unit % plan_.splits, tile = unit / plan_.splits % plan_.tiles;
    const std::int64_t outer = unit / plan_.splits / plan_.tiles, column = tile * plan_.width;
    const std::int64_t first = split * plan_.rows_per_split, rows = rows_of(split);
    const std::int64_t width = std::min(plan_.width, plan_.inner - column);
    const std::int64_t rows_per_read = plan_.tiles == 1 ? std::max<std::int64_t>(kTile / width, 1) : 1;
    C buffer[kTile];
    double mean[kTile], squares[kTile];
    for (std::int64_t r = 0; r < rows; r += rows_per_read) {
      const std::int64_t count = std::min(rows_per_read, rows - r);
      const std::int64_t at = (outer * plan_.count + first + r) * plan_.inner + column;
      block_moments(reader_.read(at, count * width, buffer), count, width, {mean, squares});
      join(width, total, r, {mean, squares}, count);
    }
  }

  void write(std::int64_t unit, const Moments& m) const {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    const std::int64_t column = unit % plan_.tiles * plan_.width, outer = unit / plan_.tiles;
    const std::int64_t width = std::min(plan_.width, plan_.inner - column);
    const auto left = static_cast<double>(plan_.count - call_.attrs.as<VarAttrs>().correction);
    for (std::int64_t j = 0; j < width; ++j) m.squares[j] = left > 0 ? m.squares[j] / left : kNan;
    if (plan_.count == 0) std::fill_n(m.mean, width, kNan);
    const std::int64_t at = outer * plan_.inner + column;
    write_tile(call_.out[0].raw(), call_.out[0].dtype(), at, m.squares, width);
    write_tile(call_.out[1].raw(), call_.out[1].dtype(), at, m.mean, width);
  }

  const KernelCall& call_;
  const ReducePlan& plan_;
  const TileReader<C> reader_;
};

void var(const KernelCall& call) {
  const Tensor& x = call.in[0];
  if (call.out[0].numel() == 0) return;
  const ReducePlan plan = plan_reduction(x.shape(), x.strides(), call.attrs.as<VarAttrs>().reduce.dims);
  if (x.dtype() == DType::f64) Variance<double>(call, plan).run();
  else Variance<float>(call, plan).run();
}

}  // namespace

std::int64_t var_scratch(const InferCall& call) {
  const TensorMeta& x = call.in[0];
  return 2 * plan_reduction(x.shape, x.steps(), call.attrs.as<VarAttrs>().reduce.dims).partial_bytes();
}

void register_var(OpTable& table) { table.kernel(op::var, Device::Kind::cpu, var, var_scratch); }

}  // namespace sherd::cpu
