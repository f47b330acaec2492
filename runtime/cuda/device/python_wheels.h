#pragma once
// Libraries that Python's package index delivers: a wheel puts them into a folder that the loader does not know.
#include <string>
#include <string_view>
#include <vector>

#include "runtime/os/settings.h"

namespace sherd::cuda {

/// Existing files `file` ("nvidia/nccl/lib/libnccl.so.2") of the packages of VIRTUAL_ENV, CONDA_PREFIX, the python3 on
/// PATH and ~/.local, in this order. No Python is run.
std::vector<std::string> files_of_wheels(const Environment& environment, std::string_view file);

}  // namespace sherd::cuda
