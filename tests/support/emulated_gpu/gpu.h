#pragma once
// The emulated devices' state: streams of queued work, what may run next, errors, counters.
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/support/emulated_gpu/control.h"
#include "tests/support/emulated_gpu/memory.h"
#include "tests/support/emulated_gpu/random.h"

namespace sherd::cuda::emulated {

/// A word of the host that a stream waits for: that it is `value` or has passed it, modulo 2^32.
struct HostWait {
  const std::atomic<std::uint32_t>* word = nullptr;  // null: none
  std::uint32_t value = 0;
  bool is_over() const {
    return !word || static_cast<std::int32_t>(word->load(std::memory_order_acquire) - value) >= 0;
  }
};

/// Something else that must be so before a piece of work runs: asked with the lock held, as often as it may be the
/// next.
struct Gate {
  std::function<bool()> is_open;  // null: it is
  std::string name;               // of what is waited for
};

/// One queued piece of work. It may run when all before it in its stream, and all of `after`, have.
struct Op {
  std::function<void()> run;  // may be null: a point in time
  std::vector<std::shared_ptr<Op>> after;
  HostWait wait;
  Gate gate;
  bool done = false;
  std::chrono::steady_clock::time_point when{};
  struct Stream* stream = nullptr;
};

/// A captured piece of work; `after` are indices of earlier nodes.
struct Node {
  std::function<void()> run;
  std::vector<std::size_t> after;
};

struct Graph {
  std::vector<Node> nodes;
};

/// One capture under way: several streams may have joined it.
struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  struct Stream* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool broken = false, ended = false;
};

struct Stream {
  int device = 0, number = 0;  // number: in the order of making
  std::deque<std::shared_ptr<Op>> queue;
  int priority = 0;
  bool destroyed = false;
  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> tail;  // nodes that the next captured node of this stream comes after
};

struct Event {
  int device = 0;
  std::shared_ptr<Op> record;  // null: never recorded, which counts as done
  bool timed = true;
  std::shared_ptr<Capture> capture;  // recorded in a capture: no op, but a place in its graph
  std::vector<std::size_t> nodes;
};

struct Executable {
  std::vector<Node> nodes;
};

/// All of it; every member is guarded by `lock`.
struct Gpu {
  std::mutex lock;
  Configuration configuration = default_configuration();
  Random random{configuration.seed};
  std::map<Stream*, std::unique_ptr<Stream>> streams;
  std::map<Event*, std::unique_ptr<Event>> events;
  std::map<Graph*, std::shared_ptr<Graph>> graphs;
  std::map<Executable*, std::shared_ptr<Executable>> executables;
  struct Pinned {
    std::size_t bytes;
    int device;  // the current one when it was made
  };
  std::map<void*, Pinned> pinned;           // from cudaMallocHost
  std::map<const void*, int> shared_limit;  // kernel -> bytes it opted in to
  struct Failing {
    cudaError_t status;
    int skip;
  };
  std::map<std::string, Failing> failing;
  Counters counters;
  cudaError_t broken = cudaSuccess;  // after a fault every call returns it, as with a lost context
  std::string report;
  std::int64_t launched = 0;  // kernels and products
  std::set<int> contexts;     // devices that some thread has made a context on
  int num_streams = 0;        // made so far
  std::string running_test;   // "Suite.Name"

  /// Queues the kernel or product `name`, or what the configuration wants in its place.
  void launch(Stream& stream, const std::string& name, std::function<void()> run);
  /// Queues `run` on a stream, or makes it a node (and returns null) if the stream is in a capture. Now and then runs
  /// something at once.
  std::shared_ptr<Op> enqueue(Stream& stream, std::function<void()> run, std::vector<std::shared_ptr<Op>> after = {},
                              HostWait wait = {}, Gate gate = {});
  /// Runs until `op` has run, in a random order that the streams and events allow. While the host must do something
  /// first, other threads may call.
  void complete(const std::shared_ptr<Op>& op);
  void complete(Stream& stream);
  /// Runs everything that was queued on a device, for `function`, which frees memory there or the like. Where it waits
  /// for the host in vain for Configuration::patience, the device is lost, with a report: a real one would hang.
  void complete_all(const char* function, int device);
  /// Runs what may run without the host: all but streams that wait for it.
  void run_all();
  /// Runs one thing that may run now; false if there is none.
  bool run_something();
  /// Runs one thing that `op`, which has not run, comes after, or itself; false if the host or a gate is first.
  bool advance(const std::shared_ptr<Op>& op);
  /// Runs the nodes in a random order that their edges allow.
  void run_nodes(const std::vector<Node>& nodes);
  /// A capture that forbids a call of the kind of cudaMalloc on this thread, or null.
  Capture* forbidding_capture();
  /// This thread waits for the device.
  void count_sync();
  /// The device is lost: later calls return `status`.
  void lose(cudaError_t status, const std::string& why);
  /// Work that runs now takes that long on the device's clock, which events read.
  void time_passes(double seconds) { extra_seconds_ += std::chrono::duration<double>(seconds); }
  Stream* find(cudaStream_t handle);
  Event* find(cudaEvent_t handle);

 private:
  void run_head(Stream& stream);
  bool ready(const Stream& stream) const;
  bool is_named(const std::string& where, const std::string& kernel) const;
  static const Op& first_towards(const Op& op);
  std::string why_it_waits(const Stream& stream) const;
  void let_host_go_on();
  std::chrono::duration<double> extra_seconds_{0};
};

Gpu& gpu();

/// The device that this thread has chosen.
int& current_device();
/// Which of all devices a visible one is: CUDA_VISIBLE_DEVICES lists numbers.
int number_of_all(int device);
/// The error that cudaGetLastError returns on this thread.
cudaError_t& last_error();
/// True while this thread runs a function of cudaLaunchHostFunc, which may call nothing of CUDA.
bool& in_host_function();
/// Whether a call makes a context on the thread's device, if it has none yet.
bool makes_context(const char* function);
/// Called with the lock held, before anything else a function does: the reason why it cannot be served, or success.
cudaError_t refusal(const char* function);
/// Keeps the error of a call for cudaGetLastError.
inline cudaError_t remember(cudaError_t status) {
  if (status != cudaSuccess) last_error() = status;
  return status;
}

/// The frame of every function of the runtime API: lock, injected failures, a lost or missing device.
template <class Body>
cudaError_t call(const char* function, Body body) {
  if (in_host_function()) return remember(cudaErrorNotPermitted);
  const std::lock_guard guard(gpu().lock);
  ++gpu().counters.calls;
  if (const cudaError_t status = refusal(function); status != cudaSuccess) return remember(status);
  const cudaError_t status = remember(body(gpu()));
  if (makes_context(function)) gpu().contexts.insert(current_device());
  return status;
}

}  // namespace sherd::cuda::emulated
