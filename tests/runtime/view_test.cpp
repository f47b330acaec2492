// Oracles: closed form on small arange tensors; aliasing is checked by the storage and by the address.
#include <gtest/gtest.h>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/grad_check.h"
#include "tests/support/message_of.h"
#include "tests/support/near.h"

namespace sherd {
namespace {

using testing::grad_check;
using testing::message_of;
using Ints = std::vector<std::int64_t>;

Tensor numbered(const Shape& shape) { return reshape(arange(numel(shape)), shape); }
Ints values(const Tensor& t) { return t.to_vector<std::int64_t>(); }
bool alias(const Tensor& a, const Tensor& b) { return a.storage() == b.storage(); }

TEST(View, ReshapeAliasesWhatIsDense) {
  const Tensor x = numbered({2, 6});
  const Tensor y = view(x, {3, -1});
  EXPECT_EQ(y.shape(), (Shape{3, 4}));
  EXPECT_TRUE(alias(x, y));
  EXPECT_EQ(values(y), values(x));
}

TEST(View, StridedTensorsAliasWhereTheirDimsMerge) {
  const Tensor x = narrow(numbered({4, 6}), 1, 0, 3);  // strides 6, 1
  EXPECT_TRUE(alias(x, view(x, {2, 2, 3}))) << "a split of one dim always works";
  EXPECT_EQ(values(view(x, {2, 2, 3})), values(x));
  const Tensor t = permute(numbered({2, 3, 4}), {2, 0, 1});  // [4, 2, 3]; the last two merge
  EXPECT_TRUE(alias(t, view(t, {4, 6})));
  EXPECT_EQ(values(view(t, {4, 6})), values(t));
  EXPECT_EQ(view(expand(numbered({1}), {4}), {2, 2}).strides(), (Strides{0, 0}));
}

TEST(View, ReshapeCopiesOnlyWhenItMust) {
  const Tensor x = transpose(numbered({2, 3}), 0, 1);
  EXPECT_THROW(view(x, {6}), Error);
  const Tensor y = reshape(x, {6});
  EXPECT_FALSE(alias(x, y));
  EXPECT_EQ(values(y), (Ints{0, 3, 1, 4, 2, 5}));
}

TEST(View, ErrorsNameBothSides) {
  const Tensor x = numbered({2, 3});
  EXPECT_EQ(message_of([&] { view(x, {4}); }), "view of i64[2,3] as [4]: 6 elements, not 4");
  EXPECT_EQ(message_of([&] { view(x, {4, -1}); }), "i64[2,3] does not divide into shape [4,-1]");
  EXPECT_EQ(message_of([&] { expand(x, {4, 3}); }), "i64[2,3] does not expand to [4,3]");
  EXPECT_EQ(message_of([&] { narrow(x, 1, 2, 2); }), "narrow: 2 elements from 2 on do not lie in dim 1 of i64[2,3]");
  EXPECT_EQ(message_of([&] { permute(x, {0, 0}); }), "permute of i64[2,3] by [0,0]: every dim must be named once");
  EXPECT_EQ(message_of([&] { split(x, 1, {1, 1}); }), "split of i64[2,3] along dim 1: the sizes sum to 2");
  EXPECT_EQ(message_of([&] { select(x, 0, 2); }), "select: index 2 of dim 0 of i64[2,3]");
}

TEST(View, PermuteTransposeAndExpandReadTheSameBytes) {
  const Tensor x = numbered({2, 3});
  EXPECT_EQ(values(transpose(x, 0, -1)), (Ints{0, 3, 1, 4, 2, 5}));
  EXPECT_TRUE(alias(x, transpose(x, 0, 1)));
  EXPECT_EQ(values(expand(narrow(x, 0, 1, 1), {2, 2, 3})), (Ints{3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4, 5}));
  EXPECT_EQ(permute(numbered({2, 3, 4}), {-1, 0, 1}).shape(), (Shape{4, 2, 3}));
}

TEST(View, SelectNarrowSplitChunk) {
  const Tensor x = numbered({3, 4});
  EXPECT_EQ(values(select(x, 1, -1)), (Ints{3, 7, 11}));
  EXPECT_EQ(values(narrow(x, 0, 1, 2)), (Ints{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(values(narrow(narrow(x, 1, 1, 3), 1, 1, 1)), (Ints{2, 6, 10})) << "a view of a view";
  const auto parts = split(x, 1, {1, 0, 3});
  EXPECT_EQ(values(parts[0]), (Ints{0, 4, 8}));
  EXPECT_EQ(parts[1].numel(), 0);
  EXPECT_EQ(parts[2].shape(), (Shape{3, 3}));
  const auto chunks = chunk(numbered({7}), 0, 3);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(values(chunks[2]), (Ints{6})) << "ceil(7 / 3) = 3, 3, 1";
}

TEST(View, SqueezeUnsqueezeFlatten) {
  const Tensor x = numbered({2, 1, 3});
  EXPECT_EQ(squeeze(x, 1).shape(), (Shape{2, 3}));
  EXPECT_EQ(squeeze(x, 0).shape(), x.shape()) << "only size 1 goes";
  EXPECT_EQ(unsqueeze(x, -1).shape(), (Shape{2, 1, 3, 1}));
  EXPECT_EQ(flatten(x, 0, -1).shape(), (Shape{6}));
  EXPECT_EQ(flatten(x, 1, 2).shape(), (Shape{2, 3}));
  EXPECT_EQ(flatten(Tensor::scalar(1), 0, -1).shape(), (Shape{1}));
}

TEST(View, ContiguousIsTheSameTensorWhenDense) {
  const Tensor x = numbered({2, 3});
  EXPECT_EQ(contiguous(x).impl(), x.impl());
  const Tensor y = contiguous(transpose(x, 0, 1));
  EXPECT_TRUE(y.is_contiguous());
  EXPECT_EQ(values(y), (Ints{0, 3, 1, 4, 2, 5}));
}

// Shapes that take each path of the copy loop: rows, blocks of a transpose, an inner dim of stride 0, odd tails.
TEST(Copy, EveryLayoutOfEverySizeOfElement) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8}) {
    const Tensor x = cast(reshape(arange(5 * 67 * 33), {5, 67, 33}), dtype);
    for (const std::vector<int>& order : {std::vector{0, 2, 1}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}}) {
      const Tensor t = permute(x, order);
      EXPECT_TRUE(testing::same_bits(contiguous(t), t)) << name(dtype);
      const Tensor part = narrow(narrow(t, 0, 1, 3), 2, 1, 4);
      EXPECT_TRUE(testing::same_bits(contiguous(part), part));
    }
    const Tensor e = expand(narrow(x, 2, 0, 1), {5, 67, 40});
    EXPECT_TRUE(testing::same_bits(contiguous(e), e));
  }
}

TEST(Copy, IntoAPartOfAnotherTensorTouchesNothingElse) {
  const Tensor target = zeros({3, 4});
  copy_into(narrow(target, 1, 1, 2), Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2}));
  EXPECT_EQ(values(target), (Ints{0, 1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0}));
  copy_into(transpose(narrow(target, 1, 1, 2), 0, 1), numbered({2, 3}), true);  // converted from i64, added
  EXPECT_EQ(values(target), (Ints{0, 1, 5, 0, 0, 4, 8, 0, 0, 7, 11, 0}));
  fill_into(narrow(target, 1, 3, 1), 9);
  EXPECT_EQ(values(target), (Ints{0, 1, 5, 9, 0, 4, 8, 9, 0, 7, 11, 9}));
}

TEST(Copy, AccumulationRoundsTheSum) {
  const Tensor target = Tensor::from<bf16>({bf16(256.0f), bf16(1.0f)}, {2});
  copy_into(target, Tensor::from<bf16>({bf16(1.0f), bf16(0.0078125f)}, {2}), true);
  // bf16 holds 8 bits: 257 is half way and goes to the even 256; 1 + 2^-7 is exact.
  EXPECT_EQ(target.to_vector<double>(), (std::vector<double>{256, 1.0078125}));
}

TEST(View, GradientsOfCompositions) {
  const Tensor x = cast(random_normal({3, 4, 2}, 7), DType::f64);
  const auto check = [&](const testing::TensorFunction& fn) { EXPECT_TRUE(grad_check(fn, std::span(&x, 1))); };
  check([](std::span<const Tensor> in) { return square(flatten(transpose(in[0], 0, 1), 0, 2)); });
  check([](std::span<const Tensor> in) { return mul(select(in[0], 1, 2), select(in[0], 1, 3)); });
  check([](std::span<const Tensor> in) { return square(expand(unsqueeze(in[0], 0), {2, 3, 4, 2})); });
  check([](std::span<const Tensor> in) {
    const auto parts = chunk(in[0], 1, 2);
    return mul(parts[0], sin(parts[1]));
  });
  check([](std::span<const Tensor> in) { return square(stack({select(in[0], 2, 0), select(in[0], 2, 1)}, 1)); });
}

TEST(View, TwoBackwardPassesThroughASumAccumulate) {
  // The gradient of sum() is a broadcast view; the second pass must not write through its zero strides.
  Slot slot("w", true);
  slot.set(zeros({3}));
  for (int pass = 0; pass < 3; ++pass) backward(sum(slot.value()));
  EXPECT_EQ(slot.grad().to_vector<double>(), (std::vector<double>{3, 3, 3}));
}

}  // namespace
}  // namespace sherd
