#include "runtime/op/rows/random_attrs.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {

void add_random_cases(OpCases& cases) {
  for (const char* op : {"random_normal", "random_uniform"}) {
    const auto add = [&](const std::string& name, const Shape& shape, DType dtype, std::int64_t first, Arg step,
                         bool large = false) {
      const RandomAttrs attrs{
          .shape = shape, .dtype = dtype, .key = 0x1234567890abcdef, .first = first, .a = -1, .b = 2};
      cases.push_back({.op = op, .name = name, .args = {step}, .attrs = attrs, .large = large});
    };
    add("odd", {3, 5}, DType::f32, 0, absent());
    add("scalar", {}, DType::f32, 0, absent());
    add("empty", {0, 3}, DType::f32, 0, absent());
    add("with_step", {7}, DType::f32, 0, ids({}, 100));
    add("shifted", {9}, DType::f32, 6, absent());
    add("bf16", {33}, DType::bf16, 0, absent());
    add("f64", {33}, DType::f64, 0, absent());
    add("large", {150'001}, DType::f32, 3, absent(), true);
    const auto add_part = [&](const std::string& name, const Shape& shape, std::int64_t first, ElementRuns runs) {
      const RandomAttrs attrs{.shape = shape, .key = 9, .first = first, .a = -1, .b = 2, .runs = runs};
      cases.push_back({.op = op, .name = name, .args = {absent()}, .attrs = attrs});
    };
    add_part("column", {6}, 2, {.run = 1, .count = 6, .stride = 5});
    add_part("box", {3, 4, 5}, 7, {.run = 5, .count = 4, .stride = 9, .outer_stride = 63});
    add_part("vectors", {4, 24}, 8, {.run = 24, .count = 4, .stride = 32});
  }
  const auto dropout = [&](const std::string& name, const Shape& shape, float p, Arg step, bool large = false) {
    cases.push_back({.op = "dropout",
                     .name = name,
                     .args = {normal(shape), step},
                     .attrs = DropoutAttrs{.p = p, .key = 77, .first = 5},
                     .large = large});
  };
  dropout("half", {6, 7}, 0.5f, absent());
  dropout("tenth", {6, 7}, 0.1f, ids({}, 100));
  dropout("none", {4}, 0, absent());
  dropout("empty", {0}, 0.5f, absent());
  dropout("scalar", {}, 0.25f, absent());
  cases.push_back(
      {.op = "dropout",
       .name = "columns",
       .args = {normal({6, 3}), absent()},
       .attrs = DropoutAttrs{.p = 0.5f, .key = 77, .first = 5, .runs = {.run = 3, .count = 6, .stride = 8}}});
  cases.push_back({.op = "dropout",
                   .name = "part of a batch",
                   .args = {normal({6, 7}), absent()},
                   .attrs = DropoutAttrs{.p = 0.5f, .key = 77, .first = 42, .all = 84}});
  dropout("large", {150'001}, 0.2f, absent(), true);
}

}  // namespace sherd::testing
