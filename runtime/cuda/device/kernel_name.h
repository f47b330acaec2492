#pragma once
// What a kernel is called, for errors and counters.
#include <string>

namespace sherd::cuda {

/// The symbol of a kernel, null if CUDA does not know it. Lives as long as the program. On a device that is lost CUDA
/// may no longer answer.
const char* kernel_symbol(const void* kernel);
/// "scale_kernel<float>" for a symbol: without return type, parameters and the namespaces of ours.
std::string readable_kernel(const char* symbol);

}  // namespace sherd::cuda
