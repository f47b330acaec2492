// The dist layer: what it refuses, what it remembers, and rows that work on local extents.
#include <gtest/gtest.h>

#include <cmath>

#include "dtensor/api.h"
#include "dtensor/propagate.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "runtime/comm/comm_counter.h"
#include "runtime/op/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

Tensor values(const Shape& shape, std::string_view what) { return random_normal(shape, random_key(3, what, "test")); }

Metas infer_twice(const InferCall& call) {
  Metas metas;
  metas.push_back({call.in[0].shape(), call.in[0].dtype()});
  return metas;
}
void twice(const KernelCall& call) {
  for (std::int64_t i = 0; i < call.out[0].numel(); ++i)
    call.out[0].mutable_data<float>()[i] = 2 * call.in[0].data<float>()[i];
}
const Op& users_row() {
  static const Op op{.name = "users_row", .infer = infer_twice, .no_gradient = "test", .kernel = {twice}};
  return op;
}

TEST(DistLayer, F147_ARowWithoutRuleIsRefusedAndOneOfTheUsersOwnWorks) {
  const auto on_ranks = [](const auto& body) {
    run_ranks(2, [&](const Group& group) {
      const DeviceMesh mesh(group);
      body(distribute(values({4, 4}, "a"), mesh, Shard(0)), group->rank());
    });
  };
  on_ranks([](const Tensor& rows, int rank) {
    expect_error([&] { call(users_row(), {}, rows); },
                 {"users_row", "no sharding rule", "f32[4,4]{0: dp}", fmt::format("rank {} of 2", rank)});
  });
  register_rule("users_row", {.signatures = [](const RuleCall& call, Signatures& signatures) {
                  for (int d = 0; d < call.ndim(0); ++d) signatures.push_back({{Shard(d)}, {Shard(d)}, 0});
                }});
  on_ranks([](const Tensor& rows, int) {
    const StrictCommunication strict;
    const Tensor doubled = call(users_row(), {}, rows);
    EXPECT_EQ(describe(doubled), "f32[4,4]{0: dp}");
    EXPECT_TRUE(same_bits(full_tensor(doubled), mul(values({4, 4}, "a"), 2)));
  });
}

TEST(DistLayer, F146_PlainTensorsAmongDistributedOnes) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor plain = values({4, 4}, "b"), rows = distribute(values({4, 4}, "a"), mesh, Shard(0));
      expect_error([&] { matmul(plain, rows); },
                   {"matmul", "input 0", "plain tensor f32[4,4]", "distribute()", "f32[4,4]{0: dp}"});
      expect_error([&] { copy_into(rows, plain); }, {"f32[4,4]{0: dp}", "local()"});
      expect_error([&] { fill_into(rows, 0); }, {"f32[4,4]{0: dp}", "local()"});
      const Tensor two = mul(rows, Tensor::scalar(2));  // one number is the same on all ranks
      EXPECT_TRUE(same_bits(full_tensor(two), mul(values({4, 4}, "a"), 2)));
      const ImplicitReplication implicit;
      EXPECT_TRUE(same_bits(full_tensor(add(rows, plain)), add(values({4, 4}, "a"), plain)));
    });
}

TEST(DistLayer, TensorsOfTwoMeshesDoNotMix) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh dp(group, "dp"), tp(group, "tp");
    const Tensor a = distribute(values({4, 4}, "a"), dp, Shard(0)), b = distribute(values({4, 4}, "b"), tp, Shard(0));
    expect_error([&] { add(a, b); }, {"add", "different meshes", "mesh(dp=2)", "mesh(tp=2)"});
  });
}

TEST(DistLayer, ShapeErrorsComeBeforeCommunicationOnEveryRank) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(values({5, 4}, "a"), mesh, Shard(1)),
                 b = distribute(values({5, 4}, "b"), mesh, Shard(0));
    const CommCounts before = group->counts();
    expect_error([&] { matmul(a, b); }, {"matmul", "inner dimensions differ: 4 and 5", "{1: dp}", "{0: dp}"});
    EXPECT_EQ(group->counts().all_gather.calls, before.all_gather.calls);
  });
}

TEST(DistLayer, F149_StrictModeNamesWhatWouldMove) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(values({4, 4}, "a"), mesh, Shard(0)),
                 b = distribute(values({4, 4}, "b"), mesh, Shard(1));
    const StrictCommunication strict;
    expect_error([&] { add(a, b); }, {"add", "would have to move", "{0: dp}", "{1: dp}", "redistribute()"});
    const StrictCommunication lax(false);
    EXPECT_TRUE(same_bits(full_tensor(add(a, b)), add(values({4, 4}, "a"), values({4, 4}, "b"))));
  });
}

TEST(DistLayer, ImplicitCommunicationIsCountedForTheOpThatNeedsIt) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(values({4, 4}, "a"), mesh, Shard(0)),
                 b = distribute(values({4, 4}, "b"), mesh, Shard(1));
    CommCounter counter;
    add(a, b);
    EXPECT_EQ(counter.of_op("add").calls, 1);
    EXPECT_EQ(counter.of(comm::CommOp::all_to_all).calls, 1) << counter.describe();
    redistribute(a, {Replicate()});
    EXPECT_EQ(counter.of_op("add").calls, 1) << "that was asked for";
    EXPECT_EQ(counter.total().calls, 2);
  });
}

TEST(DistLayer, F148_TheSecondCallFindsThePlan) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(values({4, 4}, "a"), mesh, Shard(0));
    const Tensor first = mul(a, 3);
    const PlanCounts before = plan_counts();
    const Tensor second = mul(a, 3), other_value = mul(a, 4);
    EXPECT_EQ(plan_counts().found - before.found, 1);
    EXPECT_EQ(plan_counts().made - before.made, 1);
    EXPECT_TRUE(same_bits(full_tensor(first), full_tensor(second)));
    EXPECT_FALSE(same_bits(full_tensor(first), full_tensor(other_value)));
  });
}

TEST(DistLayer, PowerSumSeesEachRanksOwnElements) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor whole = values({5, 3}, "g");
      const Tensor rows = distribute(whole, mesh, Shard(0));
      double expected = 0;
      const Spec::Range own = chunk_range(5, group->size(), group->rank());
      const std::vector<double> all = whole.to_vector<double>();
      for (std::int64_t i = 3 * own.begin; i < 3 * own.end; ++i)
        expected += all[static_cast<std::size_t>(i)] * all[static_cast<std::size_t>(i)];
      const Tensor list[] = {rows};
      EXPECT_NEAR(power_sum(list, 2).item<double>(), expected, 1e-6);
    });
}

// Sharded and whole updates of the same tensors must give the same bits: every element is on its own.
TEST(DistLayer, F145_OptimizerRowsOnShardsEqualThoseOnTheWhole) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const auto update = [&](bool sharded) {
        std::vector<Tensor> t;
        for (const char* what : {"p", "m", "v", "g"}) {
          const Tensor value = what == std::string_view("v") ? square(values({7, 3}, what)) : values({7, 3}, what);
          t.push_back(sharded ? distribute(value, mesh, Shard(0)) : value);
        }
        const std::span<const Tensor> all(t);
        const CommCounter counter;
        adamw_step(all.subspan(0, 1), all.subspan(1, 1), all.subspan(2, 1), all.subspan(3, 1), Tensor::scalar(0.1),
                   Tensor::scalar(3), Tensor::scalar(0.5), {.weight_decay = 0.1});
        sgd_step(all.subspan(0, 1), all.subspan(1, 1), all.subspan(3, 1), Tensor::scalar(0.1), Tensor::scalar(1),
                 {.momentum = 0.9});
        EXPECT_EQ(counter.describe(), "no communication");
        return t;
      };
      const std::vector<Tensor> whole = update(false), shards = update(true);
      const Tensor start = values({7, 3}, "p");
      EXPECT_FALSE(same_bits(whole[0], start));
      for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bits(full_tensor(shards[i]), whole[i])) << i;
    });
}

// Writing in place keeps the layout of what is written to; under strict mode it moves nothing.
TEST(DistLayer, F129_InPlaceKeepsTheLayout) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = values({4, 6}, "a"), b = values({4, 6}, "b");
    const Tensor target = distribute(a, mesh, Shard(0));
    {
      const StrictCommunication strict;
      copy_into(target, distribute(b, mesh, Shard(0)), /*accumulate=*/true);
      EXPECT_EQ(describe(target), "f32[4,6]{0: dp}");
      expect_error([&] { copy_into(target, distribute(b, mesh, Shard(1))); },
                   {"copy", "would have to move", "{1: dp}", "{0: dp}", "destination"});
    }
    EXPECT_TRUE(same_bits(full_tensor(target), add(a, b)));
    copy_into(target, distribute(b, mesh, Shard(1)));
    EXPECT_EQ(describe(target), "f32[4,6]{0: dp}");
    EXPECT_TRUE(same_bits(full_tensor(target), b));
  });
}

// A list of inputs is part of what a plan is found by (peers never found one for stack).
TEST(DistLayer, F148_ListsFindTheirPlanToo) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(values({4, 4}, "a"), mesh, Shard(0)),
                 b = distribute(values({4, 4}, "b"), mesh, Shard(0));
    const auto made = [&](const std::vector<Tensor>& list) {
      const std::int64_t before = plan_counts().made;
      stack(list, 0);
      return plan_counts().made - before;
    };
    EXPECT_GT(made({a, b}), 0);
    EXPECT_EQ(made({a, b}), 0);
    EXPECT_EQ(made({b, a}), 0);
    EXPECT_GT(made({a, b, a}), 0);
  });
}

// A mesh is all ranks of its group: no rank is left outside to wait for.
TEST(DistLayer, F150_RanksOutsideTheMeshAreRefused) {
  run_ranks(3, [](const Group& group) {
    expect_error([&] { DeviceMesh(group, std::vector<DeviceMesh::Axis>{{"dp", 2}}); }, {"2 places", "3 ranks"});
    const DeviceMesh mesh(group);
    const Tensor a = distribute(values({4, 4}, "a"), mesh, Shard(0));
    EXPECT_TRUE(same_bits(full_tensor(a), values({4, 4}, "a")));
  });
}

}  // namespace
}  // namespace sherd::testing
