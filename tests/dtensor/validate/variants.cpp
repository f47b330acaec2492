#include "tests/dtensor/validate/variants.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::testing {

namespace {

// Whether attributes have one of these fields, other than 0.
bool has_field(const Attrs& attrs, const std::set<std::string>& names) {
  std::istringstream words(attrs.print());
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (names.contains(word.substr(0, equals)) && word.substr(equals + 1) != "0") return true;
  }
  return false;
}

// Sizes and offsets of elements, which are wrong if shapes change.
bool has_sizes(const Attrs& attrs) { return has_field(attrs, {"shape", "rows", "start", "length", "size"}); }
// What only a rank's local call has.
bool is_of_a_part(const Attrs& attrs) { return has_field(attrs, {"run", "total_ids"}); }

// Sizes of two and more that the case has, smallest first, become those of this list in turn; equal ones stay equal.
std::optional<OpCase> resized(const OpCase& c, const std::vector<std::int64_t>& sizes) {
  std::map<std::int64_t, std::int64_t> to;
  for (const Arg& arg : c.args)
    for (std::int64_t n : arg.shape)
      if (n >= 2) to[n] = 0;
  if (to.empty() || to.size() > sizes.size()) return {};
  auto next = sizes.begin();
  for (auto& [from, n] : to) n = *next++;
  OpCase result = c;
  for (Arg& arg : result.args) {
    for (int d = 0; d < arg.shape.size(); ++d)
      if (arg.shape[d] >= 2) arg.shape[d] = to[arg.shape[d]];
    // Ids stay below the size that they index: if that is no size of the case, below the smallest.
    if (arg.draw == Draw::ids) arg.high = to.contains(arg.high) ? to[arg.high] : std::min(arg.high, sizes.front());
  }
  return result;
}

std::vector<std::int64_t> sizes_for(Sizes sizes, std::int64_t ranks) {
  switch (sizes) {
    case Sizes::as_is: return {};
    case Sizes::even: return {ranks, 2 * ranks, 3 * ranks, 4 * ranks};
    // ceil(n / ranks) = 2, 3, ...: the last rank has one less, or the last ones, but no rank has none.
    case Sizes::uneven: return {2 * ranks - 1, 3 * ranks - 1, 4 * ranks - 1, 5 * ranks - 1};
    case Sizes::sparse:  // of two ranks one has nothing of sizes of 1 only
      return ranks == 3 ? std::vector<std::int64_t>{2, 4, 5} : std::vector<std::int64_t>{2, 3, 5};
  }
  return {};
}

bool is_callable(const Op& op, const Variant& variant) {
  try {
    const GradMode off(false);
    std::vector<Tensor> in = inputs_of(variant, DType::f32, 1);
    call_op(op, in, variant.op_case.attrs);
    return true;
  } catch (const Error&) { return false; }
}

bool has_inputs(const OpCase& c) {
  return std::any_of(c.args.begin(), c.args.end(), [](const Arg& arg) { return arg.draw != Draw::absent; });
}

OpCase sized(std::string op, std::string name, std::vector<Arg> args, const Attrs& attrs) {
  return {.op = std::move(op), .name = std::move(name), .args = std::move(args), .attrs = attrs};
}

// Multiples of 12 divide by 2, 3 and 4 ranks; 7 and 11 leave none of those without elements.
std::vector<Variant> cases_with_sizes() {
  struct Row {
    const char* op;
    const char* name;
    Shape from, to;
  };
  std::vector<Variant> all;
  for (const Row& r : std::vector<Row>{{"view", "split", {24, 4}, {12, 2, 4}},
                                       {"view", "split_last", {12, 24}, {12, 12, 2}},
                                       {"view", "merge", {12, 12, 3}, {144, 3}},
                                       {"view", "merge_last", {12, 12, 2}, {12, 24}},
                                       {"view", "merge_and_split", {12, 12, 3}, {24, 18}},
                                       {"view", "insert_one", {12, 12}, {12, 1, 12}},
                                       {"expand", "row", {12}, {24, 12}},
                                       {"expand", "column", {12, 1}, {12, 24}},
                                       {"expand", "new_dims", {12}, {1, 24, 12}},
                                       {"sum_to", "row", {24, 12}, {12}},
                                       {"sum_to", "column", {24, 12}, {24, 1}},
                                       {"sum_to", "middle", {12, 24, 36}, {12, 1, 36}}}) {
    const bool is_sum = std::string_view(r.op) == "sum_to";
    const Attrs attrs = is_sum ? Attrs(SumToAttrs{r.to}) : Attrs(ShapeAttrs{r.to});
    all.push_back({sized(r.op, r.name, {normal(r.from)}, attrs), Sizes::even});
  }
  for (const Row& r : std::vector<Row>{{"view", "split", {7, 4}, {7, 2, 2}},
                                       {"view", "merge_last", {7, 11, 2}, {7, 22}},
                                       {"view", "insert_one", {7, 11}, {7, 1, 11}},
                                       {"expand", "row", {7}, {11, 7}},
                                       {"expand", "column", {7, 1}, {7, 11}},
                                       {"sum_to", "row", {11, 7}, {7}},
                                       {"sum_to", "column", {11, 7}, {11, 1}}}) {
    const bool is_sum = std::string_view(r.op) == "sum_to";
    const Attrs attrs = is_sum ? Attrs(SumToAttrs{r.to}) : Attrs(ShapeAttrs{r.to});
    all.push_back({sized(r.op, r.name, {normal(r.from)}, attrs), Sizes::uneven});
  }
  for (const auto& [sizes, m, n] :
       std::vector<std::tuple<Sizes, std::int64_t, std::int64_t>>{{Sizes::even, 12, 24}, {Sizes::uneven, 7, 11}}) {
    const NarrowAttrs cut{.dim = 1, .start = 2, .length = 4};
    all.push_back({sized("narrow", "columns", {normal({m, n})}, cut), sizes});
    all.push_back({sized("narrow", "whole_rows", {normal({m, n})}, NarrowAttrs{.dim = 0, .length = m}), sizes});
    all.push_back({sized("pad_to", "columns", {normal({m, 4})}, PadToAttrs{.dim = 1, .start = 2, .size = n}), sizes});
    all.push_back({sized("embedding_backward", "rows", {normal({m, n, 6}), ids({m, n}, m)}, EmbeddingAttrs{m}), sizes});
    all.push_back({sized("index_select_backward", "rows", {normal({m, n}), ids({m}, 6)}, PadToAttrs{0, 0, 6}), sizes});
    all.push_back(
        {sized("index_select_backward", "columns", {normal({m, n}), ids({n}, 6)}, PadToAttrs{1, 0, 6}), sizes});
  }
  return all;
}

}  // namespace

std::string name(Sizes sizes) {
  switch (sizes) {
    case Sizes::as_is: return "as it is";
    case Sizes::even: return "even";
    case Sizes::uneven: return "uneven";
    case Sizes::sparse: return "sparse";
  }
  return {};
}

std::vector<Tensor> inputs_of(const Variant& variant, DType dtype, std::uint64_t seed) {
  std::vector<Tensor> inputs;
  for (const Arg& arg : variant.op_case.args) inputs.push_back(draw(arg, dtype, 1000 * seed + inputs.size()));
  return inputs;
}

std::vector<Variant> variants_of(const Op& op, int ranks) {
  std::vector<Variant> all;
  std::set<std::string> seen;  // cases of different sizes may become one
  const auto add = [&](Variant variant) {
    std::string call = variant.op_case.attrs.print();
    for (const Arg& arg : variant.op_case.args)
      call += fmt::format(" {}{}", static_cast<int>(arg.draw), to_string(arg.shape));
    if (seen.insert(call).second && is_callable(op, variant)) all.push_back(std::move(variant));
  };
  for (const Variant& variant : cases_with_sizes())
    if (variant.op_case.op == op.name) all.push_back(variant);
  for (const OpCase& c : op_cases()) {
    if (c.op != op.name || c.large || is_of_a_part(c.attrs) || !has_inputs(c)) continue;
    for (Sizes sizes : {Sizes::even, Sizes::uneven, Sizes::sparse}) {
      if (has_sizes(c.attrs)) continue;
      if (std::optional<OpCase> other = resized(c, sizes_for(sizes, ranks))) add({std::move(*other), sizes});
    }
    add({c, Sizes::as_is});
  }
  return all;
}

}  // namespace sherd::testing
