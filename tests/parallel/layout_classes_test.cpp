// Which layouts of ranks train to the same bits: parameters, optimizer state and losses are compared, whole. The golden
// has a line for each class of layouts; a class may join another, and none may fall apart. Oracle: one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>

#include "compile/compile.h"
#include "nn/checkpoint/full/state_hash.h"
#include "nn/models/model_config.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/plan/apply.h"
#include "nn/random_rows.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/core/grad_mode.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/source_path.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using nn::TrainingPlan;

constexpr std::int64_t kRowsOfBatch = 8, kTokensOfRow = 12, kIds = 61;

const nn::Gpt::Config kTiedGptOfClasses{.vocabulary = kIds,
                                        .tokens = kTokensOfRow,
                                        .layers = 2,
                                        .heads = 4,
                                        .width = 32,
                                        .dropout = 0.1,
                                        .scaled_residual_init = true};
const nn::Llama::Config kLlamaOfClasses{
    .vocabulary = kIds, .tokens = kTokensOfRow, .layers = 2, .heads = 4, .kv_heads = 4, .width = 32, .hidden = 48};

struct RankLayout {
  std::string name;
  int ranks = 1;
  TrainingPlan plan{};
  int threads = 1;
  bool leaves_share_pass = false;
};

std::vector<RankLayout> rank_layouts() {
  return {{"1", 1},
          {"again", 1},
          {"threads", 1, {}, 2},
          {"accumulate2", 1, {.micro_batches = 2}},
          {"accumulate4", 1, {.micro_batches = 4}},
          {"recompute", 1, {.recompute = "full"}},
          {"compile", 1, {.compiled = true}},
          {"dp2", 2},
          {"dp2:no_shard", 2, {.strategy = "no_shard"}},
          {"dp2:shard_optimizer", 2, {.strategy = "shard_optimizer"}},
          {"dp2:shard_grad_op", 2, {.strategy = "shard_grad_op"}},
          {"dp2:fine", 2, {.units = "fine"}},
          {"dp2:compile", 2, {.compiled = true}},
          {"dp2:recompute", 2, {.recompute = "full"}},
          {"dp4", 4},
          {"dp4:no_shard", 4, {.strategy = "no_shard"}},
          {"dp8", 8},
          {"2x2:hybrid_shard", 4, {.mesh = "replicate=2,dp=2", .strategy = "hybrid_shard"}},
          {"2x2:hybrid_shard_state", 4, {.mesh = "replicate=2,dp=2", .strategy = "hybrid_shard_state"}},
          {"dp2:accumulate2", 2, {.micro_batches = 2}},
          {"tp2", 2, {.mesh = "dp=1,tp=2"}},
          {"tp4", 4, {.mesh = "dp=1,tp=4"}},
          {"tp2:sequence", 2, {.mesh = "dp=1,tp=2", .tensor_parallel = {.sequence_parallel = true}}},
          {"dp2,tp2", 4, {.mesh = "dp=2,tp=2"}}};
}

std::vector<Tensor> tokens_of_step(std::int64_t step, int rank, int ranks) {
  const std::int64_t rows = kRowsOfBatch / ranks;
  const Tensor tokens = Tensor::empty({rows, kTokensOfRow}, DType::i32),
               targets = Tensor::empty({rows, kTokensOfRow}, DType::i32);
  for (std::int64_t i = 0; i < rows; ++i) {
    std::uint64_t state = static_cast<std::uint64_t>(step * kRowsOfBatch + rank * rows + i) * 0x9e3779b97f4a7c15u + 1;
    for (std::int64_t t = 0; t < kTokensOfRow; ++t) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      tokens.mutable_data<std::int32_t>()[i * kTokensOfRow + t] = static_cast<std::int32_t>((state >> 33U) % kIds);
      targets.mutable_data<std::int32_t>()[i * kTokensOfRow + t] = static_cast<std::int32_t>((state >> 21U) % kIds);
    }
  }
  return {tokens, targets};
}

// The hash of the state after these steps, and the losses, on rank 0.
std::string trained(const RankLayout& layout, const nn::LanguageModelConfig& architecture, int steps,
                    const Group& group) {
  set_threads(layout.threads);
  const nn::JobMesh mesh(layout.plan.mesh, group);
  const TrainingPlan& plan = layout.plan;
  const auto model = nn::make_language_model(architecture);
  nn::set_seed(nn::Seed{3});
  apply(plan, {.ranks = group->size(), .batch = kRowsOfBatch}, *model, mesh,
        nn::make_plan(architecture, plan.tensor_parallel));
  model->materialize(nn::Seed{3});
  nn::AdamW optimizer(model->parameters(), {.lr = 3e-3});
  int forwards = 0;
  const auto loss_of = [&](std::span<const Tensor> part) { return ++forwards, (*model)(part[0], part[1]); };
  const auto update = [&](std::span<const Tensor> in) {
    Tensor loss = forward_backward(plan, *model, in, loss_of, {.leaves_share_pass = layout.leaves_share_pass});
    const bool is_free = plan.numerics.layout_free();
    nn::clip_grad_norm(optimizer, 0.5,
                       (is_free ? nn::layout_free_grad_norm : nn::grad_norm)(optimizer.parameters(), 2));
    optimizer.step_and_clear();
    const GradMode off(false);
    return std::vector{all_reduce(std::move(loss), mesh.data_group(), ReduceKind::avg)};
  };
  std::optional<CompiledStep> compiled;
  if (plan.compiled) compiled.emplace(update, CompileOptions{.group = group});
  std::string losses;
  for (std::int64_t step = 0; step < steps; ++step) {
    nn::set_step(step);
    const std::vector<Tensor> in = tokens_of_step(step, mesh.data_rank(), mesh.num_data_ranks());
    const Tensor loss = (compiled ? (*compiled)(in) : update(in))[0];
    losses += fmt::format(" {:a}", loss.item<float>());
  }
  EXPECT_TRUE(!layout.leaves_share_pass || forwards <= steps) << layout.name;
  EXPECT_TRUE(!compiled || compiled->mode() == CompiledStep::Mode::replay) << compiled->why();
  const bool says_leaves = compiled && compiled->why().find(" leaves in ") != std::string::npos;
  EXPECT_EQ(says_leaves, compiled && layout.leaves_share_pass) << layout.name;
  return ckpt::hash_state(nn::training_state(*model, &optimizer), *group) + losses;
}

std::string trained(const RankLayout& layout, const nn::LanguageModelConfig& architecture, int steps) {
  std::string result;
  run_ranks(layout.ranks, [&](const Group& group) {
    const std::string own = trained(layout, architecture, steps, group);
    if (group->rank() == 0) result = own;
  });
  return result;
}

using Classes = std::vector<std::vector<std::string>>;
Classes classes_of(const std::vector<RankLayout>& all, const nn::LanguageModelConfig& architecture, int steps) {
  std::map<std::string, std::size_t> known;
  Classes classes;
  for (const RankLayout& layout : all) {
    const auto [entry, is_new] = known.emplace(trained(layout, architecture, steps), classes.size());
    if (is_new) classes.emplace_back();
    classes[entry->second].push_back(layout.name);
  }
  return classes;
}

std::string text_of_classes(const Classes& classes) {
  std::string text;
  for (const auto& names : classes) text += fmt::format("{}\n", fmt::join(names, " "));
  return text;
}

// Each line of the golden, that of its title, is within one class.
void expect_not_more(const Classes& found, const std::string& title) {
  std::ifstream golden(source_path("tests/golden/layout_classes.txt"));
  std::string line;
  while (std::getline(golden, line) && line != "# " + title) {}
  ASSERT_TRUE(golden) << "no line \"# " << title << "\" in the golden; found\n" << text_of_classes(found);
  std::size_t lines = 0;
  while (std::getline(golden, line) && !line.starts_with("#")) {
    if (line.empty()) continue;
    ++lines;
    std::istringstream words(line);
    const std::vector<std::string> names{std::istream_iterator<std::string>(words), {}};
    EXPECT_TRUE(std::ranges::any_of(found,
                                    [&](const auto& names_of_class) {
                                      return std::ranges::all_of(names, [&](const std::string& name) {
                                        return std::ranges::count(names_of_class, name) == 1;
                                      });
                                    }))
        << "\"" << line << "\" has fallen apart; found\n"
        << text_of_classes(found);
  }
  EXPECT_LE(found.size(), lines) << text_of_classes(found);
}

std::vector<RankLayout> all_in_bf16(std::vector<RankLayout> all) {
  for (RankLayout& layout : all) layout.plan.param_dtype = DType::bf16;
  return all;
}

std::vector<RankLayout> all_layout_free(std::vector<RankLayout> all) {
  std::erase_if(all, [](const RankLayout& layout) { return layout.plan.micro_batches > 1; });
  for (RankLayout& layout : all) layout.plan.numerics = "layout_free";
  return all;
}

TEST(LayoutClasses, OfTheDefaultInF32) {
  expect_not_more(classes_of(rank_layouts(), kTiedGptOfClasses, 10), "default, f32, tied gpt2");
}

TEST(LayoutClasses, OfTheDefaultInBf16) {
  expect_not_more(classes_of(all_in_bf16(rank_layouts()), kLlamaOfClasses, 10), "default, bf16, llama");
}

TEST(LayoutClasses, LayoutFreeIsOneForEachDivisionOfTensors) {
  expect_not_more(classes_of(all_layout_free(rank_layouts()), kTiedGptOfClasses, 10), "layout_free, f32, tied gpt2");
}

// Beside one layout for each division of tensors whose leaves run one after the other.
TEST(LayoutClasses, LeavesThatShareAPassChangeNoBit) {
  std::vector<RankLayout> all = all_layout_free(rank_layouts());
  for (RankLayout& layout : all) layout.leaves_share_pass = true;
  all.push_back(
      {"compile recompute", 2, {.recompute = "selective", .numerics = "layout_free", .compiled = true}, 1, true});
  const std::vector<std::string> divisions{"1", "tp2", "tp4", "tp2:sequence"};
  for (const std::string& name : divisions) {
    RankLayout apart = *std::ranges::find(all, name, &RankLayout::name);
    apart.name += " apart";
    apart.leaves_share_pass = false;
    all.push_back(std::move(apart));
  }
  for (const auto& layouts : {all, all_in_bf16(all)})
    for (const nn::LanguageModelConfig& architecture :
         std::vector<nn::LanguageModelConfig>{kTiedGptOfClasses, kLlamaOfClasses}) {
      const Classes found = classes_of(layouts, architecture, 6);
      EXPECT_EQ(found.size(), divisions.size()) << text_of_classes(found);
      for (const auto& names : found)
        EXPECT_EQ(std::ranges::count_if(names, [](const auto& name) { return name.ends_with(" apart"); }), 1)
            << text_of_classes(found);
    }
}

TEST(LayoutClasses, LayoutFreeIsOneForEachDivisionOfTensorsInBf16) {
  expect_not_more(classes_of(all_layout_free(all_in_bf16(rank_layouts())), kLlamaOfClasses, 10),
                  "layout_free, bf16, llama");
}

}  // namespace
}  // namespace sherd::testing
