#pragma once
// oneDNN lives in a library of its own, libsherd_onednn.so, opened when a product first wants it: with oneDNN comes
// libgomp, which would bind the main thread of every program that loads it where the environment has OMP_PROC_BIND, and
// oneTBB then finds one CPU and starts no workers. libsherd.so is always built together with it.
#include <cstdint>
#include <string>

#include "runtime/cpu/gemm/gemm.h"

namespace sherd::cpu {

/// Memory for one call: at least `bytes`, of the calling thread.
using OnednnScratch = std::byte* (*)(std::int64_t bytes);

/// What libsherd_onednn.so exports as `sherd_onednn_gemm`: detail::gemm_onednn, but that it throws what oneDNN throws.
using OnednnGemm = bool(const Gemm& g, const void* a, const void* b, void* c, OnednnScratch scratch);
/// `sherd_onednn_version`: OnednnLibrary::version.
using OnednnVersion = const char*();

struct OnednnLibrary {
  OnednnGemm* gemm = nullptr;  ///< null: not opened
  std::string path;            ///< of the library
  std::string version;         ///< "2.6.3 up to avx512_core_amx": what it may use, of what this CPU has
  std::string reason;          ///< why it was not opened
};

/// Opened at the first call, from beside libsherd.so, and never closed; the caller's affinity mask stays as it was.
/// Never throws; any thread.
const OnednnLibrary& onednn_library();

/// The engine of this process's bf16 products, which add in an order of its own: "own kernels", or "oneDNN 2.6.3 up to
/// avx512_core_amx", which this opens.
std::string bf16_engine();

}  // namespace sherd::cpu
