// Which calls of attention go to cuDNN, and what it is given: the emulated GPU's cuDNN computes any graph, op by op.
#include <gtest/gtest.h>

#include "runtime/cuda/attention/attention.h"
#include "runtime/cuda/device/context.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/device_library.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/draw.h"
#include "tests/support/emulated_gpu/control.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

namespace emulated = cuda::emulated;
using cuda::AttentionChoice;

class EmulatedCudnn : public cuda::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!cuda::describe_cudnn().starts_with("9.")) GTEST_SKIP() << "cuDNN: " << cuda::describe_cudnn();
    use(AttentionChoice::fast);
  }
  static cuda::Context& context() { return static_cast<cuda::Context&>(RankContext::current().device(kCuda)); }
  static void use(AttentionChoice choice) { context().attention().choose(choice); }
};

struct Call {
  DType dtype = DType::bf16;
  Shape q{1, 2, 6, 8}, kv{1, 1, 6, 8};
  bool causal = true;
};

std::vector<Tensor> results_of(const Call& call) {
  const Tensor q = to(draw(normal(call.q), call.dtype, 1), kCuda), k = to(draw(normal(call.kv), call.dtype, 2), kCuda);
  const Tensor v = to(draw(normal(call.kv), call.dtype, 3), kCuda), grad = to(draw(unit(call.q), call.dtype, 4), kCuda);
  const AttentionAttrs attrs{.scale = 0.3, .causal = call.causal};
  Tensor qkv[] = {q, k, v};
  const Tensors out = call_op(op::scaled_dot_product_attention, qkv, attrs);
  Tensor saved[] = {grad, q, k, v, out[0], out[1]};
  const Tensors gradients = call_op(op::scaled_dot_product_attention_backward, saved, attrs);
  return {out[0], out[1], gradients[0], gradients[1], gradients[2]};
}

std::int64_t graphs_of(const Call& call) {
  emulated::reset_counters();
  results_of(call);
  RankContext::current().device(kCuda).synchronize();
  const auto launches = emulated::counters().launches;
  const auto found = launches.find("cudnn_graph");
  return found == launches.end() ? 0 : found->second;
}

TEST_F(EmulatedCudnn, TakesWhatItApplies) {
  EXPECT_EQ(graphs_of({}), 2);
  EXPECT_EQ(graphs_of({.dtype = DType::f16, .q = {2, 4, 3, 128}, .kv = {2, 2, 7, 128}, .causal = false}), 2);
  use(AttentionChoice::deterministic);
  EXPECT_EQ(graphs_of({}), 2);
}

TEST_F(EmulatedCudnn, LeavesTheRest) {
  EXPECT_EQ(graphs_of({.dtype = DType::f32}), 0);
  EXPECT_EQ(graphs_of({.q = {1, 2, 6, 12}, .kv = {1, 1, 6, 12}}), 0);    // rows of 24 bytes
  EXPECT_EQ(graphs_of({.q = {1, 1, 2, 136}, .kv = {1, 1, 2, 136}}), 0);  // wide heads
  EXPECT_EQ(graphs_of({.q = {1, 2, 3, 8}, .kv = {1, 1, 6, 8}}), 0);      // its causal mask begins at the first key
  EXPECT_EQ(graphs_of({.q = {0, 2, 6, 8}, .kv = {0, 1, 6, 8}}), 0);
  use(AttentionChoice::own);
  EXPECT_EQ(graphs_of({}), 0);
}

// cuDNN reads rows where they are, if these are whole pieces of 16 bytes; others go to our kernels.
TEST_F(EmulatedCudnn, ReadsViewsOfOneProjection) {
  const Tensor qkv = draw(normal({2, 5, 4, 16}), DType::bf16, 1);
  const auto views = [](const Tensor& whole, std::int64_t start) {
    const auto part = [&](std::int64_t first, std::int64_t heads) {
      return permute(narrow(narrow(whole, 2, first, heads), 3, start, 8), {0, 2, 1, 3});
    };
    return std::vector<Tensor>{part(0, 2), part(2, 1), part(3, 1)};
  };
  const AttentionAttrs attrs{.scale = 0.3, .causal = true};
  for (const std::int64_t start : {0, 8, 4}) {
    emulated::reset_counters();
    std::vector<Tensor> there = views(to(qkv, kCuda), start), here;
    for (const Tensor& t : views(qkv, start)) here.push_back(converted(t, DType::f64));
    const Tensors out = call_op(op::scaled_dot_product_attention, there, attrs);
    const Tensors expected = call_op(op::scaled_dot_product_attention, here, attrs);
    const Tensor positions_first = to(permute(out[0], {0, 2, 1, 3}), Device::cpu());
    EXPECT_TRUE(near(permute(positions_first, {0, 2, 1, 3}), expected[0]));
    EXPECT_EQ(emulated::counters().launches.count("cudnn_graph"), start % 8 == 0 ? 1u : 0u) << "from " << start;
  }
}

TEST_F(EmulatedCudnn, ARecordedGraphRepeatsIt) {
  const Tensor x = to(draw(normal({1, 2, 6, 8}), DType::bf16, 1), kCuda);
  const auto step = [&] {
    Tensor in[] = {x, x, x};
    return call_op(op::scaled_dot_product_attention, in, AttentionAttrs{.scale = 0.3, .causal = true});
  };
  const Tensors expected = step();
  Tensors recorded;
  const std::unique_ptr<DeviceGraph> graph = context().record([&] { recorded = step(); });
  for (int replay = 0; replay < 2; ++replay) {
    graph->launch();
    EXPECT_TRUE(same_bits(to(recorded[0], Device::cpu()), to(expected[0], Device::cpu())));
  }
}

// One query that sees one key has no gradient in cuDNN: ours compute it.
TEST_F(EmulatedCudnn, LeavesTheGradientsOfASinglePair) {
  const Call single{.q = {2, 2, 1, 8}, .kv = {2, 1, 1, 8}};
  EXPECT_EQ(graphs_of(single), 1) << "forward only";
  EXPECT_EQ(graphs_of({.q = {2, 2, 1, 8}, .kv = {2, 1, 5, 8}, .causal = false}), 2);
  const std::vector<Tensor> there = results_of(single);
  use(AttentionChoice::own);
  const std::vector<Tensor> own = results_of(single);
  for (std::size_t i = 2; i < own.size(); ++i)
    EXPECT_TRUE(same_bits(to(there[i], Device::cpu()), to(own[i], Device::cpu()))) << "gradient " << i - 2;
}

TEST_F(EmulatedCudnn, InfoSaysWhatWasFound) {
  std::map<std::string, std::string> facts;
  for (const BackendFact& fact : cuda_library().backend->facts()) facts[fact.name] = fact.value;
  EXPECT_TRUE(facts["cuDNN"].ends_with("libcudnn.so.9")) << facts["cuDNN"];
  EXPECT_NE(facts["attention"].find("SHERD_ATTENTION: deterministic"), std::string::npos);
  EXPECT_TRUE(facts.contains("NVRTC"));
  EXPECT_TRUE(facts.contains("cuBLASLt"));
}

}  // namespace
}  // namespace sherd::testing
