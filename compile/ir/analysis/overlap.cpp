// Two elements share a byte if a sum of steps, each taken a number of times that its dim allows, spans the distance
// between the tensors: a walk over the steps, the longest first, that goes on only while the shorter ones can make up
// what is left. For the tensors of programs one or two counts are left to try per step.
#include "compile/ir/analysis/overlap.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/tensor/indices.h"
#include "runtime/tensor/small_vec.h"

namespace sherd::ir {

namespace {

/// step * n for any n of [least, most].
struct Term {
  std::int64_t step, least, most;
};
using Terms = SmallVec<Term, 2 * kMaxDims + 1>;

void add_term(Terms& terms, std::int64_t step, std::int64_t least, std::int64_t most) {
  if (step == 0) return;
  if (step < 0) {
    step = -step;
    least = -std::exchange(most, -least);
  }
  for (Term& term : terms)
    if (term.step == step) {
      term.least += least;
      term.most += most;
      return;
    }
  terms.push_back({step, least, most});
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Whether terms from `from` on sum up to `rest`; `tries` bounds the work.
bool can_be(const Terms& terms, std::size_t from, std::int64_t rest, int& tries) {
  if (from == terms.size()) return rest == 0;
  std::int64_t least = 0, most = 0;  // of the terms after this one
  for (const std::size_t i : Numbers<std::size_t>(from + 1, terms.size())) {
    least += terms[i].step * terms[i].least;
    most += terms[i].step * terms[i].most;
  }
  const Term& term = terms[from];
  const std::int64_t first = std::max(term.least, -floor_div(most - rest, term.step));
  const std::int64_t last = std::min(term.most, floor_div(rest - least, term.step));
  for (std::int64_t n = first; n <= last; ++n)
    if (--tries < 0 || can_be(terms, from + 1, rest - n * term.step, tries)) return true;
  return false;
}

}  // namespace

bool share_bytes(const TensorRef& a, const TensorRef& b, std::int64_t shift) {
  const auto [a_first, a_last] = a.extent();
  const auto [b_first, b_last] = b.extent();
  if (a_first >= b_last + shift || b_first + shift >= a_last || a_first == a_last || b_first == b_last) return false;
  constexpr int kTries = 1000;
  const std::int64_t a_size = byte_size(a.dtype), b_size = byte_size(b.dtype);
  Terms terms;
  for (const int i : indices(a.shape)) add_term(terms, a.strides[i] * a_size, 0, a.shape[i] - 1);
  for (const int i : indices(b.shape)) add_term(terms, b.strides[i] * b_size, 1 - b.shape[i], 0);
  add_term(terms, 1, 1 - b_size, a_size - 1);  // the bytes of an element
  std::sort(terms.begin(), terms.end(), [](const Term& x, const Term& y) { return x.step > y.step; });
  int tries = kTries;
  return can_be(terms, 0, b.offset * b_size + shift - a.offset * a_size, tries);
}

bool repeats_bytes(const TensorRef& ref) {
  if (numel(ref.shape) < 2 || is_contiguous(ref.shape, ref.strides)) return false;
  SmallVec<std::pair<std::int64_t, std::int64_t>, kMaxDims> dims;  // step, what it spans
  for (const int i : indices(ref.shape))
    if (ref.shape[i] > 1) dims.push_back({std::abs(ref.strides[i]), std::abs(ref.strides[i]) * (ref.shape[i] - 1)});
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = 0;
  for (const auto& [step, span] : dims) {
    if (step <= reach) return true;
    reach += span;
  }
  return false;
}

}  // namespace sherd::ir
