#pragma once
// A training run that `sherd run --restarts` starts again: where it goes on, and with how many ranks.
#include <string>

#include "runtime/comm/job/rank.h"
#include "tools/train/config.h"

namespace sherd::train {

/// The key of a save's state that names the launch which made it (RankInfo::job).
inline constexpr const char* kJobOfSave = "job";

/// The key of the launcher's store for the folder in which a start of the job has saved (RankInfo::saves of later
/// ones).
inline constexpr const char* kSavesOfJob = "sherd/saves";

/// On the rank of `sherd run` that commits saves, when one is committed. False if the launcher does not answer: it may
/// be stopped, which is no reason for a run to fail.
bool tell_launcher_of_saves(const std::string& folder);

/// The folder with saves that an earlier start of this job made: `config.save`, or where `config.resume` points to, or
/// the folder of that save. Empty if this is the first start or none has saved: then the run begins as it was told to.
/// What else lies there, such as the saves of a run that --overwrite replaces, is none of this job. Throws Error, with
/// what to do, where the launcher knows that an earlier start has saved into `config.save`, and there is nothing of it
/// that can be read.
std::string saves_of_earlier_start(const TrainConfig& config, const RankInfo& rank);

struct RanksThatFit {
  int ranks = 1;
  nn::MeshAxes mesh{};  ///< for as many
  std::string text;     ///< what is different from the first start; empty: nothing
};

/// All ranks, on the config's mesh; or, if a restart has left ranks out, the largest mesh of the same axes for the
/// remaining ones by which the batch divides. An axis becomes no longer, and tp a divisor of what it was, so that
/// the model divides as before; of equal products that with the longest tp, then with the fewest replicas. Error for a
/// batch that no number of ranks divides.
RanksThatFit ranks_that_fit(const TrainConfig& config, const RankInfo& rank);

}  // namespace sherd::train
