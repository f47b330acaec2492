#pragma once
// A recorded step and what passes make of it, as files for people.
#include <string>

#include "compile/run/fit.h"

namespace sherd {

/// Fits the program as fit_program() does, and writes it to `folder` as it was recorded and as each pass left it, in
/// its complete form (ir/text/print.h), with the lines that differ from the file before (ir/text/line_diff.h):
///
///   00-recorded.txt   01-ssa.txt 01-ssa.diff   02-dead_nodes.txt 02-dead_nodes.diff   ...
///
/// The folder is made, files of these names are replaced. An empty `folder`: writes nothing, as ranks that fit together
/// with one that does. Error naming the file that cannot be written, on all ranks.
Fitted dump_graph(const ir::Program& recorded, FitOptions options, const std::string& folder);

}  // namespace sherd
