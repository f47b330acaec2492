#include "tests/support/emulated_gpu/control.h"

#include "tests/support/emulated_gpu/gpu.h"

namespace sherd::cuda::emulated {

void reset(const Configuration& configuration) {
  Gpu& g = gpu();
  const std::lock_guard guard(g.lock);
  g.streams.clear();
  g.events.clear();
  g.graphs.clear();
  g.executables.clear();
  for (const auto& [p, block] : g.pinned) {
    device_memory().remove_pinned(p);
    ::operator delete(p, std::align_val_t{4096});
  }
  g.pinned.clear();
  g.shared_limit.clear();
  g.failing.clear();
  g.counters = {};
  g.broken = cudaSuccess;
  g.report.clear();
  g.launched = 0;
  g.contexts.clear();
  g.num_streams = 0;
  g.configuration = configuration;
  g.random = Random(configuration.seed);
  device_memory().release_all();
  device_memory().set_capacity(configuration.capacity);
  last_error() = cudaSuccess;
  current_device() = 0;
}

void set_seed(std::uint64_t seed) {
  const std::lock_guard guard(gpu().lock);
  gpu().random = Random(seed);
}

void set_capacity(std::size_t bytes) {
  const std::lock_guard guard(gpu().lock);
  gpu().configuration.capacity = bytes;
  device_memory().set_capacity(bytes);
}

void set_running_test(const std::string& name) {
  const std::lock_guard guard(gpu().lock);
  gpu().running_test = name;
}

void fail_call(const std::string& function, cudaError_t status, int skip) {
  const std::lock_guard guard(gpu().lock);
  gpu().failing[function] = {status, skip};
}

Counters counters() {
  const std::lock_guard guard(gpu().lock);
  return gpu().counters;
}

void reset_counters() {
  const std::lock_guard guard(gpu().lock);
  gpu().counters = {};
}

std::size_t used_bytes() {
  const std::lock_guard guard(gpu().lock);
  return device_memory().used();
}

std::size_t live_allocations() {
  const std::lock_guard guard(gpu().lock);
  return device_memory().allocations();
}

std::set<int> contexts() {
  const std::lock_guard guard(gpu().lock);
  return gpu().contexts;
}

std::size_t pending() {
  const std::lock_guard guard(gpu().lock);
  std::size_t count = 0;
  for (const auto& [address, stream] : gpu().streams) count += stream->queue.size();
  return count;
}

std::string report() {
  const std::lock_guard guard(gpu().lock);
  return gpu().report;
}

HostAccess::HostAccess() {
  const std::lock_guard guard(gpu().lock);
  device_memory().open();
}

HostAccess::~HostAccess() {
  const std::lock_guard guard(gpu().lock);
  device_memory().close();
}

}  // namespace sherd::cuda::emulated
