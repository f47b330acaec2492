#pragma once
#include <string>

namespace sherd {

/// What this host calls itself; "?" if it does not say.
std::string host_name();

}  // namespace sherd
