// The signatures that the columns of a row give, as lists: their order decides between choices of one price.
#include <gtest/gtest.h>

#include "dtensor/derived.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/loss_attrs.h"
#include "runtime/op/rows/norm_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/pointwise_attrs.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::testing {
namespace {

TensorMeta meta(const Shape& shape, DType dtype = DType::f32) { return {.shape = shape, .dtype = dtype}; }

// "S0 R -> S0; P R -> P".
std::string derived(const Op& op, const std::vector<TensorMeta>& in, AttrsView attrs = {}) {
  EXPECT_TRUE(is_derivable(op)) << op.name;
  const Metas out = op.infer({op, in, attrs});
  Signatures signatures;
  add_derived_signatures({op, in, attrs, out}, signatures);
  std::string text;
  for (const Signature& s : signatures) {
    if (!text.empty()) text += "; ";
    for (const Placement& p : s.in) text += to_string(p) + " ";
    text += "->";
    for (const Placement& p : s.out) text += " " + to_string(p);
  }
  return text;
}

TEST(DerivedLists, ALineIsWholeWhereItsLetterOrTheAttributesSaySo) {
  const TensorMeta x = meta({3, 5, 2}), d = meta({2});
  EXPECT_EQ(derived(op::softmax, {x}, DimAttrs{1}), "S0 -> S0; S2 -> S2");
  EXPECT_EQ(derived(op::log_softmax, {x}, DimAttrs{0}), "S1 -> S1; S2 -> S2");
  EXPECT_EQ(derived(op::softmax_backward, {x, x}, DimAttrs{2}), "S0 S0 -> S0; S1 S1 -> S1; P R -> P; Pavg R -> Pavg");
  EXPECT_EQ(derived(op::layer_norm, {x, d, kAbsent}, NormAttrs{}), "S0 R R -> S0 S0 S0; S1 R R -> S1 S1 S1");
  EXPECT_EQ(derived(op::rms_norm, {x, d}, NormAttrs{}), "S0 R -> S0 S0; S1 R -> S1 S1");
  EXPECT_EQ(derived(op::rope, {meta({2, 3, 5, 4})}, RopeAttrs{}), "S0 -> S0; S1 -> S1; S2 -> S2; P -> P; Pavg -> Pavg");
}

// Results that lack a letter are sums over it.
TEST(DerivedLists, GradientsOfAffineParametersAreTerms) {
  const TensorMeta x = meta({3, 5, 2}), d = meta({2}), rows = meta({3, 5});
  EXPECT_EQ(derived(op::layer_norm_backward, {x, x, d, rows, rows}),
            "S0 S0 R S0 S0 -> S0 P P; S1 S1 R S1 S1 -> S1 P P; P R R R R -> P P P; Pavg R R R R -> Pavg Pavg Pavg");
  EXPECT_EQ(derived(op::rms_norm_backward, {x, x, kAbsent, rows}),
            "S0 S0 R S0 -> S0 P; S1 S1 R S1 -> S1 P; P R R R -> P P; Pavg R R R -> Pavg Pavg");
  const TensorMeta one = meta({}), targets = meta({4, 6}, DType::i64), lse = meta({4, 6});
  EXPECT_EQ(derived(op::cross_entropy_backward, {one, meta({4, 6, 9}), targets, lse, one}, CrossEntropyAttrs{}),
            "R S0 S0 S0 R -> S0; R S1 S1 S1 R -> S1; R S2 R R R -> S2; P R R R R -> P; Pavg R R R R -> Pavg");
}

TEST(DerivedLists, PartialPassesByTheAlgebraOfTheRow) {
  const TensorMeta x = meta({4}), i = meta({4}, DType::i32);
  EXPECT_EQ(derived(op::add, {x, x}),
            "S0 S0 -> S0; P P -> P; Pavg Pavg -> Pavg; Pavg R -> Pavg; Pmax R -> Pmax; Pmin R -> Pmin; R Pavg -> Pavg; "
            "R Pmax -> Pmax; R Pmin -> Pmin");
  EXPECT_EQ(derived(op::sub, {x, x}),
            "S0 S0 -> S0; P P -> P; Pavg Pavg -> Pavg; Pavg R -> Pavg; Pmax R -> Pmax; Pmin R -> Pmin; R Pavg -> Pavg; "
            "R Pmax -> Pmin; R Pmin -> Pmax");
  EXPECT_EQ(derived(op::sub, {i, i}), "S0 S0 -> S0; P P -> P");
  EXPECT_EQ(derived(op::neg, {x}), "S0 -> S0; P -> P; Pavg -> Pavg; Pmax -> Pmin; Pmin -> Pmax");
  EXPECT_EQ(derived(op::cast, {x}, CastAttrs{DType::bf16}),
            "S0 -> S0; P -> P; Pavg -> Pavg; Pmax -> Pmax; Pmin -> Pmin");
  EXPECT_EQ(derived(op::cast, {x}, CastAttrs{DType::i32}), "S0 -> S0");
  EXPECT_EQ(derived(op::cast, {i}, CastAttrs{DType::f32}), "S0 -> S0");
  EXPECT_EQ(derived(op::cast, {x}, CastAttrs{DType::boolean}), "S0 -> S0");
  EXPECT_EQ(derived(op::square, {x}), "S0 -> S0");
  EXPECT_EQ(derived(op::mul, {x, x}), "S0 S0 -> S0; P R -> P; Pavg R -> Pavg; R P -> P; R Pavg -> Pavg");
  const std::string moves = "S0 -> S0; P -> P; Pavg -> Pavg; Pmax -> Pmax; Pmin -> Pmin; Pproduct -> Pproduct";
  EXPECT_EQ(derived(op::copy, {i}), moves);
  EXPECT_EQ(derived(op::to_device, {x}, TransferAttrs{Device::cuda(0)}), moves);
}

}  // namespace
}  // namespace sherd::testing
