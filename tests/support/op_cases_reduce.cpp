#include "runtime/op/rows/reduce_attrs.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {

namespace {

struct Form {
  std::string name;
  Shape shape;
  ReduceAttrs attrs;
  bool large = false;
};

// Bit d of the mask: dim d is reduced.
const std::vector<Form>& forms() {
  static const std::vector<Form> list = {
      {"scalar", {}, {0b0, false}},
      {"one", {1}, {0b1, false}},
      {"all", {3, 5, 7}, {0b111, false}},
      {"last", {3, 5, 7}, {0b100, false}},
      {"last_kept", {3, 5, 7}, {0b100, true}},
      {"first", {3, 5, 7}, {0b001, false}},
      {"middle", {3, 5, 7}, {0b010, true}},
      {"outer_two", {4, 3, 2, 5}, {0b0101, false}},
      {"none", {2, 3}, {0b00, false}},
      {"size_1", {4, 1, 3}, {0b010, false}},
      {"empty_result", {0, 3}, {0b10, false}},
      {"large_all", {257, 301}, {0b11, false}, true},
      {"large_last", {130, 700}, {0b10, false}, true},
      {"large_first", {700, 130}, {0b01, false}, true},
  };
  return list;
}

void reduction(OpCases& cases, const std::string& op, Arg arg, double slack = 1) {
  for (const Form& f : forms()) {
    arg.shape = f.shape;
    cases.push_back({.op = op, .name = f.name, .args = {arg}, .attrs = f.attrs, .large = f.large, .slack = slack});
  }
}

}  // namespace

void add_reduce_cases(OpCases& cases) {
  // Sums of some 80 000 values of either sign: the error of f32 grows with their root, against a result of size 300.
  reduction(cases, "sum", normal({}), 10);
  reduction(cases, "mean", normal({}));
  reduction(cases, "max", distinct({}));
  reduction(cases, "min", distinct({}));
  reduction(cases, "any", flags({}));
  reduction(cases, "all", flags({}));
  for (const char* op : {"sum", "mean", "any", "all"})
    cases.push_back({.op = op,
                     .name = "over_nothing",
                     .args = {op[0] == 'a' ? flags({0, 3}) : normal({0, 3})},
                     .attrs = ReduceAttrs{0b01, false}});
  cases.push_back({.op = "sum", .name = "integers", .args = {ids({4, 6}, 100)}, .attrs = ReduceAttrs{0b01, false}});
  cases.push_back({.op = "sum", .name = "flags", .args = {flags({4, 6})}, .attrs = ReduceAttrs{0b10, false}});
  cases.push_back({.op = "max", .name = "integers", .args = {ids({4, 6}, 100)}, .attrs = ReduceAttrs{0b01, false}});
  for (const Form& f : forms())  // a product of thousands of terms says nothing
    if (!f.large) cases.push_back({.op = "prod", .name = f.name, .args = {unit(f.shape)}, .attrs = f.attrs});
  cases.push_back(
      {.op = "prod", .name = "large", .args = {positive({9000, 5})}, .attrs = ReduceAttrs{0b10, false}, .large = true});
  for (const Form& f : forms())
    for (const int correction : {0, 1}) {
      // One element more than the correction leaves, or no result: nothing but NaN is no test of a sum.
      std::int64_t count = 1;
      for (int d = 0; d < f.shape.size(); ++d)
        if (f.attrs.dims >> d & 1u) count *= f.shape[d];
      if (count <= correction && numel(f.shape) > 0) continue;
      cases.push_back({.op = "var",
                       .name = f.name + (correction == 0 ? "" : "_corrected"),
                       .args = {normal(f.shape)},
                       .attrs = VarAttrs{f.attrs, correction},
                       .large = f.large});
    }
  // argmax takes one dim.
  const auto argmax = [&](const std::string& name, const Shape& shape, std::uint64_t mask, bool large = false) {
    cases.push_back(
        {.op = "argmax", .name = name, .args = {distinct(shape)}, .attrs = ReduceAttrs{mask, large}, .large = large});
  };
  argmax("last", {3, 5, 7}, 0b100);
  argmax("first", {3, 5}, 0b01);
  argmax("vector", {9}, 0b1);
  argmax("one", {1}, 0b1);
  argmax("empty_result", {0, 3}, 0b10);
  argmax("large", {300, 300}, 0b10, true);
  const auto sum_to = [&](const std::string& name, const Shape& shape, const Shape& to, bool large = false) {
    cases.push_back({.op = "sum_to",
                     .name = name,
                     .args = {normal(shape)},
                     .attrs = SumToAttrs{to},
                     .large = large,
                     .slack = large ? 10.0 : 1.0});
  };
  sum_to("row", {4, 5}, {5});
  sum_to("column", {4, 5}, {4, 1});
  sum_to("scalar", {4, 5}, {});
  sum_to("mixed", {2, 3, 4, 5}, {3, 1, 5});
  sum_to("same", {2, 3}, {2, 3});
  sum_to("empty", {0, 5}, {5});
  sum_to("large", {3000, 65}, {65}, true);
}

}  // namespace sherd::testing
