#include "runtime/op/rows/matmul_attrs.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {

void add_matmul_cases(OpCases& cases) {
  const auto matmul = [&](const std::string& name, const Shape& a, const Shape& b, bool large = false) {
    cases.push_back(
        {.op = "matmul", .name = name, .args = {normal(a), normal(b)}, .large = large, .slack = large ? 4.0 : 1.0});
  };
  matmul("odd", {3, 5}, {5, 7});
  matmul("one", {1, 1}, {1, 1});
  matmul("row_by_column", {1, 9}, {9, 1});
  matmul("column_by_row", {9, 1}, {1, 9});
  matmul("batch", {2, 3, 4}, {2, 4, 5});
  matmul("shared_right", {2, 3, 4}, {4, 5});
  matmul("shared_left", {3, 4}, {2, 4, 5});
  matmul("broadcast_batch", {2, 1, 3, 4}, {3, 4, 2});
  matmul("no_rows", {0, 4}, {4, 3});
  matmul("no_inner", {2, 0}, {0, 3});  // sums of nothing: zeros
  matmul("no_batch", {0, 2, 3}, {0, 3, 2});
  matmul("large", {130, 257}, {257, 150}, true);
  matmul("large_batch", {9, 65, 70}, {9, 70, 33}, true);
  const auto linear = [&](const std::string& name, const Shape& x, std::int64_t outs, bool bias, bool large = false) {
    cases.push_back({.op = "linear",
                     .name = name,
                     .args = {normal(x), normal({outs, x.back()}), bias ? normal({outs}) : absent()},
                     .large = large,
                     .slack = large ? 4.0 : 1.0});
    Shape grad = x;
    grad[grad.size() - 1] = outs;
    cases.push_back({.op = "linear_weight_grad",
                     .name = name,
                     .args = {normal(grad), normal(x)},
                     .large = large,
                     .slack = large ? 10.0 : 1.0});
  };
  const auto of_leaves = [&](const std::string& name, const Shape& x, std::int64_t outs, std::int64_t leaves) {
    cases.push_back({.op = "leaf_linear",
                     .name = name,
                     .args = {normal(x), normal({outs, x.back()}), normal({outs})},
                     .attrs = LeafAttrs{leaves}});
    cases.push_back(
        {.op = "leaf_matmul", .name = name, .args = {normal(x), normal({x.back(), outs})}, .attrs = LeafAttrs{leaves}});
    Shape grad = x;
    grad[grad.size() - 1] = outs;
    // It gives f32 of 16 bits, made of products that are rounded.
    cases.push_back({.op = "leaf_weight_grad",
                     .name = name,
                     .args = {normal(grad), normal(x)},
                     .attrs = LeafAttrs{leaves},
                     .floats_only_f64_f32 = true});
  };
  of_leaves("one", {3, 2, 5}, 7, 1);
  of_leaves("leaves", {4, 3, 5}, 2, 4);
  of_leaves("no_rows", {0, 5}, 3, 2);
  linear("odd", {3, 5}, 7, true);
  linear("no_bias", {3, 5}, 7, false);
  linear("leading_dims", {2, 3, 5}, 4, true);
  linear("one", {1, 1}, 1, true);
  linear("no_rows", {0, 5}, 3, true);
  linear("no_inner", {2, 0}, 3, true);
  linear("large", {300, 129}, 70, true, true);
}

}  // namespace sherd::testing
