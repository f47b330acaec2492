// Recording is stream capture. Temporaries of a graph keep their addresses for its life, so they come from an allocator
// of its own; within the recording that allocator reuses memory as any other, because the graph keeps the stream's
// order.
#include "runtime/cuda/graph.h"

#include <algorithm>
#include <utility>

#include "runtime/cuda/context.h"
#include "runtime/cuda/memory.h"

namespace sherd::cuda {

namespace {

// Ends a capture that an exception leaves open; CUDA hands back no graph then.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    // Relaxed: the allocator may map a segment meanwhile. What would wait for the stream is refused all the same.
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "beginning to record a graph");
  }
  ~Capture() {
    if (!open_) return;
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream_, &graph);
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  cudaGraph_t end() {
    open_ = false;
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "recording a graph");
    return graph;
  }

 private:
  const cudaStream_t stream_;
  bool open_ = true;
};

}  // namespace

Graph::Graph(Context& context)
    : context_(context),
      memory_(new DeviceAllocator(std::make_unique<DeviceMemory>(context.index_, context.stream()))) {}

// What a recording keeps is the rank's memory like any other: it counts, and the limit holds for it.
void Graph::account(std::int64_t sign) {
  Accounting& rank = context_.allocator_->accounting();
  for (int c = 0; c < kNumCategories; ++c)
    rank.add(static_cast<MemoryCategory>(c), sign * kept_[static_cast<std::size_t>(c)]);
}

Graph::~Graph() {
  account(-1);
  if (executable_) {
    (void)cudaStreamSynchronize(context_.stream_);  // it may still run
    (void)cudaGraphExecDestroy(executable_);
  }
  memory_->abandon();
}

std::unique_ptr<DeviceGraph> Graph::record(Context& context, const std::function<void()>& work) {
  std::unique_ptr<Graph> graph(new Graph(context));
  Capture capture(context.stream());
  struct Redirect {  // allocations of the recording
    Context& context;
    ~Redirect() { context.recording_ = nullptr; }
  };
  {
    const Redirect redirect{context};
    context.recording_ = graph->memory_;
    const Allocator& rank = *context.allocator_;
    if (rank.limit() > 0)
      graph->memory_->set_limit(std::max<std::int64_t>(rank.limit() - context.allocator_->accounting().total(), 1));
    work();
  }
  graph->kept_ = graph->memory_->accounting().at_peak();
  graph->account(1);
  const cudaGraph_t recorded = capture.end();
  std::size_t nodes = 0;
  const cudaError_t counted = cudaGraphGetNodes(recorded, nullptr, &nodes);
  const cudaError_t instantiated = cudaGraphInstantiate(&graph->executable_, recorded, 0);
  (void)cudaGraphDestroy(recorded);
  check(counted, "counting the nodes of a graph");
  check(instantiated, "instantiating a graph");
  graph->num_nodes_ = static_cast<std::int64_t>(nodes);
  return graph;
}

void Graph::launch() { check(cudaGraphLaunch(executable_, context_.stream()), "starting a graph"); }

std::int64_t Graph::reserved_bytes() const { return memory_->reserved_bytes(); }

}  // namespace sherd::cuda
