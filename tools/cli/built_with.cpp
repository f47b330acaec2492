#include "tools/cli/built_with.h"

namespace sherd {

std::string_view why_built_without_cuda() { return SHERD_CUDA_WHY; }

}  // namespace sherd
