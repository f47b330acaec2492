// A replay that is left between the updates of two optimizers: some slots are of the next step, others are not.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "nn/layers/linear.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

struct TwoLinears : nn::Layer<TwoLinears> {
  nn::Linear &first, &second;
  TwoLinears() : first(add<nn::Linear>("first", 4, 4)), second(add<nn::Linear>("second", 4, 4)) {}
  Tensor forward(const Tensor& x) { return second(first(x)); }
};

TEST(CompiledStep, AReplayLeftInTheMidstOfItsUpdatesTearsTheState) {
  TwoLinears net;
  net.materialize(nn::Seed{5});
  nn::Sgd first(net.first.parameters(), {.lr = 0.1}), second(net.second.parameters(), {.lr = 0.1});
  auto step = compile([&](const Tensor& x, const Tensor& ids) {
    const Tensor loss = sum(square(net(x)));
    backward(loss);
    first.step_and_clear();
    const Tensor row = embedding(x, ids);  // raises on a bad id
    second.step_and_clear();
    return loss + sum(row);
  });
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

}  // namespace
}  // namespace sherd::testing
