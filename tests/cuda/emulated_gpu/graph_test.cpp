// Capture and graphs of the emulated GPU: what they do, and CUDA's rules about what may not be captured.
#include <functional>

#include <gtest/gtest.h>

#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulated_gpu/fixture.h"
#include "tests/cuda/emulated_gpu/wrong_kernels.h"

namespace sherd::cuda {

namespace {

class EmulatedGraphs : public EmulatedTest {
 protected:
  cudaEvent_t event() {
    cudaEvent_t made = nullptr;
    check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return made;
  }
  // What ending the capture of `work` on `stream` says.
  cudaError_t capture(cudaStream_t stream, const std::function<void()>& work,
                      cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    check(cudaStreamBeginCapture(stream, mode), "cudaStreamBeginCapture");
    work();
    return cudaStreamEndCapture(stream, &graph_);
  }
  cudaGraphExec_t instantiate() {
    cudaGraphExec_t executable = nullptr;
    check(cudaGraphInstantiate(&executable, graph_, 0), "cudaGraphInstantiate");
    return executable;
  }
  cudaGraph_t graph_ = nullptr;
  TestStream main_, side_;
};

TEST_F(EmulatedGraphs, AGraphRepeatsItsWorkWithTheArgumentsOfTheCapture) {
  const DeviceArray<float> memory(main_, std::vector<float>(4));
  float term = 1;
  ASSERT_EQ(capture(main_, [&] { double_and_add(main_, memory.data(), 4, term); }), cudaSuccess);
  term = 100;
  const cudaGraphExec_t executable = instantiate();
  check(cudaGraphDestroy(graph_), "cudaGraphDestroy");
  EXPECT_EQ(memory.read(main_)[0], 0) << "capturing must not run the work";
  for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(executable, main_), "cudaGraphLaunch");
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");  // launches under way are not disturbed
  EXPECT_EQ(memory.read(main_)[0], 7);
  EXPECT_EQ(emulated::counters().graph_launches, 3);
  EXPECT_EQ(emulated::counters().launches.at("double_and_add_kernel"), 3);
}

TEST_F(EmulatedGraphs, EventsBecomeEdges) {
  int wrong = 0;
  for (const bool joined_before_use : {true, false}) {
    const DeviceArray<float> memory(main_, std::vector<float>(4));
    const cudaEvent_t fork = event(), join = event();
    ASSERT_EQ(capture(main_,
                      [&] {
                        fill(main_, memory.data(), 4, 0);
                        check(cudaEventRecord(fork, main_), "record");
                        check(cudaStreamWaitEvent(side_, fork, 0), "wait");
                        fill(side_, memory.data(), 4, 3);
                        check(cudaEventRecord(join, side_), "record");
                        if (joined_before_use) check(cudaStreamWaitEvent(main_, join, 0), "wait");
                        double_and_add(main_, memory.data(), 4, 1);
                        if (!joined_before_use) check(cudaStreamWaitEvent(main_, join, 0), "wait");
                      }),
              cudaSuccess);
    const cudaGraphExec_t executable = instantiate();
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      emulated::set_seed(seed);
      check(cudaGraphLaunch(executable, main_), "cudaGraphLaunch");
      const float value = memory.read(main_)[0];
      if (joined_before_use) EXPECT_EQ(value, 7) << "seed " << seed;
      else wrong += value != 7;
    }
  }
  EXPECT_GT(wrong, 0);
}

TEST_F(EmulatedGraphs, NodesAreCounted) {
  const DeviceArray<float> a(main_, std::vector<float>(4)), b(4);
  ASSERT_EQ(capture(main_,
                    [&] {
                      fill(main_, a.data(), 4, 1);
                      check(cudaMemcpyAsync(b.data(), a.data(), 16, cudaMemcpyDeviceToDevice, main_), "copy");
                      check(cudaMemsetAsync(a.data(), 0, 16, main_), "fill");
                    }),
            cudaSuccess);
  std::size_t nodes = 0;
  check(cudaGraphGetNodes(graph_, nullptr, &nodes), "cudaGraphGetNodes");
  EXPECT_EQ(nodes, 3u);
}

TEST_F(EmulatedGraphs, WaitingIsRefusedAndSpoilsTheCapture) {
  const std::function<cudaError_t()> calls[] = {[&] { return cudaStreamSynchronize(main_); },
                                                [&] { return cudaDeviceSynchronize(); },
                                                [&] { return cudaStreamQuery(main_); },
                                                [&] {
                                                  void* p = nullptr;
                                                  return cudaMalloc(&p, 16);
                                                }};
  for (const auto& refused : calls) {
    cudaError_t status = cudaSuccess;
    EXPECT_EQ(capture(main_, [&] { status = refused(); }), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(status, cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(graph_, nullptr);
  }
  // The stream works again.
  const DeviceArray<float> memory(4);
  fill(main_, memory.data(), 4, 2);
  EXPECT_EQ(memory.read(main_)[3], 2);
}

TEST_F(EmulatedGraphs, ARelaxedCaptureMayAllocate) {
  void* p = nullptr;
  EXPECT_EQ(
      capture(main_, [&] { EXPECT_EQ(cudaMalloc(&p, 16), cudaSuccess); }, cudaStreamCaptureModeRelaxed), cudaSuccess);
}

TEST_F(EmulatedGraphs, PageableMemoryIsRefused) {
  const DeviceArray<float> memory(4);
  std::vector<float> host(4);
  EXPECT_EQ(capture(main_,
                    [&] {
                      EXPECT_EQ(cudaMemcpyAsync(memory.data(), host.data(), 16, cudaMemcpyHostToDevice, main_),
                                cudaErrorStreamCaptureUnsupported);
                    }),
            cudaErrorStreamCaptureInvalidated);
}

TEST_F(EmulatedGraphs, AStreamThatIsNotJoinedIsAnError) {
  const DeviceArray<float> memory(4);
  const cudaEvent_t fork = event();
  EXPECT_EQ(capture(main_,
                    [&] {
                      check(cudaEventRecord(fork, main_), "record");
                      check(cudaStreamWaitEvent(side_, fork, 0), "wait");
                      fill(side_, memory.data(), 4, 3);
                    }),
            cudaErrorStreamCaptureUnjoined);
}

TEST_F(EmulatedGraphs, AnEventFromOutsideIsAnError) {
  const cudaEvent_t outside = event();
  check(cudaEventRecord(outside, side_), "record");
  EXPECT_EQ(capture(main_, [&] { EXPECT_EQ(cudaStreamWaitEvent(main_, outside, 0), cudaErrorStreamCaptureIsolation); }),
            cudaErrorStreamCaptureInvalidated);
}

TEST_F(EmulatedGraphs, AnEventOfACaptureIsNoEventOutside) {
  const cudaEvent_t inside = event();
  ASSERT_EQ(capture(main_, [&] { check(cudaEventRecord(inside, main_), "record"); }), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(inside), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(side_, inside, 0), cudaErrorCapturedEvent);
}

TEST_F(EmulatedGraphs, OnlyTheStreamThatBeganMayEnd) {
  const cudaEvent_t fork = event(), join = event();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(capture(main_,
                    [&] {
                      check(cudaEventRecord(fork, main_), "record");
                      check(cudaStreamWaitEvent(side_, fork, 0), "wait");
                      EXPECT_EQ(cudaStreamEndCapture(side_, &graph), cudaErrorStreamCaptureUnmatched);
                      check(cudaEventRecord(join, side_), "record");
                      check(cudaStreamWaitEvent(main_, join, 0), "wait");
                    }),
            cudaSuccess);
}

}  // namespace

}  // namespace sherd::cuda
