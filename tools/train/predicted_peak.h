#pragma once
// What a rank of a training run will hold, before there is one: predict() (nn/plan/predict.h) of the run's own step.
#include <cstdint>

#include "nn/plan/predict.h"
#include "tools/train/config.h"

namespace sherd::train {

/// Peak of one rank, on the device that it trains on.
using PredictedPeak = nn::Prediction;

/// Predicts the peak of rank `rank` of `ranks` that train as `config` says, from its strategy to batch, recomputation
/// and device, with the Trainer's loop: building, a first step, settled steps (recorded and replayed if
/// config.plan.compiled is on), an evaluation. config.plan.mesh names replicate where the strategy has replicas. The
/// text has `data_vocabulary` tokens. Weights and states that are loaded, saves, and the scratch that kernels keep per
/// thread are in no account. Takes the time of the program without its kernels, and no memory of the model's size;
/// touches no device and communicates with nobody. Throws as resolve(), as JobMesh and as TrainStep, and Error for a
/// batch that does not divide by the ranks with data of their own.
PredictedPeak predict_peak(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary);

}  // namespace sherd::train
