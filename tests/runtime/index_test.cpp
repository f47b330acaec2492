// Oracles: closed form on small tables; the backward against central differences and against a plain loop.
#include <gtest/gtest.h>

#include "runtime/cpu/parallel.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/grad_check.h"
#include "tests/support/message_of.h"
#include "tests/support/near.h"

namespace sherd {
namespace {

using testing::grad_check;
using testing::message_of;
using testing::same_bits;
using Ints = std::vector<std::int64_t>;

Ints values(const Tensor& t) { return t.to_vector<std::int64_t>(); }
Tensor numbered(const Shape& shape) { return reshape(arange(numel(shape)), shape); }

Tensor embedding_gradient(const Tensor& grad, const Tensor& ids, std::int64_t rows) {
  return call(op::embedding_backward, EmbeddingAttrs{rows}, grad, ids);
}

TEST(Embedding, TakesRowsForIdsOfAnyShapeAndStride) {
  const Tensor table = numbered({4, 3});
  const Tensor ids = Tensor::from<std::int32_t>({3, 0, 1, 1}, {2, 2});
  const Tensor y = embedding(table, ids);
  EXPECT_EQ(y.shape(), (Shape{2, 2, 3}));
  EXPECT_EQ(values(y), (Ints{9, 10, 11, 0, 1, 2, 3, 4, 5, 3, 4, 5}));
  EXPECT_EQ(values(embedding(transpose(numbered({3, 4}), 0, 1), transpose(ids, 0, 1))),
            (Ints{3, 7, 11, 1, 5, 9, 0, 4, 8, 1, 5, 9}));
  EXPECT_EQ(embedding(table, zeros({0, 2}, DType::i64)).shape(), (Shape{0, 2, 3}));
}

TEST(Embedding, AnIdOutsideTheTableIsNamed) {
  const Tensor table = zeros({4, 3});
  EXPECT_EQ(message_of([&] { embedding(table, Tensor::from<std::int64_t>({0, 4}, {2})); }),
            "embedding: index 4 at position 1 is outside of 0..3");
  EXPECT_EQ(message_of([&] { embedding(table, Tensor::from<std::int64_t>({-1}, {1})); }),
            "embedding: index -1 at position 0 is outside of 0..3");
  EXPECT_EQ(message_of([&] { embedding(table, Tensor::from<float>({0}, {1})); }),
            "embedding needs i32 or i64 indices, got f32[1]");
}

TEST(Embedding, BackwardSumsRepeatedRowsAndZeroesTheOthers) {
  const Tensor grad = cast(numbered({3, 2}), DType::f32);
  const Tensor ids = Tensor::from<std::int64_t>({2, 0, 2}, {3});
  EXPECT_EQ(values(embedding_gradient(grad, ids, 4)), (Ints{2, 3, 0, 0, 4, 6, 0, 0}));
  const Tensor out = ones({4, 2});
  call_into(op::embedding_backward, EmbeddingAttrs{4}, out, true, grad, ids);
  EXPECT_EQ(values(out), (Ints{3, 4, 1, 1, 5, 7, 1, 1}));
}

TEST(Embedding, BackwardIsTheSumInIndexOrderOnAnyNumberOfThreads) {
  constexpr std::int64_t kIds = 5000, kRows = 37, kDim = 130;
  const Tensor grad = random_normal({kIds, kDim}, 3);
  const Tensor ids = cast(mul(random_uniform({kIds}, 4), kRows), DType::i64);
  const Tensor one = embedding_gradient(grad, ids, kRows);
  std::vector<float> expected(kRows * kDim);
  const auto id = ids.to_vector<std::int64_t>();
  const auto g = grad.to_vector<float>();
  for (std::size_t i = 0; i < id.size(); ++i)
    for (std::size_t j = 0; j < kDim; ++j) expected[static_cast<std::size_t>(id[i]) * kDim + j] += g[i * kDim + j];
  EXPECT_EQ(one.to_vector<float>(), expected);
  set_threads(3);
  const Tensor three = embedding_gradient(grad, ids, kRows);
  set_threads(1);
  EXPECT_TRUE(same_bits(three, one));
  const Tensor strided = transpose(contiguous(transpose(grad, 0, 1)), 0, 1);
  EXPECT_TRUE(same_bits(embedding_gradient(strided, ids, kRows), one));
}

TEST(Embedding, SixteenBitGradientsSumInF32) {
  // 256 ones and a 1: bf16 alone would stay at 256.
  const Tensor grad = ones({512, 1}, DType::bf16);
  EXPECT_EQ(embedding_gradient(grad, zeros({512}, DType::i64), 1).to_vector<double>(), (std::vector<double>{512}));
}

// A table of 11 rows over ranks, one of which holds none.
constexpr std::int64_t kFirstIds[] = {0, 4, 4, 9, 11};

TEST(Embedding, PartsSumToTheWholeLookUp) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor table = cast(random_normal({11, 5}, 1), dtype),
                 strided = transpose(contiguous(transpose(table, 0, 1)), 0, 1);
    const Tensor ids = Tensor::from<std::int32_t>({3, 10, 0, 4, 8, 9, 3}, {7});
    const Tensor whole = embedding(table, ids), grad = cast(random_normal({7, 5}, 2), dtype);
    const Tensor whole_gradient = embedding_gradient(grad, ids, 11);
    Tensor sum;
    for (int r = 0; r < 4; ++r) {
      const std::int64_t first = kFirstIds[r], here = kFirstIds[r + 1] - first;
      const VocabularyPart part{first, 11};
      const Tensor rows = call(op::embedding, EmbeddingAttrs{.part = part}, narrow(table, 0, first, here), ids);
      EXPECT_TRUE(
          same_bits(call(op::embedding, EmbeddingAttrs{.part = part}, narrow(strided, 0, first, here), ids), rows));
      sum = sum.defined() ? add(sum, rows) : rows;
      const Tensor gradient = call(op::embedding_backward, EmbeddingAttrs{here, part}, grad, ids);
      EXPECT_TRUE(same_bits(gradient, contiguous(narrow(whole_gradient, 0, first, here)))) << r;
    }
    EXPECT_TRUE(same_bits(sum, whole));
  }
}

TEST(Embedding, APartKnowsAllIdsThatExist) {
  const auto look_up = [](std::int64_t id, const VocabularyPart& part) {
    return message_of([&] {
      call(op::embedding, EmbeddingAttrs{.part = part}, zeros({4, 3}), Tensor::from<std::int64_t>({id}, {1}));
    });
  };
  EXPECT_EQ(look_up(10, {4, 11}), "no error");
  EXPECT_EQ(look_up(11, {4, 11}), "embedding: index 11 at position 0 is outside of 0..10");
  EXPECT_EQ(look_up(-1, {4, 11}), "embedding: index -1 at position 0 is outside of 0..10");
  EXPECT_EQ(look_up(0, {8, 11}), "4 ids from 8 on are no part of a vocabulary of 11");
  EXPECT_EQ(look_up(0, {-1, 11}), "4 ids from -1 on are no part of a vocabulary of 11");
  EXPECT_EQ(look_up(0, {2, 0}), "4 ids from 2 on are no part of a vocabulary of 0");
}

TEST(IndexSelect, ForwardAndGradientAlongEveryDim) {
  const Tensor x = cast(random_normal({3, 4, 2}, 1), DType::f64);
  for (int dim = 0; dim < 3; ++dim) {
    const Tensor index = Tensor::from<std::int64_t>({1, 0, 1, 1}, {4});
    const Tensor y = index_select(x, dim, index);
    EXPECT_EQ(y.size(dim), 4);
    EXPECT_TRUE(same_bits(select(y, dim, 3), select(x, dim, 1)));
    EXPECT_TRUE(same_bits(index_select(transpose(x, 0, 2), 2 - dim, index), transpose(y, 0, 2))) << "a strided input";
    EXPECT_TRUE(grad_check([&](std::span<const Tensor> in) { return square(index_select(in[0], dim, index)); },
                           std::span(&x, 1)));
  }
  EXPECT_EQ(message_of([&] { index_select(x, 2, Tensor::from<std::int64_t>({2}, {1})); }),
            "index_select: index 2 at position 0 is outside of 0..1");
}

TEST(Cat, JoinsAlongAnyDimAndPromotes) {
  const Tensor a = numbered({2, 2}), b = numbered({2, 1});
  EXPECT_EQ(values(cat({a, b}, 1)), (Ints{0, 1, 0, 2, 3, 1}));
  EXPECT_EQ(values(cat({a, transpose(a, 0, 1)}, -2)), (Ints{0, 1, 2, 3, 0, 2, 1, 3}));
  EXPECT_EQ(cat({a, cast(b, DType::f32)}, 1).dtype(), DType::f32);
  EXPECT_EQ(cat({a, zeros({2, 0}, DType::i64)}, 1).shape(), a.shape());
  EXPECT_EQ(message_of([&] { cat({a, b}, 0); }), "cat of i64[2,2] and i64[2,1] along dim 0: only that dim may differ");
}

TEST(Cat, StackMakesANewDim) {
  const Tensor a = numbered({2}), b = mul(a, 10);
  EXPECT_EQ(values(stack({a, b}, 0)), (Ints{0, 1, 0, 10}));
  EXPECT_EQ(values(stack({a, b}, -1)), (Ints{0, 0, 1, 10}));
}

TEST(Cat, GradientGoesBackToEachPart) {
  const Tensor parts[] = {cast(random_normal({2, 3}, 1), DType::f64), cast(random_normal({2, 1}, 2), DType::f64)};
  EXPECT_TRUE(grad_check([](std::span<const Tensor> in) { return square(cat({in[0], in[1], in[0]}, 1)); }, parts));
}

}  // namespace
}  // namespace sherd
