// Each operand is first reduced by itself (diagonals, dims of size 1, sums over labels that no other operand or the
// result has); then pairs become products until one tensor is left. A pair's labels are of four kinds, and the product
// is that of matrices:
//
//   bqhd,bkhd->bhqk      b h   in both, kept        batch dims
//                        d     in both, summed      K            [b,h,q,d] x [b,h,d,k]
//                        q     of the left one      M
//                        k     of the right one     N
//
// Several labels of one kind are flattened into one matrix dim, except those of M when the right operand is one
// matrix: the rows of matmul and linear may have any leading dims. A flattened dim keeps only the sharding of its
// leading label, so other sharded labels stay dims of their own, as batch dims: those of one operand are broadcast,
// those of both are summed after the product.
#include "runtime/op/rows/einsum.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/op/rows/einsum_equation.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using Labels = EinsumLabels;

bool has(const Labels& labels, char label) { return labels.find(label) != Labels::npos; }

template <class Predicate>
Labels those_of(const Labels& labels, Predicate&& predicate) {
  Labels result;
  std::copy_if(labels.begin(), labels.end(), std::back_inserter(result), predicate);
  return result;
}

// A tensor with a label per dim.
struct Operand {
  Tensor tensor;
  Labels labels;

  int dim(char label) const { return static_cast<int>(labels.find(label)); }
  /// 1 for a label it does not have.
  std::int64_t size(char label) const { return has(labels, label) ? tensor.shape()[dim(label)] : 1; }
  std::int64_t size(const Labels& group) const {
    return std::accumulate(group.begin(), group.end(), std::int64_t{1},
                           [&](std::int64_t n, char c) { return n * size(c); });
  }
};

// Into how many shards a layout splits the dim. It is read off a dim so long that shards differ by less than rounding,
// and is the same on all ranks.
std::int64_t num_parts(const Operand& x, char label) {
  if (!has(x.labels, label) || !x.tensor.is_distributed()) return 1;
  constexpr std::int64_t kLong = std::int64_t{1} << 40;
  const std::int64_t part = x.tensor.layout()->local_shape(Shape::filled(x.tensor.ndim(), kLong))[x.dim(label)];
  return (kLong + part / 2) / part;
}

// ---- one operand ----

// Integers keep their dtype, as in a product.
Tensor summed(const Tensor& x, std::vector<int> dims) { return cast(sum(x, std::move(dims)), x.dtype()); }

Tensor permuted(const Operand& x, const Labels& order) {
  std::vector<int> dims;
  for (char c : order)
    if (has(x.labels, c)) dims.push_back(x.dim(c));
  return std::is_sorted(dims.begin(), dims.end()) ? x.tensor : permute(x.tensor, std::move(dims));
}

// Sizes along `labels`, 1 for those that x lacks; leading ones that x lacks are left out, as broadcasting allows.
Shape aligned_shape(const Operand& x, const Labels& labels) {
  Shape shape;
  for (char c : labels)
    if (has(x.labels, c) || !shape.empty()) shape.push_back(x.size(c));
  return shape;
}

// Replaces the dims first and second, of n elements each, by their diagonal, which comes last. With n zeros behind it
// the flattened square has rows of n + 1, whose first column is the diagonal.
Operand diagonal(const Operand& x, int first, int second) {
  std::vector<int> order;
  Operand y{{}, x.labels};
  Shape shape;
  for (const int d : up_to(x.tensor.ndim()))
    if (d != first && d != second) {
      order.push_back(d);
      shape.push_back(x.tensor.shape()[d]);
    }
  order.push_back(first);
  order.push_back(second);
  y.labels.erase(static_cast<std::size_t>(second), 1);
  std::rotate(y.labels.begin() + first, y.labels.begin() + first + 1, y.labels.end());

  const std::int64_t n = x.tensor.shape()[first];
  const int square = shape.size();
  shape.push_back(n * n);
  y.tensor = call(op::pad_to, PadToAttrs{square, 0, n * n + n}, reshape(permute(x.tensor, std::move(order)), shape));
  shape[square] = n;
  shape.push_back(n + 1);
  y.tensor = select(view(std::move(y.tensor), shape), -1, 0);
  return y;
}

Operand without_repeats(Operand x) {
  for (std::size_t d = 0; d < x.labels.size();) {
    const std::size_t again = x.labels.find(x.labels[d], d + 1);
    if (again == Labels::npos) ++d;
    else x = diagonal(x, static_cast<int>(d), static_cast<int>(again));
  }
  return x;
}

// Drops dims of one element whose label has more in other operands: the operand is the same along them.
Operand without_broadcast(Operand x, const EinsumEquation& equation) {
  const Labels kept = those_of(x.labels, [&](char c) { return x.size(c) == equation.size(c); });
  if (kept == x.labels) return x;
  return {reshape(x.tensor, aligned_shape(x, kept)), kept};
}

// Summed over the labels that `keep` lacks.
Operand summed_to(Operand x, const Labels& keep) {
  std::vector<int> dims;
  for (char c : x.labels)
    if (!has(keep, c)) dims.push_back(x.dim(c));
  if (dims.empty()) return x;
  return {summed(x.tensor, std::move(dims)), those_of(x.labels, [&](char c) { return has(keep, c); })};
}

// ---- a pair ----

struct Pair {
  Operand a, b;
  Labels keep;  ///< labels of either operand that the result has, in the order of the output

  Labels batch, inner, free_a, free_b;

  const Operand& larger() const { return a.tensor.numel() < b.tensor.numel() ? b : a; }
  std::int64_t size(char label) const { return has(a.labels, label) ? a.size(label) : b.size(label); }

  Pair(Operand left, Operand right, const Labels& wanted) : a(std::move(left)), b(std::move(right)) {
    keep = those_of(wanted, [&](char c) { return has(a.labels, c) || has(b.labels, c); });
    batch = those_of(keep, [&](char c) { return has(a.labels, c) && has(b.labels, c); });
    // In the order of the larger operand, which then need not be copied.
    inner = those_of(larger().labels, [&](char c) { return has(a.labels, c) && has(b.labels, c) && !has(keep, c); });
    free_a = those_of(a.labels, [&](char c) { return !has(b.labels, c); });
    free_b = those_of(b.labels, [&](char c) { return !has(a.labels, c); });
  }
};

// Labels that are flattened into one matrix dim, and those that stay dims of their own.
struct Split {
  Labels matrix, apart;
};

// A flattened dim can be sharded by its leading label, if the shards are full slices.
Split split_group(const Pair& pair, const Labels& group) {
  const auto parts = [&](char c) { return std::max(num_parts(pair.a, c), num_parts(pair.b, c)); };
  if (group.size() < 2) return {group, {}};
  const Labels whole = those_of(group, [&](char c) { return parts(c) == 1; });
  Labels cut = those_of(group, [&](char c) { return parts(c) > 1; });
  const bool alone = std::all_of(whole.begin(), whole.end(), [&](char c) { return pair.size(c) == 1; });
  const auto leader =
      std::find_if(cut.begin(), cut.end(), [&](char c) { return alone || pair.size(c) % parts(c) == 0; });
  if (leader == cut.end()) return {whole, cut};
  const char first = *leader;
  cut.erase(leader);
  return {first + whole, cut};
}

// Whether one matrix dim can hold all of the operand's free labels without a copy.
bool is_column_group(const Pair& pair, const Operand& x, const Labels& group) {
  return x.labels.find(group) != Labels::npos && split_group(pair, group).apart.empty();
}

// The right operand's free labels become columns. Swaps if only the left operand's can be flattened without a copy, or
// else so that the product ends with the result's last label.
bool should_swap(const Pair& pair) {
  if (pair.free_a.empty() || pair.free_b.empty()) return !pair.free_b.empty();
  if (pair.batch.empty()) {
    const bool a_fits = is_column_group(pair, pair.a, pair.free_a), b_fits = is_column_group(pair, pair.b, pair.free_b);
    if (a_fits != b_fits) return a_fits;
  }
  return has(pair.free_a, pair.keep.back());
}

// [batch..., rows, columns]
Tensor as_matrices(const Operand& x, const Labels& batch, const Labels& rows, const Labels& columns) {
  Shape shape = aligned_shape(x, batch);
  shape.push_back(x.size(rows));
  shape.push_back(x.size(columns));
  return reshape(permuted(x, batch + rows + columns), shape);
}

// Element by element, with broadcasting; 16-bit products that are summed are added up in f32, as matrix products are.
Operand multiply(const Pair& pair) {
  // If the product is summed at once, its dims follow the larger operand's memory; otherwise they are in the result's
  // order.
  const Operand& larger = pair.larger();
  const Labels all = pair.inner.empty()
                         ? pair.keep
                         : those_of(pair.keep, [&](char c) { return !has(larger.labels, c); }) + larger.labels;
  const auto aligned = [&](const Operand& x) { return reshape(permuted(x, all), aligned_shape(x, all)); };
  const DType dtype = pair.a.tensor.dtype();
  Tensor a = aligned(pair.a);
  if (!pair.inner.empty() && is_floating(dtype) && byte_size(dtype) < 4) a = cast(std::move(a), DType::f32);
  Operand y = summed_to({mul(std::move(a), aligned(pair.b)), all}, pair.keep);
  return {cast(std::move(y.tensor), dtype), y.labels};
}

Operand contract(Pair pair) {
  if (should_swap(pair)) {
    std::swap(pair.a, pair.b);
    std::swap(pair.free_a, pair.free_b);
  }
  const Operand &a = pair.a, &b = pair.b;
  const auto [k, k_apart] = split_group(pair, pair.inner);
  const auto [n, n_apart] = split_group(pair, pair.free_b);
  const bool is_one_matrix = pair.batch.empty() && k_apart.empty() && n_apart.empty();
  const Labels last = pair.free_a.empty() ? Labels() : Labels(1, pair.free_a.back());
  const auto [m, m_apart] = is_one_matrix ? Split{last, pair.free_a.substr(0, pair.free_a.size() - last.size())}
                                          : split_group(pair, pair.free_a);
  const Labels apart = pair.batch + m_apart + n_apart;
  const Labels outer = is_one_matrix ? m_apart : k_apart + those_of(pair.keep, [&](char c) { return has(apart, c); });

  const Tensor rows = as_matrices(a, outer, m, k);
  const bool is_weight = is_one_matrix && b.labels == n + k;
  Operand y{is_weight ? linear(rows, as_matrices(b, {}, n, k)) : matmul(rows, as_matrices(b, outer, k, n)),
            outer + m + n};
  Shape shape;
  for (char c : y.labels) shape.push_back(pair.size(c));
  y.tensor = reshape(std::move(y.tensor), shape);
  return summed_to(std::move(y), pair.keep);
}

Operand product(Operand a, Operand b, const Labels& wanted) {
  const Pair pair(std::move(a), std::move(b), wanted);
  // A product of one row and one column makes no use of a matrix engine, forward or backward; integers have no engine.
  const bool is_dot = pair.free_a.empty() && pair.free_b.empty();
  if (pair.inner.empty() || is_dot || !is_floating(pair.a.tensor.dtype())) return multiply(pair);
  return contract(pair);
}

// ---- all ----

// The labels to keep of operands i and j, or of i alone: those of the output, in its order, and those of other
// operands.
Labels wanted_of(const std::vector<Operand>& operands, const Labels& output, std::size_t i, std::size_t j) {
  Labels wanted = output;
  for (const std::size_t o : indices(operands))
    for (char c : operands[o].labels)
      if (o != i && o != j && !has(wanted, c)) wanted += c;
  return wanted;
}

std::pair<std::size_t, std::size_t> next_pair(const std::vector<Operand>& operands, const EinsumEquation& equation) {
  std::pair<std::size_t, std::size_t> best{0, 1};
  std::tuple<bool, double> lowest{true, 0};
  for (std::size_t i = 0; i + 1 < operands.size(); ++i)
    for (const std::size_t j : Numbers<std::size_t>(i + 1, operands.size())) {
      const Labels &a = operands[i].labels, &b = operands[j].labels;
      const Labels shared = those_of(a, [&](char c) { return has(b, c); });
      double elements = 1;
      for (char c : wanted_of(operands, equation.output, i, j))
        if (has(a, c) || has(b, c)) elements *= static_cast<double>(equation.size(c));
      elements -= static_cast<double>(operands[i].tensor.numel()) + static_cast<double>(operands[j].tensor.numel());
      const std::tuple price{shared.empty(), elements};
      if ((i == 0 && j == 1) || price < lowest) {
        lowest = price;
        best = {i, j};
      }
    }
  return best;
}

Tensor evaluate(const EinsumEquation& equation, std::span<const Tensor> tensors) {
  std::vector<Operand> operands;
  for (const std::size_t i : indices(tensors)) {
    check(tensors[i].dtype() == tensors[0].dtype(),
          "einsum: dtypes differ: {} of operand 0 and {} of operand {}; cast one", name(tensors[0].dtype()),
          name(tensors[i].dtype()), i);
    operands.push_back(without_broadcast(without_repeats({tensors[i], equation.inputs[i]}), equation));
  }
  for (const std::size_t i : indices(operands))
    operands[i] = summed_to(std::move(operands[i]), wanted_of(operands, equation.output, i, i));
  while (operands.size() > 1) {
    const auto [i, j] = next_pair(operands, equation);
    const Labels wanted = wanted_of(operands, equation.output, i, j);
    operands[i] = product(std::move(operands[i]), std::move(operands[j]), wanted);
    operands.erase(operands.begin() + static_cast<std::ptrdiff_t>(j));
  }
  return permuted(operands[0], equation.output);
}

}  // namespace

Tensor einsum(std::string_view equation, std::span<const Tensor> operands) {
  try {
    return evaluate(parse_einsum(equation, operands), operands);
  } catch (Error& error) {
    std::string text = fmt::format("\"{}\" of", equation);
    for (const Tensor& t : operands) text += "  " + describe(t);
    error.add("einsum", text);
    throw;
  }
}

}  // namespace sherd
