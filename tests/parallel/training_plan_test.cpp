// A plan as a value: its text in both directions, its rules, and models that it is applied to. Oracles: texts written
// by hand, and the calls that a plan stands for.
#include "nn/plan/training_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "nn/models/gpt.h"
#include "nn/models/gpt_plan.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/print_units.h"
#include "nn/plan/apply.h"
#include "runtime/autograd/autograd.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using nn::TrainingPlan;

TEST(TrainingPlan, TextSaysWhatDiffersFromTheDefaults) {
  EXPECT_EQ(print(TrainingPlan{}), "");
  const TrainingPlan plan{.mesh = "dp=2,tp=2",
                          .device = Device::cuda(1),
                          .tensor_parallel = {.sequence_parallel = true},
                          .reshard_after_forward = 2,
                          .param_dtype = DType::bf16,
                          .offload = "all:/a b",
                          .micro_batches = 3,
                          .compiled = true};
  const std::string text =
      "mesh=\"dp=2,tp=2\" device=cuda:1 sequence_parallel=true reshard_after_forward=2 param_dtype=bf16 "
      "offload=\"all:/a b\" micro_batches=3 compiled=true";
  EXPECT_EQ(print(plan), text);
  EXPECT_EQ(nn::parse_plan(text), plan);
  EXPECT_EQ(nn::parse_plan(""), TrainingPlan{});
}

template <class T>
T one_of(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

TrainingPlan drawn(std::mt19937& random) {
  const auto is = [&] { return random() % 2 == 0; };
  const auto text = [&](std::initializer_list<const char*> texts) { return one_of(random, texts); };
  const auto dtype = [&] { return one_of(random, {DType::f32, DType::bf16, DType::f16}); };
  return {.mesh = text({"", "dp=3", "tp=2", "dp=2,tp=2", "tp=2,dp=4", "replicate=2,dp=2", "replicate=3,tp=2"}),
          .device = is() ? Device::cpu() : Device::cuda(static_cast<std::uint8_t>(random() % 8)),
          .tensor_parallel = {.sequence_parallel = is(), .loss_parallel = is()},
          .fully_shard = is(),
          .strategy = nn::strategy_names()[random() % nn::strategy_names().size()],
          .units = text({"block", "fine", "coarse", "bytes=32MB", "parameters=100"}),
          .reshard_after_forward = one_of(random, {nn::ReshardAfterForward(true), nn::ReshardAfterForward(false),
                                                   nn::ReshardAfterForward(static_cast<int>(random() % 9))}),
          .prefetch = is(),
          .accumulate_shards = is(),
          .param_dtype = dtype(),
          .reduce_dtype = dtype(),
          .gather = text({"exact", "int8"}),
          .reduce = text({"exact", "int8"}),
          .loss_scale = text({"auto", "none", "dynamic", "1024.5", "1e3"}),
          .recompute = text({"none", "selective", "full"}),
          .offload = text({"none", "optimizer", "parameters:/a b", "all:/x=\"y\",z"}),
          .offload_keep = static_cast<std::int64_t>(random()) << 9,
          .offload_activations = text({"none", "blocks", "blocks:/d\\e"}),
          .micro_batches = static_cast<std::int64_t>(random() % 5),
          .numerics = text({"default", "layout_free"}),
          .leaves = static_cast<std::int64_t>(random() % 20),
          .compiled = is()};
}

TEST(TrainingPlan, AnyTextReadsBackToTheSamePlan) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same plans each time
  TrainingPlan last;
  for (int i = 0; i < 1000; ++i) {
    const TrainingPlan plan = drawn(random);
    const TrainingPlan again = nn::parse_plan(print(plan));
    ASSERT_EQ(again, plan) << print(plan);
    EXPECT_EQ(hash_of(again), hash_of(plan));
    EXPECT_EQ(differences(plan, again), "");
    EXPECT_EQ(differences(last, plan).empty(), last == plan);
    last = plan;
  }
}

TEST(TrainingPlan, ADifferenceNamesFieldsAndBothValues) {
  const TrainingPlan before, now{.tensor_parallel = {.loss_parallel = false}, .strategy = "no_shard", .compiled = true};
  EXPECT_EQ(differences(before, now),
            "loss_parallel true -> false, strategy full_shard -> no_shard, compiled false -> true");
}

TEST(TrainingPlan, WrongTextsAreNamed) {
  const auto refused = [](const char* text, std::initializer_list<std::string_view> parts) {
    expect_error([&] { nn::parse_plan(text); }, parts);
  };
  refused("strategi=full_shard", {"there is no strategi", "did you mean strategy"});
  refused("strategy=fullshard", {"strategy = fullshard", "did you mean full_shard"});
  refused("mesh=dp=2", {"mesh = dp=2"});
  refused("mesh=\"dp=0\"", {"dp must have a size of at least 1"});
  refused("compiled=true compiled=false", {"compiled stands there twice"});
  refused("compiled=yes", {"compiled = yes"});
  refused("micro_batches=two", {"micro_batches = two"});
  refused("reshard_after_forward=maybe", {"true, false or a number of ranks"});
  refused("loss_scale=-1", {"loss_scale must be auto, dynamic, none or a positive number"});
  refused("numerics=exact", {"numerics must be default or layout_free"});
  refused("units=layers", {"no rule \"layers\" makes units"});
}

TEST(TrainingPlan, EveryRuleHasItsMessage) {
  const auto refused = [](const TrainingPlan& plan, std::initializer_list<std::string_view> parts) {
    expect_error([&] { nn::check_plan(plan); }, parts);
  };
  refused({.micro_batches = 0}, {"micro_batches must be at least 1, got 0"});
  refused({.param_dtype = DType::i32}, {"param_dtype must be one of f32, bf16, f16"});
  refused({.reduce_dtype = DType::f64}, {"reduce_dtype must be one of f32, bf16, f16"});
  refused({.fully_shard = false, .strategy = "no_shard"}, {"strategy = no_shard", "leave fully_shard on"});
  refused({.fully_shard = false, .gather = "int8"}, {"gather = int8", "leave fully_shard on"});
  refused({.fully_shard = false, .reduce = "int8"}, {"reduce = int8", "leave fully_shard on"});
  refused({.fully_shard = false, .reshard_after_forward = 2}, {"reshard_after_forward = 2", "leave fully_shard on"});
  refused({.fully_shard = false, .param_dtype = DType::bf16}, {"param_dtype = bf16", "leave it on"});
  refused({.fully_shard = false, .offload = "parameters"}, {"offload = parameters", "or offload the optimizer"});
  refused({.strategy = "no_shard", .gather = "int8"}, {"gather = int8 with strategy = no_shard", "shard_optimizer"});
  refused({.strategy = "replicate", .reduce = "int8"}, {"reduce = int8 with strategy = replicate"});
  refused({.strategy = "no_shard", .accumulate_shards = true}, {"accumulate_shards with strategy = no_shard"});
  refused({.reshard_after_forward = 1}, {"a number of ranks from 2, got 1"});
  refused({.strategy = "shard_grad_op", .reshard_after_forward = 2}, {"strategy = shard_grad_op keeps what was"});
  refused({.reshard_after_forward = 2, .gather = "int8"}, {"gather = int8 with reshard_after_forward = 2"});
  refused({.offload = "all", .offload_keep = -1}, {"offload_keep", "-1"});
  refused({.offload_keep = 5}, {"offload_keep = 5 with offload = none"});
  refused({.strategy = "hybrid_shard_state", .offload = "all"}, {"offload = all with strategy = hybrid_shard_state"});
  refused({.gather = "int8", .offload = "parameters"}, {"offload = parameters with gather = int8"});
  refused({.leaves = 4}, {"leaves = 4 with numerics = default", "--numerics layout_free"});

  const auto misfits = [](const TrainingPlan& plan, const nn::PlanFacts& facts,
                          std::initializer_list<std::string_view> parts) {
    expect_error([&] { nn::check_plan(plan, facts); }, parts);
  };
  misfits({.mesh = "dp=2,tp=2"}, {.ranks = 3}, {"is for 4 ranks, this run has 3"});
  misfits({.fully_shard = false}, {.ranks = 2}, {"would train 2 separate models"});
  misfits({.strategy = "hybrid_shard"}, {.ranks = 4}, {"mesh = \"\" names none", "--mesh replicate=2,dp=2"});
  misfits({.mesh = "dp=2,tp=2", .micro_batches = 3}, {.ranks = 4, .batch = 8}, {"2 ranks x 3 micro-batches", "of 6"});
  misfits({.offload_keep = 5}, {.ranks = 2}, {"offload_keep = 5"});
  EXPECT_NO_THROW(nn::check_plan({.mesh = "replicate=2,dp=2", .strategy = "hybrid_shard"}, {.ranks = 4, .batch = 8}));

  const auto dies = [](const TrainingPlan& plan, std::initializer_list<std::string_view> parts) {
    expect_error([&] { nn::check_survives(plan, 4); }, parts);
  };
  dies({.mesh = "dp=4"}, {"mesh = \"dp=4\" has one", "--strategy hybrid_shard"});
  dies({.mesh = "replicate=2,dp=2", .strategy = "hybrid_shard_state"}, {"dies with each of them"});
  dies({.mesh = "replicate=2,dp=2", .device = Device::cuda(0), .strategy = "hybrid_shard"}, {"device = cuda:0"});
  dies({.mesh = "replicate=2,dp=2", .strategy = "hybrid_shard", .offload = "optimizer"}, {"offload = optimizer"});
}

TEST(TrainingPlan, LayoutFreeRefusesWhatAddsInOtherOrders) {
  const auto refused = [](TrainingPlan plan, std::initializer_list<std::string_view> parts) {
    plan.numerics = "layout_free";
    expect_error([&] { nn::check_plan(plan); }, parts);
  };
  refused({.leaves = 6}, {"leaves = 6", "a power of two", "take 4 or 8"});
  refused({.leaves = 0}, {"leaves = 0", "take 1"});
  try {
    nn::check_plan({.numerics = "layout_free", .leaves = std::numeric_limits<std::int64_t>::max()});
    ADD_FAILURE() << "2^63 - 1 is no power of two";
  } catch (const Error& error) { EXPECT_EQ(std::string(error.what()).find("9223372036854775808"), std::string::npos); }
  refused({.micro_batches = 4}, {"accumulate = 4 with numerics = layout_free", "leaves = 8", "leave accumulate out"});
  refused({.fully_shard = false}, {"fully_shard = false with numerics = layout_free", "leave it on"});
  refused({.reduce_dtype = DType::bf16}, {"reduce_dtype = bf16 with numerics = layout_free", "leave it at f32"});
  refused({.param_dtype = DType::f16}, {"loss_scale = auto with numerics = layout_free", "none, or bf16 for param_dtype"});
  refused({.loss_scale = "1024"}, {"loss_scale = 1024 with numerics = layout_free", "take loss_scale = none"});
  refused({.param_dtype = DType::f16, .loss_scale = "2"}, {"take loss_scale = none, or bf16", "and loss_scale = auto"});
  refused({.gather = "int8"}, {"gather = int8 with numerics = layout_free"});
  refused({.reduce = "int8"}, {"reduce = int8 with numerics = layout_free"});
  refused({.accumulate_shards = true}, {"accumulate_shards = true with numerics = layout_free"});
  refused({.offload = "all"}, {"offload = all with numerics = layout_free", "parameters or optimizer"});
  const TrainingPlan plan{.numerics = "layout_free"};
  const auto refused_on = [](const TrainingPlan& told, const nn::PlanFacts& facts,
                             std::initializer_list<std::string_view> parts) {
    expect_error([&] { nn::check_plan(told, facts); }, parts);
  };
  refused_on(plan, {.ranks = 3}, {"leaves = 8 do not divide among 3 ranks", "take 2 or 4"});
  refused_on(plan, {.ranks = 16}, {"leaves = 8 do not divide among 16 ranks", "take leaves = 16, or 8 of these"});
  refused_on({.mesh = "dp=3,tp=2", .numerics = "layout_free"}, {.ranks = 6}, {"among 3 ranks with data of their own"});
  refused_on(plan, {.ranks = 2, .batch = 12}, {"batch = 12 does not divide into leaves = 8", "8 or 16", "or take leaves = 4"});
  refused_on(plan, {.ranks = 2, .batch = 2}, {"make it 8, a multiple of 8, or take leaves = 2"});
  refused_on(plan, {.ranks = 4, .batch = 6}, {"make it 8, a multiple of 8"});
  expect_error([&] { nn::check_survives({.mesh = "replicate=2,dp=2", .numerics = "layout_free"}, 4); },
               {"numerics = layout_free", "--restarts"});
  nn::check_plan(plan, {.ranks = 8, .batch = 16});
  EXPECT_EQ(nn::on_ranks(plan, 2).micro_batches, 4);
  EXPECT_EQ(nn::on_ranks({.micro_batches = 3}, 2).micro_batches, 3);
}

constexpr nn::Gpt::Config kGpt{.vocabulary = 20, .tokens = 8, .layers = 2, .heads = 2, .width = 8, .hidden = 32};

// A step by the plan, and the same by the calls that a user would write.
std::vector<float> losses(const TrainingPlan& plan, const Group& group, bool by_hand) {
  nn::Gpt model(kGpt);
  const nn::JobMesh mesh(plan.mesh, group);
  const nn::PlanFacts facts{.ranks = group->size(), .batch = 4};
  if (by_hand) {
    nn::parallelize(model, *mesh.tensor(), nn::gpt_plan(kGpt));
    nn::recompute_blocks(model, nn::recompute_policy("full"));
    nn::UnitPolicy policy = nn::strategy("shard_grad_op");
    policy.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
    nn::shard_units(model, mesh.data(), nn::units_by("fine"), policy);
  } else {
    const nn::AppliedPlan applied = nn::apply(plan, facts, model, mesh, nn::gpt_plan(kGpt));
    EXPECT_EQ(applied.local_batch, 2);
    EXPECT_EQ(applied.units.back(), nn::unit_of(model));
  }
  model.materialize(nn::Seed{1}, plan.device);
  nn::AdamW optimizer(model.parameters());
  nn::apply_offload(plan, facts, model, optimizer);
  const std::vector<std::int32_t> ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  const Tensor tokens = Tensor::from<std::int32_t>(ids, {2, 8});
  std::vector<float> out;
  for (int step = 0; step < 3; ++step) {
    const Tensor loss = model(tokens, tokens);
    backward(loss);
    optimizer.step_and_clear();
    out.push_back(loss.local().item<float>());
  }
  return out;
}

TEST(TrainingPlan, AppliedItIsTheCallsThatItStandsFor) {
  const TrainingPlan plan{.mesh = "dp=2,tp=2",
                          .strategy = "shard_grad_op",
                          .units = "fine",
                          .param_dtype = DType::bf16,
                          .recompute = "full"};
  run_ranks(4, [&](const Group& group) { EXPECT_EQ(losses(plan, group, false), losses(plan, group, true)); });
}

TEST(TrainingPlan, AModelTakesOnePlanAndAPlanItsMesh) {
  run_ranks(2, [](const Group& group) {
    nn::Gpt model(kGpt);
    const nn::JobMesh mesh("", group);
    expect_error([&] { nn::apply({.mesh = "tp=2"}, {.ranks = 2}, model, mesh); },
                 {"the plan's mesh is \"tp=2\"", "mesh(dp=2)"});
    expect_error([&] { nn::apply({.offload_keep = 1}, {.ranks = 2}, model, mesh); }, {"offload_keep = 1"});
    EXPECT_FALSE(nn::is_fully_sharded(model)) << "nothing has changed";
    nn::apply({}, {.ranks = 2}, model, mesh);
    expect_error([&] { nn::apply({}, {.ranks = 2}, model, mesh); }, {"sharded already", "once"});
  });
}

}  // namespace
}  // namespace sherd::testing
