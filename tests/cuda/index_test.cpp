// Gathering by index and its deterministic derivative: many indices of few rows, many rows, wrong indices.
#include <gtest/gtest.h>

#include "runtime/exec/context.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

class CudaIndex : public cuda::CudaTest {
 protected:
  static Tensor embedding_backward(const Tensor& grad, const Tensor& ids, std::int64_t rows) {
    return call(op::embedding_backward, EmbeddingAttrs{rows}, grad, ids);
  }
  // The sums of both devices, bit for bit: both add in the order of the positions. Drawn values have few digits and
  // would sum exactly in any order.
  static void expect_same_sums(const Tensor& drawn, const Tensor& ids, std::int64_t rows) {
    const Tensor grad = drawn * 1.37;
    EXPECT_TRUE(same_bits(on_host(embedding_backward(on_device(grad), on_device(ids), rows)),
                          embedding_backward(grad, ids, rows)))
        << describe(grad) << ' ' << describe(ids) << ' ' << rows << " rows";
  }
};

TEST_F(CudaIndex, RowsOfEveryWidth) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8})
    for (const std::int64_t width : {1, 5, 8, 48, 1024}) {
      const Tensor table = cast(draw(ids({12, width}, 200), DType::i64, 1), dtype),
                   index = draw(ids({3, 7}, 12), {}, 2);
      EXPECT_TRUE(same_bits(on_host(embedding(on_device(table), on_device(index))), embedding(table, index)));
      const Tensor narrow_index = cast(index, DType::i32);
      EXPECT_TRUE(same_bits(on_host(embedding(on_device(table), on_device(narrow_index))), embedding(table, index)));
    }
}

TEST_F(CudaIndex, ManyIndicesOfFewRows) {  // several blocks of the sort, one pass
  const Tensor index = draw(ids({5003}, 7), {}, 3);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    expect_same_sums(draw(normal({5003, 8}), dtype, 4), index, 7);
}

TEST_F(CudaIndex, AVocabulary) {  // two passes, most rows empty
  expect_same_sums(draw(normal({2, 1500, 24}), DType::bf16, 5), draw(ids({2, 1500}, 3000), {}, 6), 3000);
}

TEST_F(CudaIndex, MoreRowsThanTwoPassesSort) {
  const Tensor index = Tensor::from<std::int64_t>({299'999, 3, 262'144, 3, 0, 299'999}, {6});
  expect_same_sums(draw(normal({6, 1}), DType::f32, 7), index, 300'000);
}

TEST_F(CudaIndex, OneIndexAlways) {
  expect_same_sums(draw(normal({4100, 4}), DType::f32, 8), zeros({4100}, DType::i64), 2);
}

TEST_F(CudaIndex, AddingTouchesNamedRowsOnly) {
  const Tensor grad = draw(normal({9, 16}), DType::bf16, 9), index = draw(ids({9}, 4), {}, 10);
  const Tensor here = draw(normal({6, 16}), DType::bf16, 11), there = on_device(here);
  std::vector<Tensor> in{grad, index}, in_there{on_device(grad), on_device(index)};
  call_op_into(op::embedding_backward, in, EmbeddingAttrs{6}, here, true);
  call_op_into(op::embedding_backward, in_there, EmbeddingAttrs{6}, there, true);
  EXPECT_TRUE(same_bits(on_host(there), here));
}

TEST_F(CudaIndex, EntriesOfEveryDim) {
  const Tensor x = draw(normal({4, 6, 9, 16}), DType::f32, 12), turned = permute(x, {2, 0, 3, 1});
  for (const Tensor& t : {x, turned})
    for (int dim = 0; dim < 4; ++dim) {
      const Tensor index = draw(ids({11}, t.size(dim)), {}, 13), selected = index_select(t, dim, index);
      EXPECT_TRUE(same_bits(on_host(index_select(on_device(t), dim, on_device(index))), selected)) << dim;
      const PadToAttrs attrs{dim, 0, t.size(dim)};
      EXPECT_TRUE(same_bits(on_host(call(op::index_select_backward, attrs, on_device(selected), on_device(index))),
                            call(op::index_select_backward, attrs, selected, index)))
          << dim;
    }
}

TEST_F(CudaIndex, PartsOfATable) {
  const Tensor table = draw(normal({30, 24}), DType::bf16, 15), index = draw(ids({900}, 30), {}, 16);
  const Tensor grad = draw(normal({900, 24}), DType::bf16, 17) * 1.37;
  for (const auto& [first, here] : {std::pair<std::int64_t, std::int64_t>{0, 11}, {11, 19}, {30, 0}}) {
    const VocabularyPart part{first, 30};
    const Tensor rows = narrow(table, 0, first, here);
    EXPECT_TRUE(same_bits(on_host(call(op::embedding, EmbeddingAttrs{.part = part}, on_device(rows), on_device(index))),
                          call(op::embedding, EmbeddingAttrs{.part = part}, rows, index)));
    const EmbeddingAttrs attrs{here, part};
    EXPECT_TRUE(same_bits(on_host(call(op::embedding_backward, attrs, on_device(grad), on_device(index))),
                          call(op::embedding_backward, attrs, grad, index)));
  }
  const Tensor wrong = on_device(Tensor::from<std::int64_t>({29, 30}, {2}));
  const Tensor rows = call(op::embedding, EmbeddingAttrs{.part = {0, 30}}, on_device(narrow(table, 0, 0, 11)), wrong);
  expect_error([&] { (void)on_host(rows); }, {"embedding: index 30 at position 1 is outside of 0..29"});
}

TEST_F(CudaIndex, AWrongIndexIsNamedAndReadsNothing) {
  const Tensor table = on_device(draw(normal({5, 8}), DType::f32, 14));
  const Tensor index = on_device(Tensor::from<std::int64_t>({1, 2, 5, -3, 4}, {5}));
  const Tensor rows = embedding(table, index);
  expect_error([&] { (void)on_host(rows); }, {"embedding: index 5 at position 2 is outside of 0..4"});
  const std::vector<float> values = on_host(rows).to_vector<float>();
  for (std::size_t i = 16; i < 32; ++i) EXPECT_EQ(values[i], 0.0f);
  const Tensor sums = embedding_backward(rows, index, 4);
  expect_error([&] { RankContext::current().device(Device::cuda(0)).synchronize(); },
               {"embedding_backward: index 5 at position 2 is outside of 0..3"});
  EXPECT_EQ(on_host(sums).to_vector<float>()[8], values[0]);  // row 1 is what position 0 gave
}

}  // namespace
}  // namespace sherd::testing
