// Sharding read off the op table. A letter of the dims column is a dim of the iteration space: sharded along it, every
// operand that has the letter is sharded there, and what has no such letter is replicated.
//
//   "...mk,...kn->...mn"   letter n:   R  S(-1) -> S(-1)         letter k:   S(-1)  S(-2) -> P, as the row is linear
//   "...[d],[d]->...[d]"   letter d:   nothing, every rank needs all of it
//
// Partial values: what is linear lets terms pass, and an increasing function lets a maximum pass. The column algebra
// says which row is which (runtime/op/core/algebra.h).
#include "dtensor/derived.h"

#include <algorithm>

#include "runtime/op/core/dims.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

constexpr ReduceKind kEveryKind[] = {ReduceKind::sum, ReduceKind::avg, ReduceKind::max, ReduceKind::min,
                                     ReduceKind::product};

void add(Signatures& signatures, SmallVec<Placement, 4> in, std::size_t outs, Placement out) {
  signatures.push_back({std::move(in), all<2>(outs, out), 0});
}

// Input i Partial of `kind`, the others replicated.
void add_one(const RuleCall& call, std::size_t i, ReduceKind in_kind, ReduceKind out_kind, Signatures& signatures) {
  if (!call.has(i)) return;
  SmallVec<Placement, 4> in = all(call.in.size(), Replicate());
  in[i] = Partial(in_kind);
  add(signatures, std::move(in), call.out.size(), Partial(out_kind));
}

void add_all(const RuleCall& call, ReduceKind kind, Signatures& signatures) {
  add(signatures, all(call.in.size(), Partial(kind)), call.out.size(), Partial(kind));
}

bool is_floating_call(const RuleCall& call) { return is_floating(call.out[0].dtype); }

// Large partial sums of integers would round where their sum does not, once they are promoted to a float.
bool is_promoted(const RuleCall& call, std::size_t i) {
  const DType in = call.in[i].dtype, out = call.out[0].dtype;
  return in != out && !(is_floating(in) && is_floating(out));
}

// Averages of integers are truncated, so that they are linear in nothing.
void add_sums(const RuleCall& call, std::size_t i, Signatures& signatures) {
  if (call.has(i) && is_promoted(call, i)) return;
  add_one(call, i, ReduceKind::sum, ReduceKind::sum, signatures);
  if (is_floating_call(call)) add_one(call, i, ReduceKind::avg, ReduceKind::avg, signatures);
}

// Integers wrap: what increases elsewhere may jump down. Numbers other than 0 and 1 are no truth values: "is not zero"
// does not increase.
bool keeps_extrema(const RuleCall& call, Algebra algebra) {
  const bool is_logical = call.out[0].dtype == DType::boolean;
  if (is_logical)
    return std::all_of(call.in.begin(), call.in.end(), [](const TensorMeta& t) { return t.dtype == DType::boolean; });
  constexpr Algebra kWrap = Algebra::joint | Algebra::joint_minus | Algebra::shift | Algebra::decreasing;
  return !has(kWrap, algebra) || is_floating_call(call);
}

// Sums of both inputs, or one of them that the other shifts.
void add_joint(const RuleCall& call, bool minus, Signatures& signatures) {
  if (!is_promoted(call, 0) && !is_promoted(call, 1)) add_all(call, ReduceKind::sum, signatures);
  if (is_floating_call(call)) add_all(call, ReduceKind::avg, signatures);
  const bool extrema = keeps_extrema(call, Algebra::joint);
  for (const std::size_t i : up_to(2)) {
    const bool turned = minus && i == 1;
    if (is_floating_call(call)) add_one(call, i, ReduceKind::avg, ReduceKind::avg, signatures);
    if (!extrema) continue;
    add_one(call, i, ReduceKind::max, turned ? ReduceKind::min : ReduceKind::max, signatures);
    add_one(call, i, ReduceKind::min, turned ? ReduceKind::max : ReduceKind::min, signatures);
  }
}

// The other branch is what all ranks have: its average and extrema are itself.
void add_branches(const RuleCall& call, Signatures& signatures) {
  for (ReduceKind kind : kEveryKind) add(signatures, {Replicate(), Partial(kind), Partial(kind)}, 1, Partial(kind));
  for (std::size_t i : {1, 2})
    for (ReduceKind kind : {ReduceKind::avg, ReduceKind::max, ReduceKind::min})
      if (kind != ReduceKind::avg || is_floating_call(call)) add_one(call, i, kind, kind, signatures);
}

// max(min(x, y), whole) = min(max(x, whole), max(y, whole)): either kind passes a whole operand.
void add_extremum(const RuleCall& call, ReduceKind own, Signatures& signatures) {
  add_all(call, own, signatures);
  for (const std::size_t i : up_to(2))
    for (ReduceKind kind : {ReduceKind::max, ReduceKind::min}) add_one(call, i, kind, kind, signatures);
}

// One member of the set.
void add_algebra(const RuleCall& call, Algebra algebra, Signatures& signatures) {
  const std::size_t count = call.in.size();
  switch (algebra) {
    case Algebra::linear: return add_sums(call, 0, signatures);
    case Algebra::last: return add_sums(call, count - 1, signatures);
    case Algebra::product:
      for (const std::size_t i : up_to(count)) add_sums(call, i, signatures);
      return;
    case Algebra::joint: return add_joint(call, false, signatures);
    case Algebra::joint_minus: return add_joint(call, true, signatures);
    case Algebra::branches: return add_branches(call, signatures);
    case Algebra::shift:
      if (is_floating_call(call)) add_one(call, 0, ReduceKind::avg, ReduceKind::avg, signatures);
      [[fallthrough]];
    case Algebra::increasing:
      if (!keeps_extrema(call, algebra)) return;
      add_one(call, 0, ReduceKind::max, ReduceKind::max, signatures);
      add_one(call, 0, ReduceKind::min, ReduceKind::min, signatures);
      return;
    case Algebra::decreasing:
      if (!keeps_extrema(call, algebra)) return;
      add_one(call, 0, ReduceKind::max, ReduceKind::min, signatures);
      add_one(call, 0, ReduceKind::min, ReduceKind::max, signatures);
      return;
    case Algebra::larger:
      if (keeps_extrema(call, algebra)) add_extremum(call, ReduceKind::max, signatures);
      return;
    case Algebra::smaller:
      if (keeps_extrema(call, algebra)) add_extremum(call, ReduceKind::min, signatures);
      return;
    case Algebra::moves:
      for (ReduceKind kind : kEveryKind) add_all(call, kind, signatures);
      return;
    case Algebra::none:
    case Algebra::between_floats: return;
  }
}

// Where a letter, or dim `e` of "..." (counted from the right), stands in an operand; -1: it has none.
int position(const DimsTerm& term, int ndim, char letter, int e) {
  const int letters = static_cast<int>(term.letters.size());
  if (letter == '.') {
    const int at = ndim - letters - 1 - e;
    return term.ellipsis && at >= 0 ? at : -1;
  }
  const auto i = term.letters.find(letter);
  return i == std::string::npos ? -1 : ndim - letters + static_cast<int>(i);
}

// One candidate: every operand that has the factor is sharded along it. Operands of one element there are broadcast:
// replicated.
void add_factor(const RuleCall& call, const DimsSpec& spec, char letter, int e, Signatures& signatures) {
  Signature s{all(call.in.size(), Replicate()), all<2>(call.out.size(), Replicate()), 0};
  std::int64_t size = 1;
  for (const std::size_t i : indices(call.in)) {
    if (!call.has(i)) continue;
    const int at = position(spec.inputs[i], call.ndim(i), letter, e);
    if (at >= 0) size = std::max(size, call.shape(i)[at]);
  }
  bool is_cut = false, is_summed = false;
  for (const std::size_t i : indices(call.in)) {
    if (!call.has(i)) continue;
    const int at = position(spec.inputs[i], call.ndim(i), letter, e);
    // A size of 1 among larger ones is broadcast; 0 against 1 too, then there is nothing to shard.
    if (at < 0 || (letter == '.' && call.shape(i)[at] == 1 && size != 1)) continue;
    s.in[i] = Shard(at);
    is_cut = true;
  }
  for (const std::size_t i : indices(call.out)) {
    const int at = position(spec.outputs[i], call.out[i].shape.size(), letter, e);
    s.out[i] = at < 0 ? Partial() : Shard(at);
    is_summed |= at < 0;
  }
  // What linear rows do with a dim that a result lacks is to sum over it.
  const bool sums = call.op.traits.linear || has(call.op.algebra, Algebra::linear);
  if (is_cut && (sums || !is_summed)) signatures.push_back(std::move(s));
}

}  // namespace

void add_dims_signatures(const RuleCall& call, std::string_view dims, Signatures& signatures) {
  const DimsSpec spec = parse_dims(dims);
  int leading = 0;  // dims of "..."
  std::string letters;
  for (const std::size_t i : indices(call.in)) {
    if (!call.has(i)) continue;
    if (spec.inputs[i].ellipsis)
      leading = std::max(leading, call.ndim(i) - static_cast<int>(spec.inputs[i].letters.size()));
    for (char c : spec.inputs[i].letters)
      if (letters.find(c) == std::string::npos) letters += c;
  }
  const int whole = call.op.along ? call.op.along(call.attrs) : -1;
  for (const int d : up_to(leading))
    if (d != whole) add_factor(call, spec, '.', leading - 1 - d, signatures);
  for (char c : letters)
    if (spec.whole.find(c) == std::string::npos) add_factor(call, spec, c, 0, signatures);
}

void add_linear_signatures(const RuleCall& call, std::size_t i, Signatures& signatures) {
  add_sums(call, i, signatures);
}

void add_jointly_linear_signatures(const RuleCall& call, std::uint32_t inputs, Signatures& signatures) {
  for (ReduceKind kind : {ReduceKind::sum, ReduceKind::avg}) {
    if (kind == ReduceKind::avg && !is_floating_call(call)) continue;
    SmallVec<Placement, 4> in = all(call.in.size(), Replicate());
    for (const std::size_t i : indices(in))
      if ((i < 32 ? inputs >> i & 1u : inputs == ~0u) && call.has(i)) in[i] = Partial(kind);
    add(signatures, std::move(in), call.out.size(), Partial(kind));
  }
}

bool is_derivable(const Op& op) { return !op.dims.empty() && !op.traits.effect && !op.traits.collective; }

void add_derived_signatures(const RuleCall& call, Signatures& signatures) {
  add_dims_signatures(call, call.op.dims, signatures);
  const Algebra algebra = call.op.algebra;
  if (algebra != Algebra::none) {
    if (has(algebra, Algebra::between_floats) && !(is_floating(call.in[0].dtype) && is_floating_call(call))) return;
    for (unsigned set = static_cast<unsigned>(algebra); set != 0; set &= set - 1)  // the lowest first
      add_algebra(call, static_cast<Algebra>(set & ~(set - 1)), signatures);
  } else if (call.op.traits.linear) {
    for (const std::size_t i : indices(call.in))
      if (call.has(i) && is_floating(call.in[i].dtype)) add_linear_signatures(call, i, signatures);
  }
}

}  // namespace sherd
