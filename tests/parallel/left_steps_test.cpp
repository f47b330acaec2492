// Steps that are left by an exception at any op, on one rank or on all: the next step is that of a run in which nothing
// happened, bit for bit, or the state is torn and says so on every rank until it is loaded. The exceptions are
// injected.
#include <gtest/gtest.h>

#include "nn/checkpoint/full/full_state.h"
#include "nn/layers/dropout.h"
#include "nn/models/gpt_plan.h"
#include "nn/optim/adamw.h"
#include "nn/optim/agree_on_updates.h"
#include "nn/optim/clip.h"
#include "nn/optim/loss_scaler.h"
#include "nn/parallel/tensor_parallel.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/op_trap.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// A block, a head, and dropout before and after the block: calls that a step which is left may have made or not.
struct DroppingNet : nn::Layer<DroppingNet> {
  nn::ModuleList<Block>& blocks;
  nn::Linear& head;
  nn::Dropout& drop;
  DroppingNet()
      : blocks(add<nn::ModuleList<Block>>("blocks")),
        head(add<nn::Linear>("head", 5, 3)),
        drop(add<nn::Dropout>("drop", 0.25)) {
    blocks.append(6, 5);
  }
  Tensor forward(Tensor x) {
    x = drop(x);
    for (Block* block : blocks.items()) x = drop((*block)(x));
    return head(x);
  }
};

/// A model in training.
template <class Model>
struct LeftModel {
  Model net;
  std::unique_ptr<nn::AdamW> optimizer;
  Group group;

  template <class... Config>
  explicit LeftModel(Group ranks, const Config&... config) : net(config...), group(std::move(ranks)) {}
  void start() {
    net.materialize(nn::Seed{3});
    optimizer =
        std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.01, .decay_matrices_only = true});
  }
  /// Waits until no rank is in a collective any more.
  void settle() const {
    RankContext::current().drain_queues();
    group->host().barrier();
  }
  /// What this rank holds of parameters, their state and the counts of steps.
  std::vector<std::vector<float>> values() {
    std::vector<std::vector<float>> all;
    for (const nn::StateEntry& entry : nn::training_state(net, optimizer.get()))
      all.push_back(nn::state_tensor(entry).local().detach().to_vector<float>());
    return all;
  }
  double updates() { return optimizer->step_slot().value().item<double>(); }
  nn::FullState save() { return nn::full_state_dict(net, *group, optimizer.get()); }
  void load(const nn::FullState& saved) { nn::load_full_state_dict(net, *group, saved, optimizer.get()); }
};

/// The net of blocks, with clipping.
struct LeftTraining : LeftModel<DroppingNet> {
  bool sets_step = true;  ///< or the masks follow from the calls before

  LeftTraining(const Group& ranks, const DeviceMesh& mesh) : LeftModel(ranks) {
    shard(net, mesh);
    start();
  }
  void forward_and_backward(std::uint64_t step) {
    if (sets_step) nn::set_step(static_cast<std::int64_t>(step));
    backward(
        mean_square(net(slice_of(batch_of(12, 6, step, "x"), *group)), slice_of(batch_of(12, 3, step, "y"), *group)));
  }
  void step(std::uint64_t index) {
    forward_and_backward(index);
    nn::clip_grad_norm(*optimizer, 0.1);
    optimizer->step_and_clear();
  }
};

/// A language model with dropout on dp x tp, whose norms' gradients are Partial over tp; two micro-batches, of which
/// the first waits.
struct LeftGpt : LeftModel<nn::Gpt> {
  static nn::Gpt::Config config() {
    return {.vocabulary = 11, .tokens = 4, .layers = 1, .heads = 2, .width = 4, .dropout = 0.25};
  }
  const DeviceMesh root;

  explicit LeftGpt(const Group& ranks) : LeftModel(ranks, config()), root(ranks, {{"dp", 2}, {"tp", 2}}) {
    nn::parallelize(net, root["tp"], nn::gpt_plan(config(), {.sequence_parallel = true}));
    shard(net, root["dp"]);
    start();
  }
  void step(std::uint64_t index) {
    nn::set_step(static_cast<std::int64_t>(index));
    for (const std::int64_t micro : {0, 1}) {
      std::vector<std::int64_t> ids;
      for (std::int64_t i = 0; i < 5; ++i)
        ids.push_back((7 * i + micro + 3 * root.coordinate(0) + static_cast<std::int64_t>(index)) % 11);
      const Tensor all = Tensor::from<std::int64_t>(ids, {1, 5});
      nn::units(net).set_requires_gradient_sync(micro == 1);
      backward(net(contiguous(narrow(all, 1, 0, 4)), contiguous(narrow(all, 1, 1, 4))));
    }
    nn::clip_grad_norm(*optimizer, 0.1);
    optimizer->step_and_clear();
  }
};

/// The model's part of a full state.
nn::FullState model_of(nn::FullState state) {
  std::erase_if(state, [](const auto& entry) { return entry.first.starts_with("optim"); });
  return state;
}

template <class Training>
void expect_recovery(Training& training, const Group& group, std::int64_t every = 1) {
  training.step(0);
  const nn::FullState saved = training.save();
  std::int64_t num_ops = 0;
  {
    const OpTrap counting(-1);
    training.step(1);
    num_ops = counting.count();
  }
  const auto expected = training.values();
  EXPECT_GT(num_ops, 20);
  for (std::int64_t at = 0; at < num_ops; at += every)
    for (const bool on_all : {false, true}) {
      if (on_all && group->size() == 1) continue;
      SCOPED_TRACE(fmt::format("op {} on {}", at, on_all ? "all ranks" : "one rank"));
      training.load(saved);
      const bool is_victim = on_all || group->rank() == static_cast<int>(at) % group->size();
      try {
        const OpTrap trap(is_victim ? at : -1);
        training.step(1);
      } catch (const Error&) {}
      training.optimizer->clear_gradients();
      nn::reset_after_error(training.net);
      EXPECT_EQ(held(MemoryCategory::unsharded) + held(MemoryCategory::gradients), 0);
      if (!training.optimizer->torn().empty()) {  // some rank was in the optimizer, or beyond
        expect_error([&] { training.optimizer->step(); }, {"refused", "torn"});
        expect_error([&] { training.save(); }, {"torn"});
        training.load(saved);
        EXPECT_EQ(training.optimizer->torn(), "");
      }
      if (training.updates() < 2) training.step(1);  // else the trap's op did not come, and all have finished
      EXPECT_EQ(training.values(), expected);
    }
}

TEST(FullyShard, F191_AfterAnExceptionAtAnyOpTheNextStepIsAFreshOne) {
  for (const int ranks : {1, 2, 4})
    run_ranks(ranks, [](const Group& group) {
      LeftTraining training(group, DeviceMesh(group));
      expect_recovery(training, group);
    });
}

TEST(FullyShard, F191_AfterAnExceptionAtAnyOpOfHsdpTheNextStepIsAFreshOne) {
  run_ranks(4, [](const Group& group) {
    LeftTraining training(group, DeviceMesh(group, {{"replicate", 2}, {"dp", 2}}));
    expect_recovery(training, group);
  });
}

TEST(FullyShard, F191_AfterAnExceptionBesideTensorParallelismTheNextStepIsAFreshOne) {
  run_ranks(4, [](const Group& group) {
    LeftGpt training(group);
    expect_recovery(training, group, 11);
  });
}

// Random rows go back to the update before, or to set_step(); a step is made again with the masks that it has had.
TEST(FullyShard, F191_AStepThatIsMadeAgainDrawsTheSameMasks) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      for (const bool sets_step : {true, false})
        for (const std::int64_t at : {1, 4, 9, 14}) {
          SCOPED_TRACE(fmt::format("left at op {}{}", at, sets_step ? "" : ", without set_step"));
          const DeviceMesh mesh(group);
          LeftTraining left(group, mesh), twin(group, mesh);
          left.sets_step = twin.sets_step = sets_step;
          nn::set_step(0);
          for (std::uint64_t step = 0; step < 4; ++step) {
            if (step % 2 == 1) {
              left.settle();
              try {
                const OpTrap trap(group->rank() == group->size() - 1 ? at : -1);
                left.step(step);
                ADD_FAILURE() << "the step was not left";
              } catch (const Error&) {}
              left.optimizer->clear_gradients();
              nn::reset_after_error(left.net);
              ASSERT_EQ(left.optimizer->torn(), "");
            }
            left.step(step);
            twin.step(step);
            EXPECT_EQ(left.values(), twin.values()) << "step " << step;
          }
        }
    });
}

// The step in backward was to be the last pass's; the next step has another pass first.
TEST(FullyShard, F191_AStepInBackwardThatWasWantedIsForgotten) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      LeftTraining training(group, DeviceMesh(group));
      training.optimizer->step_in_backward();
      nn::reset_after_error(training.net);
      const auto before = training.values();
      training.forward_and_backward(0);
      EXPECT_EQ(training.optimizer->torn(), "");
      EXPECT_EQ(training.values(), before);
      training.optimizer->clear_gradients();
    });
}

// Two modules are one unit and their parent is none: nobody sees that the step is left between them.
TEST(FullyShard, F191_AStepThatIsLeftBetweenTwoModulesOfAUnit) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      Net net({6, 5, 5, 3}), twin({6, 5, 5, 3});
      const auto blocks = [](Net& of) { return std::vector<nn::Module*>{of.blocks.items()[0], of.blocks.items()[1]}; };
      for (Net* each : {&net, &twin}) {
        nn::fully_shard(blocks(*each), mesh);
        each->materialize(nn::Seed{3});
      }
      for (std::uint64_t step = 0; step < 3; ++step) {
        const Tensor x = slice_of(batch_of(12, 6, step, "x"), *group);
        (void)(*net.blocks.items()[0])(x);
        nn::reset_after_error(*net.blocks.items()[0]);
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        {
          const GradMode off(false);
          (void)(*net.blocks.items()[1])(zeros({2, 5}));
          (void)(*net.blocks.items()[0])(x);
          EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        }
        backward(sum(square(net(x))));
        backward(sum(square(twin(x))));
        RankContext::current().drain_queues();
        EXPECT_EQ(held(MemoryCategory::unsharded), 0) << "step " << step;
        const auto a = net.parameters(), b = twin.parameters();
        for (std::size_t i = 0; i < a.size(); ++i) {
          EXPECT_TRUE(same_bits(a[i]->grad().local(), b[i]->grad().local())) << a[i]->name();
          a[i]->clear_grad();
          b[i]->clear_grad();
        }
      }
    });
}

TEST(FullyShard, AnExceptionInsideTheOptimizerTearsTheStateOnAllRanks) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      LeftTraining training(group, DeviceMesh(group));
      training.step(0);
      const nn::FullState saved = training.save();
      training.step(1);
      const auto expected = training.values();
      training.load(saved);
      training.forward_and_backward(1);
      training.settle();
      if (group->rank() == group->size() - 1) {
        const OpTrap trap("adamw");
        expect_error([&] { training.optimizer->step(); }, {"the trap", "adamw"});
        EXPECT_NE(training.optimizer->torn(), "");
      } else {
        training.optimizer->step();
        expect_error([&] { (void)training.net(batch_of(2, 6, 0, "x")).raw(); }, {"left half done", "the trap"});
      }
      training.optimizer->clear_gradients();
      nn::reset_after_error(training.net);

      training.forward_and_backward(1);  // gradients may be looked at
      expect_error([&] { training.optimizer->step(); }, {"refused", "torn", "left half done", "load a checkpoint"});
      training.optimizer->clear_gradients();
      const TempDir dir;
      expect_error(
          [&] {
            nn::save_checkpoint(dir.path(), {}, nn::training_state(training.net, training.optimizer.get()), *group);
          },
          {"torn", "not saved"});
      expect_error([&] { training.save(); }, {"torn", "not saved"});
      nn::load_full_state_dict(training.net, *group, model_of(saved), nullptr);
      expect_error([&] { training.optimizer->step(); }, {"refused"});  // its own state is torn yet
      training.load(saved);
      EXPECT_EQ(training.optimizer->torn(), "");
      training.step(1);
      EXPECT_EQ(training.values(), expected);
    });
}

// Rank 1 leaves the step when the others have made it.
TEST(FullyShard, AStepThatNotAllRanksHaveMadeTearsTheState) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      LeftTraining training(group, DeviceMesh(group));
      training.step(0);
      const nn::FullState saved = training.save();
      training.forward_and_backward(1);
      training.settle();
      if (group->rank() != 1) training.optimizer->step();
      training.optimizer->clear_gradients();
      nn::reset_after_error(training.net);
      expect_error([&] { training.optimizer->step(); }, {"refused", "rank 1", "updates"});
      training.load(saved);
      training.step(1);
    });
}

// Passes that waited are reduced outside of any: that too is a step which ends for all.
TEST(FullyShard, F191_AnExceptionInFinalizeBackwardIsHeardByAll) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      LeftTraining training(group, DeviceMesh(group));
      training.step(0);
      nn::units(training.net).set_requires_gradient_sync(false);
      nn::unit_of(training.net).set_is_last_backward(false);
      training.forward_and_backward(1);
      nn::units(training.net).set_requires_gradient_sync(true);
      nn::unit_of(training.net).set_is_last_backward(true);
      training.settle();
      if (group->rank() == 1) {
        const OpTrap trap("reduce_start");
        expect_error([&] { nn::finalize_backward(training.net); }, {"the trap", "reduce_start"});
        EXPECT_EQ(held(MemoryCategory::unsharded) + held(MemoryCategory::gradients), 0);
      } else {
        expect_error([&] { nn::finalize_backward(training.net).wait(); }, {"the trap", "reduce_start"});
      }
      training.optimizer->clear_gradients();
      nn::reset_after_error(training.net);
      EXPECT_EQ(training.optimizer->torn(), "");
      training.step(1);
      EXPECT_EQ(training.updates(), 2);
    });
}

// What ranks do before they compare may fail on one of them: the optimizer's part, or the loss scaler's behind it.
TEST(FullyShard, F191_AnErrorWhileRanksAgreeIsHeardByAll) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      LeftTraining training(group, DeviceMesh(group));
      const nn::LossScaler scaler;
      training.step(0);
      for (const std::int64_t at : {0, 1}) {
        const OpTrap trap(group->rank() == 1 ? at : -1);
        expect_error([&] { nn::agree_on_updates(training.net.parameters(), *group); },
                     {"state between steps on rank 1", fmt::format("the trap at op {}", at)});
      }
      nn::reset_after_error(training.net);
      EXPECT_EQ(training.optimizer->torn(), "");
      training.step(1);
      EXPECT_EQ(training.updates(), 2);
    });
}

}  // namespace
}  // namespace sherd::testing
