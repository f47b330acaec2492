#include "tests/support/source_path.h"

namespace sherd::testing {

std::string source_path(std::string_view relative) { return std::string(SHERD_SOURCE_DIR "/").append(relative); }

}  // namespace sherd::testing
