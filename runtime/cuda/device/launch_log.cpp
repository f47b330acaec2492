#include "runtime/cuda/device/launch_log.h"

#include "runtime/cuda/device/kernel_name.h"
#include "runtime/op/core/op.h"
#include "runtime/os/settings.h"

namespace sherd::cuda {

namespace {

thread_local LaunchLog* current_log = nullptr;

}  // namespace

// The statuses that by driver_types.h leave the process "in an inconsistent state", and others of their kind.
bool is_lasting(cudaError_t status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorExternalDevice: return true;
    default: return false;
  }
}

LaunchLog* LaunchLog::current() { return current_log; }

void LaunchLog::enter() { current_log = this; }

LaunchLog::~LaunchLog() {
  if (current_log == this) current_log = nullptr;
}

const char* LaunchLog::symbol_of(const void* kernel) {
  const auto bits = reinterpret_cast<std::uintptr_t>(kernel);
  Known& known = known_[(bits >> 4 ^ bits >> 12) % kKnown];
  if (known.kernel != kernel) known = {kernel, kernel_symbol(kernel)};
  return known.symbol;
}

void LaunchLog::add_kernel(const void* kernel, dim3 blocks, unsigned threads) {
  keep({nullptr, symbol_of(kernel), row_, blocks, threads});
}

std::string LaunchLog::text_of(const Queued& q) {
  std::string text = q.row ? fmt::format("{}: ", q.row->name) : "";
  if (q.what) return text + q.what;
  return text + fmt::format("{}, {}x{}x{} blocks of {} threads", readable_kernel(q.symbol), q.blocks.x, q.blocks.y,
                            q.blocks.z, q.threads);
}

std::string LaunchLog::last_queued() const {
  const std::uint64_t kept = std::min<std::uint64_t>(queued_ - ended_, kKept);
  if (kept == 0) return "nothing by this rank since it last waited";
  std::string text =
      fmt::format("by this rank, newest last; {}",
                  queued_ - kept == ended_ ? "all that was queued earlier had ended" : "there was more before");
  for (std::uint64_t i = queued_ - kept; i < queued_;) {
    const std::string line = text_of(ring_[i % kKept]);
    std::uint64_t times = 0;
    for (; i < queued_ && text_of(ring_[i % kKept]) == line; ++i) ++times;
    text += "\n            " + line + (times > 1 ? fmt::format(", {} times", times) : "");
  }
  return text;
}

void LaunchLog::lose(cudaError_t status, const char* noticed) {
  throw_if_lost();
  const bool blocking = cuda_launches_block();
  lost_.emplace(fmt::format("cuda:{} is lost to this process: {}: {}", device_, cudaGetErrorName(status),
                            cudaGetErrorString(status)));
  lost_->add("cause", blocking ? "the last kernel below: with CUDA_LAUNCH_BLOCKING=1 each was waited for"
                               : "a kernel that was queued EARLIER, by this rank or another one of this process");
  lost_->add("queued", last_queued());
  lost_->add("remedy", blocking ? "compute-sanitizer names the access"
                                : "run again with CUDA_LAUNCH_BLOCKING=1: the last kernel queued is then the one that "
                                  "failed; compute-sanitizer names its access");
  lost_->add("noticed", fmt::format("{}; lines below say where the program was by then", noticed));
  throw Error(*lost_);
}

void LaunchLog::check_device(const char* noticed) {
  throw_if_lost();
  const cudaError_t status = cudaStreamQuery(stream_);
  if (is_lasting(status)) lose(status, noticed);
  (void)cudaGetLastError();  // "not ready" is nobody's error
}

void check_device(const char* noticed) {
  if (LaunchLog* log = LaunchLog::current()) log->check_device(noticed);
}

}  // namespace sherd::cuda
