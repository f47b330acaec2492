// first_non_finite names what was broken on purpose, the same on every rank.
#include "nn/non_finite.h"

#include <gtest/gtest.h>

#include <limits>

#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

struct Step {
  explicit Step(const std::shared_ptr<ProcessGroup>& g) : group(g) {
    if (group->size() > 1) shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{1});
  }
  /// `cotangent` is what backward starts from.
  std::string first(const Tensor& x, double cotangent = 1) {
    const std::string found =
        nn::first_non_finite(net, *group, [&] { backward(sum(net(x)), {.grad = Tensor::scalar(cotangent)}); });
    for (nn::Parameter* p : net.parameters()) p->clear_grad();
    return found;
  }
  std::shared_ptr<ProcessGroup> group;
  Net net{{4, 6, 6, 3}};
};

TEST(NonFinite, NamesTheFirstOutputOrElseTheFirstGradient) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const int ranks : {1, 3})
    run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      Step step(group);
      const auto on = [&](int rank) { return ranks == 1 ? std::string() : fmt::format(" on rank {}", rank); };
      const Tensor x = full({2, 4}, 0.5);
      EXPECT_EQ(step.first(x), "");
      EXPECT_EQ(step.first(x, kInfinity), "the gradient of \"head.bias\"" + on(0));
      // The last rank alone gets a bad batch; an inner module ends before the one around it.
      const bool is_bad = group->rank() == ranks - 1;
      EXPECT_EQ(step.first(is_bad ? full({2, 4}, kInfinity) : x), "the output of \"blocks.0.linear\"" + on(ranks - 1));
      EXPECT_EQ(step.first(x), "") << "nothing is left of it";
      // A bad parameter is gathered by all ranks: the lowest one is named.
      const Tensor weight = step.net.parameter("blocks.1.linear.weight").value().local();
      if (group->rank() == ranks - 1) fill_into(weight.detach(), std::nan(""));
      EXPECT_EQ(step.first(x), "the output of \"blocks.1.linear\"" + on(0));
      for (const auto* module : {step.net.blocks.items()[0], step.net.blocks.items()[1]})
        EXPECT_LE(module->hooks().size(), 1u) << "only that of fully_shard";
    });
}

}  // namespace
}  // namespace sherd::testing
