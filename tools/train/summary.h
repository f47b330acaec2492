#pragma once
// What a finished run leaves for its report.
#include <cstdint>
#include <optional>
#include <string>

#include "compile/compile.h"
#include "nn/checkpoint/save/async_saver.h"
#include "runtime/comm/board/exposed.h"
#include "runtime/exec/memory_log.h"
#include "runtime/memory/accounting.h"
#include "runtime/op/attrs/attr_list.h"
#include "tools/train/run_times.h"

namespace sherd::train {

/// How often a run has outlived replicas, and how long it stood still for it.
struct SurvivalCounts {
  std::int64_t lost = 0, returned = 0;  ///< replicas
  double lost_seconds = 0, returned_seconds = 0;
  static constexpr AttrField fields[] = {
      attr<&SurvivalCounts::lost>("lost"), attr<&SurvivalCounts::returned>("returned"),
      attr<&SurvivalCounts::lost_seconds>("lost_seconds"), attr<&SurvivalCounts::returned_seconds>("returned_seconds")};
};

struct TrainSummary {
  double first_loss = 0, last_losses_mean = 0;  ///< first step; mean of the last 10 steps of this run
  std::optional<double> val_loss;
  CategoryBytes peak_bytes{};                          ///< this rank's peak per category over all steps
  std::int64_t peak_total = 0;                         ///< of all together
  std::optional<CompiledStep::Predicted> predicted{};  ///< of captured updates with a memory budget, on this rank
  std::optional<MemoryLog::Picture> peak{};            ///< rank 0's, if config.explain_peak asks for it
  RunTimes times{};                                    ///< of all steps but the first two
  CommCounts step_comm{};                              ///< collectives of the last training step
  CommTimes comm{};                                    ///< of all steps but the first two, in which orders are recorded
  double seconds = 0;
  std::int64_t steps = 0;                         ///< updates made, those before this run included
  std::optional<double> loss_scale;               ///< of the last step, if the loss is scaled
  std::int64_t skipped_steps = 0;                 ///< without an update, those before this run included
  std::int64_t rollbacks = 0;                     ///< to an earlier save, in this run
  std::optional<nn::AsyncSaver::Counts> saves{};  ///< this rank's, if config.save_async asks for such
  std::optional<SurvivalCounts> survival{};       ///< of a run that may outlive replicas
  std::string state_hash{};                       ///< rank 0's, of layout_free: ckpt::hash_state() of what was trained
  int stopped_by = 0;                             ///< the signal that ended the run before its last step; 0: none did
};

}  // namespace sherd::train
