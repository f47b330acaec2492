// The point of a step at which its update is made by all or by none: when a rank is lost there, its peer makes the
// update or leaves the step, as its handler says; eager and captured.
#include "nn/optim/update_agreement.h"

#include <gtest/gtest.h>

#include "compile/compile.h"
#include "nn/layers/linear.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// A layer in training; `group`: whose ranks agree, null: nobody.
struct Training {
  explicit Training(ProcessGroup* ranks, bool captured) : group(ranks) {
    layer.materialize(nn::Seed{3});
    optimizer.emplace(layer.parameters(), nn::AdamW::Options{.lr = 0.1});
    if (captured) compiled.emplace([this](std::span<const Tensor> in) { return step(in); }, CompileOptions{});
  }
  std::vector<Tensor> step(std::span<const Tensor> in) {
    const Tensor y = layer(in[0]);
    const Tensor loss = sum(mul(y, y));
    backward(loss);
    const Tensor norm = nn::clip_grad_norm(*optimizer, 1);
    if (group) nn::agree_to_update(*optimizer, std::vector{loss.detach(), norm}, *group);
    optimizer->step_and_clear();
    return {loss.detach()};
  }
  void update(int i) {
    const Tensor in[] = {full({2, 3}, 0.25 * (i + 1))};
    if (compiled) (*compiled)(in);
    else step(in);
  }
  std::vector<float> values() { return layer.parameters()[0]->value().to_vector<float>(); }

  ProcessGroup* group;
  nn::Linear layer{3, 4};
  std::optional<nn::AdamW> optimizer;
  std::optional<CompiledStep> compiled;
};

void lose_a_rank(const Group& group, bool captured, bool makes_update) {
  constexpr int kUpdates = 5;
  Training alone(nullptr, false), training(group.get(), captured);
  for (int i = 0; i < kUpdates; ++i) alone.update(i), training.update(i);
  EXPECT_EQ(training.values(), alone.values());
  if (captured) { EXPECT_EQ(training.compiled->mode(), CompiledStep::Mode::replay) << training.compiled->why(); }
  if (group->rank() == 1) {
    group->abort("rank 1 is lost");
    return;
  }
  int calls = 0;
  nn::when_ranks_are_lost() = [&](const CommError& error) {
    ++calls;
    EXPECT_NE(error.message().find("rank 1 is lost"), std::string::npos) << error.message();
    EXPECT_EQ(training.values(), alone.values()) << "nothing is updated before";
    if (!makes_update) throw error;
  };
  if (makes_update) {
    training.update(kUpdates);
    alone.update(kUpdates);
  } else {
    expect_error([&] { training.update(kUpdates); }, {"rank 1 is lost"});
    EXPECT_EQ(training.optimizer->torn(), "");
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(training.values(), alone.values());
  nn::when_ranks_are_lost() = {};
}

TEST(UpdateAgreement, WhoIsLeftMakesTheUpdateOrLeavesTheStep) {
  for (const bool captured : {false, true})
    for (const bool makes_update : {false, true}) {
      SCOPED_TRACE(fmt::format("captured {}, makes the update {}", captured, makes_update));
      run_ranks(2, [&](const Group& group) { lose_a_rank(group, captured, makes_update); });
    }
}

TEST(UpdateAgreement, WithoutAHandlerTheErrorLeavesTheStep) {
  run_ranks(2, [](const Group& group) {
    Training training(group.get(), false);
    const std::vector<float> before = training.values();
    if (group->rank() == 1) return group->abort("rank 1 is lost");
    expect_error([&] { training.update(0); }, {"rank 1 is lost"});
    EXPECT_EQ(training.values(), before);
  });
}

TEST(UpdateAgreement, AGhostRankWaitsForNobody) {
  const RankScope scope("rank 0", {.ghost = true});
  const Group group = make_ghost_group(0, 2);
  Training training(group.get(), false);
  EXPECT_NO_THROW(training.update(0));
}

}  // namespace
}  // namespace sherd::testing
