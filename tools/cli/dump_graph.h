#pragma once
#include "tools/train/run.h"

namespace sherd {

/// Writes the captured update of a run that is opened to the folder that its config names: the texts of
/// compile/run/dump.h, and pictures of what it holds and takes (tools/table/graph_pictures.h). Collective: prices are
/// measured where there is no budget; rank 0 writes. Error, on all ranks, naming the file that cannot be written.
void dump_graph(train::Run& run);

}  // namespace sherd
