// One norm over gradients that lie on different slices of a mesh. Oracle: the definition, in f64, of the whole ones.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compile/compile.h"
#include "nn/optim/clip.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/parallel/nets.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Parameters whose gradients are given: the whole value, and how it lies.
struct Gradients {
  std::vector<std::unique_ptr<nn::Parameter>> owned;
  std::vector<nn::Parameter*> parameters;
  std::vector<double> elements;  // of all, whole

  void add(const Shape& shape, const Spec* spec) {
    const std::string name = fmt::format("p{}", owned.size());
    const Tensor whole = random_normal(shape, random_key(3, name, "gradient"));
    for (const double g : whole.to_vector<double>()) elements.push_back(g);
    auto p = std::make_unique<nn::Parameter>(name, shape, nn::Init::zeros(), DType::f32);
    const auto lie = [&](const Tensor& value) {
      if (!spec) return value;
      const Tensor like =
          Tensor::distributed(shape, spec, Tensor::empty(spec->local_shape(shape), DType::f32, Device::meta()));
      return Tensor::distributed(shape, spec, contiguous(part_of(value, like)));
    };
    p->set(lie(zeros(shape)));
    p->set_grad(lie(whole));
    parameters.push_back(p.get());
    owned.push_back(std::move(p));
  }
  double norm(double p) const {
    double total = 0;
    for (const double g : elements)
      total = std::isinf(p) ? std::max(total, std::abs(g)) : total + std::pow(std::abs(g), p);
    return std::isinf(p) ? total : std::pow(total, 1 / p);
  }
};

const Spec* on(const DeviceMesh& mesh, std::initializer_list<Placement> placements,
               std::initializer_list<int> order = {}) {
  return Spec::of(mesh, placements, order);
}

/// Every way a gradient may lie under data, tensor and replica axes; some shards are empty.
struct MixedLayouts : Gradients {
  DeviceMesh root, dp, tp, data;
  MixedLayouts(const Group& group, int replicas, int dps, int tps)
      : root(group, {{"replicate", replicas}, {"dp", dps}, {"tp", tps}}),
        dp(root["dp"]),
        tp(root["tp"]),
        data(root.slice({"replicate", "dp"})) {
    add({3, 2}, nullptr);
    add({5, 2}, on(dp, {Shard(0)}));
    add({1, 3}, on(dp, {Shard(0)}));
    add({4, 5}, on(tp, {Shard(1)}));
    add({6}, on(tp, {Replicate()}));
    add({5, 3}, on(data, {Replicate(), Shard(0)}));
    add({7, 2}, on(root, {Replicate(), Shard(0), Shard(0)}, {2, 1}));
    add({3, 7}, on(root, {Replicate(), Shard(0), Shard(1)}));
    add({9}, on(root, {Replicate(), Shard(0), Replicate()}));
    add({2}, on(root, {Replicate(), Replicate(), Replicate()}));
  }
  std::int64_t all_reduces() const {
    CommCounts counts = root.group("replicate").host().counts();
    for (const char* axis : {"dp", "tp"}) counts += root.group(axis).host().counts();
    const int all[] = {0, 1, 2};
    counts += root.joint_group(all)->host().counts();
    return counts.all_reduce.calls;
  }
};

constexpr int kMeshes[][3] = {{1, 1, 1}, {1, 2, 2}, {1, 1, 3}, {1, 3, 1}, {2, 1, 2}, {1, 2, 3}, {2, 2, 2}};

TEST(FullyShard, F98_OneNormOverMixedMeshes) {
  for (const auto& [replicas, dps, tps] : kMeshes)
    run_ranks(replicas * dps * tps, [=, r = replicas, d = dps, t = tps](const Group& group) {
      const MixedLayouts mixed(group, r, d, t);
      for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
        const std::int64_t before = mixed.all_reduces();
        const Tensor norm = nn::grad_norm(mixed.parameters, p);
        EXPECT_NEAR(norm.item<double>(), mixed.norm(p), 1e-6 * mixed.norm(p)) << "p = " << p;
        EXPECT_EQ(mixed.all_reduces() - before, d * t > 1 ? 1 : 0);
        expect_equal_on_all(*group, norm.item<double>());
      }
    });
}

// Where only one axis cuts, only its ranks talk.
TEST(FullyShard, F98_TheNormIsReducedOverTheAxesThatCut) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"dp", 2}, {"tp", 2}});
    Gradients gradients;
    gradients.add({5, 2}, on(root, {Shard(0), Replicate()}));
    gradients.add({3}, on(root["dp"], {Shard(0)}));
    const std::int64_t before = group->host().counts().all_reduce.calls;
    EXPECT_NEAR(nn::grad_norm(gradients.parameters).item<double>(), gradients.norm(2), 1e-6 * gradients.norm(2));
    EXPECT_EQ(root.group("dp").host().counts().all_reduce.calls, 1);
    EXPECT_EQ(root.group("tp").host().counts().all_reduce.calls, 0);
    EXPECT_EQ(group->host().counts().all_reduce.calls - before, 0);
  });
}

TEST(FullyShard, F100_PartialGradientsHaveNoNorm) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"dp", 2}, {"tp", 2}});
    Gradients gradients;
    gradients.add({5, 2}, on(root, {Shard(0), Replicate()}));
    nn::Parameter& p = *gradients.parameters[0];
    p.set_grad(Tensor::distributed({5, 2}, on(root, {Shard(0), Partial()}), p.grad().local()));
    expect_error([&] { nn::grad_norm(gradients.parameters); }, {"\"p0\"", "f32[5,2]{0: dp; +tp}", "redistribute"});
  });
}

// The program is the same on all ranks, so a captured step has it too.
TEST(FullyShard, F99_ClippingOnAMeshIsCaptured) {
  run_ranks(4, [](const Group& group) {
    MixedLayouts eager(group, 1, 2, 2), captured(group, 1, 2, 2);
    nn::Sgd eager_optimizer(eager.parameters, {.lr = 0.5}), captured_optimizer(captured.parameters, {.lr = 0.5});
    std::vector<Tensor> grads;
    for (const nn::Parameter* p : captured.parameters) grads.push_back(p->grad());
    CompileOptions options;
    options.group = group;
    auto step = compile_once(
        [&](const Tensor& x) {
          for (std::size_t i = 0; i < grads.size(); ++i) captured.parameters[i]->set_grad(grads[i]);
          const Tensor norm = nn::clip_grad_norm(captured_optimizer, 0.25);
          captured_optimizer.step_and_clear();
          return norm + x;
        },
        options);
    for (int i = 0; i < 6; ++i) {
      for (std::size_t k = 0; k < grads.size(); ++k) eager.parameters[k]->set_grad(grads[k]);
      const Tensor expected = nn::clip_grad_norm(eager_optimizer, 0.25);
      eager_optimizer.step_and_clear();
      EXPECT_TRUE(same_bits(step(zeros({})), expected)) << step.why();
      EXPECT_NEAR(expected.item<double>(), eager.norm(2), 1e-6 * eager.norm(2));
    }
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
    for (std::size_t i = 0; i < grads.size(); ++i) {
      const Tensor value = captured.parameters[i]->value(), grad = grads[i];
      EXPECT_TRUE(same_bits(value.local(), eager.parameters[i]->value().local()));
      // Six steps of -lr x limit / norm x gradient, from zero.
      EXPECT_TRUE(near(value.local(), mul(grad.local(), -6 * 0.5 * 0.25 / eager.norm(2)), 1e-5));
    }
  });
}

}  // namespace
}  // namespace sherd::testing
