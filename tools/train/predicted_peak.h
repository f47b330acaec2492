#pragma once
// What a rank of a training run will hold, before there is one: predict() (nn/plan/predict.h) of the run's own step.
#include <cstdint>
#include <functional>

#include "nn/plan/predict.h"
#include "runtime/exec/memory_log.h"
#include "tools/train/config.h"
#include "tools/train/train_step.h"

namespace sherd::train {

/// Peak of one rank, on the device that it trains on.
using PredictedPeak = nn::Prediction;

struct PredictOptions {
  std::int64_t memory_limit = 0;  ///< of the ghost; 0: none. Over it predict_peak() throws OutOfMemory, as the run does
  bool evaluates = true;          ///< forwards of micro-batches without a tape, as the run's evaluations
  TrainStepOptions step{};        ///< of the ghost's updates
  /// Called on the ghost with its step: before the first update, and after each, with the number of updates made.
  std::function<void(TrainStep& step, int updates)> observe{};
  /// If set, a log watches the ghost's memory, and this looks at it: in the end, or as OutOfMemory is thrown. `step` is
  /// null if there was no memory to build one.
  std::function<void(const MemoryLog& log, TrainStep* step)> look{};
};

/// Predicts the peak of rank `rank` of `ranks` that train as `config` says, from its strategy to batch, recomputation
/// and device, with the Trainer's loop: building, a first step, settled steps (recorded and replayed if
/// config.plan.compiled is on), an evaluation. config.plan.mesh names replicate where the strategy has replicas. The
/// text has `data_vocabulary` tokens. Weights and states that are loaded, saves, and the scratch that kernels keep per
/// thread are in no account. Takes the time of the program without its kernels, and no memory of the model's size;
/// touches no device and communicates with nobody. Throws as resolve(), as JobMesh and as TrainStep, and Error for a
/// batch that does not divide by the ranks with data of their own.
PredictedPeak predict_peak(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary,
                           const PredictOptions& options = {});

}  // namespace sherd::train
