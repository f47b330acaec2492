// Launching kernels: cudaFunc* of the runtime API, and the door that launch.h uses in place of cudaLaunchKernelExC.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "runtime/cuda/device/device_emulated.h"
#include "tests/support/emulated_gpu/block.h"
#include "tests/support/emulated_gpu/gpu.h"
#include "tests/support/emulated_gpu/registers.h"
#include "tests/support/emulated_gpu/symbols.h"

namespace sherd::cuda::emulated {

namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kSharedWithoutOptIn = 48 * 1024, kSharedWithOptIn = 227 * 1024;
constexpr unsigned kMaxBlocksYZ = 65535;
constexpr double kPinnedAtomicSeconds = 1e-6;  // a round over the bus; to one address they are one after another

cudaError_t check_shape(const Gpu& g, const void* kernel, dim3 blocks, unsigned threads, std::size_t shared_bytes) {
  if (threads == 0 || threads > kMaxThreads || blocks.x == 0 || blocks.y == 0 || blocks.z == 0)
    return cudaErrorInvalidConfiguration;
  if (blocks.x > 0x7fffffffu || blocks.y > kMaxBlocksYZ || blocks.z > kMaxBlocksYZ)
    return cudaErrorInvalidConfiguration;
  if (!registers_fit(readable_name(kernel), threads)) return cudaErrorLaunchOutOfResources;
  const auto limit = g.shared_limit.find(kernel);
  const std::size_t allowed = limit == g.shared_limit.end()
                                  ? kSharedWithoutOptIn
                                  : std::max(kSharedWithoutOptIn, static_cast<std::size_t>(limit->second));
  return shared_bytes > allowed ? cudaErrorInvalidValue : cudaSuccess;
}

void run(Gpu& g, const KernelCall& kernel, int device) {
  ++g.counters.kernels;
  ++g.counters.launches[kernel.name];
  // One past the end is where an empty tensor may point.
  const Memory& memory = device_memory();
  for (const void* p : kernel.pointers)
    if (p && !memory.accessible(p, 1) && !memory.accessible(static_cast<const std::byte*>(p) - 1, 1)) {
      char text[60];
      std::snprintf(text, sizeof text, ": the argument %p points to %s memory", p,
                    memory.in_pool(p) ? "freed" : "host");
      return g.lose(cudaErrorIllegalAddress, "kernel " + kernel.name + text);
    }
  for (const void* p : kernel.pointers)
    if (const int other = memory.device_of(p); other >= 0 && other != device)
      return g.lose(cudaErrorIllegalAddress, "kernel " + kernel.name + " of device " + std::to_string(device) +
                                                 ": an argument points to memory of device " + std::to_string(other));
  device_memory().open();
  KernelResult result = run_kernel(kernel, g.random.next());
  if (result.status == cudaSuccess)
    if (const std::string overrun = device_memory().overrun(); !overrun.empty())
      result = {cudaErrorIllegalAddress, "kernel " + kernel.name + " " + overrun, result.pinned_atomics};
  device_memory().close();
  g.counters.pinned_atomics += result.pinned_atomics;
  g.time_passes(kPinnedAtomicSeconds * static_cast<double>(result.pinned_atomics));
  if (result.status != cudaSuccess) g.lose(result.status, result.report);
}

}  // namespace

cudaError_t enqueue(cudaStream_t stream, const void* kernel, dim3 blocks, unsigned threads, std::size_t shared_bytes,
                    std::vector<const void*> pointers, std::function<void()> body) {
  return call("cudaLaunchKernelExC", [&](Gpu& g) {
    Stream* queue = g.find(stream);
    if (!queue || queue->device != current_device()) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t bad = check_shape(g, kernel, blocks, threads, shared_bytes); bad != cudaSuccess) return bad;
    const std::string name = readable_name(kernel);
    KernelCall launched{name, blocks, threads, shared_bytes, std::move(pointers), std::move(body)};
    g.launch(*queue, name, [&g, launched = std::move(launched), on = queue->device] { run(g, launched, on); });
    return g.broken;
  });
}

}  // namespace sherd::cuda::emulated

using namespace sherd::cuda::emulated;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return call("cudaFuncSetAttribute", [&](Gpu& g) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<std::size_t>(value) > kSharedWithOptIn) return cudaErrorInvalidValue;
    g.shared_limit[kernel] = value;
    return cudaSuccess;
  });
}

// The architecture of the PTX that kernels are made from.
static int made_from(int binary) {
  const char* const asked = std::getenv("SHERD_EMULATED_GPU_PTX");
  return asked ? static_cast<int>(std::strtol(asked, nullptr, 10)) : binary;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return call("cudaFuncGetAttributes", [&](Gpu& g) {
    if (g.configuration.major < 8) return cudaErrorNoKernelImageForDevice;  // as if built for 8.0 and newer
    *attributes = {};
    attributes->maxThreadsPerBlock = kMaxThreads;
    attributes->numRegs = register_limit(readable_name(kernel));
    attributes->binaryVersion = g.configuration.major * 10 + g.configuration.minor;
    attributes->ptxVersion = made_from(attributes->binaryVersion);
    const auto limit = g.shared_limit.find(kernel);
    attributes->maxDynamicSharedSizeBytes =
        limit == g.shared_limit.end() ? static_cast<int>(kSharedWithoutOptIn) : limit->second;
    return cudaSuccess;
  });
}

// Not of a lost device: the driver may refuse it there.
cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
  return call("cudaFuncGetName", [&](Gpu&) {
    const std::string& found = mangled_name(kernel);
    *name = found.c_str();
    return found.empty() ? cudaErrorInvalidDeviceFunction : cudaSuccess;
  });
}
