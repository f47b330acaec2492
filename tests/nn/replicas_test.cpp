// A bit that flips on one rank is found, and the rank is named, wherever the bits have copies.
#include "nn/checkpoint/full/replicas.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/layers/linear.h"
#include "nn/optim/adamw.h"
#include "nn/optim/loss_scaler.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// One step of a linear of 5 x 3 under a strategy, then `flip`, then the comparison.
void compare(const Group& group, const DeviceMesh& mesh, std::string_view strategy,
             const std::function<void(nn::Linear&, nn::AdamW&)>& flip) {
  nn::Linear model(3, 5);
  nn::fully_shard(model, mesh, nn::strategy(strategy));
  model.materialize(nn::Seed{1});
  nn::AdamW optimizer(model.parameters(), {});
  backward(sum(model(ones({2, 3}))));
  optimizer.step_and_clear();
  flip(model, optimizer);
  ckpt::check_replicas(nn::training_state(model, &optimizer), "here", *group);
}

void flip_lowest_bit(const Tensor& values) {
  auto* const bytes = static_cast<std::byte*>(values.local().detach().raw_to_write());
  bytes[0] ^= std::byte{1};
}

TEST(Replicas, ThatAreEqualAreGood) {
  run_ranks(3, [](const Group& group) {
    for (const char* strategy : {"no_shard", "shard_optimizer", "full_shard"})
      compare(group, DeviceMesh(group, "dp"), strategy, [](nn::Linear&, nn::AdamW&) {});
  });
}

TEST(Replicas, OneThatDiffersFromTheOthersIsNamed) {
  run_ranks(3, [](const Group& group) {
    expect_error(
        [&] {
          compare(group, DeviceMesh(group, "dp"), "no_shard", [&](nn::Linear& model, nn::AdamW&) {
            if (group->rank() == 1) flip_lowest_bit(model.parameters()[0]->value());
          });
        },
        {"replicas differ", "param \"weight\" [0:5, 0:3]", " on ranks 0, 2; ", " on rank 1; ", "last save"});
    expect_error(
        [&] {
          compare(group, DeviceMesh(group, "dp"), "no_shard", [&](nn::Linear&, nn::AdamW& optimizer) {
            if (group->rank() == 2) flip_lowest_bit(optimizer.state()[0].slot->value());
          });
        },
        {"replicas differ", "optim.", " on ranks 0, 1; ", " on rank 2; "});
  });
}

// Counters too, of steps and of the loss scale: those that decide what all later steps do.
TEST(Replicas, EveryKindOfStateIsCompared) {
  run_ranks(3, [](const Group& group) {
    nn::Linear model(3, 5);
    nn::fully_shard(model, DeviceMesh(group, "dp"), nn::strategy("no_shard"));
    model.materialize(nn::Seed{1});
    nn::AdamW optimizer(model.parameters(), {});
    nn::LossScaler scaler;
    backward(sum(model(ones({2, 3}))));
    optimizer.step_and_clear();
    const std::vector<nn::StateEntry> state = nn::training_state(model, &optimizer, &scaler);
    std::set<std::string> flipped;
    for (const nn::StateEntry& entry : state) {
      if (nn::is_usual(entry)) continue;  // the bytes of another entry
      const std::string what = fmt::format("{} \"{}\"", entry.kind, entry.name);
      const auto flip = [&] {
        if (group->rank() == 1) flip_lowest_bit(nn::state_tensor(entry));
      };
      flip();
      expect_error([&] { ckpt::check_replicas(state, "here", *group); },
                   {"replicas differ", what, " on ranks 0, 2; ", " on rank 1; "});
      flip();
      flipped.insert(what);
    }
    EXPECT_NO_THROW(ckpt::check_replicas(state, "here", *group));
    for (const char* what : {"param \"weight\"", "optim.m \"weight\"", "optim.v \"bias\"", "optim \"step\"",
                             "loss_scaler \"scale\"", "loss_scaler \"good_steps\"", "loss_scaler \"skipped_steps\""})
      EXPECT_TRUE(flipped.contains(what)) << what;
  });
}

TEST(Replicas, OfTwoNeitherIsKnownToBeRight) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", 2}});
    expect_error(
        [&] {
          compare(group, mesh, "hybrid_shard", [&](nn::Linear& model, nn::AdamW&) {
            if (group->rank() == 3) flip_lowest_bit(model.parameters()[0]->sharded_value());
          });
        },
        {"param \"weight\" [3:5, 0:3] is ", " on rank 1; ", " on rank 3; ", "either may be"});
  });
}

TEST(Replicas, WhatOneRankAloneHoldsIsNotCompared) {
  run_ranks(2, [](const Group& group) {
    compare(group, DeviceMesh(group, "dp"), "full_shard", [&](nn::Linear& model, nn::AdamW&) {
      if (group->rank() == 1) flip_lowest_bit(model.parameters()[0]->sharded_value());
    });
  });
}

TEST(Replicas, ThePositionInTheDataIsComparedToo) {
  run_ranks(3, [](const Group& group) {
    expect_error([&] { ckpt::check_replicas({}, group->rank() == 0 ? "step 7" : "step 8", *group); },
                 {"the position in the data is step 7 on rank 0; step 8 on ranks 1, 2; "});
  });
}

}  // namespace
}  // namespace sherd::testing
