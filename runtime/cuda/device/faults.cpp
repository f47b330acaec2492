#include "runtime/cuda/device/faults.h"

#include <new>

#include "runtime/cuda/device/check.h"
#include "runtime/cuda/device/pinned.h"

namespace sherd::cuda {

namespace {

std::int64_t position_of(const FaultRecord& fault) {
  return static_cast<std::int64_t>(fault.pieces[0] >> FaultRecord::kPieceBits);
}

std::int64_t value_of(const FaultRecord& fault) {
  constexpr std::uint64_t mask = (std::uint64_t{1} << FaultRecord::kPieceBits) - 1;
  std::uint64_t value = 0;
  for (int i = 0; i < FaultRecord::kPieces; ++i) value |= (fault.pieces[i] & mask) << i * FaultRecord::kPieceBits;
  return static_cast<std::int64_t>(value);
}

}  // namespace

Faults::Faults(cudaStream_t stream) {
  void* memory = nullptr;
  cuda::check(cudaMalloc(&memory, sizeof(FaultRecord)), "allocating device memory");
  record_.reset(static_cast<FaultRecord*>(memory));
  const std::shared_ptr<std::byte> pinned = allocate_pinned(sizeof(Host));
  host_ = {pinned, new (pinned.get()) Host{}};
  forget(stream);
}

void Faults::forget(cudaStream_t stream) {
  host_->found = 0;
  cuda::check(cudaMemsetAsync(record_.get(), 0xff, sizeof(FaultRecord), stream), "clearing what was found wrong");
}

void Faults::check(cudaStream_t stream, Device device) {
  if (static_cast<volatile Host*>(host_.get())->found == 0) [[likely]]
    return;
  // Kernels behind the wait may be reporting: nothing is read or cleared beside them.
  cuda::check(cudaMemcpyAsync(&host_->record, record_.get(), sizeof(FaultRecord), cudaMemcpyDeviceToHost, stream),
              "copying from the device");
  cuda::check(cudaStreamSynchronize(stream), "waiting for the device");
  forget(stream);
  const FaultRecord& fault = host_->record;
  Error error(fmt::format("{}: {} {} at position {} is outside of 0..{}", fault.row->name, fault.what, value_of(fault),
                          position_of(fault), fault.limit - 1));
  error.add("op", std::string(fault.row->name));
  error.add("inputs", fmt::format("on {}", to_string(device)));
  error.add("noticed", fmt::format("at the next wait for {}; the call itself was queued earlier", to_string(device)));
  throw error;
}

}  // namespace sherd::cuda
