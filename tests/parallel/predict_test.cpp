// What is predicted of a program's own model. Oracle: the accounts of ranks that train it, to the byte.
#include "nn/plan/predict.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "compile/compile.h"
#include "nn/layers/embedding.h"
#include "nn/layers/linear.h"
#include "nn/models/model_config.h"
#include "nn/module_list.h"
#include "nn/optim/adamw.h"
#include "nn/optim/sgd.h"
#include "nn/random_rows.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/grad_mode.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using nn::TrainingPlan;

struct OwnBlock : nn::Layer<OwnBlock> {
  nn::Linear& up = add<nn::Linear>("up", 12, 48);
  nn::Linear& down = add<nn::Linear>("down", 48, 12);
  Tensor forward(const Tensor& x) { return x + down(gelu(up(x))); }
};

struct OwnModel : nn::Layer<OwnModel> {
  nn::Embedding& tok = add<nn::Embedding>("tok", 23, 12);
  nn::ModuleList<OwnBlock>& blocks = add<nn::ModuleList<OwnBlock>>("blocks");
  nn::Linear& head = add<nn::Linear>("head", 12, 23);
  OwnModel() {
    for (int i = 0; i < 3; ++i) blocks.append();
  }
  Tensor forward(const Tensor& ids) {  // [B, T] -> [B, T, 23]
    Tensor x = tok(ids);
    for (OwnBlock* block : blocks.items()) x = (*block)(x);
    return head(x);
  }
};

Tensor loss_of_own(nn::Module& model, std::span<const Tensor> in) {
  return cross_entropy(static_cast<OwnModel&>(model)(in[0]), in[1]);
}

nn::PlannedModel own_model() {
  return {.make = [] { return std::make_unique<OwnModel>(); },
          .batch =
              [](std::int64_t rows, Device device) {
                const auto ids = [&] { return Tensor::empty({rows, 6}, DType::i32, device); };
                return std::vector{ids(), ids()};
              },
          .loss = loss_of_own,
          .styles = {{"blocks.*.up", nn::colwise()}, {"blocks.*.down", nn::rowwise()}},
          .capture =
              [](nn::PlannedModel::Step step) {
                const auto captured = std::make_shared<CompiledStep>(std::move(step));
                return [captured](std::span<const Tensor> in) { return (*captured)(in); };
              }};
}

struct Held {
  CategoryBytes peak{}, held{};
  std::int64_t bytes = 0;
};

// The same training by its own loop, with values.
Held train(const TrainingPlan& plan, const nn::PlanFacts& facts, const Group& group, const nn::PlannedModel& own) {
  Allocator& memory = RankContext::current().allocator();
  memory.set_limit(facts.memory_limit);
  const nn::JobMesh mesh(plan.mesh, group);
  const auto model = own.make();
  const std::int64_t rows = nn::apply(plan, facts, *model, mesh, own.styles).local_batch;
  model->materialize(nn::Seed{5});
  nn::AdamW optimizer(model->parameters());
  nn::apply_offload(plan, facts, *model, optimizer);
  std::optional<nn::LossScaler> scaler;
  if (const auto scaling = plan.loss_scale.options(nn::has_f16(plan))) scaler.emplace(*scaling);
  nn::PlannedModel::Step step = [&](std::span<const Tensor> in) {
    const Tensor loss =
        nn::forward_backward(plan, *model, in, [&](auto part) { return own.loss(*model, part); },
                             {.scaler = scaler ? &*scaler : nullptr, .leaves_share_pass = own.leaves_share_pass});
    if (scaler) scaler->unscale(optimizer);
    optimizer.step_and_clear();
    if (scaler) scaler->update();
    return std::vector{loss};
  };
  if (plan.compiled) step = own.capture(step);
  Held result{.bytes = memory.accounting().total_peak()};
  for (int i = 0; i < (plan.compiled ? 5 : 4); ++i) {
    memory.accounting().reset_peaks();
    nn::set_step(i);
    {
      const Tensor ids = zeros({rows, 6}, DType::i32), targets = zeros({rows, 6}, DType::i32);
      const std::vector<Tensor> out = step(std::vector{ids, targets});
    }
    for (std::size_t c = 0; c < kNumCategories; ++c)
      result.peak[c] = std::max(result.peak[c], memory.accounting().peak()[c]);
    result.bytes = std::max(result.bytes, memory.accounting().total_peak());
  }
  result.held = memory.accounting().current();
  return result;
}

void expect_as_predicted(const TrainingPlan& plan, const nn::PlanFacts& facts,
                         const nn::PlannedModel& own = own_model()) {
  SCOPED_TRACE(fmt::format("{} on {} ranks", print(plan), facts.ranks));
  run_ranks(facts.ranks, [&](const Group& group) {
    const nn::Prediction predicted = nn::predict(plan, facts, own, group->rank());
    const Held held = train(plan, facts, group, own);
    EXPECT_EQ(describe(predicted.peak), describe(held.peak));
    EXPECT_EQ(describe(predicted.held), describe(held.held));
    EXPECT_EQ(predicted.bytes, held.bytes) << predicted.when;
    EXPECT_FALSE(predicted.when.empty());
  });
}

// The head is tied, so leaves wait for both of its terms.
nn::PlannedModel model_of_leaves() {
  nn::PlannedModel own = own_model();
  own.make = [] {
    return nn::make_language_model(
        nn::Gpt::Config{.vocabulary = 23, .tokens = 6, .layers = 2, .heads = 2, .width = 12, .tied_head = true});
  };
  own.loss = [](nn::Module& model, std::span<const Tensor> in) {
    return static_cast<nn::LanguageModel&>(model)(in[0], in[1]);
  };
  own.leaves_share_pass = true;
  return own;
}

TEST(Predict, IsWhatLeavesOfOnePassHold) {
  for (const TrainingPlan& plan :
       {TrainingPlan{.numerics = "layout_free"}, TrainingPlan{.recompute = "full", .numerics = "layout_free"},
        TrainingPlan{.numerics = "layout_free", .compiled = true}})
    for (const int ranks : {1, 2}) expect_as_predicted(plan, {.ranks = ranks, .batch = 16}, model_of_leaves());
}

TEST(Predict, IsWhatAnOwnModelHolds) {
  const std::vector<TrainingPlan> of_two{
      {},
      {.recompute = "full"},
      {.strategy = "shard_grad_op", .micro_batches = 3},
      {.accumulate_shards = true, .param_dtype = DType::bf16, .micro_batches = 2},
      {.param_dtype = DType::f16},
      {.offload = "all"},
      {.offload_activations = "blocks"},
      {.mesh = "tp=2", .recompute = "selective"},
      {.compiled = true},
  };
  for (const TrainingPlan& plan : of_two) expect_as_predicted(plan, {.ranks = 2, .batch = 12});
  expect_as_predicted({}, {.batch = 4});
  expect_as_predicted({.numerics = "layout_free"}, {.ranks = 2, .batch = 16});
  expect_as_predicted({.param_dtype = DType::bf16, .numerics = "layout_free"}, {.batch = 16});
  expect_as_predicted({.fully_shard = false, .compiled = true}, {.batch = 4});
  expect_as_predicted({.mesh = "dp=2,tp=2", .recompute = "full"}, {.ranks = 4, .batch = 12});
  expect_as_predicted({.mesh = "dp=2,tp=2", .recompute = "full", .offload = "all"}, {.ranks = 4, .batch = 12});
  expect_as_predicted({.mesh = "replicate=2,dp=2", .strategy = "hybrid_shard"}, {.ranks = 4, .batch = 12});
}

TEST(Predict, NamesTheModuleOfThePeak) {
  const nn::Prediction predicted = nn::predict({}, {.ranks = 2, .batch = 512}, own_model(), 0);
  EXPECT_TRUE(predicted.moment.module.starts_with("head") || predicted.moment.module.starts_with("blocks."))
      << describe(predicted.moment);
  EXPECT_TRUE(predicted.when.starts_with("step ")) << predicted.when;
  nn::PlannedModel lean = own_model();
  lean.optimizer = [](const std::vector<nn::Parameter*>& parameters) {
    return std::make_unique<nn::Sgd>(parameters, nn::Sgd::Options{.lr = 1});
  };
  lean.evaluates = true;
  const nn::Prediction without_state = nn::predict({}, {.ranks = 2, .batch = 512}, lean, 0);
  EXPECT_LT(without_state.held[static_cast<std::size_t>(MemoryCategory::optimizer)],
            predicted.held[static_cast<std::size_t>(MemoryCategory::optimizer)]);
}

TEST(Predict, BelowWhatIsNeededMemoryRunsOutAsInTraining) {
  const TrainingPlan plan{.recompute = "full"};
  nn::PlanFacts facts{.ranks = 2, .batch = 12};
  for (int rank = 0; rank < 2; ++rank)
    facts.memory_limit = std::max(facts.memory_limit, nn::predict(plan, facts, own_model(), rank).bytes);
  run_ranks(2, [&](const Group& group) { EXPECT_NO_THROW(train(plan, facts, group, own_model())); });
  --facts.memory_limit;
  EXPECT_THROW(run_ranks(2, [&](const Group& group) { train(plan, facts, group, own_model()); }), OutOfMemory);
  bool has_looked = false;
  expect_error(
      [&] {
        for (int rank = 0; rank < 2; ++rank)
          nn::predict(plan, facts, own_model(), rank, [&](const MemoryLog& log) {
            has_looked = has_looked || (log.refusal() && log.refusal()->held.total > facts.memory_limit / 2);
          });
      },
      {"out of memory", "of the limit of"});
  EXPECT_TRUE(has_looked);
}

TEST(Predict, BadInput) {
  const nn::PlannedModel own = own_model();
  expect_error([&] { nn::predict({}, {.ranks = 2, .batch = 4}, own, 2); }, {"rank 2 of a ghost group of 2"});
  expect_error([&] { nn::predict({}, {.ranks = 2}, own, 0); }, {"predict", "PlanFacts::batch"});
  expect_error([&] { nn::predict({}, {.ranks = 2, .batch = 3}, own, 0); }, {"batch = 3", "multiple of 2"});
  expect_error([&] { nn::predict({.mesh = "dp=3"}, {.ranks = 2, .batch = 4}, own, 0); }, {"dp=3", "this run has 2"});
  nn::PlannedModel eager = own_model();
  eager.capture = {};
  expect_error([&] { nn::predict({.compiled = true}, {.batch = 4}, eager, 0); }, {"compiled", "PlannedModel::capture"});
  OwnModel model;
  expect_error([&] { nn::forward_backward({.micro_batches = 2}, model, own.batch(3, Device::cpu()), {}); },
               {"a batch of 3 rows does not divide into 2 micro-batches"});
  expect_error([&] { nn::forward_backward({}, model, {}, {}); }, {"the batch has no tensor"});
}

}  // namespace
}  // namespace sherd::testing
