#include "runtime/op/core/dims.h"

#include <gtest/gtest.h>

#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/loss_attrs.h"
#include "runtime/op/rows/norm_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd {
namespace {

BoundDims bind(std::string_view text, const std::vector<Shape>& shapes) {
  std::vector<const Shape*> pointers;
  for (const Shape& s : shapes) pointers.push_back(&s);
  return bind_dims(parse_dims(text), pointers);
}

std::string kinds(const BoundDims& bound) {
  std::string text;
  for (const Factor& f : bound.factors) text += fmt::format("{}={} {} ", f.letter, f.size, name(f.kind));
  return text;
}

TEST(Dims, ParsesOperandsEllipsisAndSeveralOutputs) {
  const DimsSpec spec = parse_dims("...mk,kn->...mn,n");
  ASSERT_EQ(spec.inputs.size(), 2u);
  ASSERT_EQ(spec.outputs.size(), 2u);
  EXPECT_TRUE(spec.inputs[0].ellipsis);
  EXPECT_EQ(spec.inputs[0].letters, "mk");
  EXPECT_FALSE(spec.inputs[1].ellipsis);
  EXPECT_EQ(spec.outputs[1].letters, "n");
  EXPECT_TRUE(parse_dims("...,->...").inputs[1].letters.empty());
}

TEST(Dims, LettersInBracketsAreWhole) {
  const DimsSpec spec = parse_dims("...[d],a[dk]->...[d],a");
  EXPECT_EQ(spec.whole, "dk");
  EXPECT_EQ(spec.inputs[0].letters, "d");
  EXPECT_TRUE(spec.inputs[0].ellipsis);
  EXPECT_EQ(spec.inputs[1].letters, "adk");
  EXPECT_EQ(spec.outputs[0].letters, "d");
  EXPECT_TRUE(parse_dims("mk,kn->mn").whole.empty());
  const BoundDims norm = bind("...[d],[d]->...[d],...", {{2, 3, 5}, {5}});
  EXPECT_EQ(norm.outputs[0], (Shape{2, 3, 5}));
  EXPECT_EQ(norm.outputs[1], (Shape{2, 3}));
}

TEST(Dims, MalformedTextIsAnErrorNamingIt) {
  for (const char* text : {"", "mk,kn", "mk->mn->nm", "m1->m", "mm->m", "m...->m", "m k->m", "mk->...mk", "[d->d",
                           "d]->d", "[[d]]->d", "[]d->d", "[d],d->[d]", "[d]->d", "d->[d]", "[d,d]->d", "[...d]->d"}) {
    try {
      parse_dims(text);
      ADD_FAILURE() << '"' << text << "\" was accepted";
    } catch (const Error& error) {
      EXPECT_NE(error.message().find(fmt::format("dims \"{}\"", text)), std::string::npos) << error.message();
    }
  }
}

TEST(Dims, FactorsOfAProduct) {
  const BoundDims bound = bind("mk,kn->mn", {{3, 5}, {5, 7}});
  EXPECT_EQ(kinds(bound), "m=3 left k=5 contracted n=7 right ");
  EXPECT_EQ(bound.outputs[0], (Shape{3, 7}));
  EXPECT_EQ(bound.factors[1].inputs, 0b11u);
  EXPECT_EQ(bound.factors[1].outputs, 0u);
  EXPECT_EQ(kinds(bind("bmk,bkn->bmn", {{2, 3, 5}, {2, 5, 7}})), "b=2 batch m=3 left k=5 contracted n=7 right ");
}

TEST(Dims, EllipsisIsAnyLeadingDimsAlignedAtTheRightAndBroadcast) {
  const BoundDims linear = bind("...k,nk->...n", {{2, 3, 5}, {7, 5}});
  EXPECT_EQ(kinds(linear), ".=2 left .=3 left k=5 contracted n=7 right ");
  EXPECT_EQ(linear.outputs[0], (Shape{2, 3, 7}));
  const BoundDims none = bind("...k,nk->...n", {{5}, {7, 5}});
  EXPECT_EQ(none.outputs[0], (Shape{7}));
  const BoundDims sum = bind("...,...->...", {{4, 1, 3}, {2, 1}});
  EXPECT_EQ(sum.outputs[0], (Shape{4, 2, 3}));
  EXPECT_EQ(kinds(sum), ".=4 left .=2 right .=3 left ");
  EXPECT_EQ(kinds(bind("...,...->...", {{4, 3}, {4, 3}})), ".=4 batch .=3 batch ");
}

TEST(Dims, AbsentInputsAndCreatedFactors) {
  const DimsSpec spec = parse_dims("...k,nk,n->...n");
  const Shape x = {3, 5}, weight = {7, 5};
  const Shape* inputs[] = {&x, &weight, nullptr};
  EXPECT_EQ(bind_dims(spec, inputs).outputs[0], (Shape{3, 7}));
  const Shape* no_weight[] = {&x, nullptr, nullptr};
  EXPECT_THROW(bind_dims(spec, no_weight), Error);
  const BoundDims table = bind("...d,...->vd", {{4, 6}, {4}});
  EXPECT_EQ(table.outputs[0], (Shape{-1, 6}));
  EXPECT_EQ(kinds(table), ".=4 contracted d=6 left v=-1 created ");
}

TEST(Dims, SizesThatDisagreeAreErrorsNamingBoth) {
  const auto message = [](std::string_view text, const std::vector<Shape>& shapes) -> std::string {
    try {
      bind(text, shapes);
    } catch (const Error& error) { return error.message(); }
    return "no error";
  };
  EXPECT_EQ(message("mk,kn->mn", {{3, 5}, {6, 7}}), "'k' has size 6 in input 1 of shape [6,7], and 5 before");
  EXPECT_EQ(message("mk,kn->mn", {{3}, {6, 7}}), "input 0 has shape [3]; its dims are \"mk\"");
  EXPECT_EQ(message("mk,kn->mn", {{3, 5}}), "1 inputs for dims of 2");
  EXPECT_NE(message("...,...->...", {{3}, {4}}).find("do not broadcast"), std::string::npos);
}

OpCost cost(const Op& row, const std::vector<Tensor>& in, AttrsView attrs = {}) {
  return op_cost(row, in, attrs, row.infer({row, in, attrs}));
}

Tensor meta(const Shape& shape, DType dtype = DType::f32) { return Tensor::empty(shape, dtype, Device::meta()); }

TEST(Dims, CostOfProductsPointwiseViewsAndLookUps) {
  const OpCost product = cost(op::matmul, {meta({2, 3, 5}), meta({2, 5, 7})});
  EXPECT_EQ(product.flops, 2.0 * 2 * 3 * 5 * 7);
  EXPECT_EQ(product.bytes, 4 * (2 * 3 * 5 + 2 * 5 * 7 + 2 * 3 * 7));
  EXPECT_EQ(cost(op::linear, {meta({4, 3, 5}), meta({7, 5}), Tensor()}).flops, 2.0 * 4 * 3 * 5 * 7);
  EXPECT_EQ(cost(op::linear_weight_grad, {meta({4, 3, 7}), meta({4, 3, 5})}).flops, 2.0 * 4 * 3 * 5 * 7);
  EXPECT_EQ(
      cost(op::linear_cross_entropy, {meta({4, 3, 5}), meta({7, 5}), meta({4, 3}, DType::i64)}, CrossEntropyAttrs{})
          .flops,
      2.0 * 4 * 3 * 5 * 7);
  EXPECT_EQ(cost(op::mul, {meta({4, 3}), meta({3})}).flops, 12);  // linear in both, but nothing is summed
  EXPECT_EQ(cost(op::sum, {meta({4, 3}, DType::bf16)}, ReduceAttrs{0b11, false}).bytes, 2 * 12 + 2);
  EXPECT_EQ(cost(op::permute, {meta({4, 3})}, PermuteAttrs{{1, 0}}).flops, 0);
  EXPECT_EQ(cost(op::permute, {meta({4, 3})}, PermuteAttrs{{1, 0}}).bytes, 0);
  const OpCost rows = cost(op::embedding, {meta({1000, 8}), meta({6}, DType::i64)}, EmbeddingAttrs{});
  EXPECT_LE(rows.flops, 8000);  // not the product with a one-hot matrix that the letters spell
}

// B = 2, H = 6 query heads, G = 3, Tq = 4, Tk = 7, K = 8; two operations per multiplication and addition.
TEST(Dims, CostOfAttentionIsItsProducts) {
  const Tensor q = meta({2, 6, 4, 8}), k = meta({2, 3, 7, 8}), lse = meta({2, 6, 4});
  constexpr double product = 2.0 * 2 * 6 * 4 * 7 * 8;
  const AttentionAttrs all{.scale = 1, .causal = false}, causal{.scale = 1, .causal = true};
  const OpCost forward = cost(op::scaled_dot_product_attention, {q, k, k}, all);
  EXPECT_EQ(forward.flops, 2 * product);
  EXPECT_EQ(forward.bytes, 4 * (2 * 2 * 6 * 4 * 8 + 2 * 2 * 3 * 7 * 8 + 2 * 6 * 4));
  EXPECT_EQ(cost(op::scaled_dot_product_attention_backward, {q, q, k, k, q, lse}, all).flops, 5 * product);
  // The four queries see 4, 5, 6 and 7 keys.
  EXPECT_EQ(cost(op::scaled_dot_product_attention, {q, k, k}, causal).flops, 2 * product * (4 + 5 + 6 + 7) / (4 * 7));
  // The first three of seven queries over four keys see none.
  const Tensor more = meta({2, 3, 7, 8}), fewer = meta({2, 3, 4, 8});
  EXPECT_EQ(cost(op::scaled_dot_product_attention, {more, fewer, fewer}, causal).flops,
            4.0 * 2 * 3 * 8 * (1 + 2 + 3 + 4));
  // About half of a square is seen.
  const Tensor square = meta({1, 1, 64, 16});
  EXPECT_EQ(cost(op::scaled_dot_product_attention_backward, {square, square, square, square, square, meta({1, 1, 64})},
                 causal)
                .flops,
            10.0 * 16 * 64 * 65 / 2);
}

TEST(Dims, CostOfNormsCountsTheirAffineParameters) {
  const Tensor x = meta({3, 4, 10}), d = meta({10}), rows = meta({3, 4});
  EXPECT_EQ(cost(op::layer_norm, {x, Tensor(), Tensor()}, NormAttrs{}).flops, 6 * 120);
  EXPECT_EQ(cost(op::layer_norm, {x, d, d}, NormAttrs{}).flops, 8 * 120);
  EXPECT_EQ(cost(op::layer_norm_backward, {x, x, d, rows, rows}).flops, 13 * 120);
  EXPECT_EQ(cost(op::rms_norm, {x, Tensor()}, NormAttrs{}).flops, 3 * 120);
  EXPECT_EQ(cost(op::rms_norm, {x, d}, NormAttrs{}).flops, 4 * 120);
  EXPECT_EQ(cost(op::rms_norm_backward, {x, x, d, rows}).flops, 9 * 120);
}

// Lists of two parameters, of 6 and 4 elements.
TEST(Dims, CostOfOptimizersIsThatOfTheirListsAndWhatTheyWrite) {
  const Tensor a = meta({2, 3}), b = meta({4}), one = meta({});
  const OpCost adamw = cost(op::adamw, {a, b, a, b, a, b, a, b, one, one, one}, AdamWAttrs{.count = 2});
  EXPECT_EQ(adamw.flops, 14 * 10);
  EXPECT_EQ(adamw.bytes, 4 * (7 * 10 + 3));  // parameters and moments are read and written, gradients read
  const SgdAttrs plain{.count = 2}, heavy{.count = 2, .momentum = 0.9},
      nesterov{.count = 2, .momentum = 0.9, .nesterov = true};
  EXPECT_EQ(cost(op::sgd, {a, b, a, b, one, one}, plain).flops, 5 * 10);
  EXPECT_EQ(cost(op::sgd, {a, b, a, b, one, one}, plain).bytes, 4 * (3 * 10 + 2));
  EXPECT_EQ(cost(op::sgd, {a, b, a, b, a, b, one, one}, heavy).flops, 7 * 10);
  EXPECT_EQ(cost(op::sgd, {a, b, a, b, a, b, one, one}, nesterov).flops, 9 * 10);
  const OpCost counts = cost(op::count_step, {one, one, one}, CountStepAttrs{.count = 2});
  EXPECT_EQ(counts.flops, 2);
  EXPECT_EQ(counts.bytes, 4 * (2 * 2 + 1));
  EXPECT_EQ(cost(op::power_sum, {a, b}, PowerSumAttrs{}).flops, 2 * 10);
}

}  // namespace
}  // namespace sherd
