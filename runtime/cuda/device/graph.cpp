// Recording is stream capture. Temporaries of a graph keep their addresses for its life, so they come from an allocator
// for graphs; within the recording that allocator reuses memory as any other, because the graph keeps the stream's
// order.
#include "runtime/cuda/device/graph.h"

#include <algorithm>
#include <utility>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/memory.h"
#include "runtime/exec/context.h"
#include "runtime/os/settings.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

namespace {

// Ends a capture that an exception leaves open; CUDA hands back no graph then.
class Capture : NoCopy {
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

GraphMemory::GraphMemory(int device, cudaStream_t stream, std::shared_ptr<std::uint64_t> num_fills)
    : pool_(new DeviceAllocator(
          std::make_unique<DeviceMemory>(device, stream, std::move(num_fills)),
          {.keeps_segments = true, .separate = maps_blocks_separately(requested_device_memory())})) {}

GraphMemory::~GraphMemory() { pool_->abandon(); }

// What recordings keep is the rank's memory like any other: it counts, and the limit holds for it.
void GraphMemory::account(Accounting& rank) {
  const CategoryBytes now = graphs_ > 0 ? pool_->accounting().at_peak() : CategoryBytes{};
  for (std::size_t c = 0; c < now.size(); ++c) rank.add(static_cast<MemoryCategory>(c), now[c] - kept_[c]);
  kept_ = now;
}

void GraphMemory::set_limit(const Allocator& rank, const Accounting& accounting) {
  std::int64_t others = accounting.total();
  for (const std::int64_t bytes : kept_) others -= bytes;
  pool_->set_limit(rank.limit() > 0 ? std::max<std::int64_t>(rank.limit() - others, 1) : 0);
}

void GraphMemory::add(int graphs) {
  graphs_ += graphs;
  if (graphs_ > 0) return;
  pool_->release_unused();
  pool_->accounting().reset_peaks();
}

Graph::Graph(Graphs& of) : of_(&of) { of.list_.push_back(this); }

Graph::~Graph() { let_go(); }

void Graph::let_go() {
  if (!of_) return;
  if (executable_) {
    (void)cudaStreamSynchronize(of_->stream_);  // it may still run
    (void)cudaGraphExecDestroy(executable_);
    of_->memory_->add(-1);
    of_->memory_->account(of_->context_.lasting_allocator().accounting());
  }
  std::erase(of_->list_, this);
  executable_ = nullptr;
  of_ = nullptr;
}

bool Graphs::give_back() noexcept {
  if (recording_ || list_.empty()) return false;
  while (!list_.empty()) list_.back()->let_go();
  return true;
}

void Graphs::end() {
  (void)give_back();
  memory_.reset();
}

std::unique_ptr<DeviceGraph> Graphs::record(const std::function<void()>& work) {
  stream_ = context_.stream();
  auto graph = std::make_unique<Graph>(*this);
  if (!memory_) memory_ = std::make_unique<GraphMemory>(context_.device().index, stream_, num_fills_);
  DeviceAllocator& lasting = context_.lasting_allocator();
  // The recording asks for what the program has just freed; both at once may not fit.
  lasting.release_unused();
  memory_->set_limit(lasting, lasting.accounting());
  Capture capture(stream_);
  struct Redirect {  // allocations of the recording
    Graphs& graphs;
    ~Redirect() {
      graphs.recording_ = nullptr;
      graphs.context_.log().set_recording(false);
    }
  };
  {
    const Redirect redirect{*this};
    recording_ = &memory_->pool();
    context_.log().set_recording(true);
    work();
  }
  const cudaGraph_t recorded = capture.end();
  std::size_t nodes = 0;
  const cudaError_t counted = cudaGraphGetNodes(recorded, nullptr, &nodes);
  const cudaError_t instantiated = cudaGraphInstantiate(&graph->executable_, recorded, 0);
  (void)cudaGraphDestroy(recorded);
  check(counted, "counting the nodes of a graph");
  check(instantiated, "instantiating a graph");
  graph->num_nodes_ = static_cast<std::int64_t>(nodes);
  memory_->add(1);
  memory_->account(lasting.accounting());
  return graph;
}

void Graph::launch() {
  sherd::check(of_ != nullptr, "a recorded graph outlived the rank that recorded it");
  Context& context = of_->context_;
  RankContext::current().join_queues(context.device());  // it asks no storage
  context.log().add("a recorded graph; its kernels are listed if the step is not compiled");
  check(cudaGraphLaunch(executable_, context.stream()), "starting a graph");
}

std::int64_t Graph::reserved_bytes() const { return of_ ? of_->memory_->pool().reserved_bytes() : 0; }

}  // namespace sherd::cuda
