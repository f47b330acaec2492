#pragma once
// How much memory this process may have.
#include <cstdint>

namespace sherd {

/// Bytes: the host's memory, or the limit of the control group that this process is in, if that is less.
std::int64_t host_memory();

}  // namespace sherd
