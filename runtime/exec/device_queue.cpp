#include "runtime/exec/device_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/exec/hazards.h"
#include "runtime/exec/host_queue.h"
#include "runtime/exec/running_op.h"
#include "runtime/exec/trace.h"
#include "runtime/tensor/error.h"

namespace sherd {

void DeviceContext::Failure::set(const CommError& error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
}

void DeviceContext::Failure::clear() {
  const std::lock_guard lock(mutex_);
  error_.reset();
}

void DeviceContext::Failure::check() const {
  const std::lock_guard lock(mutex_);
  if (error_) throw CommError(*error_);
}

// One failure skips what is queued behind it, and all of that has the same error: it is told once.
void DeviceContext::throw_failed_host_work() {
  failure->check();
  std::exception_ptr first;
  for (Event& event : std::exchange(host_work_, {})) {
    if (!event.is_reached()) {
      host_work_.push_back(std::move(event));
      continue;
    }
    try {
      event.wait();  // lets go of it
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void DeviceContext::drop_host_work() noexcept {
  failure->clear();
  for (const Event& event : std::exchange(host_work_, {}))
    if (event.is_reached()) event.settle();
}

DeviceQueue::DeviceQueue(std::string_view name, int index, DeviceContext& context)
    : Queue(name, index, context.device()),
      context_(context),
      owner_(std::this_thread::get_id()),
      stream_(context.open_stream(name == kComputeQueue)),
      times_(name == kComputeQueue ? nullptr : std::make_unique<DeviceTimes>(*this)) {}

Event DeviceQueue::submit(QueueWork work, Counts counts) {
  RankContext& rank = RankContext::current();
  check(is_owner() && stream_, "work \"{}\" was submitted to the queue {} of another rank, or after its end", work.name,
        name());
  check(
      !context_.is_recording(),
      "work \"{}\" for the queue {} of {} inside a recorded graph, which holds kernels of one stream; compile without "
      "it, or move it out of the step",
      work.name, name(), to_string(device()));
  Queue& compute = rank.queue(kComputeQueue, device());
  while (!is_compute() && submitted_ - retired_ >= work.max_in_flight) compute.wait(Event(this, retired_ + 1));
  prune();
  if (times_) times_->collect();

  QueueItem item;
  item.sequence = submitted_ + 1;
  item.queue = name();
  item.name = work.name;
  item.subject = work.subject;
  item.module_path = rank.module_path;
  item.phase = rank.phase;
  item.bytes = work.bytes;
  item.calls = counts.calls;
  item.after = work_before(*this, work.loans);
  for (const auto& [event, wrote] : item.after) wait(event);
  if (!is_compute()) wait(compute.record());
  item.after = std::exchange(after_, {});
  if (rank.hazards) rank.hazards->submitted(*this, item, work.loans);
  const std::shared_ptr<DeviceMark> begun = times_ ? mark() : nullptr;
  // Where it throws, what it has put on the stream runs all the same, and uses what it was lent.
  std::exception_ptr failure;
  try {
    if (work.run) work.run();
  } catch (...) { failure = std::current_exception(); }

  Place place{.sequence = item.sequence, .run = std::move(work.run), .abort = std::move(work.abort)};
  for (const Loan& loan : work.loans)  // compute's own order is the allocator's
    if (!loan.writes && !is_compute() && !(rank.hazards && rank.hazards->is_removed(QueueEdge::hold, name())))
      place.held.push_back(loan.storage);
  for (const auto& [before, wrote] : item.after)
    if (before.queue()->device() == device() && before.queue()->name() != kComputeQueue) place.after.push_back(before);
  const std::shared_ptr<DeviceMark> ended = place.mark = mark();
  const Event event = add(std::move(place));
  if (times_) times_->submitted(std::move(item), event.flow(), begun, ended, std::move(counts.shared));
  for (const Loan& loan : work.loans) loan.storage->lend(event, loan.writes);
  if (failure) std::rethrow_exception(failure);
  return event;
}

// Nobody could wait for what is on the stream without a mark: it ends here.
std::shared_ptr<DeviceMark> DeviceQueue::mark() {
  try {
    return stream_->mark();
  } catch (const Error&) {
    try {
      stream_->synchronize();
    } catch (const Error&) {}  // of a lost device, on which nothing runs
    throw;
  }
}

Event DeviceQueue::add(Place place) {
  const std::lock_guard lock(mutex_);
  place.sequence = ++submitted_;
  places_.push_back(std::move(place));
  return Event(this, submitted_);
}

Event DeviceQueue::record() {
  if (!is_compute() || !stream_ || context_.is_recording()) return Event(this, submitted_);
  prune();
  Place place{.mark = mark()};  // kernels go to the stream without being submitted here
  if (!places_.empty() && places_.back().mark == place.mark) return Event(this, submitted_);
  return add(std::move(place));
}

// Waits for a host queue by its progress word, for a device queue by its mark; not if this stream comes after it
// anyway.
void DeviceQueue::wait(const Event& event) {
  Queue* const other = event.queue();
  if (!other || other == this || !stream_) return;
  const auto at = static_cast<std::size_t>(other->index());
  if (seen_.size() <= at) seen_.resize(at + 1);
  if (seen_[at] < event.sequence() && !other->is_done(event.sequence())) {
    check(!context_.is_recording(),
          "the queue {} of {} is waited for inside a recorded graph, which would wait for this once and never again",
          other->name(), to_string(other->device()));
    if (other->device().kind == Device::Kind::cpu) {
      std::atomic<std::uint32_t>& word = context_.progress(other->index());
      static_cast<HostQueue*>(other)->show_progress(word);
      static_cast<HostQueue*>(other)->hurry();
      stream_->wait(word, static_cast<std::uint32_t>(event.sequence()));
    } else if (const auto mark = static_cast<DeviceQueue*>(other)->mark_of(event.sequence())) {
      DeviceTimes* const times = static_cast<DeviceQueue*>(other)->times_.get();
      if (is_compute() && times) times->awaited(event.sequence(), this->mark());
      stream_->wait(*mark);
    }
  }
  seen_[at] = std::max(seen_[at], event.sequence());
  if (other->device().kind == Device::Kind::cpu) context_.note_host_work(event);
  if (!is_compute()) {
    after_.push_back({event, false});
    return;
  }
  if (HazardChecker* const hazards = RankContext::current().hazards) hazards->waited(*other, event.sequence());
  if (other->device() == device()) static_cast<DeviceQueue*>(other)->retire(event.sequence());
}

std::shared_ptr<DeviceMark> DeviceQueue::mark_of(std::uint64_t sequence) const {
  const std::lock_guard lock(mutex_);
  if (places_.empty() || sequence < places_.front().sequence) return nullptr;
  return places_[sequence - places_.front().sequence].mark;
}

bool DeviceQueue::is_done(std::uint64_t sequence) const {
  if (sequence <= done_.load(std::memory_order_acquire)) return true;
  const std::shared_ptr<DeviceMark> mark = mark_of(sequence);
  if (mark && !mark->is_reached()) return false;
  set_done(sequence);
  return true;
}

void DeviceQueue::set_done(std::uint64_t sequence) const {
  for (std::uint64_t done = done_.load(); done < sequence && !done_.compare_exchange_weak(done, sequence);) {}
}

// Keeps the error of a lost device for rethrow(): a caller that only has to outlast the work does not ask.
void DeviceQueue::await(std::uint64_t sequence) {
  if (!is_done(sequence)) {
    const TraceSpan waiting(kWaitName, SpanKind::wait);
    std::optional<QueueWaitMark> shown;
    if (is_owner()) shown.emplace(*this);
    const std::shared_ptr<DeviceMark> mark = mark_of(sequence);
    try {
      if (mark) mark->await();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    set_done(sequence);
  }
  if (!is_owner() || is_running_work()) return;  // as HostQueue::await
  if (RankContext* const rank = RankContext::current_or_null(); rank && rank->hazards)
    rank->hazards->waited(*this, sequence);
  retire(sequence);
  prune();
}

// Work of a host queue that waits for this one fails if the device is lost, and not for what other host work did.
void DeviceQueue::rethrow(std::uint64_t) {
  if (is_owner() && stream_ && !is_running_work()) context_.throw_failed_host_work();
  std::exception_ptr failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
  }
  if (failure) std::rethrow_exception(failure);
}

// Forgets places that are over and hold nothing. What they captured ends here, on the rank's thread.
void DeviceQueue::prune() {
  for (;;) {
    Place over;
    {
      const std::lock_guard lock(mutex_);
      if (places_.empty() || !places_.front().held.empty() || !places_.front().after.empty()) return;
      if (!places_.front().mark->is_reached()) return;
      over = std::move(places_.front());
      places_.pop_front();
    }
    set_done(over.sequence);
  }
}

// Compute has waited for this work, or the host has: memory that only it has kept, or work of other queues that it came
// after, goes back to the allocator now.
void DeviceQueue::retire(std::uint64_t sequence) {
  if (sequence <= retired_) return;
  std::vector<Ref<Storage>> free;
  std::vector<Event> after;
  {
    const std::lock_guard lock(mutex_);
    for (Place& place : places_) {
      if (place.sequence > sequence) break;
      for (Ref<Storage>& storage : place.held) free.push_back(std::move(storage));
      place.held.clear();
      after.insert(after.end(), place.after.begin(), place.after.end());
      place.after.clear();
    }
  }
  retired_ = sequence;
  for (const Event& event : after) static_cast<DeviceQueue*>(event.queue())->retire(event.sequence());
}

void DeviceQueue::drain() noexcept {
  if (!stream_) return;
  std::exception_ptr lost;
  try {
    stream_->synchronize();
  } catch (...) { lost = std::current_exception(); }
  context_.drop_failures();
  {
    const std::lock_guard lock(mutex_);
    failure_ = lost;
  }
  done_ = submitted_;
  retire(submitted_);
  try {
    if (times_ && !lost) times_->finish();
  } catch (const std::exception&) {}  // the device fails whoever asks it next
}

// What is on the stream runs; collectives that wait for other ranks are told to give up.
void DeviceQueue::abort(const std::string& reason) noexcept {
  std::vector<std::function<void(std::string_view)>> running;
  {
    const std::lock_guard lock(mutex_);
    for (const Place& place : places_)
      if (place.abort && !place.mark->is_reached()) running.push_back(place.abort);
  }
  for (const auto& abort : running) abort(reason);
}

void DeviceQueue::close() noexcept {
  drain();
  times_.reset();
  std::deque<Place> over;
  {
    const std::lock_guard lock(mutex_);
    over.swap(places_);
  }
  over.clear();
  stream_.reset();
}

}  // namespace sherd
