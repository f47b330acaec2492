// Parameters of one unit on meshes of their own (UnitPolicy::mesh_of): each mesh is gathered and reduced by itself.
// Against one rank on the whole batch, and, where experts differ between ranks, against closed sums over their ranks.
#include <gtest/gtest.h>

#include <memory>

#include "nn/checkpoint/full/full_state.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// Weights are sharded over all ranks, what else there is as the call's mesh says: {replicate: 2, dp: 2}.
nn::UnitPolicy weights_over_all(const DeviceMesh& mesh, nn::UnitPolicy policy = {}) {
  const DeviceMesh all = mesh.flatten();
  policy.mesh_of = [all](const nn::Parameter& p) -> std::optional<DeviceMesh> {
    if (p.shape().size() == 2) return all;
    return std::nullopt;
  };
  return policy;
}

const std::vector<std::string> kWithoutReplicas = {"no_shard", "shard_optimizer", "shard_grad_op", "full_shard"};

void expect_parameters_on_two_meshes_train(const Group& group) {
  const DeviceMesh mesh = Grid{2, 2}.mesh(group);
  for (const std::string& name : kWithoutReplicas) {
    SCOPED_TRACE(name);
    Net net(kUneven), reference(kUneven);
    const nn::UnitPolicy policy = weights_over_all(mesh, nn::strategy(name));
    shard(net, mesh, policy, policy);
    net.materialize(nn::Seed{11});
    reference.materialize(nn::Seed{11});
    EXPECT_EQ(nn::unit_of(net).parts().size(), 2u);
    const bool is_sharded = name != "no_shard";
    EXPECT_EQ(describe(net.head.bias->value()), is_sharded ? "f32[2]{0: dp}" : "f32[2]{}");
    EXPECT_EQ(describe(net.head.weight.value()), is_sharded ? "f32[2,3]{0: replicate_dp}" : "f32[2,3]{}");
    expect_trains_alike(on_slices(net, *group, 5, 2), on_batches(reference, 5, 2), {.steps = 6, .max_norm = 0.1});
    EXPECT_EQ(held(MemoryCategory::gradients), 0);
  }
}

TEST(FullyShard, F55_ParametersOfAUnitOnTwoMeshesTrainLikeOneRank) {
  run_ranks(4, expect_parameters_on_two_meshes_train);
}

TEST(FullyShard, F55_ParametersOfAUnitOnTwoMeshesTrainLikeOneRankWithProcesses) {
  run_processes(4, expect_parameters_on_two_meshes_train);
}

TEST(FullyShard, F55_F79_MicroBatchesOnTwoMeshesAddUp) {
  for (const std::string& name : kWithoutReplicas)
    for (const bool adds_up_shards : {false, true})
      run_ranks(4, [&](const Group& group) {
        SCOPED_TRACE(fmt::format("{}, shards {}", name, adds_up_shards));
        if (adds_up_shards && name == "no_shard") return;
        const DeviceMesh mesh = Grid{2, 2}.mesh(group);
        Net net(kUneven), reference(kUneven);
        nn::UnitPolicy policy = weights_over_all(mesh, nn::strategy(name));
        if (adds_up_shards) policy.gradients = nn::ShardedOver::shards;
        shard(net, mesh, policy, policy);
        net.materialize(nn::Seed{11});
        reference.materialize(nn::Seed{11});
        for (std::uint64_t pass = 0; pass < 3; ++pass) {
          const Tensor x = batch_of(12, 5, pass, "x");
          nn::units(net).set_requires_gradient_sync(pass == 2);
          backward(mean(square(net(slice_of(x, *group)))));
          backward(mean(square(reference(x))));
        }
        expect_same_gradients(net, reference, 2e-5);
        nn::AdamW optimizer(net.parameters(), {});
        optimizer.step_and_clear();
        for (nn::Parameter* p : reference.parameters()) p->clear_grad();
        EXPECT_EQ(held(MemoryCategory::unsharded) + held(MemoryCategory::gradients), 0);
      });
}

TEST(FullyShard, F55_StateOnTwoMeshesIsSummonedSavedAndLoaded) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = Grid{2, 2}.mesh(group);
    Net net(kUneven), other(kUneven), reference(kUneven);
    for (Net* each : {&net, &other}) {
      const nn::UnitPolicy policy = weights_over_all(mesh);
      shard(*each, mesh, policy, policy);
    }
    net.materialize(nn::Seed{3});
    other.materialize(nn::Seed{4});
    reference.materialize(nn::Seed{3});
    {
      const nn::FullParameters full(net, {.write_back = true});
      for (const auto& [name, p] : net.named_parameters())
        EXPECT_TRUE(same_bits(p->value().detach(), reference.parameter(name).value().detach())) << name;
    }
    nn::AdamW optimizer(net.parameters(), {}), loaded(other.parameters(), {});
    backward(sum(net(own_rows(group, 0))));
    optimizer.step_and_clear();
    nn::load_full_state_dict(other, *group, nn::full_state_dict(net, *group, &optimizer), &loaded);
    const auto a = net.parameters(), b = other.parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(same_bits(a[i]->value().local(), b[i]->value().local())) << a[i]->name();
  });
}

TEST(FullyShard, F55_F77_TwoMeshesReplayBitwise) {
  for (const std::string& name : kWithoutReplicas)
    run_ranks(4, [&](const Group& group) {
      const DeviceMesh mesh = Grid{2, 2}.mesh(group);
      const nn::UnitPolicy policy = weights_over_all(mesh, nn::strategy(name));
      PolicyTraining eager(mesh, policy), captured(mesh, policy);
      expect_replays_bitwise(group, eager, captured, 5,
                             [&](std::uint64_t i) { return std::pair(own_rows(group, i), own_rows(group, i)); });
    });
}

// ---- experts ----

/// Each rank of "ep" has experts of its own, which train on what its data ranks send them: an average over "dp" alone.
struct Expert : nn::Layer<Expert> {
  nn::Linear &router, &expert;
  Expert() : router(add<nn::Linear>("router", 6, 6)), expert(add<nn::Linear>("expert", 6, 6)) {}
  Tensor forward(const Tensor& x) { return expert(relu(router(x))); }
};

TEST(FullyShard, F55_ExpertsAreAveragedOverTheirOwnRanksOnly) {
  for (const std::string name : {"full_shard", "shard_grad_op", "shard_optimizer", "no_shard"})
    run_ranks(4, [&](const Group& group) {
      const DeviceMesh root(group, {{"ep", 2}, {"dp", 2}});
      const DeviceMesh all = root.flatten();
      Expert net, reference;
      nn::UnitPolicy policy = nn::strategy(name);
      policy.mesh_of = [&](const nn::Parameter& p) -> std::optional<DeviceMesh> {
        if (p.name().starts_with("expert")) return root["dp"];
        return std::nullopt;
      };
      nn::fully_shard(net, all, policy);
      const std::uint64_t ep = static_cast<std::uint64_t>(root.coordinate(0));
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      // The experts of the second group are other ones.
      const Tensor weight = mul(reference.expert.weight.value().detach(), 1.0 + static_cast<double>(ep));
      {
        const nn::FullParameters full(net.expert, {.write_back = true});
        net.expert.weight.assign(weight);
      }
      const Tensor x = batch_of(12, 6, 0, "x");
      backward(mean(square(net(slice_of(x, *group)))));
      std::vector<Tensor> router;  // gradients of all ranks' rows
      Tensor expert;               // of this group's
      for (int rank = 0; rank < 4; ++rank) {
        reference.expert.weight.assign(mul(weight, (rank / 2 == static_cast<int>(ep)) ? 1.0 : ep == 0 ? 2.0 : 0.5));
        backward(mean(square(reference(narrow(x, 0, rank * 3, 3)))));
        router.push_back(add(reference.router.weight.grad().detach(), 0));
        if (rank / 2 == static_cast<int>(ep)) {
          const Tensor own = mul(reference.expert.weight.grad().detach(), 0.5);
          expert = expert.defined() ? add(expert, own) : add(own, 0);
        }
        for (nn::Parameter* p : reference.parameters()) p->clear_grad();
      }
      Tensor mean_router = mul(router[0], 0.25);
      for (int rank = 1; rank < 4; ++rank)
        mean_router = add(mean_router, mul(router[static_cast<std::size_t>(rank)], 0.25));
      const Tensor& a = net.router.weight.grad();
      const Tensor& b = net.expert.weight.grad();
      EXPECT_TRUE(near(a.local(), part_of(mean_router, a), 1e-5)) << name;
      EXPECT_TRUE(near(b.local(), part_of(expert, b), 1e-5)) << name;
    });
}

TEST(FullyShard, F55_MeshesThatDoNotFitAreNamed) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = Grid{2, 2}.mesh(group), all = mesh.flatten(), line(group);
    Net net(kUneven);
    const auto with = [](const DeviceMesh& other, nn::UnitPolicy policy) {
      policy.mesh_of = [other](const nn::Parameter& p) -> std::optional<DeviceMesh> {
        if (p.name() == "head.weight") return other;
        return std::nullopt;
      };
      return policy;
    };
    expect_error([&] { nn::fully_shard(net, mesh, with(all, nn::strategy("hybrid_shard"))); },
                 {"hybrid strategy needs an axis that replicates"});
    nn::UnitPolicy sliced;
    sliced.reshard_after_forward = 2;
    expect_error([&] { nn::fully_shard(net, line, with(all, sliced)); }, {"reshard_after_forward = 2", "flattened"});
    EXPECT_FALSE(nn::is_fully_sharded(net));
    EXPECT_FALSE(net.head.weight.value().is_distributed());
    nn::fully_shard(net, line, with(mesh, {}));  // another root
    net.materialize(nn::Seed{3});
    backward(sum(net(own_rows(group, 0))));
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

}  // namespace
}  // namespace sherd::testing
