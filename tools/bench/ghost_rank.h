#pragma once
// One rank of a job that no machine here could hold: a benchmark model in training on a ghost rank (memory/README.md).
#include <string>

#include "runtime/exec/context.h"
#include "tools/bench/models.h"
#include "tools/train/train_step.h"

namespace sherd::bench {

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
