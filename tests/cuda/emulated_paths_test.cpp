// Which kernels run for which layouts: the fast paths are taken where a model needs them.
#include <gtest/gtest.h>

#include "runtime/exec/context.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/draw.h"
#include "tests/support/emulated_gpu/control.h"

namespace sherd::testing {
namespace {

class CudaPaths : public cuda::CudaTest {
 protected:
  // The kernels that `work` launches, one after the other.
  template <class Work>
  static std::string kernels_of(const Work& work) {
    DeviceContext& context = RankContext::current().device(Device::cuda(0));
    context.synchronize();
    cuda::emulated::reset_counters();
    work();
    context.synchronize();
    std::string names;
    for (const auto& [name, count] : cuda::emulated::counters().launches) names += fmt::format("{} x{}; ", name, count);
    return names;
  }
  static bool has(const std::string& names, std::string_view kernel) { return names.find(kernel) != std::string::npos; }
};

TEST_F(CudaPaths, DenseRowsAndBroadcastsAreVectors) {
  const Tensor x = on_device(draw(normal({16, 256}), DType::bf16, 1)),
               row = on_device(draw(normal({256}), DType::bf16, 2));
  const Tensor column = on_device(draw(normal({16, 1}), DType::bf16, 3));
  for (const Tensor& other : {x, row, column}) {
    const std::string names = kernels_of([&] { (void)(x * other); });
    EXPECT_TRUE(has(names, "vector_pointwise")) << names;
    EXPECT_FALSE(has(names, "element_pointwise")) << names;
  }
  const std::vector<Tensor> halves = chunk(x, 1, 2);
  EXPECT_TRUE(has(kernels_of([&] { (void)swiglu(halves[0], halves[1]); }), "vector_pointwise"));
}

TEST_F(CudaPaths, MixedDtypesAreElements) {
  const Tensor x = on_device(draw(normal({16, 256}), DType::bf16, 1)),
               y = on_device(draw(normal({256}), DType::f32, 2));
  EXPECT_TRUE(has(kernels_of([&] { (void)(x + y); }), "element_pointwise"));
}

TEST_F(CudaPaths, CopiesTakeTheWidestPath) {
  const Tensor x = on_device(draw(normal({64, 96}), DType::bf16, 4));
  EXPECT_TRUE(has(kernels_of([&] { (void)contiguous(permute(x, {1, 0})); }), "copy_transposed"));
  EXPECT_TRUE(has(kernels_of([&] { (void)contiguous(narrow(x, 1, 8, 32)); }), "Unit16"));
  const Tensor target = zeros({64, 96}, DType::bf16, Device::cuda(0));
  EXPECT_EQ(kernels_of([&] { copy_into(target, x); }), "") << "a dense copy is the copy engine's";
  EXPECT_TRUE(has(kernels_of([&] { (void)cast(x, DType::f32); }), "convert_vectors"));
}

TEST_F(CudaPaths, RowsOfVarAreReadByOneKernel) {
  const Tensor x = on_device(draw(normal({64, 96}), DType::bf16, 6));
  const std::string rows = kernels_of([&] { (void)var(x, {1}); }), columns = kernels_of([&] { (void)var(x, {0}); });
  EXPECT_TRUE(has(rows, "var_rows_kernel") && has(rows, "VectorReader")) << rows;
  EXPECT_EQ(std::count(rows.begin(), rows.end(), ';'), 1) << rows;
  EXPECT_FALSE(has(columns, "var_rows_kernel")) << columns;
}

TEST_F(CudaPaths, ALongLineOfTopKIsSeveralBlocksThenOne) {
  const auto topk_kernels = [](std::int64_t n, std::int64_t k) {
    const Tensor x = on_device(draw(normal({n}), DType::f32, 5));
    return kernels_of([&] { (void)topk(x, k); });
  };
  EXPECT_TRUE(has(topk_kernels(16'383, 5), " x1; ")) << "too short to share";
  EXPECT_TRUE(has(topk_kernels(16'384, 5), " x2; "));
  EXPECT_TRUE(has(topk_kernels(16'384, 1025), " x1; ")) << "parts would find too many";
}

}  // namespace
}  // namespace sherd::testing
