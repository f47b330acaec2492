// The models of nn on ghost ranks: what a first and a settled step hold, by category and byte by byte, on meshes of
// every kind. Oracle: the accounts of ranks that are threads and compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "compile/compile.h"
#include "nn/checkpoint/training_state.h"
#include "nn/layers/dropout.h"
#include "nn/models/model_config.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/recompute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/workspace.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// Small ones are odd wherever heads allow, so that ranks hold different numbers of rows, and some none; in large ones
/// kernels work block by block.
struct TokenSizes {
  std::int64_t vocabulary, tokens, width, hidden;
};
constexpr TokenSizes kSmallGpt{13, 7, 6, 11}, kSmallLlama{13, 7, 16, 17}, kLarge{601, 80, 128, 352};
constexpr std::int64_t kSequences = 2;

nn::LanguageModelConfig gpt_config(const TokenSizes& sizes) {
  nn::Gpt::Config c{.vocabulary = sizes.vocabulary, .tokens = sizes.tokens, .layers = 3, .heads = 2};
  c.width = sizes.width;
  c.hidden = sizes.hidden;
  c.dropout = 0.1;
  return c;
}
nn::LanguageModelConfig llama_config(const TokenSizes& sizes) {
  nn::Llama::Config c{.vocabulary = sizes.vocabulary, .tokens = sizes.tokens, .layers = 3, .heads = 4, .kv_heads = 2};
  c.width = sizes.width;
  c.hidden = sizes.hidden;
  return c;
}

struct ModelCase {
  Grid3 grid{1, 1, 1};
  bool llama = false, bf16 = false;
  bool shards = true, sequence = true;
  bool frozen = false;  ///< the embedding and the first block
  bool captured = false, large = false;
  const char* recompute = "none";
  TokenSizes sizes() const { return large ? kLarge : llama ? kSmallLlama : kSmallGpt; }
  nn::LanguageModelConfig config() const { return llama ? llama_config(sizes()) : gpt_config(sizes()); }
  std::string text() const {
    return fmt::format("{}{} {} replicate={} dp={} tp={}{}{}{}{} recompute {}", large ? "large " : "",
                       llama ? "Llama" : "GPT", bf16 ? "bf16" : "f32", grid.replicas, grid.dp, grid.tp,
                       shards ? "" : " not sharded", grid.tp > 1 && sequence ? " sequence" : "",
                       frozen ? " frozen" : "", captured ? " captured" : "", recompute);
  }
};

/// What a rank holds after a part of its training, has held at most of each category, and held at its peak.
struct Bytes {
  std::string when;
  CategoryBytes held{}, peak{}, at_peak{};
};

/// A rank's model in training.
class ModelRun {
 public:
  ModelRun(const Group& group, const ModelCase& c) : group_(group), root_(c.grid.mesh(group)), sizes_(c.sizes()) {
    const nn::LanguageModelConfig config = c.config();
    nn::set_seed({3});
    model_ = nn::make_language_model(config);
    if (c.grid.tp > 1) nn::parallelize(*model_, root_["tp"], nn::make_plan(config, {.sequence_parallel = c.sequence}));
    nn::UnitPolicy options;
    if (c.bf16) options.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
    if (c.shards) shard(*model_, c.grid.data(root_), options, options);
    nn::recompute_blocks(*model_, nn::recompute_policy(c.recompute));
    model_->materialize(nn::Seed{11});
    if (c.frozen) freeze();
    optimizer_ = std::make_unique<nn::AdamW>(model_->parameters());
    if (c.captured)
      compiled_.emplace([this](std::span<const Tensor> batch) { return update(batch), std::vector<Tensor>(); },
                        CompileOptions{.group = group_});
    note("built");
  }

  void step() {
    nn::set_step(next_step_);
    const auto ids = [&](std::int64_t shift) {
      std::vector<std::int32_t> list;
      for (std::int64_t i = 0; i < kSequences * sizes_.tokens; ++i)
        list.push_back(static_cast<std::int32_t>((7 * i + shift + root_.coordinate(1)) % sizes_.vocabulary));
      return Tensor::from<std::int32_t>(list, {kSequences, sizes_.tokens});
    };
    const Tensor tokens = ids(next_step_), targets = ids(next_step_ + 5);
    const Tensor batch[] = {tokens, targets};
    if (compiled_) (*compiled_)(batch);
    else update(batch);
    note(fmt::format("step {}", next_step_++));
  }
  void save(const std::string& dir) { nn::save_checkpoint(dir, {}, state(), *group_); }
  void load(const std::string& dir) {
    nn::load_checkpoint(ckpt::CheckpointReader(dir), state());
    note("loaded");
  }
  const std::vector<Bytes>& bytes() const { return bytes_; }
  std::string how() const { return compiled_ ? compiled_->why() : "ran eagerly"; }

 private:
  void update(std::span<const Tensor> batch) {
    backward((*model_)(batch[0], batch[1]));
    nn::clip_grad_norm(*optimizer_, 0.1);
    optimizer_->step_and_clear();
  }
  std::vector<nn::StateEntry> state() { return nn::training_state(*model_, optimizer_.get()); }
  void freeze() {
    model_->parameter("tok.weight").set_requires_grad(false);
    for (nn::Parameter* p : model_->blocks()[0]->parameters()) p->set_requires_grad(false);
  }
  void note(std::string when) {
    Accounting& account = RankContext::current().allocator().accounting();
    bytes_.push_back({std::move(when), account.current(), account.peak(), account.at_peak()});
    account.reset_peaks();
  }

  Group group_;
  DeviceMesh root_;
  TokenSizes sizes_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  std::optional<CompiledStep> compiled_;
  std::int64_t next_step_ = 0;
  std::vector<Bytes> bytes_;
};

/// `train` on threads, then on a ghost of each of them: all that they note must be equal.
template <class Train>
void expect_ghosts_hold_what_threads_hold(const ModelCase& c, const Train& train) {
  SCOPED_TRACE(c.text());
  const auto ranks = static_cast<std::size_t>(c.grid.ranks());
  std::vector<std::vector<Bytes>> expected(ranks);
  std::vector<std::int64_t> buffers(ranks);
  run_ranks(c.grid.ranks(), [&](const Group& group) {
    const auto r = static_cast<std::size_t>(group->rank());
    expected[r] = train(group, c);
    buffers[r] = cpu::thread_workspace_bytes();
  });
  for (std::size_t r = 0; r < ranks; ++r) {
    const RankScope scope(fmt::format("rank {}", r), {.ghost = true});
    set_world_group(make_ghost_group(static_cast<int>(r), c.grid.ranks()));
    const std::vector<Bytes> actual = train(world_group(), c);
    ASSERT_EQ(actual.size(), expected[r].size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const Bytes& e = expected[r][i];
      SCOPED_TRACE(fmt::format("rank {}, {}", r, e.when));
      EXPECT_GT(e.peak[static_cast<std::size_t>(MemoryCategory::parameters)], 0);
      EXPECT_EQ(actual[i].held, e.held) << describe(actual[i].held) << "; a thread: " << describe(e.held);
      EXPECT_EQ(actual[i].peak, e.peak) << describe(actual[i].peak) << "; a thread: " << describe(e.peak);
      EXPECT_EQ(actual[i].at_peak, e.at_peak) << describe(actual[i].at_peak) << "; a thread: " << describe(e.at_peak);
    }
  }
  // What no account knows: tiles and panels of kernels, one set per thread, bounded by the blocks that kernels work on.
  const std::int64_t most = *std::ranges::max_element(buffers);
  fmt::print("{}: and at most {} in buffers of kernels, per thread\n", c.text(), format_bytes(most));
  EXPECT_LE(most, std::int64_t{16} << 20);
}

/// The first steps, of which the last is settled: the order of modules is known, optimizer state is there.
std::vector<Bytes> train_three_steps(const Group& group, const ModelCase& c) {
  ModelRun run(group, c);
  for (int i = 0; i < 3; ++i) run.step();
  return run.bytes();
}

void expect_models_train_alike(ModelCase c) {
  for (const bool llama : {false, true})
    for (const bool bf16 : {false, true}) {
      if (bf16 && !c.shards) continue;  // the policy is fully_shard's
      c.llama = llama;
      c.bf16 = bf16;
      expect_ghosts_hold_what_threads_hold(c, train_three_steps);
    }
}

TEST(GhostModels, ShardedOverOneAxis) {
  for (const int ranks : {1, 2, 4}) expect_models_train_alike({.grid = {1, ranks, 1}});
}

TEST(GhostModels, OfASizeThatKernelsDivide) {
  expect_models_train_alike({.grid = {1, 2, 1}, .large = true});
  expect_models_train_alike({.grid = {1, 1, 2}, .large = true});
}

TEST(GhostModels, ShardedAndReplicated) { expect_models_train_alike({.grid = {2, 2, 1}}); }

TEST(GhostModels, TensorParallel) {
  for (const bool shards : {false, true})
    for (const bool sequence : {false, true})
      expect_models_train_alike({.grid = {1, 1, 2}, .shards = shards, .sequence = sequence});
}

TEST(GhostModels, ShardedAndTensorParallel) {
  for (const bool sequence : {false, true}) expect_models_train_alike({.grid = {1, 2, 2}, .sequence = sequence});
}

TEST(GhostModels, WithFrozenParameters) {
  for (const Grid3& grid : {Grid3{1, 2, 1}, Grid3{2, 2, 1}, Grid3{1, 2, 2}})
    expect_models_train_alike({.grid = grid, .frozen = true});
}

TEST(GhostModels, Recomputed) {
  for (const char* recompute : {"selective", "full"})
    for (const Grid3& grid : {Grid3{1, 2, 1}, Grid3{1, 2, 2}})
      expect_models_train_alike({.grid = grid, .recompute = recompute});
}

// The first step runs eagerly, the second is recorded, the others replay it.
TEST(GhostModels, Captured) {
  for (const Grid3& grid : {Grid3{1, 1, 1}, Grid3{1, 2, 1}, Grid3{1, 2, 2}})
    for (const bool llama : {false, true})
      expect_ghosts_hold_what_threads_hold({.grid = grid, .llama = llama, .bf16 = true, .captured = true},
                                           [](const Group& group, const ModelCase& c) {
                                             ModelRun run(group, c);
                                             for (int i = 0; i < 4; ++i) run.step();
                                             EXPECT_EQ(run.how().substr(0, 8), "replayed") << run.how();
                                             return run.bytes();
                                           });
}

// Saved by ranks that compute. A ghost reads names and shapes of it, and accounts the memory of loading.
TEST(GhostModels, ResumedFromACheckpoint) {
  for (const Grid3& grid : {Grid3{1, 2, 1}, Grid3{1, 2, 2}})
    for (const bool frozen : {false, true}) {  // what was frozen has missed steps, and has counts of its own
      const ModelCase c{.grid = grid, .llama = true, .bf16 = true};
      ModelCase saved = c;
      saved.frozen = frozen;
      const TempDir dir;
      run_ranks(grid.ranks(), [&](const Group& group) {
        ModelRun run(group, saved);
        for (int i = 0; i < 2; ++i) run.step();
        run.save(dir.path());
      });
      expect_ghosts_hold_what_threads_hold(c, [&](const Group& group, const ModelCase& of) {
        ModelRun run(group, of);
        run.load(dir.path());
        for (int i = 0; i < 3; ++i) run.step();
        return run.bytes();
      });
    }
}

}  // namespace
}  // namespace sherd::testing
