// What only the emulated GPU shows of attention: results under other orders of threads, and what is launched.
#include <gtest/gtest.h>

#include "runtime/cuda/attention/attention.h"
#include "runtime/cuda/device/context.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/draw.h"
#include "tests/support/emulated_gpu/control.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

namespace emulated = cuda::emulated;

struct Outcome {
  std::vector<Tensor> results;
  emulated::Counters counters;
};

// Values and gradients of three tiles of queries and of keys.
Outcome run(DType dtype, std::uint64_t seed) {
  emulated::set_seed(seed);
  static_cast<cuda::Context&>(RankContext::current().device(Device::cuda(0)))
      .attention()
      .choose(cuda::AttentionChoice::own);
  std::vector<Tensor> in;
  for (std::uint64_t i = 0; i < 4; ++i)
    in.push_back(to(draw(normal({1, i % 3 == 0 ? 2 : 1, 130, 16}), dtype, i), Device::cuda(0)));
  const AttentionAttrs attrs{.scale = 0.25, .causal = true};
  emulated::reset_counters();
  Tensor qkv[] = {in[0], in[1], in[2]};
  const Tensors out = call_op(op::scaled_dot_product_attention, qkv, attrs);
  Tensor saved[] = {in[3], in[0], in[1], in[2], out[0], out[1]};
  const Tensors gradients = call_op(op::scaled_dot_product_attention_backward, saved, attrs);
  Outcome result;
  for (const Tensor& t : {out[0], out[1], gradients[0], gradients[1], gradients[2]})
    result.results.push_back(to(t, Device::cpu()));
  result.counters = emulated::counters();
  return result;
}

TEST(EmulatedAttention, SameBitsUnderEverySeed) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Outcome expected = run(dtype, 1);
    for (const std::uint64_t seed : {2, 3}) {
      const Outcome other = run(dtype, seed);
      for (std::size_t i = 0; i < expected.results.size(); ++i)
        EXPECT_TRUE(same_bits(other.results[i], expected.results[i])) << name(dtype) << " result " << i;
    }
  }
  EXPECT_EQ(emulated::report(), "");
}

TEST(EmulatedAttention, OneKernelForwardThreeBackward) {
  const Outcome of_bf16 = run(DType::bf16, 1), of_f32 = run(DType::f32, 1);
  EXPECT_EQ(of_bf16.counters.host_launches, 4);
  EXPECT_EQ(of_bf16.counters.launches.count("flash_forward_kernel<bf16, 64>"), 1);
  EXPECT_EQ(of_f32.counters.host_launches, 4);
  EXPECT_EQ(of_f32.counters.launches.count("tiled_forward<float>"), 1);
}

}  // namespace
}  // namespace sherd::testing
