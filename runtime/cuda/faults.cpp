#include "runtime/cuda/faults.h"

#include <new>

#include "runtime/cuda/check.h"

namespace sherd::cuda {

Faults::Faults() {
  void* memory = nullptr;
  cuda::check(cudaMallocHost(&memory, sizeof(FaultRecord)), "allocating pinned memory");
  record_ = new (memory) FaultRecord{};
}

Faults::~Faults() { (void)cudaFreeHost(record_); }

void Faults::check(cudaStream_t stream, Device device) {
  if (static_cast<volatile FaultRecord*>(record_)->found == 0) [[likely]]
    return;
  // Kernels behind the wait may be writing: nothing is read or cleared beside them.
  cuda::check(cudaStreamSynchronize(stream), "waiting for the device");
  const FaultRecord fault = *record_;
  *record_ = {};
  Error error(fmt::format("{}: {} {} at position {} is outside of 0..{}", fault.row->name, fault.what, fault.value,
                          fault.position, fault.limit - 1));
  error.add("op", std::string(fault.row->name));
  error.add("inputs", fmt::format("on {}", to_string(device)));
  error.add("noticed", fmt::format("at the next wait for {}; the call itself was queued earlier", to_string(device)));
  throw error;
}

}  // namespace sherd::cuda
