// The gradient norm over shards is one number, the reference's.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nn/optim/clip.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "tests/parallel/nets.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Equal values, and one backward of both on one batch.
void make_gradients(Net& net, Net& reference) {
  const Tensor x = batch_of(4, 5, 0, "x");
  for (Net* each : {&net, &reference}) {
    each->materialize(nn::Seed{1});
    backward(sum(square((*each)(x))));
  }
}

// From the definition, in f64.
double norm_of(nn::Module& reference, double p) {
  double total = 0;
  for (const nn::Parameter* parameter : reference.parameters())
    for (double g : parameter->grad().to_vector<double>())
      total = std::isinf(p) ? std::max(total, std::abs(g)) : total + std::pow(std::abs(g), p);
  return std::isinf(p) ? total : std::pow(total, 1 / p);
}

void expect_norms_of_the_reference(const Group& group) {
  Net net(kUneven), reference(kUneven);
  shard(net, DeviceMesh(group));
  make_gradients(net, reference);
  for (double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    const std::int64_t before = group->host().counts().all_reduce.calls;
    const double norm = nn::grad_norm(net.parameters(), p).item<double>();
    EXPECT_NEAR(norm, norm_of(reference, p), 1e-5 * norm) << "p = " << p;
    EXPECT_EQ(group->host().counts().all_reduce.calls - before, group->size() > 1 ? 1 : 0);
  }
}

TEST(FullyShard, F98_NormsOfAnyOrderEqualTheReference) {
  for (int ranks : {1, 2, 3, 4}) run_ranks(ranks, expect_norms_of_the_reference);
}

// Three terms that are lost one by one, in f64, decide which way f32 rounds the sum.
TEST(ClipNorm, LayoutFreeLosesNothingOnAnyRanks) {
  struct Terms : nn::Layer<Terms> {
    nn::Parameter& w = add_parameter("w", {5}, nn::Init::zeros());
    Tensor forward(const Tensor& x) { return mul(w.value(), x); }
  };
  for (const int ranks : {1, 2, 4})
    run_ranks(ranks, [](const Group& group) {
      Terms net;
      nn::fully_shard(net, DeviceMesh(group));
      net.materialize();
      const Tensor terms = Tensor::from<float>({0x1p24f, 1, 0x1p-30f, 0x1p-30f, 0x1p-30f}, {5});
      backward(sum(net(terms)));
      EXPECT_EQ(nn::layout_free_grad_norm({&net.w}, 1).item<float>(), 0x1p24f + 2) << group->size();
      EXPECT_TRUE(group->size() > 1 || nn::grad_norm({&net.w}, 1).item<float>() == 0x1p24f) << "the order matters";
    });
}

TEST(FullyShard, F98_F206_NormsOfAnyOrderWithProcesses) {
  for (int ranks : {2, 4}) run_processes(ranks, expect_norms_of_the_reference);
}

TEST(FullyShard, F99_ClippingScalesAllShardsAlike) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net net(kUneven), reference(kUneven);
      shard(net, DeviceMesh(group));
      make_gradients(net, reference);
      nn::Sgd optimizer(net.parameters(), {.lr = 1});
      const double limit = 0.25;
      const double norm = nn::clip_grad_norm(optimizer, limit).item<double>();
      expect_equal_on_all(*group, norm);
      ASSERT_GT(norm, limit);
      optimizer.step();
      const auto actual = net.parameters(), expected = reference.parameters();
      for (std::size_t i = 0; i < actual.size(); ++i) {
        const Tensor updated = expected[i]->value().detach() - mul(expected[i]->grad(), limit / norm);
        EXPECT_TRUE(near(whole(actual[i]->value()), updated, 1e-5)) << actual[i]->name();
      }
      // A norm below the limit changes nothing.
      EXPECT_GT(nn::clip_grad_norm(optimizer, 1e6).item<double>(), 0);
    });
}

TEST(FullyShard, F100_ShardedAndPlainParametersGiveOneNorm) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven), reference(kUneven);
    nn::fully_shard(*net.blocks.items()[0], DeviceMesh(group));  // the rest stays plain, equal on all ranks
    make_gradients(net, reference);
    const double norm = nn::grad_norm(net.parameters()).item<double>();
    EXPECT_NEAR(norm, norm_of(reference, 2), 1e-5 * norm);
  });
}

}  // namespace
}  // namespace sherd::testing
