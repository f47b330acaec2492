#pragma once
// The emulated device's state: streams of queued work, what may run next, errors, counters.
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/support/emulated_gpu/control.h"
#include "tests/support/emulated_gpu/memory.h"
#include "tests/support/emulated_gpu/random.h"

namespace sherd::cuda::emulated {

/// One queued piece of work. It may run when all before it in its stream, and all of `after`, have.
struct Op {
  std::function<void()> run;  // may be null: a point in time
  std::vector<std::shared_ptr<Op>> after;
  std::function<bool()> may_run;  // of what the host decides; may be null
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
  std::deque<std::shared_ptr<Op>> queue;
  int priority = 0;
  bool destroyed = false;
  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> tail;  // nodes that the next captured node of this stream comes after
};

struct Event {
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
  std::map<void*, std::size_t> pinned;      // from cudaMallocHost
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
  std::string running_test;   // "Suite.Name"

  /// Queues the kernel or product `name`, or what the configuration wants in its place.
  void launch(Stream& stream, const std::string& name, std::function<void()> run);
  /// Queues `run` on a stream, or makes it a node (and returns null) if the stream is in a capture. Now and then runs
  /// something at once.
  std::shared_ptr<Op> enqueue(Stream& stream, std::function<void()> run, std::vector<std::shared_ptr<Op>> after = {},
                              std::function<bool()> may_run = nullptr);
  /// Runs until `op` has run, in a random order that the streams and events allow. While the host must do something
  /// first, other threads may call.
  void complete(const std::shared_ptr<Op>& op);
  void complete(Stream& stream);
  void complete_all();
  /// Runs what may run without the host: all but streams that wait for it.
  void run_all();
  /// Runs one thing that may run now; false if there is none.
  bool run_something();
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
  Stream* next_towards(const std::shared_ptr<Op>& op);
  void let_host_go_on();
  std::chrono::duration<double> extra_seconds_{0};
};

Gpu& gpu();

/// The error that cudaGetLastError returns on this thread.
cudaError_t& last_error();
/// True while this thread runs a function of cudaLaunchHostFunc, which may call nothing of CUDA.
bool& in_host_function();
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
  return remember(body(gpu()));
}

}  // namespace sherd::cuda::emulated
