// Softmax and norms in every layout against one rank's, with the gradients of weights.
#include <gtest/gtest.h>

#include "runtime/op/rows/ops.h"
#include "tests/dtensor/one_rank.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

const std::vector<Placement> kAny{Replicate(), Shard(0), Shard(1), Shard(2), Partial()};

TEST(NormRules, F134_SoftmaxOverAnyDim) {
  const Arg x = normal({3, 5, 2});
  for (int dim : {0, 1, 2}) {
    expect_in_every_layout([&](const std::vector<Tensor>& in) { return softmax(in[0], dim); }, x, kAny);
    expect_in_every_layout([&](const std::vector<Tensor>& in) { return log_softmax(in[0], dim); }, x, kAny);
  }
  run_ranks(3, [&](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor whole = draw(x, DType::f32, 21);
    for (int d : {0, 2}) {
      expect_free(mesh, [](const std::vector<Tensor>& in) { return softmax(in[0], 1); }, {whole}, {Shard(d)}, Shard(d));
      expect_free(
          mesh, [](const std::vector<Tensor>& in) { return log_softmax(in[0], 1); }, {whole}, {Shard(d)}, Shard(d));
    }
  });
}

// x in every layout, the affine parameters replicated or sharded.
void expect_norm(const Function& f, std::size_t num_affine) {
  on_meshes([&](const DeviceMesh& mesh) {
    std::vector<Tensor> inputs{draw(normal({3, 5, 4}), DType::f32, 22)};
    for (std::size_t i = 0; i < num_affine; ++i) inputs.push_back(draw(normal({4}), DType::f32, 23 + i));
    for (const Spec* of_x : all_layouts(mesh, kAny))
      for (const Spec* of_affine : all_layouts(mesh, {Replicate(), Shard(0)})) {
        std::vector<const Spec*> layouts(inputs.size(), of_affine);
        layouts[0] = of_x;
        expect_as_on_one_rank(f, inputs, layouts);
      }
  });
}

TEST(NormRules, F136_LayerNormWithAndWithoutWeights) {
  expect_norm([](const std::vector<Tensor>& in) { return layer_norm(in[0], {}, {}); }, 0);
  expect_norm([](const std::vector<Tensor>& in) { return layer_norm(in[0], in[1], {}); }, 1);
  expect_norm([](const std::vector<Tensor>& in) { return layer_norm(in[0], in[1], in[2]); }, 2);
}

TEST(NormRules, F136_RmsNormWithAndWithoutWeight) {
  expect_norm([](const std::vector<Tensor>& in) { return rms_norm(in[0], {}); }, 0);
  expect_norm([](const std::vector<Tensor>& in) { return rms_norm(in[0], in[1]); }, 1);
}

// Rows sharded along any dims need no communication, forward or backward; gradients of weights are Partial.
TEST(NormRules, F136_CutRowsCommunicateNothing) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = draw(normal({4, 5, 6}), DType::f32, 24), weight = draw(normal({6}), DType::f32, 25);
    for (int d : {0, 1}) {
      Slot input("x", true), w("w", true);
      input.set(laid_out(x, Spec::of(mesh, Shard(d))));
      w.set(laid_out(weight, Spec::of(mesh, Replicate())));
      const Tensor dy = laid_out(x, Spec::of(mesh, Shard(d)));
      const StrictCommunication strict;
      const Tensor y = layer_norm(rms_norm(input.value(), w.value()), w.value(), w.value());
      EXPECT_EQ(Spec::from(y).placement(0), Shard(d));
      backward(y, {.grad = dy});
      EXPECT_EQ(Spec::from(input.grad()).placement(0), Shard(d));
      EXPECT_EQ(Spec::from(w.grad()).placement(0), Partial());
    }
  });
}

TEST(NormRules, F136_TermsOfAGradientPass) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = draw(normal({4, 6}), DType::f32, 26), weight = draw(normal({6}), DType::f32, 27),
                 dy = draw(normal({4, 6}), DType::f32, 28);
    const auto gradients = [&](const std::vector<Tensor>& in) {
      Slot input("x", true), w("w", true);
      input.set(in[0]), w.set(in[1]);
      backward(softmax(layer_norm(input.value(), w.value(), w.value()), 1), {.grad = in[2]});
      return std::vector<Tensor>{input.grad(), w.grad()};
    };
    const auto at = [&](const Tensor& t, Placement p) { return laid_out(t, Spec::of(mesh, p)); };
    const std::vector<Tensor> expected = gradients({x, weight, dy});
    const StrictCommunication strict;
    const std::vector<Tensor> got = gradients({at(x, Replicate()), at(weight, Replicate()), at(dy, Partial())});
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(Spec::from(got[i]).placement(0), Partial()) << i;
      EXPECT_TRUE(near(full_tensor(got[i]), expected[i])) << i;
    }
  });
}

}  // namespace
}  // namespace sherd::testing
