// The runtime API of the emulated device: capturing streams into graphs, and launching those.
#include <algorithm>

#include "tests/support/emulated_gpu/gpu.h"

using namespace sherd::cuda::emulated;

namespace {

Graph* find(Gpu& g, cudaGraph_t handle) {
  const auto found = g.graphs.find(reinterpret_cast<Graph*>(handle));
  return found == g.graphs.end() ? nullptr : found->second.get();
}

// Every node must come before something the origin stream waits for.
bool all_joined(const Graph& graph, const std::vector<std::size_t>& tail) {
  std::vector<bool> reached(graph.nodes.size());
  std::vector<std::size_t> open = tail;
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    open.insert(open.end(), graph.nodes[node].after.begin(), graph.nodes[node].after.end());
  }
  return std::all_of(reached.begin(), reached.end(), [](bool r) { return r; });
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&](Gpu& g) {
    Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_shared<Capture>();
    stream->capture->origin = stream;
    stream->capture->mode = mode;
    stream->capture->thread = std::this_thread::get_id();
    stream->tail.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", [&](Gpu& g) {
    *graph = nullptr;
    Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return cudaErrorInvalidValue;
    if (capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
      return cudaErrorStreamCaptureWrongThread;
    const bool joined = all_joined(*capture->graph, stream->tail);
    for (const auto& [address, member] : g.streams)
      if (member->capture == capture) {
        member->capture = nullptr;
        member->tail.clear();
      }
    capture->ended = true;
    if (capture->broken) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    g.graphs[capture->graph.get()] = capture->graph;
    *graph = reinterpret_cast<cudaGraph_t>(capture->graph.get());
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", [&](Gpu& g) {
    const Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    *status = !stream->capture          ? cudaStreamCaptureStatusNone
              : stream->capture->broken ? cudaStreamCaptureStatusInvalidated
                                        : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, std::size_t* count) {
  return call("cudaGraphGetNodes", [&](Gpu& g) {
    Graph* graph = find(g, handle);
    if (!graph || !count) return cudaErrorInvalidValue;
    const std::size_t have = graph->nodes.size();
    if (nodes)
      for (std::size_t i = 0; i < *count; ++i)
        nodes[i] = i < have ? reinterpret_cast<cudaGraphNode_t>(&graph->nodes[i]) : nullptr;
    *count = nodes ? std::min(*count, have) : have;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* handle, cudaGraph_t graph_handle, unsigned long long) {
  return call("cudaGraphInstantiate", [&](Gpu& g) {
    *handle = nullptr;
    const Graph* graph = find(g, graph_handle);
    if (!graph) return cudaErrorInvalidValue;
    auto executable = std::make_shared<Executable>(Executable{graph->nodes});
    *handle = reinterpret_cast<cudaGraphExec_t>(executable.get());
    g.executables[executable.get()] = std::move(executable);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  return call("cudaGraphLaunch", [&](Gpu& g) {
    Stream* stream = g.find(stream_handle);
    const auto found = g.executables.find(reinterpret_cast<Executable*>(handle));
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (found == g.executables.end()) return cudaErrorInvalidValue;
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;  // child graphs are not used here
    ++g.counters.graph_launches;
    ++g.counters.host_launches;
    g.enqueue(*stream, [&g, executable = found->second] { g.run_nodes(executable->nodes); });
    return g.broken;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t) {
  return call("cudaGraphUpload", [&](Gpu& g) {
    return g.executables.count(reinterpret_cast<Executable*>(handle)) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  return call("cudaGraphDestroy", [&](Gpu& g) {
    return g.graphs.erase(reinterpret_cast<Graph*>(handle)) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

// A launch that is under way keeps what it needs.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return call("cudaGraphExecDestroy", [&](Gpu& g) {
    return g.executables.erase(reinterpret_cast<Executable*>(handle)) ? cudaSuccess : cudaErrorInvalidValue;
  });
}
