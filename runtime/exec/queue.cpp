#include "runtime/exec/queue.h"

#include "runtime/exec/context.h"
#include "runtime/exec/hazards.h"
#include "runtime/exec/host_queue.h"
#include "runtime/exec/trace.h"
#include "runtime/memory/let_go.h"

namespace sherd {

namespace {
// Compute queue of a device that has queues; null on the host, and on a ghost rank, whose device queues are the host's.
Queue* compute_of(Device device) {
  if (!device.has_backend()) return nullptr;
  RankContext* const context = RankContext::current_or_null();
  return context && !context->is_ghost() ? context->find_queue(kComputeQueue, device) : nullptr;
}
}  // namespace

Event::Event(Queue* queue, std::uint64_t sequence) : queue_(queue), sequence_(sequence) {
  if (queue_) queue_->retain();
}

void Event::drop() {
  if (queue_->drop()) Queue::destroy(queue_);
}

std::uint64_t Event::flow() const {
  return queue_ ? sequence_ * Queue::kMaxPerRank + static_cast<std::uint64_t>(queue_->index()) : 0;
}

bool Event::is_reached() const { return !queue_ || queue_->is_done(sequence_); }

void Event::wait() const {
  if (!queue_) return;
  queue_->await(sequence_);
  queue_->rethrow(sequence_);
}

void Event::consume() const {
  wait();
  RankContext* const context = RankContext::current_or_null();
  if (queue_ && context && context->trace) context->trace->consume(flow());
}

void Event::settle() const noexcept {
  if (!queue_) return;
  queue_->await(sequence_);
  queue_->forgive();
}

void Event::outlast() const noexcept {
  if (queue_) queue_->await(sequence_);
}

void Event::consume(Device device) const {
  Queue* const compute = queue_ ? compute_of(device) : nullptr;
  if (!compute) return consume();
  compute->wait(*this);
  if (Trace* const trace = RankContext::current().trace) trace->consume(flow());
}

// Compute that cannot wait is lost, and whoever waits for it is told.
void Event::settle(Device device) const noexcept {
  try {
    if (Queue* const compute = queue_ ? compute_of(device) : nullptr) return compute->wait(*this);
  } catch (const Error&) {}
  settle();
}

void Event::outlast(Device device) const noexcept {
  try {
    if (Queue* const compute = queue_ ? compute_of(device) : nullptr) return compute->wait(*this);
  } catch (const Error&) {}
  outlast();
}

// A device's failures are told where the host waits for it, not where work happens to be submitted.
void Event::rethrow_if_reached() const {
  if (queue_ && queue_->device() == Device::cpu() && queue_->is_done(sequence_)) queue_->rethrow(sequence_);
}

// Queues of a ghost's devices are host queues, without work.
bool let_go(const Event& read, const Storage& storage) {
  Queue* const queue = read.queue();
  if (!queue || queue->device() != Device::cpu()) return false;
  if (!static_cast<HostQueue*>(queue)->let_go(read.sequence(), storage)) return false;
  RankContext* const context = RankContext::current_or_null();
  if (context && context->hazards) context->hazards->let_go(*queue, storage);
  return true;
}

double waited_skew_seconds() { return RankContext::current().waited_skew_seconds; }

}  // namespace sherd
