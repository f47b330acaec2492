// Pointwise, copying and creating rows where the sweep of op_cases does not look: layouts that change the path, tails,
// starts that are not aligned, special values, mixed dtypes. Oracle: the CPU's result, bit for bit where both round
// alike.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/draw.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

constexpr DType kFloats[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

class CudaElementwise : public cuda::CudaTest {};
class CudaCopy : public cuda::CudaTest {};

/// Rows [first, first + length) of dim `dim`: not dense, and for odd `first` not aligned.
Tensor part(const Tensor& t, int dim, std::int64_t first, std::int64_t length) { return narrow(t, dim, first, length); }

TEST_F(CudaElementwise, TailsAndUnalignedStarts) {
  for (const DType dtype : kFloats)
    for (const std::int64_t n : {1, 3, 7, 8, 9, 2047, 2048, 2049, 5000})
      for (const std::int64_t first : {0, 1, 8}) {
        const Tensor a = draw(normal({n + 8}), dtype, 1), b = draw(normal({n + 8}), dtype, 2);
        const Tensor x = part(a, 0, first, n), y = part(b, 0, 8 - first, n);
        EXPECT_TRUE(same_bits(on_host(on_device(x) + on_device(y)), x + y)) << name(dtype) << ' ' << n << ' ' << first;
        EXPECT_TRUE(same_bits(on_host(neg(on_device(x))), neg(x))) << name(dtype) << ' ' << n << ' ' << first;
      }
}

TEST_F(CudaElementwise, HalvesOfAFusedProjection) {
  for (const DType dtype : kFloats) {
    const Tensor fused = draw(normal({37, 2 * 264}), dtype, 3), there = on_device(fused);
    const std::vector<Tensor> here = chunk(fused, 1, 2), halves = chunk(there, 1, 2);
    EXPECT_TRUE(near(on_host(swiglu(halves[0], halves[1])), swiglu(here[0], here[1]))) << name(dtype);
  }
}

TEST_F(CudaElementwise, BroadcastsOfEitherDim) {
  for (const DType dtype : kFloats) {
    const Tensor x = draw(normal({5, 33, 64}), dtype, 4);
    for (const Shape& shape : {Shape{64}, Shape{33, 1}, Shape{5, 1, 64}, Shape{5, 1, 1}, Shape{}}) {
      const Tensor y = draw(normal(shape), dtype, 5);
      EXPECT_TRUE(same_bits(on_host(on_device(x) * on_device(y)), x * y)) << name(dtype) << ' ' << describe(y);
      EXPECT_TRUE(same_bits(on_host(on_device(y) - on_device(x)), y - x)) << name(dtype) << ' ' << describe(y);
    }
  }
}

TEST_F(CudaElementwise, EveryPairOfDtypes) {
  const DType all[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8};
  const Tensor numbers = draw(ids({4, 19}, 11), DType::i64, 6);
  for (const DType a : all)
    for (const DType b : all) {
      const Tensor x = cast(numbers, a), y = cast(part(numbers, 0, 1, 1), b);
      EXPECT_TRUE(same_bits(on_host(on_device(x) * on_device(y)), x * y)) << name(a) << ' ' << name(b);
      EXPECT_TRUE(same_bits(on_host(less(on_device(x), on_device(y))), less(x, y))) << name(a) << ' ' << name(b);
      EXPECT_TRUE(same_bits(on_host(cast(on_device(x), b)), cast(x, b))) << name(a) << ' ' << name(b);
    }
}

TEST_F(CudaElementwise, SpecialValues) {
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor values = Tensor::from<double>({nan, inf, -inf, 0.0, -0.0, 1.5, -2.5, 1e300, 3e38, 1e-40}, {10});
  for (const DType dtype : kFloats) {
    const Tensor x = cast(values, dtype), y = on_device(x);
    const Tensor column = reshape(x, {10, 1}), column_there = reshape(y, {10, 1});
    EXPECT_TRUE(same_bits(on_host(maximum(y, column_there)), maximum(x, column))) << name(dtype);
    EXPECT_TRUE(same_bits(on_host(minimum(y, column_there)), minimum(x, column))) << name(dtype);
    EXPECT_TRUE(same_bits(on_host(y / column_there), x / column)) << name(dtype);
    EXPECT_TRUE(same_bits(on_host(relu(y)), relu(x))) << name(dtype);
    EXPECT_TRUE(same_bits(on_host(clamp(y, -1, 2)), clamp(x, -1, 2))) << name(dtype);
    EXPECT_TRUE(same_bits(on_host(sqrt(y)), sqrt(x))) << name(dtype);
    EXPECT_TRUE(near(on_host(exp(y)), exp(x))) << name(dtype);
    EXPECT_TRUE(near(on_host(sigmoid(y)), sigmoid(x))) << name(dtype);
    for (const DType to_dtype : {DType::i64, DType::i32, DType::u8, DType::boolean, DType::bf16, DType::f16})
      EXPECT_TRUE(same_bits(on_host(cast(y, to_dtype)), cast(x, to_dtype))) << name(dtype) << ' ' << name(to_dtype);
  }
}

TEST_F(CudaElementwise, AConditionOfBools) {
  for (const DType dtype : kFloats) {
    const Tensor condition = draw(flags({6, 40}), dtype, 7), a = draw(normal({6, 40}), dtype, 8);
    const Tensor b = draw(normal({40}), dtype, 9), row = part(condition, 0, 2, 1);
    EXPECT_TRUE(same_bits(on_host(where(on_device(condition), on_device(a), on_device(b))), where(condition, a, b)));
    EXPECT_TRUE(same_bits(on_host(where(on_device(row), on_device(a), on_device(b))), where(row, a, b)));
    const Tensor odd = part(condition, 1, 1, 33), c = part(a, 1, 0, 33);
    EXPECT_TRUE(same_bits(on_host(where(on_device(odd), on_device(c), on_device(c))), where(odd, c, c)));
  }
}

// ---- copies ----

TEST_F(CudaCopy, EveryOrderOfDims) {
  const std::vector<int> orders[] = {{1, 0, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0},
                                     {0, 1, 3, 2}, {2, 3, 0, 1}, {1, 2, 3, 0}};
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::i64}) {
    const Tensor x = cast(draw(ids({3, 70, 5, 66}, 200), DType::i64, 10), dtype), there = on_device(x);
    for (const std::vector<int>& order : orders)
      EXPECT_TRUE(same_bits(on_host(contiguous(permute(there, order))), contiguous(permute(x, order))))
          << name(dtype) << ' ' << fmt::to_string(fmt::join(order, ","));
  }
}

TEST_F(CudaCopy, IntoAndOutOfStridedMemory) {
  for (const DType dtype : {DType::boolean, DType::bf16, DType::f32, DType::f64})
    for (const bool accumulate : {false, true}) {
      const Tensor value = cast(draw(ids({40, 24}, 2), DType::i64, 11), dtype);
      const Tensor base = cast(draw(ids({24, 50}, 2), DType::i64, 12), dtype);
      const Tensor here = dense_copy(base), there = on_device(base);
      // A window of a transposed tensor: neither side is dense.
      copy_into(part(permute(here, {1, 0}), 0, 5, 40), value, accumulate);
      copy_into(part(permute(there, {1, 0}), 0, 5, 40), on_device(value), accumulate);
      EXPECT_TRUE(same_bits(on_host(there), here)) << name(dtype) << (accumulate ? " added" : "");
    }
}

TEST_F(CudaCopy, AddingConvertsOnceAndRoundsTwice) {
  for (const DType from : kFloats)
    for (const DType to_dtype : kFloats) {
      const Tensor value = draw(normal({7, 72}), from, 13) * 1.37, base = draw(normal({7, 72}), to_dtype, 14) * 0.71;
      const Tensor here = dense_copy(base), there = on_device(base);
      copy_into(here, value, true);
      copy_into(there, on_device(value), true);
      EXPECT_TRUE(same_bits(on_host(there), here)) << name(from) << " to " << name(to_dtype);
    }
}

TEST_F(CudaCopy, JoinedAndPaddedAlongEveryDim) {
  for (int dim = 0; dim < 3; ++dim)
    for (const DType dtype : {DType::u8, DType::bf16, DType::f64}) {
      std::vector<Tensor> here, there;
      for (const std::int64_t size : {1, 8, 3, 0}) {
        Shape shape{6, 8, 10};
        shape[dim] = size;
        here.push_back(cast(draw(ids(shape, 200), DType::i64, 15), dtype));
        there.push_back(on_device(here.back()));
      }
      EXPECT_TRUE(same_bits(on_host(cat(there, dim)), cat(here, dim))) << name(dtype) << " along " << dim;
      const PadToAttrs attrs{dim, 3, 16};
      EXPECT_TRUE(same_bits(on_host(call(op::pad_to, attrs, there[1])), call(op::pad_to, attrs, here[1]))) << dim;
    }
}

TEST_F(CudaCopy, FilledAndCounted) {
  const Device cuda = Device::cuda(0);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8})
    for (const std::int64_t n : {0, 1, 17, 4099}) {
      EXPECT_TRUE(same_bits(on_host(full({n}, 3.25, dtype, cuda)), full({n}, 3.25, dtype)));
      EXPECT_TRUE(same_bits(on_host(arange(n, dtype, cuda)), arange(n, dtype)));
    }
  const Tensor here = zeros({5, 9}), there = zeros({5, 9}, DType::f32, cuda);
  fill_into(part(here, 1, 3, 4), -2);
  fill_into(part(there, 1, 3, 4), -2);
  EXPECT_TRUE(same_bits(on_host(there), here));
}

}  // namespace
}  // namespace sherd::testing
