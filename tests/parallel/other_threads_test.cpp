// Models that one thread makes and another trains, which is the rank's. Oracle: the same on one thread, bit for bit.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>

#include "compile/compile.h"
#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "nn/optim/loss_scaler.h"
#include "nn/optim/sgd.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/compile_once.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

void on(bool other_thread, const std::function<void()>& make) {
  if (!other_thread) return make();
  std::thread([&] {
    const RankScope rank;
    make();
  }).join();
}

struct TrainedElsewhere {
  nn::Linear net{8, 8};
  std::optional<nn::Sgd> optimizer;
  std::optional<nn::LossScaler> scaler;
  TrainedElsewhere(const Group& group, const nn::UnitPolicy& policy) {
    nn::fully_shard(net, DeviceMesh(group), policy);  // which names the group on this thread
    net.materialize(nn::Seed{1});
    optimizer.emplace(net.parameters());
    scaler.emplace(nn::LossScaler::Options{.init_scale = 4});
  }
  std::vector<float> values() {
    std::vector<float> all;
    for (const nn::Parameter* p : net.parameters())
      for (const float each : p->sharded_value().local().to_vector<float>()) all.push_back(each);
    return all;
  }
};

TEST(OtherThreads, StepsOfUnitsAreCaptured) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"})
    for (const bool is_narrow : {false, true})
      for (const int ranks : {1, 2})
        run_ranks(ranks, [&](const Group& group) {
          const DeviceMesh mesh(group);  // which names it on this one
          nn::UnitPolicy policy = nn::strategy(strategy);
          if (is_narrow) policy.mp_policy.param_dtype = DType::bf16;
          const auto train = [&](bool by_another) {
            std::optional<TrainedElsewhere> model;
            on(by_another, [&] { model.emplace(group, policy); });
            auto step = compile_once([&](const Tensor& x) {
              const Tensor loss = mean(square(model->net(x)));
              backward(loss);
              model->optimizer->step_and_clear();
            });
            for (int i = 0; i < 7; ++i) step(full({2, 8}, 1.0 + i + group->rank()));
            EXPECT_TRUE(step.why().starts_with("replayed")) << step.why();
            return model->values();
          };
          EXPECT_EQ(train(true), train(false)) << strategy << " " << is_narrow << " " << ranks;
        });
}

TEST(OtherThreads, AResetFindsTheirOptimizersAndScalers) {
  run_ranks(1, [](const Group& group) {
    const DeviceMesh mesh(group);  // which names it on this one
    const auto train = [&](bool by_another) {
      std::optional<TrainedElsewhere> model;
      on(by_another, [&] { model.emplace(group, nn::UnitPolicy()); });
      backward(model->scaler->scale(mean(square(model->net(ones({2, 8}))))) * INFINITY);
      model->scaler->unscale(*model->optimizer, 1e-3);  // finds inf; the step is left before its update
      nn::reset_after_error(model->net);
      model->optimizer->clear_gradients();
      backward(model->scaler->scale(mean(square(model->net(ones({2, 8}))))));
      model->scaler->unscale(*model->optimizer);
      model->optimizer->step_and_clear();
      model->scaler->update();
      std::vector<float> all = model->values();
      all.push_back(model->scaler->current_scale().item<float>());
      all.push_back(model->scaler->skipped_steps().item<float>());
      return all;
    };
    EXPECT_EQ(train(true), train(false));
  });
}

TEST(OtherThreads, ARowThatThreadsShareInTurnDrawsOtherMasksEachTime) {
  nn::Dropout drop(0.5);
  const Tensor x = ones({256});
  std::vector<std::vector<float>> own, others;
  for (int i = 0; i < 4; ++i) own.push_back(drop(x).to_vector<float>());
  std::thread([&] {
    const RankScope rank;
    for (int i = 0; i < 2; ++i) others.push_back(drop(x).to_vector<float>());
  }).join();
  own.push_back(drop(x).to_vector<float>());
  for (std::size_t i = 0; i < own.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(own[i], own[j]) << i << " and " << j;
  EXPECT_NE(others[0], others[1]);
}

}  // namespace
}  // namespace sherd::testing
