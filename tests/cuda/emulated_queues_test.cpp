// Queues of a device where CUDA's calls fail, and what they ask of CUDA.
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <set>

#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/staged_group.h"
#include "runtime/exec/device_queue.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/emulated_gpu/control.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

namespace emulated = cuda::emulated;
using Group = std::shared_ptr<ProcessGroup>;

class EmulatedQueues : public cuda::CudaTest {
 protected:
  ~EmulatedQueues() override { emulated::reset(); }
  static DeviceQueue& queue(Device device = Device::cuda(0)) {
    return static_cast<DeviceQueue&>(RankContext::current().queue("offload", device));
  }
};

// The second copy fails; the first one is on the stream and reads memory that the program drops.
TEST_F(EmulatedQueues, WorkThatFailsHalfwayKeepsWhatItReads) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    emulated::set_seed(seed);
    DeviceContext& context = RankContext::current().device(Device::cuda(0));
    const std::shared_ptr<std::byte> to = context.pinned(4000);
    queue();
    {
      const Tensor x = full({1000}, 3.0, DType::f32, Device::cuda(0));
      context.synchronize();
      const Loan loan{x.storage(), false};
      emulated::fail_call("cudaMemcpyAsync", cudaErrorInvalidValue, 1);
      expect_error(
          [&] {
            queue().submit({.name = "evict",
                            .run =
                                [&] {
                                  queue().stream().to_host(to.get(), x.storage()->address(), 4000);
                                  queue().stream().to_host(to.get(), x.storage()->address(), 4000);
                                },
                            .loans = {&loan, 1}});
          },
          {"copying from the device"});
    }
    const Tensor other = full({1000}, 9.0, DType::f32, Device::cuda(0));
    context.synchronize();
    queue().record().wait();
    float first = 0;
    std::memcpy(&first, to.get(), 4);
    EXPECT_EQ(first, 3) << "seed " << seed;
  }
}

TEST_F(EmulatedQueues, WorkWithoutAMarkHasEnded) {
  DeviceContext& context = RankContext::current().device(Device::cuda(0));
  const std::shared_ptr<std::byte> to = context.pinned(4000);
  const Tensor x = full({1000}, 3.0, DType::f32, Device::cuda(0));
  RankContext::current().queue(kComputeQueue, Device::cuda(0)).record();
  queue();
  const Loan loan{x.storage(), false};
  const auto submit = [&] {
    queue().submit({.name = "evict",
                    .run =
                        [&] {
                          queue().stream().to_host(to.get(), x.storage()->address(), 4000);
                          emulated::fail_call("cudaEventRecord", cudaErrorInvalidValue);
                        },
                    .loans = {&loan, 1}});
  };
  expect_error(submit, {"recording an event"});
  float first = 0;
  std::memcpy(&first, to.get(), 4);
  EXPECT_EQ(first, 3);
}

// Rank 0's first collective fails after its host part was queued, and rank 1 has not come to that: the next collective
// must not have its staging memory.
TEST_F(EmulatedQueues, ACollectiveThatFailsHalfwayKeepsItsStaging) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    emulated::set_seed(seed);
    std::promise<void> has_issued;
    const std::shared_future<void> issued = has_issued.get_future().share();
    run_ranks(2, [&](const Group& host) {
      const Group group = make_staged_group(host);
      const Device there = cuda::device_of_rank(group->rank());
      Queue& collectives = RankContext::current().queue(kGatherQueue, there);
      Tensor x[] = {full({1000}, group->rank() + 1.0, DType::f32, there),
                    full({1000}, group->rank() + 5.0, DType::f32, there)};
      const auto reduce = [&](const Tensor& t) {
        const Loan loan{t.storage(), true};
        const Buffer buffer{t.storage()->address(), t.bytes(), there};
        group->issue({.op = comm::CommOp::all_reduce, .parts = {{.in = buffer, .out = buffer, .counts = {1000}}}},
                     {.queue = collectives, .name = "sum", .loans = {&loan, 1}});
      };
      if (group->rank() == 0) {
        emulated::fail_call("cuStreamWaitValue32", cudaErrorInvalidValue);
        expect_error([&] { reduce(x[0]); }, {"waiting for the host on the device"});
        reduce(x[1]);
        for (int i = 0; i < 20; ++i) queue(there).record(), queue(there).stream().mark()->await();
        has_issued.set_value();
      } else {
        issued.wait();
        for (const Tensor& t : x) reduce(t);
        EXPECT_EQ(x[0].to_vector<float>()[0], 3) << "seed " << seed;
      }
      EXPECT_EQ(x[1].to_vector<float>()[0], 11);
    });
  }
}

TEST_F(EmulatedQueues, ADriverThatCannotWaitForTheHostIsNamed) {
  emulated::Configuration configuration = emulated::default_configuration();
  configuration.waits_for_words = false;
  emulated::reset(configuration);
  std::promise<void> over;
  Queue& disk = RankContext::current().queue("disk");
  const Event work = disk.submit({.name = "load", .run = [&over] { over.get_future().wait(); }});
  expect_error([&] { queue().wait(work); }, {"the driver has no cuStreamWaitValue32", "update it"});
  over.set_value();
  disk.drain();
}

// A rank on the second device, whose host queue waits for it on a thread of its own.
TEST_F(EmulatedQueues, ThreadsMakeNoContextOnAnotherDevice) {
  emulated::reset();
  {
    RankScope scope;
    const Device there = Device::cuda(1);
    const Tensor x = full({1000}, 4.0, DType::f32, there);
    const std::shared_ptr<std::byte> to = RankContext::current().device(there).pinned(4000);
    const Loan loan{x.storage(), false};
    Queue& disk = RankContext::current().queue("disk");
    std::promise<void> ran;
    for (int i = 0; i < 3; ++i) {
      disk.wait(queue(there).submit(
          {.name = "evict",
           .run = [&, at = x.storage()->address()] { queue(there).stream().to_host(to.get(), at, 4000); },
           .loans = {&loan, 1}}));
      disk.submit({.name = "save", .run = [&ran, i] {
                     if (i == 2) ran.set_value();
                   }});
    }
    ran.get_future().wait();  // not helped by this thread
    EXPECT_EQ(emulated::contexts(), std::set<int>{1});
  }
  EXPECT_EQ(emulated::contexts(), std::set<int>{1});
}

TEST_F(EmulatedQueues, MarksOfNothingNewAreNotMadeAnew) {
  Queue& compute = RankContext::current().queue(kComputeQueue, Device::cuda(0));
  std::promise<void> opened;
  const Event loaded =
      RankContext::current().queue("disk").submit({.name = "load", .run = [&opened] { opened.get_future().wait(); }});
  compute.wait(loaded);  // no mark is reached, and none forgotten
  const Tensor x = full({1000}, 4.0, DType::f32, Device::cuda(0));
  const Event first = compute.record();
  EXPECT_EQ(compute.record().sequence(), first.sequence());
  (void)add(x, 1.0);
  const Event second = compute.record();
  EXPECT_GT(second.sequence(), first.sequence());
  queue().wait(loaded);
  compute.wait(queue().submit({.name = "nothing", .run = [] {}}));
  EXPECT_GT(compute.record().sequence(), second.sequence()) << "it comes after the wait";
  opened.set_value();
  loaded.wait();
}

}  // namespace
}  // namespace sherd::testing
