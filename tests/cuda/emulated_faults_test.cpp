// What faults cost: nothing that goes over the bus, one after another, for each of them.
#include <gtest/gtest.h>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/faults.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/device_kernels.h"
#include "tests/support/emulated_gpu/control.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using EmulatedFaults = cuda::CudaTest;

TEST_F(EmulatedFaults, NoAtomicLeavesTheDevice) {
  auto& context = static_cast<cuda::Context&>(RankContext::current().device(Device::cuda(0)));
  constexpr int n = 1'000'000;
  const Tensor ids = to(arange(n, DType::i32), Device::cuda(0));
  context.synchronize();
  cuda::emulated::reset_counters();
  cuda::check_ids(context.stream(), context.faults().sink(op::embedding, "index"), ids.data<std::int32_t>(), n, 0);
  expect_error([&] { context.synchronize(); }, {"embedding: index 0 at position 0"});
  EXPECT_EQ(cuda::emulated::counters().pinned_atomics, 0);
}

}  // namespace
}  // namespace sherd::testing
