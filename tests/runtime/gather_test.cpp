// Rows with an index per element and topk. Oracles: PyTorch's goldens, definitions in plain loops, central differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "runtime/autograd/autograd.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/rows/gather.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden_case.h"

namespace sherd::testing {
namespace {

using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

TEST(Gather, Golden) {
  const Golden golden("indexed");
  for (const std::string& test_case : golden.cases("gather_")) {
    const auto dim = static_cast<int>(golden.integer(test_case, "dim"));
    expect_golden(golden, test_case, {"x", "index"}, [&](auto in) { return gather(in[0], dim, in[1]); });
  }
}

TEST(Scatter, Golden) {
  const Golden golden("indexed");
  for (const std::string& test_case : golden.cases("scatter_")) {
    const auto dim = static_cast<int>(golden.integer(test_case, "dim"));
    const bool adds = test_case.starts_with("scatter_add");
    expect_golden(golden, test_case, {"x", "index", "source"}, [&](auto in) {
      return adds ? scatter_add(in[0], dim, in[1], in[2]) : scatter(in[0], dim, in[1], in[2]);
    });
  }
}

TEST(TopK, Golden) {
  const Golden golden("indexed");
  for (const std::string& test_case : golden.cases("topk_")) {
    const std::int64_t k = golden.integer(test_case, "k");
    const auto dim = static_cast<int>(golden.integer(test_case, "dim"));
    expect_golden(golden, test_case, {"x"}, [&](auto in) { return topk(in[0], k, dim).first; });
    EXPECT_TRUE(same_bits(topk(golden_tensor(golden, test_case + ".in.x", DType::f32), k, dim).second,
                          golden_tensor(golden, test_case + ".places", DType::f32)));
  }
}

// The definition, over every dim of dense and permuted tensors; the index is smaller than x where it may be.
TEST(Gather, AlongEveryDimOfEveryLayout) {
  const Tensor dense = reshape(arange(3 * 4 * 20), {3, 4, 20});
  for (const auto& order : std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    const Tensor x = permute(dense, order);
    for (int dim = 0; dim < 3; ++dim) {
      Shape shape = x.shape();
      for (int d = 0; d < 3; ++d) shape[d] = d == dim ? 7 : shape[d] - 1;
      const Tensor index = draw(ids(shape, x.size(dim)), {}, 3);
      const auto v = x.to_vector<std::int64_t>(), to = index.to_vector<std::int64_t>();
      Ints expected;
      const Strides in_x = contiguous_strides(x.shape()), in_index = contiguous_strides(shape);
      for (std::int64_t i = 0; i < numel(shape); ++i) {
        std::int64_t at = to[static_cast<std::size_t>(i)] * in_x[dim];
        for (int d = 0; d < 3; ++d)
          if (d != dim) at += i / in_index[d] % shape[d] * in_x[d];
        expected.push_back(v[static_cast<std::size_t>(at)]);
      }
      EXPECT_EQ(gather(x, dim, index).to_vector<std::int64_t>(), expected) << dim;
      EXPECT_EQ(gather(x, dim - 3, cast(index, DType::i32)).to_vector<std::int64_t>(), expected) << dim;
    }
  }
}

TEST(Scatter, TheLastOfSeveralWins) {
  const Tensor x = zeros({2, 3}), source = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor index = Tensor::from<std::int64_t>({2, 0, 2, 1, 1, 1}, {2, 3});
  EXPECT_EQ(scatter(x, 1, index, source).to_vector<double>(), (Doubles{2, 0, 3, 0, 6, 0}));
  EXPECT_EQ(scatter_add(x, 1, index, source).to_vector<double>(), (Doubles{2, 0, 4, 0, 15, 0}));
  const Tensor rows = Tensor::from<std::int64_t>({0, 1, 0, 0, 1, 1}, {2, 3});
  EXPECT_EQ(scatter(x, 0, rows, source).to_vector<double>(), (Doubles{4, 0, 3, 0, 5, 6})) << "along rows";
  const Tensor same = Tensor::from<std::int64_t>({1, 1, 1, 1, 0, 0}, {2, 3});
  EXPECT_EQ(scatter(x, 0, same, source).to_vector<double>(), (Doubles{0, 5, 6, 4, 2, 3}));
}

// Writers that lose have no gradient, and a place that was written passes none to x.
TEST(Scatter, GradientKnowsWhoWon) {
  const Tensor index = Tensor::from<std::int64_t>({2, 0, 2, 2}, {1, 4});
  const Tensor inputs[] = {draw(normal({1, 3}), DType::f64, 1), draw(normal({1, 4}), DType::f64, 2)};
  const auto fn = [&](std::span<const Tensor> in) { return square(scatter(in[0], 1, index, in[1])); };
  EXPECT_TRUE(grad_check(fn, inputs));
  const auto grads =
      gradients([&](auto in) { return scatter(in[0], 1, index, in[1]); }, inputs, ones({1, 3}, DType::f64));
  EXPECT_EQ(grads[0].to_vector<double>(), (Doubles{0, 1, 0}));
  EXPECT_EQ(grads[1].to_vector<double>(), (Doubles{0, 1, 0, 1}));
}

TEST(ScatterAdd, SixteenBitSumsAreTakenInF32) {
  // 1 + 256 times 2^-8: bf16 alone would stay at 1.
  const Tensor x = ones({2, 3}, DType::bf16), index = zeros({2, 256}, DType::i64);
  const Tensor sums = scatter_add(x, 1, index, full({2, 256}, 0x1p-8, DType::bf16));
  EXPECT_EQ(sums.to_vector<double>(), (Doubles{2, 1, 1, 2, 1, 1}));
}

TEST(ScatterAdd, SumsInIndexOrderOnAnyNumberOfThreads) {
  constexpr std::int64_t kLines = 40, kEntries = 700, kPlaces = 13;
  const Tensor x = random_normal({kPlaces, kLines}, 1), source = random_normal({kEntries, kLines}, 2);
  const Tensor index = draw(ids({kEntries, kLines}, kPlaces), {}, 3);
  auto expected = x.to_vector<float>();
  const auto to = index.to_vector<std::int64_t>();
  const auto from = source.to_vector<float>();
  for (std::size_t i = 0; i < to.size(); ++i)
    expected[static_cast<std::size_t>(to[i]) * kLines + i % kLines] += from[i];
  const Tensor one = scatter_add(x, 0, index, source);
  EXPECT_EQ(one.to_vector<float>(), expected);
  set_threads(3);
  const Tensor three = scatter_add(x, 0, index, source);
  set_threads(1);
  EXPECT_TRUE(same_bits(three, one));
}

TEST(ScatterAdd, IntegersAndFlags) {
  const Tensor index = Tensor::from<std::int64_t>({0, 0, 1}, {3});
  const auto add = [&](DType dtype, Doubles source) {
    const Tensor from = cast(Tensor::from<double>(source, {3}), dtype);
    return scatter_add(zeros({3}, dtype), 0, index, from).to_vector<double>();
  };
  EXPECT_EQ(add(DType::i64, {1, 2, 3}), (Doubles{3, 3, 0}));
  EXPECT_EQ(add(DType::u8, {200, 100, 3}), (Doubles{44, 3, 0}));
  EXPECT_EQ(add(DType::boolean, {1, 1, 0}), (Doubles{1, 0, 0}));
}

TEST(Gather, ErrorsNameWhatIsWrong) {
  const Tensor x = zeros({3, 4}), index = zeros({2, 5}, DType::i64);
  const auto at = [](std::int64_t id) { return Tensor::from<std::int64_t>({0, id}, {1, 2}); };
  for (const std::int64_t id : {4, -1}) {
    const std::string text = fmt::format("index {} at position 1 is outside of 0..3", id);
    expect_error([&] { gather(x, 1, at(id)); }, {"gather", text});
    expect_error([&] { scatter(x, 1, at(id), zeros({1, 2})); }, {"scatter", text});
    expect_error([&] { scatter_add(x, 1, at(id), zeros({1, 2})); }, {"scatter_add", text});
  }
  expect_error([&] { gather(x, 1, zeros({2, 5})); }, {"i32 or i64", "f32[2,5]"});
  expect_error([&] { gather(x, 1, zeros({4, 5}, DType::i64)); }, {"i64[4,5]", "[3,4]", "dim 1"});
  expect_error([&] { gather(x, 0, zeros({4}, DType::i64)); }, {"i64[4]", "[3,4]"});
  expect_error([&] { gather(x, 2, index); }, {"2"});
  expect_error([&] { scatter(x, 1, index, zeros({2, 4})); }, {"f32[2,4]", "i64[2,5]"});
  expect_error([&] { scatter_add(x, 1, index, zeros({2, 5}, DType::bf16)); }, {"bf16[2,5]", "f32[3,4]", "cast"});
}

TEST(TopK, LargestFirstAndEqualOnesInOrder) {
  const Tensor x = Tensor::from<float>({1, 3, 3, -kInf, 2, 3, 0}, {7});
  const auto [values, places] = topk(x, 5);
  EXPECT_EQ(values.to_vector<double>(), (Doubles{3, 3, 3, 2, 1}));
  EXPECT_EQ(places.to_vector<std::int64_t>(), (Ints{1, 2, 5, 4, 0}));
  EXPECT_EQ(topk(x, 0).first.shape(), (Shape{0}));
  EXPECT_EQ(topk(Tensor::from<float>({-0.0f, 0.0f, -0.0f}, {3}), 3).second.to_vector<std::int64_t>(), (Ints{0, 1, 2}));
}

TEST(TopK, NanIsLargest) {
  const Tensor x = Tensor::from<float>({1, -kNan, kInf, kNan, 5}, {5});
  EXPECT_EQ(topk(x, 4).second.to_vector<std::int64_t>(), (Ints{1, 3, 2, 4}));
}

// Against a sort of the whole line, in every dtype and layout.
TEST(TopK, IsTheHeadOfASortedLine) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8}) {
    SCOPED_TRACE(name(dtype));
    const Tensor dense =
        is_floating(dtype) ? draw(normal({3, 50, 4}), dtype, 1) : cast(draw(ids({3, 50, 4}, 200), {}, 1), dtype);
    for (const Tensor& x : {dense, permute(dense, {2, 1, 0})}) {
      const auto [largest, at] = topk(x, 20, 1);
      EXPECT_TRUE(same_bits(gather(x, 1, at), largest));
      for (std::int64_t i = 0; i < x.size(0); ++i)
        for (std::int64_t j = 0; j < x.size(2); ++j) {
          const auto line = select(select(x, 2, j), 0, i).to_vector<double>();
          Ints places(line.size());
          for (std::size_t p = 0; p < places.size(); ++p) places[p] = static_cast<std::int64_t>(p);
          std::stable_sort(places.begin(), places.end(), [&](std::int64_t a, std::int64_t b) {
            return line[static_cast<std::size_t>(a)] > line[static_cast<std::size_t>(b)];
          });
          places.resize(20);
          EXPECT_EQ(select(select(at, 2, j), 0, i).to_vector<std::int64_t>(), places);
        }
    }
  }
}

TEST(TopK, ErrorsNameWhatIsWrong) {
  expect_error([&] { topk(zeros({2, 3}), 4); }, {"4 largest of 3", "dim 1", "f32[2,3]"});
  expect_error([&] { topk(zeros({2, 3}), -1); }, {"-1 largest"});
  expect_error([&] { topk(zeros({2, 3}), 1, 2); }, {"2"});
}

}  // namespace
}  // namespace sherd::testing
