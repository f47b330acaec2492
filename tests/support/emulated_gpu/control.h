#pragma once
// What tests set and read of the emulated GPUs. Programs that load the library set the same by environment variables,
// read once when it is first used:
//   SHERD_EMULATED_GPU_SEED      order of everything that may happen in any order (default 1)
//   SHERD_EMULATED_GPU_CAPACITY  bytes of memory of each device (default 4 GiB)
//   SHERD_EMULATED_GPU_DEVICES   how many there are (default 4)
//   SHERD_EMULATED_GPU_CAPABILITY, _PTX  compute capability, 80 for 8.0 (default 90), and that of the kernels' PTX
//   SHERD_EMULATED_GPU_DRIVER    version that the driver says it is for, 12040 for 12.4 (default 13000)
//   SHERD_EMULATED_GPU_STATE     present (default), none (cudaErrorNoDevice), no_driver (cudaErrorInsufficientDriver)
//   SHERD_EMULATED_GPU_ILLEGAL_ADDRESS  a LAUNCH, which loses the device: every later call returns that error
//   SHERD_EMULATED_GPU_HANG      a LAUNCH, which never ends, nor does who waits for it, until a signal ends the process
//   CUDA_LAUNCH_BLOCKING         1: every launch waits for its end, as NVIDIA's runtime does
// LAUNCH is a number, 7 for the seventh launch of a kernel or a library's product in this process, or a name: the
// kernel
// ("scale_kernel", "cublasLtMatmul", "cudnn_graph"), or the test that is running ("CudaFaults" for all of a suite,
// "CudaFaults.AReadIsAWait" for one). A name stands for every launch that has it.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include <cuda_runtime_api.h>

namespace sherd::cuda::emulated {

struct Counters {
  std::map<std::string, std::int64_t> launches;  // kernels that ran, by name without template arguments' spaces
  std::int64_t kernels = 0;                      // their sum
  std::int64_t host_launches = 0;                // calls that launched a kernel or a graph
  std::int64_t graph_launches = 0;
  std::int64_t copies = 0, copied_bytes = 0, fills = 0;
  std::int64_t allocations = 0, frees = 0, pinned_allocations = 0;
  std::int64_t pinned_atomics = 0;  // atomics of kernels on pinned memory: each a round over the bus
  std::int64_t calls = 0;           // of CUDA's functions
  std::int64_t host_syncs = 0;      // calls that waited for the device, copies of pageable memory included
};

enum class Present { yes, no_device, no_driver };

struct Configuration {
  std::uint64_t seed = 1;
  int devices = 4;  // alike, each with memory of its own
  std::size_t capacity = std::size_t{4} << 30;
  Present present = Present::yes;
  int major = 9, minor = 0;  // compute capability
  int multiprocessors = 4;   // few, so that loops over the grid are taken
  int driver_version = 13000;
  std::string illegal_address, hang;  // a LAUNCH each; empty: none
  bool launch_blocking = false;
  bool early = true;            // work may run before something waits for it
  bool waits_for_words = true;  // the driver has cuStreamWaitValue32
  /// How long a call that waits for a whole device does, before it counts as a hang.
  std::chrono::milliseconds patience{20'000};
};

/// Configuration of the environment variables above.
Configuration default_configuration();
/// Drops all queued work, errors, injected failures and counters, frees all memory, streams, events and graphs, and
/// starts anew. Handles and addresses from before are invalid.
void reset(const Configuration& configuration = default_configuration());
/// Goes on with another order.
void set_seed(std::uint64_t seed);
void set_capacity(std::size_t bytes);
/// The test that runs now, "Suite.Name": what a LAUNCH may name. Programs that link emulated_library.cpp say it.
void set_running_test(const std::string& name);
/// The call of `function` ("cudaMalloc") after the next `skip` ones returns `status` and does nothing else.
void fail_call(const std::string& function, cudaError_t status, int skip = 0);
Counters counters();
void reset_counters();
/// Calls of this thread that waited for the device, since it began.
std::int64_t host_syncs_here();
/// Bytes and number of live device allocations.
std::size_t used_bytes();
std::size_t live_allocations();
/// Devices on which a thread of this process has made a context, by any call that needs one.
std::set<int> contexts();
/// Operations that were queued and have not run.
std::size_t pending();
/// What was wrong with the first kernel, copy or call that broke a rule; "" if none did.
std::string report();
/// While it lives, this process may read and write device memory directly. Queued work does not run by itself.
class HostAccess {
 public:
  HostAccess();
  ~HostAccess();
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;
};

}  // namespace sherd::cuda::emulated
