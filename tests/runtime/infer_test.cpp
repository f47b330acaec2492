// infer, scratch, mutated and cost read metadata and nothing else: they answer alike where no tensor exists. Oracle:
// the same call on tensors, which op_sweep_test compares with results; closed forms for strides and words.
#include "runtime/op/core/infer.h"

#include <gtest/gtest.h>

#include "runtime/op/core/dims.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/norm_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "runtime/op/rows/random_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/support/message_of.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {
namespace {

TensorMeta meta(const Shape& shape, DType dtype = DType::f32) { return {.shape = shape, .dtype = dtype}; }

Metas infer(const char* row, const std::vector<TensorMeta>& in, AttrsView attrs = {}) {
  const Op& op = find_op(row);
  return op.infer({op, in, attrs});
}

std::vector<TensorMeta> metas_of(std::span<const Tensor> tensors) {
  std::vector<TensorMeta> metas;
  for (const Tensor& t : tensors) metas.push_back(t.meta());
  return metas;
}

// Shapes and dtypes alone, which is enough for dense tensors.
std::vector<TensorMeta> shapes_of(std::span<const Tensor> tensors) {
  std::vector<TensorMeta> metas;
  for (const Tensor& t : tensors) metas.push_back(t.defined() ? meta(t.shape(), t.dtype()) : kAbsent);
  return metas;
}

void expect_same_answers(const Op& op, AttrsView attrs, std::span<const Tensor> tensors,
                         std::span<const TensorMeta> metas) {
  const InferCall with{op, tensors, attrs}, without{op, metas, attrs};
  const Metas expected = op.infer(with), actual = op.infer(without);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].shape, expected[i].shape) << "output " << i;
    EXPECT_EQ(actual[i].dtype, expected[i].dtype) << "output " << i;
    EXPECT_EQ(actual[i].steps(), expected[i].steps()) << "output " << i;
    EXPECT_EQ(actual[i].offset, expected[i].offset) << "output " << i;
  }
  if (const Scratch scratch = op_table().kernels(op).scratch[static_cast<std::size_t>(Device::Kind::cpu)]) {
    EXPECT_EQ(scratch(without), scratch(with));
  }
  if (op.mutated) { EXPECT_EQ(op.mutated(without), op.mutated(with)); }
  const OpCost cost = op_cost(op, metas, attrs, actual), expected_cost = op_cost(op, tensors, attrs, expected);
  EXPECT_EQ(cost.flops, expected_cost.flops);
  EXPECT_EQ(cost.bytes, expected_cost.bytes);
}

TEST(Infer, EveryRowAnswersAlikeFromMetadataAlone) {
  for (const OpCase& c : op_cases()) {
    SCOPED_TRACE(fmt::format("{}, case {}", c.op, c.name));
    const Op& op = find_op(c.op);
    const std::vector<Tensor> dense = inputs_of(c, DType::f32);
    expect_same_answers(op, c.attrs, dense, shapes_of(dense));
    if (c.dense_only || c.large) continue;
    for (Tensor (*form)(const Tensor&) : {with_reversed_strides, with_gaps, with_zero_strides}) {
      std::vector<Tensor> strided;
      for (const Tensor& t : dense) strided.push_back(t.defined() ? form(t) : t);
      expect_same_answers(op, c.attrs, strided, metas_of(strided));
    }
  }
}

// [B, T, H K] split into heads, attended and merged again: no step of it would copy.
TEST(Infer, ResultsAreInputsOfTheNextCall) {
  const Metas x = infer("linear", {meta({2, 5, 6}), meta({8, 6}), kAbsent});
  const Metas heads = infer("view", {x[0]}, ShapeAttrs{{2, 5, 4, 2}});
  const Metas q = infer("permute", {heads[0]}, PermuteAttrs{{0, 2, 1, 3}});
  EXPECT_EQ(q[0].shape, (Shape{2, 4, 5, 2}));
  EXPECT_EQ(q[0].steps(), (Strides{40, 2, 8, 1}));
  EXPECT_FALSE(q[0].is_contiguous());
  const Metas y = infer("scaled_dot_product_attention", {q[0], q[0], q[0]}, AttentionAttrs{});
  EXPECT_EQ(y[0].steps(), q[0].steps());
  const Metas merged = infer("view", {infer("permute", {y[0]}, PermuteAttrs{{0, 2, 1, 3}})[0]}, ShapeAttrs{{2, 5, 8}});
  EXPECT_TRUE(merged[0].is_contiguous());
  const Metas part = infer("narrow", {merged[0]}, NarrowAttrs{.dim = 1, .start = 2, .length = 3});
  EXPECT_EQ(part[0].offset, 2 * 8);
  EXPECT_EQ(infer("narrow", {part[0]}, NarrowAttrs{.dim = 2, .start = 1, .length = 2})[0].offset, 2 * 8 + 1);
  EXPECT_EQ(infer("expand", {meta({3, 1})}, ShapeAttrs{{2, 3, 4}})[0].steps(), (Strides{0, 1, 0}));
}

TEST(Infer, InputsMayBeLeftOut) {
  const TensorMeta x = meta({3, 5}), weight = meta({7, 5});
  EXPECT_EQ(infer("linear", {x, weight, kAbsent})[0].shape, (Shape{3, 7}));
  EXPECT_EQ(infer("linear", {x, weight})[0].shape, (Shape{3, 7}));
  EXPECT_EQ(infer("layer_norm", {x, kAbsent, kAbsent}, NormAttrs{}).size(), 3u);
  EXPECT_EQ(infer("rms_norm", {x}, NormAttrs{})[1].shape, (Shape{3}));
  EXPECT_EQ(infer("dropout", {x}, DropoutAttrs{})[0].shape, x.shape);
}

TEST(Infer, InputsThatMustBeThereAreNamed) {
  const TensorMeta x = meta({3, 5}), one = meta({});
  EXPECT_EQ(message_of([&] { infer("linear", {x, kAbsent, kAbsent}); }), "input 1 of linear is undefined");
  EXPECT_EQ(message_of([&] { infer("add", {x}); }), "input 1 of add is undefined");
  EXPECT_EQ(message_of([&] { infer("adamw", {x, x, kAbsent, x, one, one, one}, AdamWAttrs{.count = 1}); }),
            "input 2 of adamw is undefined");
  EXPECT_EQ(message_of([&] { infer("power_sum", {x, kAbsent}, PowerSumAttrs{2}); }),
            "input 1 of power_sum is undefined");
  const Op& op = find_op("linear");
  const Tensor in[] = {zeros({3, 5}), Tensor(), Tensor()};
  EXPECT_EQ(message_of([&] { op.infer({op, in, {}}); }), "input 1 of linear is undefined");
}

class RowsOverDp final : public Distributed {
 public:
  Shape local_shape(const Shape& shape) const override { return shape; }
  bool is_partial() const override { return false; }
  bool is_replicated() const override { return false; }
  const Distributed* replicated() const override { return this; }
  std::string describe() const override { return "{0: dp}"; }
};

TEST(Infer, ErrorsShowMetadataAsTheyShowTensors) {
  EXPECT_EQ(message_of([] { infer("matmul", {meta({3, 5}), meta({4, 2})}); }), "inner dimensions differ: 5 and 4");
  EXPECT_EQ(message_of([] { infer("where", {meta({2}), meta({2}), meta({2})}); }),
            "where needs a bool condition, got f32[2]; use not_equal(x, 0)");
  const LayoutRef layout(new RowsOverDp);
  TensorMeta rows = meta({2, 3}), planned = meta({2, 3}, DType::i64);
  rows.layout = layout;
  planned.device = Device::meta();
  EXPECT_EQ(message_of([&] { infer("cat", {rows, planned}, DimAttrs{0}); }),
            "cat of f32[2,3]{0: dp} and i64[2,3](meta): dtypes differ");
  const Metas turned = infer("permute", {meta({2, 3})}, PermuteAttrs{{1, 0}});
  EXPECT_EQ(message_of([&] { infer("view", {turned[0]}, ShapeAttrs{{6}}); }),
            "view of f32[3,2] with strides [1,3] as [6] would have to move elements; use reshape() or contiguous()");
  EXPECT_EQ(describe(kAbsent), "undefined");
  EXPECT_EQ(describe(Tensor()), "undefined");
}

}  // namespace
}  // namespace sherd::testing
