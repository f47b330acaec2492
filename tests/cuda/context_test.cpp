// The device context through the seam of the runtime, on the emulated GPU: tensors come and go, values are right,
// memory is accounted, a recorded graph repeats its work.
#include <gtest/gtest.h>

#include "runtime/exec/context.h"
#include "runtime/op/core/device_library.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using CudaContext = cuda::CudaTest;

TEST_F(CudaContext, ValuesSurviveTheWayThereAndBack) {
  ASSERT_NE(cuda_library().backend, nullptr) << cuda_library().reason;
  const Tensor x = arange(5'000'000, DType::i32);  // several chunks of staging
  const Tensor back = to(to(x, kCuda), Device::cpu());
  EXPECT_EQ(back.to_vector<std::int64_t>(), x.to_vector<std::int64_t>());
}

TEST_F(CudaContext, ScalarsNeedNoStaging) {
  const Tensor x = to(Tensor::scalar(2.5), kCuda);
  EXPECT_EQ(x.device(), kCuda);
  EXPECT_EQ(x.item<float>(), 2.5f);
}

TEST_F(CudaContext, MemoryIsAccountedOnTheDevice) {
  Allocator& memory = RankContext::current().device(kCuda).allocator();
  const std::int64_t before = memory.accounting().total();
  const std::int64_t host = RankContext::current().allocator().accounting().total();
  {
    const Tensor x = Tensor::empty({1000}, DType::f32, kCuda, MemoryCategory::optimizer);
    EXPECT_EQ(memory.accounting().total(), before + 4000);
    EXPECT_EQ(RankContext::current().allocator().accounting().total(), host);
  }
  EXPECT_EQ(memory.accounting().total(), before);
}

TEST_F(CudaContext, AReadIsPickedUpLater) {
  DeviceContext& context = RankContext::current().device(kCuda);
  const Tensor x = to(Tensor::from<float>({1, 2, 3}, {3}), kCuda);
  const std::unique_ptr<HostRead> read = context.start_read(x.raw(), x.bytes());
  EXPECT_EQ(reinterpret_cast<const float*>(read->wait())[2], 3.0f);
}

TEST_F(CudaContext, AReadOutlivesItsContext) {
  std::unique_ptr<DeviceContext> context = cuda_library().backend->open(0);
  void* const x = context->allocator().allocate(12, MemoryCategory::activations);
  const std::vector<float> values{1, 2, 3};
  context->upload(x, values.data(), 12);
  std::unique_ptr<HostRead> early = context->start_read(x, 12), late = context->start_read(x, 12);
  const auto* const seen = reinterpret_cast<const float*>(early->wait());
  context->allocator().release(x, 12, MemoryCategory::activations);
  context.reset();
  EXPECT_EQ(seen[2], 3.0f) << "its bytes live as long as the read";
  EXPECT_TRUE(late->is_ready());
  EXPECT_EQ(reinterpret_cast<const float*>(late->wait())[2], 3.0f);
}

TEST_F(CudaContext, ARecordedGraphRepeatsItsWork) {
  DeviceContext& context = RankContext::current().device(kCuda);
  const Tensor from = to(Tensor::from<float>({1, 2, 3, 4}, {4}), kCuda);
  const Tensor into = to(Tensor::from<float>({0, 0, 0, 0}, {4}), kCuda);
  const std::unique_ptr<DeviceGraph> graph =
      context.record([&] { context.copy(into.raw(), from.raw(), from.bytes()); });
  EXPECT_EQ(graph->num_nodes(), 1);
  EXPECT_EQ(into.to_vector<float>(), (std::vector<float>{0, 0, 0, 0})) << "recording must not run the work";
  graph->launch();
  EXPECT_EQ(into.to_vector<float>(), (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(CudaContext, ARecordingRefusesToWait) {
  DeviceContext& context = RankContext::current().device(kCuda);
  const Tensor x = to(Tensor::scalar(1), kCuda);
  expect_error([&] { context.record([&] { (void)x.item<float>(); }); }, {"recorded graph"});
  EXPECT_FALSE(context.is_recording());
  EXPECT_EQ(x.item<float>(), 1.0f);
}

TEST_F(CudaContext, AMissingDeviceIsNamed) {
  expect_error([] { Tensor::empty({1}, DType::f32, Device::cuda(77)); }, {"cuda:77", "this host has"});
}

TEST_F(CudaContext, GraphsShareTheMemoryOfTheirTemporaries) {
  DeviceContext& context = RankContext::current().device(kCuda);
  const std::int64_t before = context.allocator().accounting().total();
  const auto temporary = [&] { (void)Tensor::empty({1 << 20}, DType::f32, kCuda); };
  std::unique_ptr<DeviceGraph> first = context.record(temporary);
  EXPECT_EQ(context.allocator().accounting().total(), before + (4 << 20)) << "it counts as the rank's";
  std::unique_ptr<DeviceGraph> second = context.record(temporary);
  EXPECT_EQ(context.allocator().accounting().total(), before + (4 << 20));
  EXPECT_EQ(first->reserved_bytes(), second->reserved_bytes());
  first.reset();
  EXPECT_EQ(context.allocator().accounting().total(), before + (4 << 20));
  second.reset();
  EXPECT_EQ(context.allocator().accounting().total(), before);
}

TEST_F(CudaContext, AGraphThatOutlivesItsRankIsNamed) {
  std::unique_ptr<DeviceGraph> graph;
  {
    const RankScope rank;
    DeviceContext& context = RankContext::current().device(kCuda);
    const Tensor x = Tensor::empty({4}, DType::f32, kCuda);
    graph = context.record([&] { context.fill(x.raw(), 0, x.bytes()); });
  }
  expect_error([&] { graph->launch(); }, {"outlived the rank"});
}

}  // namespace
}  // namespace sherd::testing
