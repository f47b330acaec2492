#include "runtime/op/rows/pointwise_attrs.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {

namespace {

// Shapes every pointwise row must take; the last two are more than one vector and more than one chunk.
const std::vector<std::pair<std::string, Shape>>& shapes() {
  static const std::vector<std::pair<std::string, Shape>> list = {
      {"scalar", {}}, {"one", {1}}, {"odd", {3, 5, 7}}, {"empty", {0, 3}}, {"vectors", {2, 33}}, {"large", {3, 30'001}},
  };
  return list;
}

Arg with_shape(Arg arg, const Shape& shape) {
  arg.shape = shape;
  return arg;
}

void unary(OpCases& cases, const std::string& op, const Arg& arg, const Attrs& attrs = {}) {
  for (const auto& [name, shape] : shapes())
    cases.push_back(
        {.op = op, .name = name, .args = {with_shape(arg, shape)}, .attrs = attrs, .large = name == "large"});
}

/// Rows of several inputs of one shape.
void same_shape(OpCases& cases, const std::string& op, const std::vector<Arg>& args, const Attrs& attrs = {}) {
  for (const auto& [name, shape] : shapes()) {
    OpCase c{.op = op, .name = name, .args = {}, .attrs = attrs, .large = name == "large"};
    for (const Arg& arg : args) c.args.push_back(with_shape(arg, shape));
    cases.push_back(c);
  }
}

/// Binary rows: equal shapes and every way to broadcast.
void binary(OpCases& cases, const std::string& op, const Arg& a, const Arg& b) {
  same_shape(cases, op, {a, b});
  const auto add = [&](const std::string& name, const Shape& left, const Shape& right, bool large = false) {
    // The row's gradient sums 90 products, each rounded to the dtype before.
    cases.push_back({.op = op,
                     .name = name,
                     .args = {with_shape(a, left), with_shape(b, right)},
                     .large = large,
                     .grad_slack = large ? 4.0 : 1.0});
  };
  add("row", {4, 5}, {5});
  add("column", {4, 1}, {4, 5});
  add("outer", {3, 1, 2}, {4, 1});
  add("scalar_right", {2, 3}, {});
  add("scalar_left", {1}, {2, 3});
  add("empty_by_one", {0, 3}, {1, 3});
  add("large_row", {90, 1025}, {1025}, true);
}

void unary_rows(OpCases& cases) {
  for (const char* op : {"neg", "square", "exp", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "gelu_tanh"})
    unary(cases, op, normal({}));
  for (const char* op : {"abs", "relu", "sign", "logical_not"}) unary(cases, op, distinct({}));
  for (const char* op : {"log", "sqrt", "rsqrt", "reciprocal"}) unary(cases, op, positive({}));
  cases.push_back({.op = "logical_not", .name = "flags", .args = {flags({5, 7})}});
  for (const char* op : {"neg", "abs", "square", "exp", "sign"})
    cases.push_back({.op = op, .name = "integers", .args = {ids({4, 3}, 6)}});
}

void rows_with_constants(OpCases& cases) {
  unary(cases, "add_scalar", normal({}), ScalarAttrs{1.5});
  unary(cases, "mul_scalar", normal({}), ScalarAttrs{-0.75});
  unary(cases, "pow_scalar", positive({}), ScalarAttrs{2.5});
  cases.push_back({.op = "pow_scalar", .name = "cube", .args = {normal({2, 9})}, .attrs = ScalarAttrs{3}});
  cases.push_back({.op = "pow_scalar", .name = "power_0", .args = {normal({2, 9})}, .attrs = ScalarAttrs{0}});
  cases.push_back({.op = "pow_scalar", .name = "power_minus_1", .args = {positive({7})}, .attrs = ScalarAttrs{-1}});
  cases.push_back({.op = "mul_scalar", .name = "integers", .args = {ids({5}, 9)}, .attrs = ScalarAttrs{3}});
  unary(cases, "clamp", distinct({}), ClampAttrs{-0.27, 0.4});
  same_shape(cases, "clamp_backward", {normal({}), distinct({})}, ClampAttrs{-0.27, 0.4});
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    cases.push_back({.op = "cast",
                     .name = std::string("to_") + std::string(name(dtype)),
                     .args = {normal({5, 13})},
                     .attrs = CastAttrs{dtype}});
  for (DType dtype : {DType::i64, DType::i32, DType::u8, DType::boolean})
    cases.push_back({.op = "cast",
                     .name = std::string("ids_to_") + std::string(name(dtype)),
                     .args = {ids({5, 13}, 90)},
                     .attrs = CastAttrs{dtype}});
  cases.push_back({.op = "cast", .name = "flags_to_f32", .args = {flags({5, 13})}, .attrs = CastAttrs{DType::f32}});
  cases.push_back({.op = "cast", .name = "empty", .args = {normal({0})}, .attrs = CastAttrs{DType::f32}});
  cases.push_back(
      {.op = "cast", .name = "large", .args = {normal({150'001})}, .attrs = CastAttrs{DType::f64}, .large = true});
}

void binary_rows(OpCases& cases) {
  for (const char* op : {"add", "sub", "mul"}) binary(cases, op, normal({}), normal({}));
  binary(cases, "div", normal({}), positive({}));
  binary(cases, "swiglu", normal({}), normal({}));
  // Draws of different kinds, so that no two operands tie where the derivative jumps.
  for (const char* op : {"maximum", "minimum"}) binary(cases, op, distinct({}), positive({}));
  for (const char* op : {"equal", "not_equal", "less", "less_equal"}) {
    binary(cases, op, distinct({}), normal({}));
    cases.push_back({.op = op, .name = "integers", .args = {ids({40}, 4), ids({40}, 4)}});
  }
  for (const char* op : {"logical_and", "logical_or"}) binary(cases, op, flags({}), flags({}));
  for (const char* op : {"add", "mul", "maximum"})
    cases.push_back({.op = op, .name = "integers", .args = {ids({3, 5}, 9), ids({5}, 9)}});
  cases.push_back({.op = "div", .name = "integers", .args = {ids({3, 5}, 9), ids({5}, 9)}});
  cases.push_back({.op = "mul", .name = "float_by_integer", .args = {normal({3, 5}), ids({5}, 9)}});
  for (const char* op :
       {"relu_backward", "sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward", "gelu_tanh_backward"})
    same_shape(cases, op, {normal({}), distinct({})});
  same_shape(cases, "swiglu_backward", {normal({}), normal({}), normal({})});
}

}  // namespace

void add_pointwise_cases(OpCases& cases) {
  unary_rows(cases);
  rows_with_constants(cases);
  binary_rows(cases);
  same_shape(cases, "where", {flags({}), normal({}), normal({})});
  cases.push_back({.op = "where", .name = "broadcast", .args = {flags({4, 1}), normal({3, 1, 5}), normal({})}});
}

}  // namespace sherd::testing
