#include "runtime/os/settings.h"

#include <cstdlib>

namespace sherd {

namespace {
std::string variable(const char* name) { return text_of(process_environment(), name); }
}  // namespace

const Environment& process_environment() {
  static const Environment environment = [](const char* name) -> const char* { return std::getenv(name); };
  return environment;
}

std::string text_of(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value ? value : "";
}

std::string requested_cpu_level() { return variable("SHERD_CPU_LEVEL"); }
std::string requested_cuda_library() { return variable("SHERD_CUDA_LIB"); }
std::string requested_nccl_library() { return variable("SHERD_NCCL_LIB"); }
std::string requested_attention() { return variable("SHERD_ATTENTION"); }
std::string requested_device_memory() { return variable("SHERD_DEVICE_MEMORY"); }
bool cuda_launches_block() { return variable("CUDA_LAUNCH_BLOCKING") == "1"; }
std::string requested_matmul() { return variable("SHERD_MATMUL"); }
bool checks_programs() { return variable("SHERD_CHECK_PROGRAMS") == "1"; }

// Relative paths of XDG_CACHE_HOME are to be ignored, says the XDG base directory specification.
std::string cache_folder(const Environment& environment) {
  if (const char* asked = environment("SHERD_CACHE")) return asked;
  if (const std::string base = text_of(environment, "XDG_CACHE_HOME"); base.starts_with('/')) return base + "/sherd";
  const std::string home = text_of(environment, "HOME");
  return home.starts_with('/') ? home + "/.cache/sherd" : "";
}
std::string cache_folder() { return cache_folder(process_environment()); }

}  // namespace sherd
