#pragma once
// What the configure that built this program decided. One file knows, so that another configure compiles no more.
#include <string_view>

namespace sherd {

/// Why libsherd_cuda.so was not built ("no driver at configure time"); empty if it was.
std::string_view why_built_without_cuda();

}  // namespace sherd
