// Sums without rounding (runtime/op/rows/exact_digits.h): chunks of rows have words of their own, which are added.
#include "runtime/op/rows/exact_sum.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rows/power_sum_block.h"
#include "runtime/op/rows/exact_digits.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kChunk = 65536;  // elements
using Words = std::array<std::int64_t, kExactWords>;

/// Rows of a tensor that one chunk adds up.
struct RowRange {
  const Tensor* tensor;
  std::int64_t inner, begin, end;
};

std::vector<RowRange> cut(std::span<const Tensor> tensors) {
  std::vector<RowRange> ranges;
  for (const Tensor& t : tensors) {
    if (!t.is_contiguous()) fail("exact_power_sum of {} needs dense tensors", describe(t));
    if (t.numel() == 0) continue;
    const std::int64_t rows = t.ndim() == 0 ? 1 : t.size(0), inner = t.numel() / rows;
    const std::int64_t step = std::max<std::int64_t>(kChunk / inner, 1);
    for (std::int64_t row = 0; row < rows; row += step) ranges.push_back({&t, inner, row, std::min(row + step, rows)});
  }
  return ranges;
}

void exact_power_sum(const KernelCall& call) {
  const double p = call.attrs.as<PowerSumAttrs>().p;
  const std::vector<RowRange> ranges = cut(call.in);
  std::vector<Words> partial(ranges.size(), Words{});
  parallel_for(static_cast<std::int64_t>(ranges.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const RowRange& r = ranges[i];
      visit_dtype(r.tensor->dtype(), [&]<class T>(Type<T>) {
        if constexpr (is_floating(dtype_of<T>))
          for (std::int64_t row = r.begin; row < r.end; ++row)
            for_each_digit(
                power_sum_block(r.tensor->data<T>() + row * r.inner, r.inner, p),
                [&](std::size_t word, std::uint64_t n) { partial[i][word] += static_cast<std::int64_t>(n); });
      });
    }
  });
  auto* const words = call.out[0].mutable_data<std::int64_t>();
  std::fill_n(words, kExactWords, 0);
  for (const Words& of_range : partial)
    for (std::size_t k = 0; k < of_range.size(); ++k) words[k] += of_range[k];
}

double rounded(const std::int64_t* words) {
  if (words[kExactNaNs] != 0) return std::numeric_limits<double>::quiet_NaN();
  if (words[kExactInfinities] != 0) return std::numeric_limits<double>::infinity();
  const ExactSum sum = sum_of_digits(words);
  return std::ldexp(static_cast<double>(sum.number), sum.exponent);
}

void exact_total(const KernelCall& call) {
  *call.out[0].mutable_data<double>() = rounded(call.in[0].data<std::int64_t>());
}

}  // namespace

void register_exact_sum(OpTable& table) {
  table.kernel(op::exact_power_sum, Device::Kind::cpu, exact_power_sum);
  table.kernel(op::exact_total, Device::Kind::cpu, exact_total);
}

}  // namespace sherd::cpu
