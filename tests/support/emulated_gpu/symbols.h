#pragma once
// Names of functions from their addresses.
#include <string>

namespace sherd::cuda::emulated {

/// From the symbol table of the file that holds the function, local functions included; "" if it has none.
/// The reference stays valid.
const std::string& mangled_name(const void* function);
/// Without return type, parameters and the namespaces of kernels: "scale<float, 4>".
std::string readable_name(const void* function);

}  // namespace sherd::cuda::emulated
