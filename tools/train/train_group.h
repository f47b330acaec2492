#pragma once
// The group of ranks that a Trainer is of, in a run that outlives replicas (survive.h), and what it takes over from the
// one before.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nn/checkpoint/full/carried_state.h"
#include "tools/train/metrics.h"
#include "tools/train/run_data.h"
#include "tools/train/run_record.h"

namespace sherd {

struct TrainGroup {
  /// Numbers of the first group: rows of the batch and dropout go by these, whichever ranks are left.
  int data_ranks = 1, data_rank = 0;
  /// Replicas of the first group that are left, and how many there were.
  std::vector<int> replicas{};
  int num_replicas = 1;

  /// The rest is of a later group. The batch is divided, the data read and the folder of saves the run's already.
  bool goes_on = false;
  std::int64_t updates = 0;                 ///< made before
  std::vector<bool> has_state{};            ///< by rank of the group
  const ckpt::CarriedState* state{};        ///< this rank's; empty if it has none
  RunRecord record{};                       ///< of a rank that has the state
  double seconds_before = 0;                ///< that a step which was left had taken
  RunData data{};                           ///< may lack its tokens in the first group, where they are read

  /// Asked by rank 0 between steps: whether the next group is to be formed.
  std::function<bool()> has_next{};
};

/// Two changes told as one, since the group between them has made no step. Who was lost before both, and in between has
/// come and gone, is not told of again. `present`: after both.
StepMetrics::Regroup merged(const StepMetrics::Regroup& first, const StepMetrics::Regroup& second,
                            const std::vector<int>& present);

/// "replica 1", "replicas 0, 2".
std::string replicas_text(const std::vector<int>& replicas);

}  // namespace sherd
