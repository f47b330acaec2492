// What the rows of products queue: one product and no copy where cuBLASLt can say the layout.
#include <gtest/gtest.h>

#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/emulated_gpu/control.h"

namespace sherd::testing {
namespace {

class EmulatedMatmul : public cuda::CudaTest {
 protected:
  static Tensor ones(const Shape& shape) { return to(full(shape, 1), Device::cuda(0)); }
  // Kernels of the second of two equal calls; the first times candidates.
  template <class Call>
  static std::int64_t kernels_of(Call call) {
    DeviceContext& device = RankContext::current().device(Device::cuda(0));
    const Tensor first = call();
    device.synchronize();
    cuda::emulated::reset_counters();
    const Tensor second = call();
    device.synchronize();
    EXPECT_EQ(second.to_vector<float>(), first.to_vector<float>());
    return cuda::emulated::counters().kernels;
  }
};

TEST_F(EmulatedMatmul, LayoutsThatNeedNoCopy) {
  const Tensor square = ones({8, 8}), heads = ones({2, 6, 3, 8}), weight = ones({8, 8});
  const auto swap = [](const Tensor& t) { return transpose(t, -1, -2); };
  const Tensor by_head = permute(heads, {0, 2, 1, 3});  // [2, 3, 6, 8]
  EXPECT_EQ(kernels_of([&] { return matmul(swap(square), swap(square)); }), 1);
  EXPECT_EQ(kernels_of([&] { return matmul(narrow(square, 1, 2, 4), narrow(square, 0, 3, 4)); }), 1);
  EXPECT_EQ(kernels_of([&] { return matmul(heads, weight); }), 1) << "one tall product";
  EXPECT_EQ(kernels_of([&] { return matmul(expand(square, {5, 8, 8}), ones({5, 8, 8})); }), 1);
  EXPECT_EQ(kernels_of([&] { return matmul(by_head, swap(by_head)); }), 2) << "one product for each sequence";
  EXPECT_EQ(kernels_of([&] { return linear(narrow(heads, 3, 0, 4), narrow(weight, 1, 4, 4)); }), 1);
}

}  // namespace
}  // namespace sherd::testing
