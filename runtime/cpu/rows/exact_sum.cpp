// Sums without rounding. A double is at most three digits of 32 bits of a number that begins at 2^-1074; each digit is
// added to a word of 64 bits, and carries wait until the sum is read. So words are sums of integers, which have no
// order.
#include "runtime/op/rows/exact_sum.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rows/power_sum_block.h"
#include "runtime/op/rows/optimizer_attrs.h"

namespace sherd::cpu {

namespace {

constexpr int kDigits = static_cast<int>(kExactWords) - 2, kInfinities = kDigits, kNaNs = kDigits + 1;
constexpr int kSmallest = -1074;        // the exponent of the first digit's first bit
constexpr std::int64_t kChunk = 65536;  // elements
using Words = std::array<std::int64_t, kExactWords>;

/// Adds a value that is not negative.
void add_exactly(Words& words, double value) {
  if (std::isnan(value)) return void(++words[kNaNs]);
  if (std::isinf(value)) return void(++words[kInfinities]);
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t exponent = bits >> 52U, fraction = bits & ((std::uint64_t{1} << 52U) - 1);
  const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | std::uint64_t{1} << 52U;
  const std::uint64_t shift = exponent == 0 ? 0 : exponent - 1;
  auto rest = static_cast<unsigned __int128>(mantissa) << shift % 32;
  for (std::size_t digit = shift / 32; rest != 0; ++digit, rest >>= 32U)
    words[digit] += static_cast<std::int64_t>(rest & 0xffffffffU);
}

/// The nearest double.
double rounded(const Words& words) {
  if (words[kNaNs] != 0) return std::numeric_limits<double>::quiet_NaN();
  if (words[kInfinities] != 0) return std::numeric_limits<double>::infinity();
  std::array<std::uint64_t, kDigits + 2> digits{};
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::uint64_t sum = carry + (i < kDigits ? static_cast<std::uint64_t>(words[i]) : 0);
    digits[i] = sum & 0xffffffffU;
    carry = sum >> 32U;
  }
  int top = static_cast<int>(digits.size()) - 1;
  while (top > 2 && digits[static_cast<std::size_t>(top)] == 0) --top;
  unsigned __int128 leading = 0;
  for (int i = top; i > top - 3; --i) leading = leading << 32U | digits[static_cast<std::size_t>(i)];
  for (int i = 0; i <= top - 3; ++i)  // bits below decide a tie
    if (digits[static_cast<std::size_t>(i)] != 0) leading |= 1U;
  return std::ldexp(static_cast<double>(leading), 32 * (top - 2) + kSmallest);
}

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
            add_exactly(partial[i], power_sum_block(r.tensor->data<T>() + row * r.inner, r.inner, p));
      });
    }
  });
  auto* const words = call.out[0].mutable_data<std::int64_t>();
  std::fill_n(words, kExactWords, 0);
  for (const Words& of_range : partial)
    for (std::size_t k = 0; k < of_range.size(); ++k) words[k] += of_range[k];
}

void exact_total(const KernelCall& call) {
  Words words;
  std::copy_n(call.in[0].data<std::int64_t>(), kExactWords, words.begin());
  *call.out[0].mutable_data<double>() = rounded(words);
}

}  // namespace

void register_exact_sum(OpTable& table) {
  table.kernel(op::exact_power_sum, Device::Kind::cpu, exact_power_sum);
  table.kernel(op::exact_total, Device::Kind::cpu, exact_total);
}

}  // namespace sherd::cpu
