#pragma once
#include <string_view>

namespace sherd::train {

/// Equal to the version in CMakeLists.txt, which a test checks.
inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace sherd::train
