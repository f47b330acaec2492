#pragma once
// One row before it runs: what a rank holds, and what it does in a step, from a ghost of it; how long that takes, by
// prices.
#include <cstdint>
#include <optional>
#include <string>

#include "nn/plan/predict.h"
#include "runtime/exec/cluster.h"
#include "runtime/exec/simulate.h"
#include "runtime/exec/timeline.h"
#include "tools/train/config.h"

namespace sherd::plan {

using namespace train;

/// What ghosts say of a config, without a price.
struct Forecast {
  nn::Prediction memory{};  ///< of rank 0, which holds most
  std::int64_t state = 0;   ///< bytes of it that stay or come back each step: see state_bytes()
  Timeline step{};          ///< of rank 0, settled
};

/// Tokens that the model of `config` knows, without a look at the data. ExitError of usage where only data can tell.
std::int64_t planned_vocabulary(const TrainConfig& config);

/// Runs a ghost of `config`, resolved, whose mesh names all `ranks`. Takes the time of four updates without their
/// kernels. Throws as predict_peak().
Forecast forecast(const TrainConfig& config, int ranks, std::int64_t vocabulary);

/// Parameters, gradients and optimizer state, and parameters that stay gathered: what the table of strategies in
/// docs/strategies.md counts. Units that come and go are not in it.
std::int64_t state_bytes(const nn::TrainingPlan& plan, const nn::Prediction& memory);

/// Parameters of the model, a tied matrix once; and operations of a step of all ranks, train::step_flops().
struct ModelSize {
  std::int64_t parameters = 0;
  double flops = 0;
};
ModelSize model_size(const TrainConfig& config, std::int64_t vocabulary);

/// Tokens of a step over all ranks.
inline std::int64_t step_tokens(const TrainConfig& config) { return config.batch * config.model.sequence; }

}  // namespace sherd::plan
