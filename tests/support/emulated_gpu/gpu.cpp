// Work runs late: it is queued, and runs only when a call waits for it, or when a draw says so. Then everything that
// the streams and events allow may run in any order. A wait that is missing in the code under test is therefore a wrong
// value here under most seeds, where a real device would be wrong once in a thousand runs.
#include "tests/support/emulated_gpu/gpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include <unistd.h>

#include "tests/support/emulated_gpu/block.h"

namespace sherd::cuda::emulated {

namespace {

// What asks about devices alone.
constexpr std::string_view kWithoutContext[] = {"cudaGetDeviceCount", "cudaGetDevice", "cudaGetDeviceProperties",
                                                "cudaGetDriverEntryPointByVersion"};
constexpr std::size_t kQueueLimit = 1024;  // a real device too makes the host wait when a stream is this far behind

const char* variable(const char* name) { return std::getenv(name); }

std::int64_t& syncs_here() {
  thread_local std::int64_t count = 0;
  return count;
}

}  // namespace

Configuration default_configuration() {
  Configuration c;
  if (const char* text = variable("SHERD_EMULATED_GPU_SEED")) c.seed = std::strtoull(text, nullptr, 10);
  if (const char* text = variable("SHERD_EMULATED_GPU_CAPACITY")) c.capacity = std::strtoull(text, nullptr, 10);
  if (const char* text = variable("SHERD_EMULATED_GPU_DEVICES"))
    c.devices = static_cast<int>(std::strtol(text, nullptr, 10));
  if (const char* text = variable("CUDA_VISIBLE_DEVICES")) {
    const std::string shown = text;
    c.devices = shown.empty() ? 0 : static_cast<int>(std::ranges::count(shown, ',')) + 1;
    if (c.devices == 0) c.present = Present::no_device;
  }
  if (const char* text = variable("SHERD_EMULATED_GPU_STATE")) {
    const std::string state = text;
    c.present = state == "none" ? Present::no_device : state == "no_driver" ? Present::no_driver : Present::yes;
  }
  if (const char* text = variable("SHERD_EMULATED_GPU_CAPABILITY")) {
    const auto tenfold = static_cast<int>(std::strtol(text, nullptr, 10));  // 80 is 8.0
    c.major = tenfold / 10;
    c.minor = tenfold % 10;
  }
  if (const char* text = variable("SHERD_EMULATED_GPU_DRIVER"))
    c.driver_version = static_cast<int>(std::strtol(text, nullptr, 10));
  if (const char* text = variable("SHERD_EMULATED_GPU_ILLEGAL_ADDRESS")) c.illegal_address = text;
  if (const char* text = variable("SHERD_EMULATED_GPU_HANG")) c.hang = text;
  if (const char* text = variable("CUDA_LAUNCH_BLOCKING")) c.launch_blocking = std::string(text) == "1";
  return c;
}

Gpu& gpu() {
  static Gpu* the_gpu = [] {
    auto* made = new Gpu;  // never destroyed: threads may still call at exit
    device_memory().set_capacity(made->configuration.capacity);
    catch_illegal_accesses();
    return made;
  }();
  return *the_gpu;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

bool makes_context(const char* function) {
  return std::ranges::find(kWithoutContext, std::string_view(function)) == std::end(kWithoutContext);
}

cudaError_t& last_error() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

cudaError_t refusal(const char* function) {
  Gpu& g = gpu();
  // A driver serves runtimes of its own major version and older ones.
  const bool too_old = g.configuration.driver_version / 1000 < CUDART_VERSION / 1000;
  if (g.configuration.present == Present::no_driver || too_old) return cudaErrorInsufficientDriver;
  if (g.configuration.present == Present::no_device) return cudaErrorNoDevice;
  if (g.broken != cudaSuccess) return g.broken;
  const auto failing = g.failing.find(function);
  if (failing == g.failing.end() || failing->second.skip-- > 0) return cudaSuccess;
  const cudaError_t status = failing->second.status;
  g.failing.erase(failing);
  return status;
}

void Gpu::lose(cudaError_t status, const std::string& why) {
  if (broken != cudaSuccess) return;
  broken = status;
  report = why;
  std::fprintf(stderr, "emulated GPU: %s\n", why.c_str());
}

void Gpu::count_sync() {
  ++counters.host_syncs;
  ++syncs_here();
}

std::int64_t host_syncs_here() { return syncs_here(); }

Stream* Gpu::find(cudaStream_t handle) {
  const auto found = streams.find(reinterpret_cast<Stream*>(handle));
  return found == streams.end() || found->second->destroyed ? nullptr : found->second.get();
}

Event* Gpu::find(cudaEvent_t handle) {
  const auto found = events.find(reinterpret_cast<Event*>(handle));
  return found == events.end() ? nullptr : found->second.get();
}

// `where` is a LAUNCH of control.h.
bool Gpu::is_named(const std::string& where, const std::string& kernel) const {
  if (where.empty()) return false;
  return where == std::to_string(launched) || where == kernel.substr(0, kernel.find('<')) || where == running_test ||
         where == running_test.substr(0, running_test.find('.'));
}

void Gpu::launch(Stream& stream, const std::string& name, std::function<void()> run) {
  ++counters.host_launches;
  ++launched;
  const std::string text = "kernel " + name + ", launch " + std::to_string(launched);
  if (is_named(configuration.illegal_address, name)) {
    run = [this, text] { lose(cudaErrorIllegalAddress, text + ": an illegal access, as was asked for"); };
  } else if (is_named(configuration.hang, name)) {
    run = [text] {
      std::fprintf(stderr, "emulated GPU: %s: never ends, as was asked for\n", text.c_str());
      for (;;) ::pause();
    };
  }
  const std::shared_ptr<Op> op = enqueue(stream, std::move(run));
  if (op && configuration.launch_blocking) complete(op);
}

std::shared_ptr<Op> Gpu::enqueue(Stream& stream, std::function<void()> run, std::vector<std::shared_ptr<Op>> after,
                                 HostWait wait, Gate gate) {
  if (stream.capture) {
    std::vector<Node>& nodes = stream.capture->graph->nodes;
    nodes.push_back({std::move(run), stream.tail});
    stream.tail = {nodes.size() - 1};
    return nullptr;
  }
  auto op = std::make_shared<Op>();
  op->run = std::move(run);
  op->after = std::move(after);
  op->wait = wait;
  op->gate = std::move(gate);
  op->stream = &stream;
  stream.queue.push_back(op);
  if (configuration.early && random.once_in(8))
    for (std::uint64_t n = random.below(8); n > 0 && run_something(); --n) {}
  if (stream.queue.size() > kQueueLimit) complete(std::shared_ptr<Op>(stream.queue[kQueueLimit / 2]));
  return op;
}

bool Gpu::ready(const Stream& stream) const {
  if (stream.queue.empty()) return false;
  const Op& op = *stream.queue.front();
  const bool others_done =
      std::all_of(op.after.begin(), op.after.end(), [](const auto& before) { return before->done; });
  if (!others_done) return false;
  return broken != cudaSuccess || (op.wait.is_over() && (!op.gate.is_open || op.gate.is_open()));
}

void Gpu::run_head(Stream& stream) {
  const std::shared_ptr<Op> op = stream.queue.front();
  stream.queue.pop_front();
  if (op->run && broken == cudaSuccess) op->run();
  op->when = std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(extra_seconds_);
  op->done = true;
  op->run = nullptr;
  op->gate = {};
  op->after.clear();
  if (stream.destroyed && stream.queue.empty()) streams.erase(&stream);
}

bool Gpu::run_something() {
  std::vector<Stream*> choice;
  for (const auto& [address, stream] : streams)
    if (ready(*stream)) choice.push_back(address);
  if (choice.empty()) return false;
  run_head(*choice[random.below(choice.size())]);
  return true;
}

// The head of a stream that must run before `op` can, found along the waits: nothing but the host or a gate holds it.
const Op& Gpu::first_towards(const Op& op) {
  const Op* target = &op;
  for (;;) {
    const Op& head = *target->stream->queue.front();
    const auto before =
        std::find_if(head.after.begin(), head.after.end(), [](const auto& other) { return !other->done; });
    if (before == head.after.end()) return head;
    target = before->get();
  }
}

bool Gpu::advance(const std::shared_ptr<Op>& op) {
  Stream& stream = *first_towards(*op).stream;
  if (!ready(stream)) return false;
  run_head(stream);
  return true;
}

// The caller holds the lock, and may have to wait for what another thread does next.
void Gpu::let_host_go_on() {
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
}

void Gpu::complete(const std::shared_ptr<Op>& op) {
  // Either nothing but what the caller waits for, or anything that may run.
  const bool only_needed = random.once_in(2);
  while (!op->done) {
    if (only_needed && advance(op)) continue;
    // A gate may wait for what is on other streams.
    const bool any = !only_needed || first_towards(*op).gate.is_open;
    if (!any || !run_something()) let_host_go_on();
  }
}

void Gpu::complete(Stream& stream) {
  if (!stream.queue.empty()) complete(std::shared_ptr<Op>(stream.queue.back()));
}

void Gpu::run_all() {
  while (run_something()) {}
}

void Gpu::complete_all(const char* function, int device) {
  const auto until = std::chrono::steady_clock::now() + configuration.patience;
  for (;;) {
    run_all();
    const auto waiting = std::ranges::find_if(
        streams, [&](const auto& entry) { return entry.second->device == device && !entry.second->queue.empty(); });
    if (waiting == streams.end()) return;
    if (broken == cudaSuccess && std::chrono::steady_clock::now() > until)
      lose(cudaErrorLaunchTimeout, std::string(function) + " waits for device " + std::to_string(device) + ": " +
                                       why_it_waits(*waiting->second));
    let_host_go_on();
  }
}

// Along the waits of streams for streams, to the one that waits for the host or a gate.
std::string Gpu::why_it_waits(const Stream& stream) const {
  const Op* op = stream.queue.front().get();
  std::string text;
  for (;;) {
    text += "stream " + std::to_string(op->stream->number);
    const auto before =
        std::find_if(op->after.begin(), op->after.end(), [](const auto& other) { return !other->done; });
    if (before == op->after.end()) break;
    text += " waits for ";
    op = (*before)->stream->queue.front().get();
  }
  if (op->gate.is_open) return text + " waits for " + op->gate.name;
  char word[100] = "";
  if (op->wait.word)
    std::snprintf(word, sizeof word, " waits for the word at %p to become %u; it is %u",
                  static_cast<const void*>(op->wait.word), op->wait.value, op->wait.word->load());
  return text + word + ". Nobody but the calling thread may be there to store it";
}

void Gpu::run_nodes(const std::vector<Node>& nodes) {
  std::vector<bool> done(nodes.size());
  std::vector<std::size_t> waiting(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) waiting[i] = i;
  while (!waiting.empty() && broken == cudaSuccess) {
    // The first node that waits may always run; look for another from a random place on.
    std::size_t choice = random.below(waiting.size());
    const auto may_run = [&](std::size_t i) {
      return std::all_of(nodes[i].after.begin(), nodes[i].after.end(), [&](std::size_t j) { return done[j]; });
    };
    while (!may_run(waiting[choice])) choice /= 2;
    const std::size_t node = waiting[choice];
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(choice));
    if (nodes[node].run) nodes[node].run();
    done[node] = true;
  }
}

Capture* Gpu::forbidding_capture() {
  for (const auto& [address, stream] : streams) {
    Capture* capture = stream->capture.get();
    if (!capture || capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeGlobal || capture->thread == std::this_thread::get_id()) return capture;
  }
  return nullptr;
}

}  // namespace sherd::cuda::emulated
