// cuDNN takes attention's graphs, and compiles them for an H200, on a machine without a GPU. Skipped without cuDNN.
#include <gtest/gtest.h>

#include "runtime/cuda/attention/cudnn_attention.h"

namespace sherd::cuda {
/// There is no device here that could be lost; what asks for one stands in launch_log.cpp, with all that launches.
void check_device(const char*) {}
}  // namespace sherd::cuda

namespace sherd::cuda {

namespace {

// As cuDNN writes the properties of a device down; integers only.
constexpr const char* kH200 = R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],
"regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,
"maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,
"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,
"totalGlobalMem":150121545728,"smClockRateKHz":1980000,"memClockRateKHz":3201000,"l2CacheSize":62914560,
"cudaDeviceId":0,"deviceVer":900,"driverVer":13000,"deviceName":"NVIDIA H200"})";

class CudnnPlans : public testing::Test {
 protected:
  void SetUp() override {
    if (!cudnn_api().library.usable()) GTEST_SKIP() << "no cuDNN: " << cudnn_api().library.reason();
  }
};

struct Sizes {
  std::int64_t b, h, g, tq, tk, k;
};

// Results dense as [B, T, H, K]; q, k and v too, or views of one projection [B, T, H + 2 G, K].
CudnnAttention problem(const Sizes& n, DType dtype, bool causal, bool packed) {
  CudnnAttention a{.dtype = dtype, .b = n.b, .h = n.h, .g = n.g, .tq = n.tq, .tk = n.tk, .k = n.k, .causal = causal};
  using Tensor = CudnnAttention::Tensor;
  const auto set = [&](Tensor which, std::int64_t rows, std::int64_t row) {
    a.strides[static_cast<std::size_t>(which)] = {rows * row, n.k, row};
  };
  const std::int64_t projection = (n.h + 2 * n.g) * n.k;
  for (const Tensor t : {Tensor::out, Tensor::grad, Tensor::dq}) set(t, n.tq, n.h * n.k);
  for (const Tensor t : {Tensor::dk, Tensor::dv}) set(t, n.tk, n.g * n.k);
  set(Tensor::q, n.tq, packed ? projection : n.h * n.k);
  set(Tensor::k, n.tk, packed ? projection : n.g * n.k);
  set(Tensor::v, n.tk, packed ? projection : n.g * n.k);
  a.strides[static_cast<std::size_t>(Tensor::lse)] = {n.h * n.tq, n.tq, 1};
  return a;
}

CudnnPlan plan_of(const CudnnGraph& graph) { return CudnnPlan(graph, {.device_properties = kH200}, "attention"); }

constexpr double kMiB = 1 << 20;

TEST_F(CudnnPlans, GroupedHeadsOfOneProjection) {
  CudnnAttention a = problem({4, 16, 4, 4096, 4096, 128}, DType::bf16, true, true);
  const CudnnGraph forward = attention_forward_graph(a), backward = attention_backward_graph(a);
  EXPECT_EQ(forward.ops().size(), 14u);
  EXPECT_EQ(backward.ops().size(), 24u);
  EXPECT_LT(static_cast<double>(plan_of(forward).workspace_bytes()), 1 * kMiB);
  EXPECT_LT(static_cast<double>(plan_of(backward).workspace_bytes()), 256 * kMiB);
}

TEST_F(CudnnPlans, DeterministicBackwardPaysInWorkspace) {
  CudnnAttention a = problem({4, 16, 4, 4096, 4096, 128}, DType::bf16, true, true);
  a.deterministic = true;
  const CudnnGraph graph = attention_backward_graph(a);
  EXPECT_EQ(graph.ops().size(), 23u);
  EXPECT_GT(static_cast<double>(plan_of(graph).workspace_bytes()), 1024 * kMiB);
}

TEST_F(CudnnPlans, AsManyHeadsOfKeys) {
  const CudnnAttention a = problem({4, 12, 12, 256, 256, 64}, DType::f16, true, false);
  const CudnnGraph backward = attention_backward_graph(a);
  EXPECT_EQ(backward.ops().size(), 22u);
  plan_of(attention_forward_graph(a));
  plan_of(backward);
}

TEST_F(CudnnPlans, LengthsThatFillNoTile) {
  const CudnnAttention a = problem({1, 2, 1, 50, 77, 72}, DType::bf16, false, false);
  plan_of(attention_forward_graph(a));
  plan_of(attention_backward_graph(a));
}

TEST_F(CudnnPlans, WhatItDoesNotTakeIsAnErrorWithItsReason) {
  const CudnnAttention a = problem({1, 2, 1, 64, 64, 12}, DType::bf16, true, false);
  try {
    plan_of(attention_forward_graph(a));
    FAIL() << "a plan for heads of 12 elements";
  } catch (const CudnnUnsupported& e) { EXPECT_EQ(std::string(e.what()).rfind("attention: ", 0), 0u) << e.what(); }
}

}  // namespace

}  // namespace sherd::cuda
