#include "runtime/cpu/gemm/onednn.h"

#include <dlfcn.h>

#include "runtime/cpu/workspace.h"
#include "runtime/os/allowed_cpus.h"
#include "runtime/os/own_library.h"

namespace sherd::cpu {

namespace {

OnednnLibrary open_library() {
  OnednnLibrary library;
#if SHERD_HAS_ONEDNN
  library.path = beside_own_library("libsherd_onednn.so");
  const KeepAffinity keep;
  void* handle = ::dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle) library.gemm = reinterpret_cast<OnednnGemm*>(::dlsym(handle, "sherd_onednn_gemm"));
  auto* const version = handle ? reinterpret_cast<OnednnVersion*>(::dlsym(handle, "sherd_onednn_version")) : nullptr;
  if (version) library.version = version();
  if (library.gemm) return library;
  const char* why = ::dlerror();
  library.reason = why ? why : "dlopen failed";
#else
  library.reason = "this build has none";
#endif
  return library;
}

std::byte* scratch(std::int64_t bytes) { return thread_workspace(WorkspaceUse::gemm_library, bytes); }

}  // namespace

const OnednnLibrary& onednn_library() {
  static const OnednnLibrary library = open_library();
  return library;
}

bool detail::onednn_is_built_in() { return onednn_library().gemm != nullptr; }

bool detail::gemm_onednn(const Gemm& g, const void* a, const void* b, void* c) {
  OnednnGemm* const gemm = onednn_library().gemm;
  if (!gemm) return false;
  try {
    return gemm(g, a, b, c, scratch);
  } catch (const std::exception& error) {
    fail("oneDNN: {} for a {} x {} x {} product of {}", error.what(), g.m, g.n, g.k, name(g.dtype));
  }
}

}  // namespace sherd::cpu
