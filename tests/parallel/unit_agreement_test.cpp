// Ranks whose units differ: every rank is told, before anything is communicated, which unit and which setting it is.
#include "nn/parallel/shard/wrap/unit_agreement.h"

#include <gtest/gtest.h>

#include <chrono>

#include "compile/compile.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/ghost_group.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

/// How one rank wraps a net otherwise than the others, and what all of them are told.
struct OddRank {
  std::string name;
  std::function<void(Net& net, const DeviceMesh& mesh, bool is_odd)> wrap;
  std::vector<std::string> says;
};

/// A policy that the odd one has in place of the usual one.
OddRank other_policy(std::string name, const nn::UnitPolicy& odd, std::vector<std::string> says) {
  return {std::move(name),
          [odd](Net& net, const DeviceMesh& mesh, bool is_odd) {
            if (is_odd) shard(net, mesh, odd, odd);
            else shard(net, mesh);
          },
          std::move(says)};
}

/// A setting of the second block after the call.
OddRank other_setting(std::string name, std::function<void(const nn::UnitHandle&)> set, std::vector<std::string> says) {
  return {std::move(name),
          [set = std::move(set)](Net& net, const DeviceMesh& mesh, bool is_odd) {
            shard(net, mesh);
            if (is_odd) set(nn::unit_of(*net.blocks.items()[1]));
          },
          std::move(says)};
}

std::vector<OddRank> odd_policies() {
  nn::UnitPolicy inner;
  inner.placement = [](const nn::Parameter& p) { return nn::shard_dim(p.shape().size() - 1); };
  nn::UnitPolicy rounded;
  rounded.mp_policy.types_of = [](const nn::Parameter& p) {
    return nn::ParameterTypes{.param_dtype = p.shape().size() == 1 ? std::optional(DType::bf16) : std::nullopt};
  };
  std::vector<OddRank> cases;
  for (const std::string name : {"shard_grad_op", "shard_optimizer", "no_shard"})
    cases.push_back(other_policy(name, nn::strategy(name), {"the strategy is", "full_shard on", name + " on"}));
  cases.push_back(other_policy("prefetch", {.prefetch = false}, {"prefetch is true on", "false on"}));
  cases.push_back(
      other_policy("types", {.mp_policy = {.param_dtype = DType::bf16}}, {"param_dtype is unset", "bf16 on"}));
  cases.push_back(
      other_policy("wire", {.mp_policy = {.reduce_dtype = DType::bf16}}, {"parameter 0", "in bf16 to f32 on"}));
  cases.push_back(other_policy("some types", rounded, {"head.bias", "gathered as f32", "gathered as bf16"}));
  cases.push_back(
      other_policy("output", {.mp_policy = {.output_dtype = DType::bf16}}, {"output_dtype is unset", "bf16"}));
  cases.push_back(other_policy("small", {.replicate_below_bytes = 64}, {"number of its parts is 1 on", "2 on"}));
  cases.push_back(other_policy("placement", inner, {"parameter 0", "{0: dp}", "{1: dp}"}));
  cases.push_back(other_policy("unused", {.reduce_unused = true}, {"reduce_unused is false on", "true on"}));
  return cases;
}

std::vector<OddRank> odd_settings() {
  std::vector<OddRank> cases;
  const auto of_block = [](std::string text) { return std::vector<std::string>{"unit \"blocks.1\"", std::move(text)}; };
  cases.push_back(other_setting(
      "factor", [](const nn::UnitHandle& unit) { unit.set_gradient_divide_factor(7); }, of_block("7 on rank")));
  cases.push_back(other_setting(
      "resharding", [](const nn::UnitHandle& unit) { unit.set_reshard_after_forward(false); },
      of_block("reshard_after_forward is the default on rank")));
  cases.push_back(other_setting(
      "prefetch list", [](const nn::UnitHandle& unit) { unit.set_forward_prefetch({unit}); },
      of_block("the forward prefetch is none on rank")));
  cases.push_back(other_setting(
      "reduction", [](const nn::UnitHandle& unit) { unit.set_custom_reduce(start_reduce); },
      of_block("its reduction is the usual one on rank")));
  cases.push_back(other_setting(
      "sync", [](const nn::UnitHandle& unit) { unit.set_requires_gradient_sync(false); },
      of_block("requires_gradient_sync is true on rank")));
  return cases;
}

std::vector<OddRank> odd_units() {
  std::vector<OddRank> cases;
  cases.push_back({"one less",
                   [](Net& net, const DeviceMesh& mesh, bool is_odd) {
                     if (!is_odd) nn::fully_shard(*net.blocks.items()[0], mesh);
                     nn::fully_shard(*net.blocks.items()[1], mesh);
                     nn::fully_shard(net, mesh);
                   },
                   {"unit \"(model)\": parameter 0", "blocks.0.linear.weight", "head.weight"}});
  cases.push_back({"another name",
                   [](Net& net, const DeviceMesh& mesh, bool is_odd) {
                     Block& block = *net.blocks.items()[0];
                     if (is_odd) nn::fully_shard(block.linear_layer, mesh);
                     else nn::fully_shard(block, mesh);
                     nn::fully_shard(net, mesh);
                   },
                   {"unit 1 is", "\"blocks.0\" on rank", "\"blocks.0.linear\" on rank"}});
  cases.push_back({"no root",
                   [](Net& net, const DeviceMesh& mesh, bool is_odd) {
                     for (nn::Module* block : net.blocks.items()) nn::fully_shard(*block, mesh);
                     if (!is_odd) nn::fully_shard(net, mesh);
                   },
                   {"unit 0 is", "\"(model)\" on rank", "\"blocks.0\" on rank"}});
  cases.push_back({"a list",
                   [](Net& net, const DeviceMesh& mesh, bool is_odd) {
                     const auto& blocks = net.blocks.items();
                     if (is_odd) nn::fully_shard(std::vector<nn::Module*>{blocks[0], blocks[1]}, mesh);
                     else
                       for (nn::Module* block : blocks) nn::fully_shard(*block, mesh);
                     nn::fully_shard(net, mesh);
                   },
                   {"unit 1 is", "\"blocks.0+blocks.1\" on rank"}});
  cases.push_back({"ignored",
                   [](Net& net, const DeviceMesh& mesh, bool is_odd) {
                     nn::UnitPolicy policy;
                     if (is_odd) policy.ignored = {&net.head.weight};
                     shard(net, mesh, policy, policy);
                   },
                   {"unit \"(model)\": parameter 0", "head.weight", "head.bias"}});
  return cases;
}

std::vector<OddRank> all_odd_ranks() {
  std::vector<OddRank> cases = odd_policies();
  for (auto list : {odd_settings(), odd_units()}) cases.insert(cases.end(), list.begin(), list.end());
  return cases;
}

/// All ranks get the error, soon, hold nothing, and get it again after a reset.
void expect_told(const Group& group, const DeviceMesh& mesh, const OddRank& odd, int odd_rank) {
  SCOPED_TRACE(fmt::format("{}, rank {}", odd.name, group->rank()));
  Net net(kTwoBlocks);
  odd.wrap(net, mesh, group->rank() == odd_rank);
  net.materialize(nn::Seed{3});
  const Tensor x = batch_of(2, 6, 0, "x");
  for (int time = 0; time < 2; ++time) {
    const auto start = Clock::now();
    const auto step = [&] {
      backward(sum(net(x)));
      RankContext::current().drain_queues();
    };
    expect_error(step, {"ranks have different units", fmt::format("on rank {}", odd_rank), "on all ranks"});
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
    EXPECT_EQ(held(MemoryCategory::unsharded) + held(MemoryCategory::gradients), 0);
    RankContext::current().drain_queues();
    group->reset();  // not reset_after_error(): a rank may have wrapped no root
  }
  try {
    backward(sum(net(x)));
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const std::string& part : odd.says) EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
  }
  RankContext::current().drain_queues();
  group->reset();
}

TEST(FullyShard, F192_RanksWithOtherUnitsAreToldWhich) {
  for (const int ranks : {2, 3})
    for (const OddRank& odd : all_odd_ranks())
      run_ranks(ranks, [&](const Group& group) { expect_told(group, DeviceMesh(group), odd, 1); });
}

TEST(FullyShard, F192_RanksWithOtherUnitsAreToldWhichWithProcesses) {
  for (const OddRank& odd : all_odd_ranks())
    run_processes(2, [&](const Group& group) { expect_told(group, DeviceMesh(group), odd, 1); });
}

// From axis to axis: rank 0 shares none with rank 3.
TEST(FullyShard, F192_ARankOfAnotherAxisIsHeardByAll) {
  const std::vector<std::vector<DeviceMesh::Axis>> grids = {{{"replicate", 2}, {"dp", 2}},
                                                            {{"replicate", 2}, {"dp", 3}}};
  for (const auto& axes : grids)
    for (const std::string& strategy : nn::strategy_names()) {
      if (strategy == "hybrid_shard" || strategy == "full_shard") continue;  // the same where there are replicas
      const OddRank odd{strategy,
                        [&](Net& net, const DeviceMesh& mesh, bool is_odd) {
                          const nn::UnitPolicy policy = nn::strategy(is_odd ? strategy : "hybrid_shard");
                          shard(net, mesh, policy, policy);
                        },
                        {"the strategy is", "hybrid_shard on rank"}};
      run_ranks(2 * axes[1].size,
                [&](const Group& group) { expect_told(group, DeviceMesh(group, axes), odd, group->size() - 1); });
    }
}

TEST(FullyShard, F192_RanksOfTensorParallelismCompareToo) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"dp", 2}, {"tp", 2}});
    ResidualNet net(5, 7);
    nn::parallelize(net, root["tp"], plan_of(true));
    const nn::UnitPolicy odd = nn::strategy("shard_grad_op"), usual;
    shard(net, root["dp"], root.coordinate(1) == 1 ? odd : usual);
    net.materialize(nn::Seed{3});
    expect_error([&] { backward(sum(net(rows_of(batch3(12, 3, 0, "x"), root)))); },
                 {"unit \"blocks.0\": the strategy is", "full_shard on rank", "shard_grad_op on rank"});
  });
}

// Not before: what shards nothing may run on one rank alone.
TEST(FullyShard, F192_WhatForwardDoesNotCommunicateIsComparedByTheFirstReduction) {
  for (const bool differs : {false, true})
    run_ranks(2, [=](const Group& group) {
      Net net(kTwoBlocks);
      const nn::UnitPolicy usual = nn::strategy("no_shard");
      nn::UnitPolicy odd = usual;
      odd.mp_policy.reduce_dtype = DType::bf16;
      shard(net, DeviceMesh(group), differs && group->rank() == 1 ? odd : usual, usual);
      net.materialize(nn::Seed{3});
      const Tensor x = batch_of(2, 6, 0, "x");
      if (group->rank() == 0) {
        net(x);
        nn::unit_of(net).unshard();
      }
      const auto step = [&] { backward(sum(net(x))); };
      if (differs)
        expect_error(step, {"unit \"blocks.0\"", "reduced in f32 to f32 on rank 0", "in bf16 to f32 on rank 1"});
      else step();
    });
}

TEST(FullyShard, F192_UnitsThatAreAddedLateAreComparedWhenTheyRun) {
  for (const bool differs : {false, true})
    run_ranks(2, [=](const Group& group) {
      const DeviceMesh mesh(group);
      Net net(kTwoBlocks);
      shard(net, mesh);
      net.materialize(nn::Seed{3});
      const Tensor x = batch_of(2, 6, 0, "x");
      backward(sum(net(x)));
      Block& late = net.blocks.append(7, 7);
      nn::fully_shard(late, mesh, nn::strategy(differs && group->rank() == 1 ? "shard_grad_op" : "full_shard"));
      late.materialize(nn::Seed{4});
      const auto step = [&] { backward(sum(net(x))); };
      if (!differs) return step();
      expect_error(step, {"unit \"blocks.2\": the strategy is full_shard on rank 0; shard_grad_op on rank 1"});
    });
}

// It goes on into a gather, where the other one compares.
TEST(FullyShard, F192_AUnitThatOneRankAddsLateIsNoticed) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    Net net(kTwoBlocks);
    shard(net, mesh);
    net.materialize(nn::Seed{3});
    const Tensor x = batch_of(2, 6, 0, "x");
    const auto step = [&] {
      backward(sum(net(x)));
      RankContext::current().drain_queues();
      for (nn::Parameter* p : net.parameters()) (void)p->grad().local().raw();
    };
    step();
    Block& late = net.blocks.append(7, 7);
    if (group->rank() == 1) nn::fully_shard(late, mesh);
    late.materialize(nn::Seed{4});
    const auto start = Clock::now();
    expect_error(step, {"the units of fully_shard, which ranks compare"});
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  });
}

// An error may end the comparison on one rank when it is over on another.
TEST(FullyShard, F192_UnitsAreComparedAgainAfterAReset) {
  for (const bool has_run : {true, false})
    run_ranks(2, [=](const Group& group) {
      Net net(kTwoBlocks);
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{3});
      const auto step = [&] { backward(sum(net(batch_of(2, 6, 0, "x")))); };
      if (has_run) step();
      else nn::unit_of(net).unshard();
      if (group->rank() == 1) nn::unit_of(net).set_forward_prefetch({nn::unit_of(*net.blocks.items()[1])});
      nn::reset_after_error(net);
      const auto again = [&] { has_run ? step() : nn::unit_of(net).unshard(); };
      expect_error(again, {"the forward prefetch is none on rank 0; blocks.1 on rank 1"});
    });
}

// By hand before the first forward: in whatever way a rank comes to it first.
TEST(FullyShard, F192_WhoeverCommunicatesFirstCompares) {
  const auto unshard = [](Net& net) { nn::unit_of(net).unshard(); };
  const auto summon = [](Net& net) { const nn::FullParameters full(net); };
  const auto run = [](Net& net) { net(batch_of(2, 6, 0, "x")); };
  const std::vector<std::function<void(Net&)>> ways = {unshard, summon, run};
  for (const auto& first : ways)
    for (const auto& second : ways)
      run_ranks(2, [&](const Group& group) {
        const DeviceMesh mesh(group);
        Net net(kTwoBlocks);
        nn::UnitPolicy odd;
        odd.mp_policy.reduce_dtype = DType::bf16;
        shard(net, mesh, {}, group->rank() == 1 ? odd : nn::UnitPolicy());
        net.materialize(nn::Seed{3});
        expect_error([&] { (group->rank() == 0 ? first : second)(net); },
                     {"\"(model)\": parameter 0", "in f32 to f32 on rank 0", "in bf16 to f32 on rank 1"});
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      });
}

TEST(FullyShard, F192_UnitsThatAreTheSameAreComparedOnceAndNotCounted) {
  for (const std::string& strategy : nn::strategy_names())
    run_ranks(4, [&](const Group& group) {
      const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", 2}});
      Net net(kTwoBlocks);
      const nn::UnitPolicy policy = nn::strategy(strategy);
      shard(net, mesh, policy, policy);
      net.materialize(nn::Seed{3});
      std::vector<CommCounts> steps;
      for (std::uint64_t i = 0; i < 2; ++i) {
        CommCounts before = settled_counts(mesh.group("dp"));
        before += settled_counts(mesh.group("replicate"));
        backward(sum(net(batch_of(2, 6, i, "x"))));
        CommCounts after = settled_counts(mesh.group("dp"));
        after += settled_counts(mesh.group("replicate"));
        steps.push_back(after -= before);
        for (nn::Parameter* p : net.parameters()) p->reshard(), p->clear_grad();
      }
      EXPECT_EQ(steps[0].all_gather.calls, steps[1].all_gather.calls) << strategy;
      EXPECT_EQ(steps[0].all_gather.bytes, steps[1].all_gather.bytes) << strategy;
    });
}

TEST(FullyShard, F192_ACapturedStepComparesBeforeItIsRecorded) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group), nn::strategy(group->rank() == 1 ? "shard_grad_op" : "full_shard"));
    net.materialize(nn::Seed{3});
    auto step = compile_once([&](const Tensor& x) {
      const Tensor loss = sum(net(x));
      backward(loss);
      return loss.detach();
    });
    for (int time = 0; time < 2; ++time) {
      expect_error([&] { step(batch_of(2, 6, 0, "x")); }, {"unit \"blocks.0\": the strategy is full_shard on rank 0"});
      nn::reset_after_error(net);
      together(*group, [] {});
    }
  });
}

// Stages have trees of their own: nobody waits for those of another one, who wait for what comes out of this one.
TEST(FullyShard, F192_StagesOfAPipelineDoNotWaitForEachOther) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"pp", 2}, {"dp", 2}});
    const int stage = root.coordinate(0);
    Net net(stage == 0 ? kTwoBlocks : kThreeBlocks);
    shard(net, root["dp"], nn::strategy(stage == 0 ? "full_shard" : "shard_grad_op"));
    net.materialize(nn::Seed{3});
    const Tensor x = batch_of(2, 6, 0, "x");
    if (stage == 0) backward(sum(net(x)));
    together(root.group("pp"), [] {});
    if (stage == 1) backward(sum(net(x)));
  });
}

/// The sum of so many experts, and a head that all ranks share.
struct LocalExperts : nn::Layer<LocalExperts> {
  nn::ModuleList<Block>& experts;
  nn::Linear& head;
  explicit LocalExperts(int count)
      : experts(add<nn::ModuleList<Block>>("experts")), head(add<nn::Linear>("head", 6, 3)) {
    for (int i = 0; i < count; ++i) experts.append(6, 6);
  }
  Tensor forward(const Tensor& x) {
    Tensor sum = x;
    for (Block* expert : experts.items()) sum = sum + (*expert)(x);
    return head(sum);
  }
};

// Over the axis along which they differ they do not communicate.
TEST(FullyShard, F192_RanksOfExpertParallelismHaveExpertsOfTheirOwn) {
  for (const bool differs : {false, true})
    run_ranks(4, [=](const Group& group) {
      const DeviceMesh root(group, {{"ep", 2}, {"dp", 2}});
      const DeviceMesh all = root.flatten();
      LocalExperts net(root.coordinate(0) == 0 ? 3 : 2);
      const bool is_odd = differs && group->rank() == 3;
      for (nn::Module* expert : net.experts.items())
        nn::fully_shard(*expert, root["dp"], nn::strategy(is_odd ? "shard_grad_op" : "full_shard"));
      nn::fully_shard(net, all);
      net.materialize(nn::Seed{3});
      const auto step = [&] { backward(sum(net(batch_of(2, 6, 0, "x")))); };
      if (differs) return expect_error(step, {"unit \"experts.0\"", "full_shard on rank 2; shard_grad_op on rank 3"});
      step();
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    });
}

TEST(FullyShard, F192_AGhostComparesWithNobody) {
  const RankScope scope("", {.ghost = true});
  Net net(kTwoBlocks);
  shard(net, DeviceMesh(make_ghost_group(1, 64)));
  net.materialize(nn::Seed{3});
  backward(sum(net(Tensor::empty({2, 6}, DType::f32))));
}

// ---- the text ----

using Units = std::vector<std::pair<std::string, sherd::Facts>>;  // settings by name

sherd::Facts facts(const Units& units) {
  sherd::Facts all;
  for (std::size_t i = 0; i < units.size(); ++i)
    nn::add_unit(all, static_cast<int>(i), units[i].first, units[i].second);
  return all;
}

TEST(UnitAgreement, NamesTheFirstDifference) {
  const Units a = {{"m", {{"s", "1"}, {"t", "x"}}}, {"m.0", {{"s", "1"}}}};
  auto other_value = a, more = a, less = a, renamed = a, other_setting = a;
  other_value[0].second[1].second = "y";
  more.push_back({"m.1", {}});
  less.pop_back();
  renamed[1].first = "m.9";
  other_setting[1].second.push_back({"u", "z"});
  const auto difference = [](const std::vector<int>& ranks, const std::vector<Units>& units) {
    std::vector<sherd::Facts> said;
    for (const Units& each : units) said.push_back(facts_from_text(facts_to_text(facts(each))));
    return first_difference(ranks, said);
  };
  EXPECT_EQ(difference({0, 1}, {a, a}), "");
  EXPECT_EQ(difference({0, 4, 8}, {a, other_value, a}), "unit \"m\": t is x on ranks 0, 8; y on rank 4");
  EXPECT_EQ(difference({0, 1}, {a, more}), "unit 2 is none on rank 0; \"m.1\" on rank 1");
  EXPECT_EQ(difference({0, 1}, {a, less}), "unit 1 is \"m.0\" on rank 0; none on rank 1");
  EXPECT_EQ(difference({0, 1}, {renamed, a}), "unit 1 is \"m.9\" on rank 0; \"m.0\" on rank 1");
  EXPECT_EQ(difference({0, 1}, {a, other_setting}), "unit \"m.0\": u is none on rank 0; z on rank 1");
  EXPECT_EQ(difference({0, 1}, {Units(), a}), "unit 0 is none on rank 0; \"m\" on rank 1");
  const Units twins = {{"m", {{"s", "1"}}}, {"m", {{"s", "1"}}}};  // wrapped before their parents had them
  Units odd_twins = twins;
  odd_twins[0].second[0].second = "2";
  EXPECT_EQ(difference({0, 1}, {twins, odd_twins}), "unit \"m\": s is 1 on rank 0; 2 on rank 1");
  const std::vector<sherd::Facts> turned = {{{"a", "1"}, {"b", "2"}}, {{"b", "2"}, {"a", "1"}}};
  EXPECT_EQ(first_difference(std::vector{0, 1}, turned), "their order differs");
}

}  // namespace
}  // namespace sherd::testing
