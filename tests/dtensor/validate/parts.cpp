#include "tests/dtensor/validate/parts.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "dtensor/spec.h"

namespace sherd::testing {

namespace {

std::int64_t product(const Shape& shape, int begin, int end) {
  std::int64_t n = 1;
  for (int d = begin; d < end; ++d) n *= shape[d];
  return n;
}

Values slice(const Values& whole, int dim, Spec::Range range) {
  Values part{whole.shape, whole.dtype, {}};
  part.shape[dim] = range.size();
  const std::int64_t outer = product(whole.shape, 0, dim), inner = product(whole.shape, dim + 1, whole.shape.size());
  for (std::int64_t o = 0; o < outer; ++o) {
    const auto row = whole.at.begin() + o * whole.shape[dim] * inner;
    part.at.insert(part.at.end(), row + range.begin * inner, row + range.end * inner);
  }
  return part;
}

Values joined(std::span<const Values> parts, int dim, const Shape& shape) {
  Values whole{shape, parts[0].dtype, {}};
  const std::int64_t outer = product(shape, 0, dim);
  for (std::int64_t o = 0; o < outer; ++o)
    for (const Values& part : parts) {
      const std::int64_t run = product(part.shape, dim, part.shape.size());
      const auto from = part.at.begin() + o * run;
      whole.at.insert(whole.at.end(), from, from + run);
    }
  return whole;
}

// Eighths between 1/8 and 4, of either sign: sums with values of 8 significant bits stay exact in f32.
double eighths(std::mt19937_64& random) {
  const double magnitude = static_cast<double>(1 + random() % 32) / 8;
  return random() & 1u ? magnitude : -magnitude;
}

// The local values of ranks that do not hold the element, so that all reduce to `value`, given what is left of it for
// the holder.
double other_term(double value, ReduceKind kind, DType dtype, std::mt19937_64& random, double& left) {
  if (dtype == DType::boolean) return (kind == ReduceKind::max) == (value != 0) ? double(random() & 1u) : value;
  const bool whole = !is_floating(dtype);
  switch (kind) {
    case ReduceKind::sum:
    case ReduceKind::avg: {
      const double term = whole ? std::round(eighths(random) + 5) : eighths(random);
      left -= term;
      return term;
    }
    case ReduceKind::max: return value - (whole ? double(random() % 4) : std::abs(eighths(random)));
    case ReduceKind::min: return value + (whole ? double(random() % 4) : std::abs(eighths(random)));
    case ReduceKind::product: break;
  }
  const double factor = whole ? 1 : random() & 1u ? -0.5 : 2;
  left /= factor;
  return factor;
}

std::vector<Values> terms(const Values& whole, ReduceKind kind, int ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<Values> parts(n, whole);
  for (std::size_t i = 0; i < whole.at.size(); ++i) {
    const std::size_t holder = random() % n;
    double left = kind == ReduceKind::avg ? whole.at[i] * ranks : whole.at[i];
    for (std::size_t r = 0; r < n; ++r)
      if (r != holder) parts[r].at[i] = other_term(whole.at[i], kind, whole.dtype, random, left);
    parts[holder].at[i] = left;
  }
  return parts;
}

double reduced(double a, double b, ReduceKind kind) {
  switch (kind) {
    case ReduceKind::sum:
    case ReduceKind::avg: return a + b;
    case ReduceKind::max: return std::isnan(a) || a > b ? a : b;
    case ReduceKind::min: return std::isnan(a) || a < b ? a : b;
    case ReduceKind::product: return a * b;
  }
  return a;
}

}  // namespace

Values values_of(const Tensor& tensor) { return {tensor.shape(), tensor.dtype(), tensor.to_vector<double>()}; }

Tensor tensor_of(const Values& values) {
  Tensor t = Tensor::empty(values.shape, values.dtype);
  visit_dtype(values.dtype, [&]<class T>(Type<T>) {
    T* to = t.mutable_data<T>();
    for (std::size_t i = 0; i < values.at.size(); ++i) to[i] = convert<T>(values.at[i]);
  });
  return t;
}

std::vector<Values> parts_along(const Values& whole, Placement placement, int ranks, std::uint64_t seed) {
  if (placement.is_partial()) return terms(whole, placement.reduce, ranks, seed);
  std::vector<Values> parts;
  for (int r = 0; r < ranks; ++r)
    parts.push_back(
        placement.is_shard() ? slice(whole, placement.dim, chunk_range(whole.shape[placement.dim], ranks, r)) : whole);
  return parts;
}

Values part_at(Values whole, std::span<const Placement> placements, std::span<const int> sizes,
               std::span<const int> coordinates, std::uint64_t seed) {
  for (std::size_t axis = 0; axis < placements.size(); ++axis)
    whole = std::move(
        parts_along(whole, placements[axis], sizes[axis], seed + axis)[static_cast<std::size_t>(coordinates[axis])]);
  return whole;
}

std::optional<Values> read_as(std::span<const Values> parts, Placement placement, const Shape& whole) {
  const int ranks = static_cast<int>(parts.size());
  for (int r = 0; r < ranks; ++r) {
    Shape expected = whole;
    if (placement.is_shard()) expected[placement.dim] = chunk_range(whole[placement.dim], ranks, r).size();
    if (!(parts[static_cast<std::size_t>(r)].shape == expected)) return {};
  }
  if (placement.is_shard()) return joined(parts, placement.dim, whole);
  Values result = parts[0];
  for (const Values& part : parts.subspan(1))
    for (std::size_t i = 0; i < result.at.size(); ++i) {
      const double a = result.at[i], b = part.at[i];
      if (placement.is_partial()) result.at[i] = reduced(a, b, placement.reduce);
      else if (a != b && !(std::isnan(a) && std::isnan(b))) return {};
    }
  if (placement.is_partial(ReduceKind::avg))
    for (double& x : result.at) x /= ranks;
  return result;
}

bool is_near(const Values& actual, const Values& expected, double limit) {
  if (!(actual.shape == expected.shape) || actual.dtype != expected.dtype) return false;
  for (std::size_t i = 0; i < actual.at.size(); ++i) {
    const double a = actual.at[i], e = expected.at[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    if (!std::isfinite(e) || !(std::abs(a - e) <= limit * (1 + std::abs(e)))) return false;
  }
  return true;
}

}  // namespace sherd::testing
