#include "tests/dtensor/validate/combinations.h"

#include <algorithm>
#include <random>
#include <set>

#include "dtensor/derived.h"
#include "dtensor/rule.h"

namespace sherd::testing {

namespace {

using Choices = std::vector<std::vector<Placement>>;  // per input, along one axis

// How many combinations there are; `limit` + 1 if more than that.
std::size_t count(const Choices& choices, int axes, std::size_t limit) {
  std::size_t n = 1;
  for (const auto& list : choices)
    for (int a = 0; a < axes && n <= limit; ++a) n *= std::max<std::size_t>(list.size(), 1);
  return std::min(n, limit + 1);
}

// The combination of that number: digits are the choices per input and axis.
Combination numbered(const Choices& choices, int axes, std::size_t number) {
  Combination c;
  for (const auto& list : choices) {
    Placements p;
    for (int a = 0; a < axes && !list.empty(); ++a) {
      p.push_back(list[number % list.size()]);
      number /= list.size();
    }
    c.in.push_back(p);
  }
  return c;
}

Combination drawn(const Choices& choices, int axes, std::mt19937_64& random) {
  Combination c;
  for (const auto& list : choices) {
    Placements p;
    for (int a = 0; a < axes && !list.empty(); ++a) p.push_back(list[random() % list.size()]);
    c.in.push_back(p);
  }
  return c;
}

// A combination of one axis for each axis.
Combination joined(std::span<const Combination* const> per_axis) {
  Combination c = *per_axis[0];
  for (const Combination* next : per_axis.subspan(1))
    for (std::size_t i = 0; i < c.in.size(); ++i)
      if (!c.in[i].empty()) c.in[i].push_back(next->in[i][0]);
  return c;
}

// One input has each placement along one axis, the rest is replicated.
std::vector<Combination> one_by_one(const Choices& choices, int axes) {
  std::vector<Combination> all;
  Combination whole = numbered(choices, axes, 0);
  for (std::size_t i = 0; i < choices.size(); ++i)
    for (int a = 0; a < axes; ++a)
      for (const Placement& p : choices[i]) {
        all.push_back(whole);
        all.back().in[i][static_cast<std::size_t>(a)] = p;
      }
  return all;
}

bool may_lie(const Tensor& tensor, Placement placement) {
  const std::vector<Placement> all = placements_of(tensor);
  return placement.is_partial(ReduceKind::product) ? is_floating(tensor.dtype())
                                                   : std::find(all.begin(), all.end(), placement) != all.end();
}

class Chosen {
 public:
  Chosen(std::size_t limit) : limit_(limit) {}
  bool is_full() const { return list_.size() >= limit_; }
  void add(Combination c) {
    if (!is_full() && seen_.insert(to_string(c)).second) list_.push_back(std::move(c));
  }
  std::vector<Combination> take() { return std::move(list_); }

 private:
  std::size_t limit_;
  std::set<std::string> seen_;
  std::vector<Combination> list_;
};

}  // namespace

std::string to_string(const Combination& combination) {
  std::string text;
  for (const Placements& placements : combination.in) {
    if (!text.empty()) text += ' ';
    if (placements.empty()) text += '-';
    for (std::size_t a = 0; a < placements.size(); ++a) text += (a > 0 ? "," : "") + to_string(placements[a]);
  }
  return text;
}

std::vector<Placement> placements_of(const Tensor& tensor) {
  std::vector<Placement> all = {Replicate()};
  for (int d = 0; d < tensor.ndim(); ++d) all.push_back(Shard(d));
  const bool is_flags = tensor.dtype() == DType::boolean;
  if (!is_flags) all.push_back(Partial(ReduceKind::sum));
  if (is_floating(tensor.dtype())) all.push_back(Partial(ReduceKind::avg));  // averages of integers are truncated
  all.push_back(Partial(ReduceKind::max));
  all.push_back(Partial(ReduceKind::min));
  return all;
}

std::vector<Combination> listed_signatures(const Op& op, std::span<const Tensor> inputs, const Attrs& attrs) {
  const ShardingRule* rule = find_rule(op);
  if (!rule) return {};
  std::vector<TensorMeta> metas;
  for (const Tensor& t : inputs)
    metas.push_back(t.defined() ? TensorMeta{.shape = t.shape(), .dtype = t.dtype()} : kAbsent);
  const Metas out = op.infer({op, metas, attrs});
  const RuleCall call{op, metas, attrs, out};
  Signatures signatures;
  if (rule->signatures) rule->signatures(call, signatures);
  if (rule->derived) add_derived_signatures(call, signatures);
  std::vector<Combination> all;
  for (const Signature& s : signatures) {
    Combination c;
    bool is_possible = true;  // a rule may list sums of flags, which nothing is
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      c.in.push_back(inputs[i].defined() ? Placements{s.in[i]} : Placements{});
      is_possible = is_possible && (!inputs[i].defined() || may_lie(inputs[i], s.in[i]));
    }
    if (is_possible) all.push_back(std::move(c));
  }
  return all;
}

std::vector<Combination> combinations(std::span<const Tensor> inputs, std::span<const Combination> signatures, int axes,
                                      std::size_t limit, std::uint64_t seed) {
  Choices choices;
  for (const Tensor& t : inputs) choices.push_back(t.defined() ? placements_of(t) : std::vector<Placement>{});
  const std::size_t total = count(choices, axes, limit);
  Chosen chosen(limit);
  if (total <= limit) {
    for (std::size_t n = 0; n < total; ++n) chosen.add(numbered(choices, axes, n));
    return chosen.take();
  }
  // Half for what rules say; of it, along two axes, each signature with itself and pairs at random.
  std::mt19937_64 random(seed);
  Chosen ruled(limit / 2);
  for (const Combination& s : signatures) ruled.add(joined(std::vector<const Combination*>(axes, &s)));
  for (std::size_t tries = 0; axes > 1 && !signatures.empty() && tries < limit; ++tries) {
    std::vector<const Combination*> per_axis;
    for (int a = 0; a < axes; ++a) per_axis.push_back(&signatures[random() % signatures.size()]);
    ruled.add(joined(per_axis));
  }
  for (Combination& c : ruled.take()) chosen.add(std::move(c));
  std::vector<Combination> singles = one_by_one(choices, axes);
  for (std::size_t i = singles.size(); i > 1; --i) std::swap(singles[i - 1], singles[random() % i]);
  Chosen few(limit / 4);
  for (Combination& c : singles) few.add(std::move(c));
  for (Combination& c : few.take()) chosen.add(std::move(c));
  for (std::size_t tries = 0; !chosen.is_full() && tries < 4 * limit; ++tries) chosen.add(drawn(choices, axes, random));
  return chosen.take();
}

}  // namespace sherd::testing
