#include "runtime/exec/context.h"

#include <atomic>
#include <exception>

#include "runtime/exec/device_queue.h"
#include "runtime/exec/host_queue.h"
#include "runtime/exec/running_op.h"
#include "runtime/os/allowed_cpus.h"
#include "runtime/tensor/error.h"

namespace sherd {

std::string_view name(StepPhase phase) {
  switch (phase) {
    case StepPhase::forward: return "forward";
    case StepPhase::backward: return "backward";
    case StepPhase::optimizer: return "optimizer";
  }
  return "";
}

thread_local constinit RankMemory* RankMemory::current_ = nullptr;

RankContext::RankContext(RankOptions options) : RankMemory(options), exceptions_at_start_(std::uncaught_exceptions()) {}

RankContext::~RankContext() {
  close_queues();
  end_states();
}

// While the context is current: a state may ask for it.
void RankContext::end_states() noexcept {
  for (; !kept_.empty(); kept_.pop_back()) states_[kept_.back()].reset();
}

std::size_t RankContext::next_state_index() {
  static std::atomic<std::size_t> next{0};
  return next++;
}

void RankContext::keep_state(std::size_t index, State state) {
  while (states_.size() <= index) states_.emplace_back(nullptr, nullptr);
  states_[index] = std::move(state);
  kept_.push_back(index);
}

Allocator& RankContext::device_allocator(Device device) { return this->device(device).allocator(); }

DeviceContext& RankContext::device(Device device) {
  for (const auto& open : devices_)
    if (open->device() == device) return *open;
  check(!is_ghost(), "{} has no bytes here: this rank is a ghost and opens no device", to_string(device));
  return *devices_.emplace_back(backend_of(device).open(device.index));
}

Queue* RankContext::find_queue(std::string_view name, Device device) const {
  for (const Ref<Queue>& queue : queues_)
    if (queue->name() == name && queue->device() == device) return queue.get();
  return nullptr;
}

Queue& RankContext::queue(std::string_view name, Device device) {
  if (Queue* const known = find_queue(name, device)) return *known;
  const bool on_host = device.kind == Device::Kind::cpu;
  check(!on_host || name != kComputeQueue, "the host has no queue \"{}\": its compute is the rank's thread", name);
  // It is waited for, and waits, whenever another queue of the device is used.
  if (!on_host && name != kComputeQueue) queue(kComputeQueue, device);
  check(queues_.size() < Queue::kMaxPerRank, "a rank has at most {} queues; \"{}\" would be one more",
        Queue::kMaxPerRank, name);
  const auto index = static_cast<int>(queues_.size());
  if (!on_host && !is_ghost())
    return *queues_.emplace_back(Ref<Queue>::fresh(new DeviceQueue(name, index, this->device(device))));
  // Every rank computes on its thread while a queue's thread works.
  const bool spins = 2 * num_ranks_here <= allowed_cpus().count();
  return *queues_.emplace_back(
      Ref<Queue>::fresh(new HostQueue(name, index, spins, state<RunningOpSlot>().running, device)));
}

void RankContext::join_queues(Device device) {
  Queue* const compute = find_queue(kComputeQueue, device);
  if (!compute) return;
  for (const Ref<Queue>& queue : queues_)
    if (queue.get() != compute && queue->device() == device) compute->wait(queue->record());
}

void RankContext::drain_queues() noexcept {
  for (const Ref<Queue>& queue : queues_) queue->drain();
}

// A rank that ends by an exception does not come to what its peers wait for. Work of one queue may wait for another's,
// so all are aborted before any is waited for.
void RankContext::close_queues() noexcept {
  const std::string reason = fmt::format("{} ended by an exception", rank_text.empty() ? "the rank" : rank_text);
  if (std::uncaught_exceptions() > exceptions_at_start_)
    for (const Ref<Queue>& queue : queues_) queue->abort(reason);
  // What one queue lets go of may be lent to another.
  for (const Ref<Queue>& queue : queues_) queue->drain();
  for (const Ref<Queue>& queue : queues_) queue->close();
  queues_.clear();
}

RankMemory& RankMemory::adopt() {
  // Never destroyed: tensors in static storage may outlive main.
  static std::atomic<bool> taken{false};
  check(
      !taken.exchange(true),
      "this thread has no rank context: only a rank's own thread makes tensors. Open a sherd::RankScope at the top of "
      "a thread that is a rank, and pass plain buffers to threads that are not");
  static RankContext* instance = new RankContext;
  current_ = instance;
  return *instance;
}

const std::string* RankContext::intern(std::string_view text) { return &*interned_.emplace(text).first; }

RankScope::RankScope(std::string rank_text, RankOptions options) : outer_(RankMemory::current_), context_(options) {
  context_.rank_text = std::move(rank_text);
  RankMemory::current_ = &context_;
}

RankScope::~RankScope() {
  context_.close_queues();
  context_.end_states();
  RankMemory::current_ = outer_;
}

}  // namespace sherd
