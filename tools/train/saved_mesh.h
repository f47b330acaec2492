#pragma once
// A run that resumes on another number of ranks than its save's mesh is for.
#include <string>

#include "tools/train/config.h"

namespace sherd::train {

/// If `config`, completed by a save, has a mesh that `given` does not give and that is not for `ranks` ranks, lays dp
/// over all of them, and with that mesh lets go of what it alone could do, where it is not given either: a hybrid
/// strategy becomes the same one without replicas, a link of single axes none. A number of ranks to reshard to that no
/// longer divides dp becomes true. Returns what it has changed, as a line; empty if nothing. A mesh that is given
/// stays, and MeshAxes::of() refuses it.
std::string take_ranks_there_are(TrainConfig& config, const ConfigTable& given, int ranks);
/// nn::local_batch() of the run's batch; of one that resumes the error names what there is to go on with.
std::int64_t local_batch(const TrainConfig& config, std::int64_t data_ranks);

}  // namespace sherd::train
