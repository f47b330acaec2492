// Spans of ops on a device: from one that waits, what is wrong on the device is thrown by the op itself.
#include <gtest/gtest.h>

#include "runtime/exec/trace.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

class CudaTrace : public cuda::CudaTest {};

TEST_F(CudaTrace, ASpanThatWaitsEndsWhenTheDeviceHasRunItsOp) {
  const Tensor table = on_device(zeros({4, 8})), ids = on_device(Tensor::from<std::int32_t>({9, 0}, {2}));
  DeviceContext& device = RankContext::current().device(Device::cuda(0));
  device.synchronize();
  Trace trace;
  const Trace::Recording recording(trace);
  (void)embedding(table, ids);  // queued; what is wrong shows later
  expect_error([&] { device.synchronize(); }, {"index 9", "outside of"});
  trace.waits_for_devices = true;
  expect_error([&] { (void)embedding(table, ids); }, {"index 9", "outside of"});
  (void)add(table, table);
  const std::unique_ptr<DeviceGraph> graph =
      device.record([&] { (void)add(table, table); });  // cannot wait, and does not
  graph->launch();
  device.synchronize();
  EXPECT_EQ(std::ranges::count_if(trace.spans(), [](const Span& s) { return s.name == "embedding"; }), 2);
  EXPECT_EQ(std::ranges::count_if(trace.spans(), [](const Span& s) { return s.name == "add"; }), 2);
}

}  // namespace
}  // namespace sherd::testing
