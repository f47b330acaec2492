#pragma once
// A benchmark model's training run, as all our children train it: AdamW of lr 3e-4, betas 0.9 and 0.95, weight decay
// 0.1 of all parameters, no gradient norm and no clipping; the peers' loops do the same.
#include <memory>
#include <string>

#include "runtime/exec/context.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"
#include "tools/train/train_step.h"

namespace sherd::bench {

/// The run on `ranks` ranks by `plan`, resolved: sharded where several ranks have data of their own, or where the plan
/// asks for a dtype or a strategy, with f32 masters and reductions on one rank too. Along tp the sequence is sharded.
TrainConfig train_config(const BenchModel& model, const nn::TrainingPlan& plan, int ranks);
/// Its step, materialised from seed 1; loss and work are those of this rank alone (no TrainStep::Options::metrics).
/// Collective if there are several axes.
TrainStep train_step(const BenchModel& model, const nn::TrainingPlan& plan, const std::shared_ptr<ProcessGroup>& group,
                     const Links& link = {});

/// What a child trains, from its flags: a model by a plan.
struct BenchRow {
  std::string name = "tiny";  ///< of models.h
  nn::TrainingPlan plan{.compiled = true};
  Links link{};
  std::int64_t steps = 0, threads = 1;
  std::int64_t layers = 0, batch = 0, tokens = 0;  ///< 0: the model's; batch and tokens are those of a rank's batches
  bool tensor_parallel = false;                    ///< all ranks share one batch and shard the model's matrices

  BenchModel model() const;
  /// i32 [B, T].
  struct Batch {
    Tensor tokens, targets;
  };
};
/// Takes the flags: those of `defaults`, and `more`; sets the rank's threads. Error as take_flags().
BenchRow take_row(std::span<const std::string_view> args, BenchRow defaults = {}, Flags more = {});
/// The same for a kind of several ranks, which has `--group` too, and the group that moves what is on the row's device:
/// this rank's. Ranks from so many on are pinned to CPUs. Error, the same on all ranks, as chosen_group() has it.
std::pair<BenchRow, std::shared_ptr<ProcessGroup>> take_row_of_ranks(std::span<const std::string_view> args,
                                                                     int pinned_from, BenchRow defaults = {},
                                                                     Flags more = {});

/// Random tokens, other ones for every `rank`, on the plan's device.
BenchRow::Batch random_batch(const BenchRow& row, int rank);
/// Says who answers, and on which card, if it is one.
nlohmann::json greeting_of(const BenchRow& row);

/// A plain loop, clipping or not: what users write.
struct PlainLoop {
  std::unique_ptr<nn::LanguageModel> model;
  std::unique_ptr<nn::AdamW> optimizer{};
  bool clips = false;

  /// Draws the model from seed 1, and makes AdamW for it.
  void draw();
  /// The loss of tokens and targets, whose update is made.
  Tensor step(std::span<const Tensor> in) const;
};

// ---- one rank of a job that no machine here could hold, in training on a ghost rank (memory/README.md) ----

/// Ranks of a mesh "dp=64,tp=8".
int ranks_of_mesh(const std::string& mesh);

/// Makes this thread that rank for as long as it lives; its memory is in RankContext's accounts.
class GhostRank {
 public:
  /// Rank `rank` of the ranks of `mesh`, each block and the rest a group of fully_shard in bf16 with f32 masters and
  /// reductions, the sequence sharded over tp, AdamW, gradients clipped, nothing captured.
  GhostRank(const BenchModel& model, const std::string& mesh, int rank);

  /// An update by the model's batch: one for each data rank.
  void step();
  TrainStep& training() { return step_; }
  const Tensor& tokens() const { return tokens_; }  ///< i32 [B, T]; targets too

 private:
  const RankScope scope_;
  TrainStep step_;
  Tensor tokens_;
  std::int64_t next_ = 0;
};

}  // namespace sherd::bench
