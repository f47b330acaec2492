#pragma once
// Files of the repository, wherever it was built from.
#include <string>
#include <string_view>

namespace sherd::testing {

/// source_path("tests/golden/gpt2.safetensors"): absolute.
std::string source_path(std::string_view relative);

}  // namespace sherd::testing
