#pragma once
#include <string>

namespace sherd {

/// The path of `file` in the folder of libsherd.so, whether it is there or not; `file` alone if that is not known.
std::string beside_own_library(const std::string& file);

}  // namespace sherd
