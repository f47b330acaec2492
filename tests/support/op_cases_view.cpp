#include <limits>

#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/gather.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {

namespace {

void view_rows(OpCases& cases) {
  const auto view = [&](const std::string& name, const Shape& from, const Shape& to) {
    cases.push_back({.op = "view", .name = name, .args = {normal(from)}, .attrs = ShapeAttrs{to}, .dense_only = true});
  };
  view("split_dim", {6, 4}, {2, 3, 4});
  view("merge_dims", {2, 3, 4}, {6, 4});
  view("to_scalar", {1, 1}, {});
  view("from_scalar", {}, {1, 1, 1});
  view("empty", {0, 4}, {2, 0, 7});
  view("flat", {3, 5, 7}, {105});
  const auto permute = [&](const std::string& name, const Shape& shape, const Dims& order) {
    cases.push_back({.op = "permute", .name = name, .args = {normal(shape)}, .attrs = PermuteAttrs{order}});
  };
  permute("transpose", {3, 5}, {1, 0});
  permute("rotate", {2, 3, 4}, {2, 0, 1});
  permute("same", {2, 3}, {0, 1});
  permute("scalar", {}, {});
  permute("empty", {0, 3, 2}, {2, 1, 0});
  const auto expand = [&](const std::string& name, const Shape& from, const Shape& to) {
    cases.push_back({.op = "expand", .name = name, .args = {normal(from)}, .attrs = ShapeAttrs{to}});
  };
  expand("row", {5}, {4, 5});
  expand("column", {4, 1}, {4, 5});
  expand("scalar", {}, {2, 3});
  expand("same", {2, 3}, {2, 3});
  expand("to_empty", {1, 3}, {0, 3});
  const auto narrow = [&](const std::string& name, const Shape& shape, const NarrowAttrs& attrs) {
    cases.push_back({.op = "narrow", .name = name, .args = {normal(shape)}, .attrs = attrs});
  };
  narrow("first_dim", {5, 3}, {.dim = 0, .start = 1, .length = 3});
  narrow("last_dim", {5, 7}, {.dim = 1, .start = 4, .length = 3});
  narrow("whole", {5}, {.dim = 0, .start = 0, .length = 5});
  narrow("empty", {5, 2}, {.dim = 0, .start = 5, .length = 0});
}

void copy_rows(OpCases& cases) {
  for (const auto& [name, shape] : std::vector<std::pair<std::string, Shape>>{
           {"scalar", {}}, {"odd", {3, 5, 7}}, {"empty", {0, 3}}, {"one", {1}}, {"large", {301, 513}}})
    cases.push_back({.op = "copy", .name = name, .args = {normal(shape)}, .large = name == "large"});
  cases.push_back({.op = "copy", .name = "integers", .args = {ids({4, 5}, 9)}});
  cases.push_back({.op = "copy", .name = "flags", .args = {flags({4, 5})}});
  cases.push_back(
      {.op = "to_device", .name = "odd", .args = {normal({3, 5})}, .attrs = TransferAttrs{}, .dense_only = true});
  const auto pad_to = [&](const std::string& name, const Shape& shape, const PadToAttrs& attrs, bool large = false) {
    cases.push_back({.op = "pad_to", .name = name, .args = {normal(shape)}, .attrs = attrs, .large = large});
  };
  pad_to("first_dim", {2, 3}, {.dim = 0, .start = 1, .size = 5});
  pad_to("last_dim", {4, 3}, {.dim = 1, .start = 4, .size = 7});
  pad_to("whole", {4}, {.dim = 0, .start = 0, .size = 4});
  pad_to("nothing", {0, 3}, {.dim = 0, .start = 2, .size = 4});
  pad_to("large", {200, 513}, {.dim = 0, .start = 7, .size = 300}, true);
}

void creation_rows(OpCases& cases) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64, DType::boolean})
    cases.push_back({.op = "full", .name = std::string(name(dtype)), .args = {}, .attrs = FullAttrs{{3, 5}, 1, dtype}});
  cases.push_back({.op = "full", .name = "scalar", .args = {}, .attrs = FullAttrs{{}, -2.5, DType::f32}});
  cases.push_back({.op = "full", .name = "empty", .args = {}, .attrs = FullAttrs{{0, 2}, 1, DType::f32}});
  cases.push_back(
      {.op = "full", .name = "large", .args = {}, .attrs = FullAttrs{{200'003}, 0.25, DType::f32}, .large = true});
  for (DType dtype : {DType::i64, DType::i32, DType::f32})
    cases.push_back({.op = "arange", .name = std::string(name(dtype)), .args = {}, .attrs = ArangeAttrs{17, dtype}});
  cases.push_back({.op = "arange", .name = "empty", .args = {}, .attrs = ArangeAttrs{0, DType::i64}});
}

void gather_rows(OpCases& cases) {
  const auto add = [&](const std::string& name, const Shape& x, const Shape& index, int dim, bool large = false) {
    const Arg entries = ids(index, x[dim]);
    const double slack = large ? 10 : 1;  // sums of some dozens of values of either sign
    cases.push_back(
        {.op = "gather", .name = name, .args = {normal(x), entries}, .attrs = DimAttrs{dim}, .large = large});
    cases.push_back({.op = "gather_backward",
                     .name = name,
                     .args = {normal(index), entries},
                     .attrs = GatherBackwardAttrs{dim, x},
                     .large = large,
                     .slack = slack});
    cases.push_back(
        {.op = "scatter_backward", .name = name, .args = {normal(x), entries}, .attrs = DimAttrs{dim}, .large = large});
    for (const char* op : {"scatter", "scatter_add"})
      cases.push_back({.op = op,
                       .name = name,
                       .args = {normal(x), entries, normal(index)},
                       .attrs = DimAttrs{dim},
                       .large = large,
                       .slack = slack});
  };
  add("vector", {7}, {4}, 0);
  add("rows", {5, 3}, {6, 3}, 0);
  add("columns", {4, 6}, {4, 3}, 1);
  add("middle", {2, 5, 3}, {2, 7, 3}, 1);
  add("smaller_index", {4, 5, 20}, {3, 2, 18}, 1);
  add("one_place", {3, 1}, {3, 5}, 1);
  add("no_index", {4, 5}, {4, 0}, 1);
  add("no_lines", {0, 5}, {0, 2}, 1);
  add("large", {9, 70, 33}, {8, 300, 33}, 1, true);
}

void topk_rows(OpCases& cases) {
  const auto add = [&](const std::string& name, const Arg& x, std::int64_t k, int dim, bool large = false) {
    cases.push_back({.op = "topk", .name = name, .args = {x}, .attrs = TopKAttrs{k, dim}, .large = large});
  };
  add("last", distinct({3, 9}), 4, 1);
  add("first", distinct({6, 5}), 2, 0);
  add("middle", distinct({2, 7, 3}), 3, 1);
  add("all", distinct({2, 5}), 5, 1);
  add("one", distinct({1}), 1, 0);
  add("none", distinct({2, 5}), 0, 1);
  add("empty", distinct({0, 5}), 2, 1);
  add("integers", ids({3, 40}, 9), 11, 1);
  add("large", distinct({11, 5000}), 40, 1, true);
}

}  // namespace

void add_view_cases(OpCases& cases) {
  view_rows(cases);
  copy_rows(cases);
  creation_rows(cases);
}

void add_index_cases(OpCases& cases) {
  const auto cat = [&](const std::string& name, const std::vector<Shape>& shapes, int dim, bool large = false) {
    OpCase c{.op = "cat", .name = name, .args = {}, .attrs = DimAttrs{dim}, .large = large};
    for (const Shape& s : shapes) c.args.push_back(normal(s));
    cases.push_back(c);
  };
  cat("rows", {{2, 3}, {4, 3}}, 0);
  cat("columns", {{2, 3}, {2, 1}, {2, 5}}, 1);
  cat("with_empty", {{0, 3}, {2, 3}}, 0);
  cat("single", {{4}}, 0);
  cat("large", {{150, 301}, {150, 212}}, 1, true);
  const auto embedding = [&](const std::string& name, const Shape& table, const Shape& of, bool large = false,
                             VocabularyPart part = {}) {
    const std::int64_t total = part.total == 0 ? table[0] : part.total;
    cases.push_back({.op = "embedding",
                     .name = name,
                     .args = {normal(table), ids(of, total)},
                     .attrs = EmbeddingAttrs{.part = part},
                     .large = large});
    Shape grad = of;
    grad.push_back(table[1]);
    cases.push_back({.op = "embedding_backward",
                     .name = name,
                     .args = {normal(grad), ids(of, total)},
                     .attrs = EmbeddingAttrs{table[0], part},
                     .large = large,
                     .slack = large ? 10.0 : 1.0});
  };
  embedding("batch", {10, 6}, {2, 4});
  embedding("scalar_id", {4, 3}, {});
  embedding("no_ids", {4, 3}, {0});
  embedding("one_row", {1, 1}, {5});
  embedding("large", {50, 33}, {20, 300}, true);
  embedding("part", {4, 6}, {3, 5}, false, {3, 9});
  embedding("empty_part", {0, 6}, {4}, false, {9, 9});
  const auto select = [&](const std::string& name, const Shape& shape, int dim, std::int64_t count,
                          bool large = false) {
    const std::int64_t size = shape[dim];
    cases.push_back({.op = "index_select",
                     .name = name,
                     .args = {normal(shape), ids({count}, size)},
                     .attrs = DimAttrs{dim},
                     .large = large});
    Shape grad = shape;
    grad[dim] = count;
    cases.push_back({.op = "index_select_backward",
                     .name = name,
                     .args = {normal(grad), ids({count}, size)},
                     .attrs = PadToAttrs{dim, 0, size},
                     .large = large});
  };
  select("first_dim", {5, 3}, 0, 7);
  select("middle_dim", {2, 5, 3}, 1, 4);
  select("last_dim", {2, 5}, 1, 9);
  select("no_index", {5, 3}, 0, 0);
  select("large", {40, 50, 33}, 1, 60, true);
  gather_rows(cases);
  topk_rows(cases);
}

}  // namespace sherd::testing
