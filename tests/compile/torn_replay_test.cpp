// A replay that is left between the updates of two optimizers: some slots are of the next step, others are not. One
// that is left before them, or when only loss scalers have made theirs, leaves parameters whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "compile/compile.h"
#include "compile/ir/text/parse.h"
#include "compile/ir/text/print.h"
#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "nn/optim/loss_scaler.h"
#include "nn/optim/sgd.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

struct TwoLinears : nn::Layer<TwoLinears> {
  nn::Linear &first, &second;
  TwoLinears() : first(add<nn::Linear>("first", 4, 4)), second(add<nn::Linear>("second", 4, 4)) {}
  Tensor forward(const Tensor& x) { return second(first(x)); }
};

/// An update of each, and between them something that raises on a bad id.
struct TwoUpdates {
  TwoLinears& net;
  nn::Sgd first, second;
  explicit TwoUpdates(TwoLinears& model)
      : net(model), first(model.first.parameters(), {.lr = 0.1}), second(model.second.parameters(), {.lr = 0.1}) {}
  Tensor step(const Tensor& x, const Tensor& ids) {
    const Tensor loss = sum(square(net(x)));
    backward(loss);
    first.step_and_clear();
    const Tensor row = embedding(x, ids);
    second.step_and_clear();
    return loss + sum(row);
  }
};

// The shards of a unit are one storage: that of one is as torn as those of the others.
TEST(CompiledStep, AReplayLeftInTheMidstOfItsUpdatesTearsAllOfAUnit) {
  run_ranks(1, [](const std::shared_ptr<ProcessGroup>& group) {
    TwoLinears net;
    nn::fully_shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{5});
    const auto storage_of = [](const nn::Parameter& p) { return p.value().local().storage().get(); };
    ASSERT_EQ(storage_of(net.first.weight), storage_of(net.second.weight));
    TwoUpdates training(net);
    auto step = compile_once([&](const Tensor& x, const Tensor& ids) { return training.step(x, ids); });
    const Tensor x = ones({3, 4});
    const Tensor good = Tensor::from<std::int64_t>({2}, {1}), bad = Tensor::from<std::int64_t>({3}, {1});
    for (int i = 0; i < 3; ++i) step(x, good);
    ASSERT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
    expect_error([&] { step(x, bad); }, {"outside of"});
    for (const nn::Parameter* p : net.parameters()) EXPECT_NE(p->torn(), "") << p->name();
    // What was loaded in part is still refused.
    training.first.clear_gradients();
    training.second.clear_gradients();
    for (nn::Optimizer* each : {&training.first, &training.second}) each->step_slot().assign(Tensor::scalar(3));
    for (nn::Parameter* p : net.parameters())
      if (p != &net.first.weight) p->assign(add(p->value().detach(), 0));
    expect_error([&] { step(x, good); }, {"\"first.weight\" is torn", "load a checkpoint"});
  });
}

TEST(CompiledStep, AReplayLeftInTheMidstOfItsUpdatesTearsTheState) {
  nn::Dropout drop(0.5);
  (void)drop(ones({2}));  // updates note its calls, which are no state that a load would make whole
  TwoLinears net;
  net.materialize(nn::Seed{5});
  TwoUpdates training(net);
  nn::Sgd &first = training.first, &second = training.second;
  auto step = compile_once([&](const Tensor& x, const Tensor& ids) { return training.step(x, ids); });
  const Tensor x = ones({3, 4});
  const Tensor good = Tensor::from<std::int64_t>({2}, {1}), bad = Tensor::from<std::int64_t>({3}, {1});
  for (int i = 0; i < 3; ++i) step(x, good);
  ASSERT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
  std::vector<Tensor> saved;
  for (const nn::Parameter* p : net.parameters()) saved.push_back(add(p->value().detach(), 0));
  const Tensor first_count = add(first.step_slot().value(), 0), second_count = add(second.step_slot().value(), 0);
  const auto restore = [&] {
    const auto parameters = net.parameters();
    for (std::size_t i = 0; i < saved.size(); ++i) parameters[i]->assign(saved[i]);
    first.step_slot().assign(first_count);
    second.step_slot().assign(second_count);
  };
  const Tensor expected = step(x, good);
  restore();
  expect_error([&] { step(x, bad); }, {"outside of"});
  EXPECT_NE(first.torn().find("in the midst of its updates"), std::string::npos) << first.torn();
  EXPECT_NE(second.torn(), "");
  expect_error([&] { step(x, good); }, {"refused", "torn", "outside of"});
  expect_error([&] { first.step(); }, {"refused", "torn"});
  first.clear_gradients();
  second.clear_gradients();
  restore();
  EXPECT_EQ(first.torn() + second.torn(), "");
  EXPECT_TRUE(same_bits(step(x, good), expected));
  EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
}

// The update was recorded while the unit was gathered: what it writes is the slot's all the same.
TEST(CompiledStep, AnUpdateOfATornUnitThatWasGatheredIsRefused) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    TwoLinears net;
    nn::fully_shard(net, DeviceMesh(group));
    nn::units(net).set_reshard_after_backward(false);
    net.materialize(nn::Seed{5});
    nn::Sgd optimizer(net.parameters(), {.lr = 0.1});
    auto update = compile([&](const Tensor&) { optimizer.step_and_clear(); });
    const auto pass = [&] { backward(sum(net(ones({1, 4})))); };
    for (int i = 0; i < 5; ++i) {
      pass();
      update(ones({1}));
    }
    ASSERT_EQ(update.mode(), CompiledStep::Mode::replay) << update.why();
    const ir::Program& program = update.graph()->program;
    EXPECT_TRUE(std::ranges::any_of(program.bindings, &ir::Binding::kept)) << text(program);
    EXPECT_TRUE(ir::parse(text(program)) == program) << text(program);
    net.first.weight.mark_torn("a load was left in the midst");
    pass();
    expect_error([&] { update(ones({1})); }, {"\"first.weight\" is torn", "load a checkpoint"});
  });
}

/// A training with a loss scaler, which raises on a bad id when the scaler has looked at the gradients.
struct ScaledLinears {
  TwoLinears net;
  nn::LossScaler scaler{nn::LossScaler::Options{.init_scale = 1024, .growth_interval = 2}};
  std::unique_ptr<nn::Sgd> optimizer;
  ScaledLinears() {
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::Sgd>(net.parameters(), nn::Sgd::Options{.lr = 0.1, .momentum = 0.9});
  }
  Tensor step(const Tensor& x, const Tensor& ids) {
    const Tensor loss = sum(square(net(x)));
    backward(scaler.scale(loss));
    scaler.unscale(*optimizer, 1);
    const Tensor row = embedding(x, ids);
    optimizer->step_and_clear();
    scaler.update();
    return (loss + sum(row)).detach();
  }
};

// The scale of the gradients and whether they are finite are of one step, which the next one finds again: nothing that
// lasts has changed. Oracle: the same training, in which nothing happens.
TEST(CompiledStep, AReplayLeftBeforeTheFirstUpdateTearsNothing) {
  ScaledLinears captured, undisturbed;
  auto step = compile_once([&](const Tensor& x, const Tensor& ids) { return captured.step(x, ids); });
  const Tensor x = ones({3, 4});
  const Tensor good = Tensor::from<std::int64_t>({2}, {1}), bad = Tensor::from<std::int64_t>({3}, {1});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(step(x, good), undisturbed.step(x, good))) << i;
  ASSERT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
  expect_error([&] { step(x, bad); }, {"outside of"});
  EXPECT_EQ(captured.optimizer->torn(), "");
  for (const auto& [name, slot] : captured.scaler.state()) EXPECT_EQ(slot->torn(), "") << name;
  captured.optimizer->clear_gradients();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(step(x, good), undisturbed.step(x, good))) << i;
  EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
  const auto a = captured.net.parameters(), e = undisturbed.net.parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(same_bits(a[i]->value().detach(), e[i]->value().detach())) << a[i]->name();
}

TEST(CompiledStep, AnUpdateOfLossScalersAloneTearsNoParameters) {
  ScaledLinears training;
  nn::LossScaler other;
  auto update = compile_once([&](const Tensor& x, const Tensor& ids) {
    training.scaler.update();
    const Tensor row = embedding(x, ids);
    other.update();
    return sum(row);
  });
  const Tensor x = ones({3, 4});
  const Tensor good = Tensor::from<std::int64_t>({2}, {1}), bad = Tensor::from<std::int64_t>({3}, {1});
  training.step(x, good);
  for (int i = 0; i < 3; ++i) update(x, good);
  ASSERT_EQ(update.mode(), CompiledStep::Mode::replay) << update.why();
  expect_error([&] { update(x, bad); }, {"outside of"});
  EXPECT_EQ(training.optimizer->torn(), "");
  for (const auto& [name, slot] : other.state()) EXPECT_NE(slot->torn(), "") << name;
  expect_error([&] { update(x, good); }, {"refused", "\"loss_scaler.", "is torn"});
  training.step(x, good);  // its values are written again
  other.update();
  update(x, good);
}

}  // namespace
}  // namespace sherd::testing
