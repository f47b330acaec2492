#include "runtime/exec/queue.h"

#include "runtime/exec/context.h"
#include "runtime/exec/trace.h"

namespace sherd {

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

double waited_skew_seconds() { return RankContext::current().waited_skew_seconds; }

}  // namespace sherd
