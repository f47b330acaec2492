#pragma once
// What `sherd train` prints at the end: memory per rank beside one rank's, collectives beside those of a ghost, files.
#include <string>

#include "tools/train/trainer.h"

namespace sherd::train {

/// The text for rank 0; empty on other ranks. Collective: peaks of all ranks are gathered.
std::string train_report(Trainer& trainer, const TrainConfig& config, const TrainSummary& summary);

}  // namespace sherd::train
