// The runtime API of the emulated device: memory and copies.
#include <cstring>
#include <new>
#include <vector>

#include "tests/support/emulated_gpu/gpu.h"

using namespace sherd::cuda::emulated;

namespace {

constexpr std::align_val_t kPage{4096};

// cudaMalloc, cudaFree and their like wait for the device, which no capture allows.
cudaError_t refuse_in_capture(Gpu& g) {
  Capture* capture = g.forbidding_capture();
  if (!capture) return cudaSuccess;
  capture->broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

// Freeing waits for all streams of the device, also for what they wait for.
cudaError_t free_pinned(Gpu& g, void* p) {
  const auto found = g.pinned.find(p);
  if (found == g.pinned.end()) return cudaErrorInvalidValue;
  const Gpu::Pinned block = found->second;
  g.complete_all("cudaFreeHost", block.device);
  std::memset(p, kPoison, block.bytes);
  device_memory().remove_pinned(p);
  ::operator delete(p, kPage);
  g.pinned.erase(p);
  return cudaSuccess;
}

struct Opened {
  Opened() { device_memory().open(); }
  ~Opened() { device_memory().close(); }
};

}  // namespace

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  return call("cudaMalloc", [&](Gpu& g) {
    *p = nullptr;
    if (const cudaError_t refused = refuse_in_capture(g); refused != cudaSuccess) return refused;
    if (bytes == 0) return cudaSuccess;
    ++g.counters.allocations;
    *p = device_memory().allocate(bytes, current_device());
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

cudaError_t cudaFree(void* p) {
  return call("cudaFree", [&](Gpu& g) {
    if (!p) return cudaSuccess;
    if (const cudaError_t refused = refuse_in_capture(g); refused != cudaSuccess) return refused;
    if (const int device = device_memory().device_of(p); device >= 0) g.complete_all("cudaFree", device);
    ++g.counters.frees;
    return device_memory().release(p) ? g.broken : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call("cudaMemGetInfo", [&](Gpu&) {
    *total_bytes = device_memory().capacity();
    *free_bytes = *total_bytes - std::min(*total_bytes, device_memory().used(current_device()));
    return cudaSuccess;
  });
}

cudaError_t cudaMallocHost(void** p, std::size_t bytes) {
  return call("cudaMallocHost", [&](Gpu& g) {
    *p = nullptr;
    if (const cudaError_t refused = refuse_in_capture(g); refused != cudaSuccess) return refused;
    if (bytes == 0) return cudaSuccess;
    *p = ::operator new(bytes, kPage, std::nothrow);
    if (!*p) return cudaErrorMemoryAllocation;
    std::memset(*p, kPoison, bytes);
    ++g.counters.pinned_allocations;
    g.pinned[*p] = {bytes, current_device()};
    device_memory().add_pinned(*p, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) { return cudaMallocHost(p, bytes); }

cudaError_t cudaFreeHost(void* p) {
  return call("cudaFreeHost", [&](Gpu& g) {
    if (!p) return cudaSuccess;
    if (const cudaError_t refused = refuse_in_capture(g); refused != cudaSuccess) return refused;
    return free_pinned(g, p);
  });
}

cudaError_t cudaHostRegister(void* p, std::size_t bytes, unsigned) {
  return call("cudaHostRegister", [&](Gpu& g) {
    if (const cudaError_t refused = refuse_in_capture(g); refused != cudaSuccess) return refused;
    if (!p || bytes == 0 || device_memory().in_pool(p)) return cudaErrorInvalidValue;
    device_memory().add_pinned(p, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* p) {
  return call("cudaHostUnregister", [&](Gpu& g) {
    if (const cudaError_t refused = refuse_in_capture(g); refused != cudaSuccess) return refused;
    g.complete_all("cudaHostUnregister", current_device());
    return device_memory().remove_pinned(p) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  return call("cudaPointerGetAttributes", [&](Gpu&) {
    *attributes = {};
    const bool device = device_memory().in_allocation(p, 1), pinned = device_memory().in_pinned(p, 1);
    attributes->type = device ? cudaMemoryTypeDevice : pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->device = device ? device_memory().device_of(p) : pinned ? current_device() : -2;
    if (device || pinned) attributes->devicePointer = const_cast<void*>(p);
    if (!device) attributes->hostPointer = const_cast<void*>(p);
    return cudaSuccess;
  });
}

// Pinned memory is read and written when the copy runs. Pageable memory is read at the call and written before it
// returns, which waits for the stream: code that means to be asynchronous shows in the counter of waits.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  return call("cudaMemcpyAsync", [&](Gpu& g) {
    Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    Memory& memory = device_memory();
    const bool to_device = memory.in_pool(to), from_device = memory.in_pool(from);
    if (kind != cudaMemcpyDefault) {
      const bool says_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
      const bool says_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
      if (says_to != to_device || says_from != from_device) return cudaErrorInvalidMemcpyDirection;
    }
    if ((to_device && !memory.in_allocation(to, bytes)) || (from_device && !memory.in_allocation(from, bytes)))
      return cudaErrorInvalidValue;
    const bool from_pageable = !from_device && !memory.in_pinned(from, bytes);
    const bool to_pageable = !to_device && !memory.in_pinned(to, bytes);
    if (stream->capture && (from_pageable || to_pageable)) {
      stream->capture->broken = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    std::vector<char> staged;
    if (from_pageable) staged.assign(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    g.enqueue(*stream, [&g, to, from, bytes, from_pageable, staged = std::move(staged)] {
      const Opened opened;
      const void* source = from_pageable ? staged.data() : from;
      Memory& now = device_memory();
      const bool gone = (now.in_pool(to) && !now.in_allocation(to, bytes)) ||
                        (now.in_pool(source) && !now.in_allocation(source, bytes));
      if (gone) return g.lose(cudaErrorIllegalAddress, "a copy ran after its device memory was freed");
      ++g.counters.copies;
      g.counters.copied_bytes += static_cast<std::int64_t>(bytes);
      std::memmove(to, source, bytes);
    });
    if (to_pageable) {
      g.count_sync();
      g.complete(*stream);
    }
    return g.broken;
  });
}

cudaError_t cudaMemsetAsync(void* p, int value, std::size_t bytes, cudaStream_t handle) {
  return call("cudaMemsetAsync", [&](Gpu& g) {
    Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    if (!device_memory().accessible(p, bytes)) return cudaErrorInvalidValue;
    if (const int device = device_memory().device_of(p); device >= 0 && device != stream->device)
      return cudaErrorInvalidValue;
    g.enqueue(*stream, [&g, p, value, bytes] {
      const Opened opened;
      if (!device_memory().accessible(p, bytes))
        return g.lose(cudaErrorIllegalAddress, "a fill ran after its memory was freed");
      ++g.counters.fills;
      std::memset(p, value, bytes);
    });
    return g.broken;
  });
}
