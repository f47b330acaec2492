// The queue has three cursors: submitted >= started >= done. Whoever finds the queue idle may run the next item: its
// own thread, or the rank's thread when it would wait for it anyway; so work that is wanted at once costs no switch of
// threads. Items leave the queue only on the rank's thread, when it waits: at points of the program, never at moments
// of time, so that what they hold is freed at the same place in every run.
#include "runtime/exec/host_queue.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "runtime/exec/context.h"
#include "runtime/exec/copy_queues.h"
#include "runtime/exec/hazards.h"
#include "runtime/exec/timeline_recording.h"
#include "runtime/exec/trace.h"
#include "runtime/exec/work_times.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/for_scope.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

namespace {

constexpr std::int64_t kSpinNanoseconds = 5000;

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

// Adds the time of a wait to the rank's account, unless it is for copies; a wait inside a wait (work done inline that
// waits for another queue) counts once.
class WaitClock : NoCopy {
 public:
  WaitClock(const Queue& queue, bool is_rank_thread)
      : context_(is_rank_thread ? RankContext::current_or_null() : nullptr), copies_(is_copy_queue(queue.name())) {
    if (context_ && std::exchange(context_->is_waiting, true)) context_ = nullptr;
    if (!context_) return;
    mark_.emplace(queue);
    start_ = now();
  }
  ~WaitClock() {
    if (!context_) return;
    context_->is_waiting = false;
    if (!copies_) context_->waited_seconds += static_cast<double>(now() - start_) * 1e-9;
  }
  /// Whether this is a wait of the rank's thread, and not within another.
  bool counts() const { return context_ != nullptr; }

 private:
  RankContext* context_;
  const bool copies_;
  std::optional<QueueWaitMark> mark_;
  std::int64_t start_ = 0;
};

// Skews of the item that this thread runs, and the rank that the thread belongs to; null elsewhere.
thread_local constinit std::vector<Skew>* skews_of_item __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local constinit RunningOp* rank_of_queue __attribute__((tls_model("initial-exec"))) = nullptr;

// Throws a copy, since each handler adds to the error that it catches.
template <class E>
[[noreturn]] void throw_copy(const E& error) {
  throw E(error);
}
[[noreturn]] void rethrow_copy(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError& e) { throw_copy(e); } catch (const OutOfMemory& e) {
    throw_copy(e);
  } catch (const Error& e) { throw_copy(e); }
}

// It takes `next_after`, what it comes after beside what its loans say.
std::unique_ptr<QueueItem> make_item(const Queue& queue, QueueWork& work, std::vector<Event>& next_after) {
  RankContext& context = RankContext::current();
  auto item = std::make_unique<QueueItem>();
  item->queue = queue.name();
  item->name = work.name;
  item->subject = work.subject;
  item->module_path = context.module_path;
  item->purpose = {.function = current_purpose().function,
                   .work = work.name,
                   .module = work.subject.empty() && context.module_path ? *context.module_path : std::string_view()};
  item->issued = issued_at(context);
  item->phase = context.phase;
  item->bytes = work.bytes;
  item->run = std::move(work.run);
  item->abort = std::move(work.abort);
  item->is_ready = std::move(work.is_ready);
  item->after = work_before(queue, work.loans);
  for (const Loan& loan : work.loans)
    if (!loan.writes && !(context.hazards && context.hazards->is_removed(QueueEdge::hold, queue.name())))
      item->held.push_back(loan.storage);
  // Errors of a host queue's work belong to who uses what it wrote; a lost device has done nothing of its work.
  for (Event& event : next_after) {
    const bool is_of_device = event.queue()->device() != Device::cpu();
    item->after.push_back({std::move(event), is_of_device});
  }
  next_after.clear();
  return item;
}

}  // namespace

bool is_running_work() { return skews_of_item != nullptr; }

void note_skew(Skew skew) {
  if (skews_of_item) skews_of_item->push_back(skew);
}

std::vector<Skew> skews_here() { return skews_of_item ? *skews_of_item : std::vector<Skew>(); }

RunningOp* running_op_here() {
  if (rank_of_queue) return rank_of_queue;
  RankContext* const context = RankContext::current_or_null();
  return context ? context->state<RunningOpSlot>().running.get() : nullptr;
}

HostQueue::HostQueue(std::string_view name, int index, bool spins, std::shared_ptr<RunningOp> rank, Device device)
    : Queue(name, index, device), spins_(spins), owner_(std::this_thread::get_id()), rank_(std::move(rank)) {
  const std::lock_guard lock(rank_->queues_mutex);
  rank_->queues.push_back(this);
}

HostQueue::~HostQueue() {
  if (thread_.joinable()) close();
  const std::lock_guard lock(rank_->queues_mutex);
  std::erase(rank_->queues, this);
}

Event HostQueue::submit(QueueWork work, LetGo let_go) {
  RankContext& context = RankContext::current();
  check(is_owner() && !is_closing_, "work \"{}\" was submitted to the queue {} of another rank, or after its end",
        work.name, name());
  check(!work.begin == !work.is_ready, "work \"{}\" has only one of begin and is_ready; give both or none", work.name);
  while (num_in_flight() >= work.max_in_flight) {
    if (context.timeline) context.timeline->waited(*this, retired_ + 1, Timeline::Why::throttle);
    await(retired_ + 1);
  }

  forget_failures();
  auto item = make_item(*this, work, next_after_);
  item->sequence = submitted_ + 1;
  item->let_go = std::move(let_go);
  if (context.hazards) context.hazards->submitted(*this, *item, work.loans);
  if (context.timeline) context.timeline->submitted(*this, *item, work);
  item->submitted = now();

  const Event event(this, item->sequence);
  // A ghost's work has no bytes to run on. It ends when somebody waits for it, so that its loans last as long as ever.
  if (context.is_ghost()) item->run = nullptr;
  else if (!thread_.joinable()) thread_ = std::thread([this] { run_thread(); });
  const bool has_begun = item->run && begin(work, *item);
  item->has_begun = has_begun;
  {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    ++submitted_;
  }
  if (!has_begun) has_work_.notify_one();
  for (const Loan& loan : work.loans) loan.storage->lend(event, loan.writes);
  return event;
}

// The last read of a storage stands for those before it, so all items that may still look at it are asked. Only this
// thread takes items away; those that are done stay until somebody waits for them. Whether others than such that let go
// are waited for must not depend on how far they are: the hazard check would not see them.
bool HostQueue::let_go(std::uint64_t sequence, const Storage& storage) {
  if (!is_owner()) return false;
  std::vector<const QueueItem*> readers;
  {
    const std::lock_guard lock(mutex_);
    if (sequence <= retired_) return false;
    for (const auto& item : items_) {
      if (item->sequence > sequence) break;
      if (item->sequence == sequence || std::ranges::find(item->held, &storage, &Ref<Storage>::get) != item->held.end())
        readers.push_back(item.get());
    }
  }
  return std::ranges::all_of(readers, [&](const QueueItem* item) {
    return item->let_go && (is_done(item->sequence) || item->let_go(storage));
  });
}

// Whether everything submitted is done, or would be at once: a second half that need not wait is run now. Its item
// stays, with what it holds, until somebody waits.
bool HostQueue::is_idle() {
  std::unique_lock lock(mutex_);
  if (done_ + 1 == submitted_ && !running_) {
    const QueueItem& last = *items_.back();
    if (last.has_begun && last.is_ready()) {
      const WaitClock clock(*this, true);
      const std::int64_t start = now();
      run_next(lock);
      if (clock.counts()) items_.back()->exposed += now() - start;
    }
  }
  return done_ == submitted_;
}

bool HostQueue::begin(const QueueWork& work, QueueItem& item) {
  if (!work.begin || is_running_work() || !is_idle()) return false;
  {
    const std::lock_guard lock(mutex_);
    if (failures_.contains(item.sequence)) return false;
  }
  if (!std::ranges::all_of(item.after, [](const auto& before) { return before.event.is_reached(); })) return false;
  bool has_begun = true;
  const PurposeScope purpose(item.purpose);
  const ForScope skews(&skews_of_item, &item.skews);  // this thread runs the item
  try {
    for (const auto& [event, wrote] : item.after)
      if (wrote) event.queue()->rethrow(event.sequence());
    work.begin();
  } catch (const std::exception&) { has_begun = false; }  // `run` meets it again, where its errors belong
  return has_begun;
}

void HostQueue::wait(const Event& event) {
  if (event.queue() && event.queue() != this) next_after_.push_back(event);
}

void HostQueue::run_thread() {
  rank_of_queue = rank_.get();
  pthread_setname_np(pthread_self(), name().substr(0, 15).c_str());
  std::unique_lock lock(mutex_);
  for (;;) {
    has_work_.wait(lock, [this] { return is_closing_ || may_run_next(); });
    if (may_run_next()) run_next(lock);
    else if (is_closing_) return;
  }
}

// By the queue's thread. What has begun is left to waiters, if nothing is behind it.
bool HostQueue::may_run_next() const {
  if (running_ || started_ == submitted_) return false;
  return !items_[started_ - retired_]->has_begun || started_ < hurried_ || started_ + 1 < submitted_;
}

ThreadState HostQueue::state() const {
  using enum ThreadState::Kind;
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = submitted_ + started_;  // both only grow
  if (!running_) return {may_run_next() ? busy : idle, number, nullptr};
  const Queue* const awaited = awaited_.load(std::memory_order_acquire);
  return {awaited ? waits : busy, number, awaited};
}

void HostQueue::hurry() {
  {
    const std::lock_guard lock(mutex_);
    hurried_ = submitted_;
  }
  has_work_.notify_one();
}

// The next item, on this thread. Called and left with the lock held, not held in between.
void HostQueue::run_next(std::unique_lock<std::mutex>& lock) {
  QueueItem& item = *items_[started_ - retired_];
  ++started_;
  running_ = &item;
  const bool skipped = failures_.contains(item.sequence);
  lock.unlock();
  std::exception_ptr error;
  item.started = now();
  const PurposeScope purpose(item.purpose);
  auto* const outer_skews = std::exchange(skews_of_item, &item.skews);
  try {
    // Even a skipped item waits for its dependencies: waiting for it implies that they are done.
    for (const auto& [event, wrote] : item.after) {
      awaited_.store(event.queue(), std::memory_order_release);
      event.queue()->await(event.sequence());
    }
    awaited_.store(nullptr, std::memory_order_release);
    if (!skipped) {
      for (const auto& [event, wrote] : item.after)
        if (wrote) event.queue()->rethrow(event.sequence());
      item.started = now();
      if (item.run) item.run();
    }
  } catch (Error& e) {
    if (!e.has("queue")) e.add("queue", describe(item));
    if (!e.has("issued") && !item.issued.empty()) e.add("issued", item.issued);
    error = std::current_exception();
  } catch (...) { error = std::current_exception(); }
  item.ended = now();
  skews_of_item = outer_skews;
  lock.lock();
  if (error) failures_.add(item.sequence, error);
  awaited_.store(nullptr, std::memory_order_release);
  running_ = nullptr;
  done_.store(item.sequence, std::memory_order_release);
  for (std::atomic<std::uint32_t>* word : words_)
    word->store(static_cast<std::uint32_t>(item.sequence), std::memory_order_release);
  has_finished_.notify_all();
  if (started_ < submitted_) has_work_.notify_one();
}

// Failures are asked for by events. Where there is none, and nothing is left to skip, a long run must not keep them:
// each has the text of an error. Only this thread makes events and lets them go.
void HostQueue::forget_failures() {
  if (!failures_.any() || use_count() > 1) return;  // the rank has one
  const std::lock_guard lock(mutex_);
  if (done_ != submitted_ || failures_.is_open()) return;
  failures_.clear();
}

std::size_t HostQueue::num_failures() const {
  const std::lock_guard lock(mutex_);
  return failures_.size();
}

void HostQueue::await(std::uint64_t sequence) {
  const bool is_owner = this->is_owner();
  if (!is_done(sequence)) {
    if (RankContext* const context = RankContext::current_or_null();
        context && context->timeline && is_owner && !skews_of_item)
      context->timeline->waited(*this, sequence, Timeline::Why::touch);
    const WaitClock clock(*this, is_owner);
    const std::uint64_t first = done_.load(std::memory_order_acquire) + 1;
    const std::int64_t start = now();
    TraceSpan waiting(kWaitName, SpanKind::wait);
    std::unique_lock lock(mutex_);
    if (Trace* trace = waiting.trace()) waiting.set_detail(trace->intern(describe(*items_[sequence - retired_ - 1])));
    while (!is_done(sequence)) {
      if (is_owner && !running_) run_next(lock);
      else sleep_until_done(lock, sequence);
    }
    explain_wait(start, first, sequence, clock.counts());
  }
  // Not inside of an item that this thread runs: memory would be freed where it is not when the queue's thread runs it,
  // and what it frees may be what the item writes.
  if (is_owner && !skews_of_item) retire(sequence);
}

// How much of a wait for these items, which ends now, went by in their skews. A wait inside of an item is that item's
// to tell; `is_exposed` says that nobody else does. Called with the lock held; when another thread than the owner
// comes, items may be retired.
void HostQueue::explain_wait(std::int64_t start, std::uint64_t first, std::uint64_t last, bool is_exposed) {
  const std::int64_t end = now();
  std::int64_t from = start;  // items come one after the other: each is waited for until it has ended
  for (std::uint64_t sequence = std::max(first, retired_ + 1); sequence <= last; ++sequence) {
    QueueItem& item = *items_[sequence - retired_ - 1];
    const std::int64_t until = sequence == last ? end : std::clamp(item.ended, from, end);
    if (is_exposed) item.exposed += until - std::exchange(from, until);
    for (const Skew& skew : item.skews) {
      const Skew shared{std::max(skew.from, start), std::min(skew.until, end)};
      if (shared.from >= shared.until) continue;
      if (is_exposed) item.exposed_skew += shared.until - shared.from;
      if (skews_of_item) skews_of_item->push_back(shared);
      else if (RankContext* const context = is_owner() ? RankContext::current_or_null() : nullptr)
        context->waited_skew_seconds += static_cast<double>(shared.until - shared.from) * 1e-9;
    }
  }
}

void HostQueue::sleep_until_done(std::unique_lock<std::mutex>& lock, std::uint64_t sequence) {
  hurried_ = std::max(hurried_, sequence);  // another thread waits, or runs already
  has_work_.notify_one();
  if (spins_) {
    lock.unlock();
    for (const std::int64_t stop = now() + kSpinNanoseconds; now() < stop;) {
      for (int i = 0; i < 32 && !is_done(sequence); ++i) __builtin_ia32_pause();
      if (is_done(sequence)) break;
    }
    lock.lock();
  }
  // Also woken when the queue falls idle before that: a waiter may run the next item itself.
  const QueueItem* running = running_;
  has_finished_.wait(lock, [&] { return is_done(sequence) || running_ != running; });
}

// Lets go of finished items up to `sequence`, and of those of other queues that they came after: who has waited for a
// sum waits for none of its terms again. Their memory is given back outside of the lock.
void HostQueue::retire(std::uint64_t sequence) {
  RankContext* context = RankContext::current_or_null();
  if (context && context->hazards) context->hazards->waited(*this, sequence);
  for (;;) {
    std::unique_ptr<QueueItem> item;
    {
      const std::lock_guard lock(mutex_);
      if (retired_ >= sequence || items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
      ++retired_;
    }
    if (context && !context->is_ghost()) context->state<WorkTimes>().add(*item);
    if (context && context->trace)
      add_span(*context->trace, *item, Event(this, item->sequence).flow(), context->trace->track(item->queue));
    for (const auto& [event, wrote] : item->after)
      if (event.queue()->device() == Device::cpu()) static_cast<HostQueue*>(event.queue())->retire(event.sequence());
  }
}

// From here on new work runs again; what was submitted before has failed for good.
void HostQueue::forgive() noexcept {
  if (!is_owner()) return;
  const std::lock_guard lock(mutex_);
  failures_.close(submitted_);
}

void HostQueue::rethrow(std::uint64_t sequence) {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = failures_.error_of(sequence);
  }
  if (!error) return;
  forgive();
  rethrow_copy(error);
}

void HostQueue::drain() noexcept {
  if (submitted_ == 0) return;
  await(submitted_);
  forgive();
}

void HostQueue::abort(const std::string& reason) noexcept {
  std::function<void(std::string_view)> abort_running;
  {
    const std::lock_guard lock(mutex_);
    if (done_.load() < submitted_) failures_.add(done_.load() + 1, std::make_exception_ptr(CommError(reason)));
    if (running_) abort_running = running_->abort;
  }
  if (abort_running) abort_running(reason);
}

void HostQueue::close() noexcept {
  drain();
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  has_work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void HostQueue::show_progress(std::atomic<std::uint32_t>& word) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(words_, &word) != words_.end()) return;
  word.store(static_cast<std::uint32_t>(done_.load()), std::memory_order_release);
  words_.push_back(&word);
}

std::size_t HostQueue::num_in_flight() const {
  const std::lock_guard lock(mutex_);
  return items_.size();
}

}  // namespace sherd
