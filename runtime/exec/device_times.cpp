#include "runtime/exec/device_times.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/exec/copy_queues.h"
#include "runtime/exec/trace.h"
#include "runtime/exec/work_times.h"

namespace sherd {

namespace {

constexpr std::size_t kMostUnshared = 512;  // what ranks have not told each other by then is not told

struct TimedQueues {
  std::vector<DeviceTimes*> all;
};

std::vector<DeviceTimes*>& timed_queues() { return RankContext::current().state<TimedQueues>().all; }

std::int64_t time_of(const std::shared_ptr<DeviceMark>& mark) {
  auto* const timed = dynamic_cast<TimedMark*>(mark.get());
  return timed ? timed->time() : 0;
}

std::uint8_t track_of(Trace& trace, std::string_view queue, const Queue& of) {
  return trace.track(fmt::format("{} ({})", queue, to_string(of.device())));
}

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

// A wait, its skew and the collective that it was for count at once, so that no window of time has the one without the
// other. A collective also takes what compute has waited before its device began; of other work on such a queue, as a
// cast, the wait alone is communication.
void count_wait(const QueueItem& item, bool is_shared) {
  RankContext& rank = RankContext::current();
  rank.state<WorkTimes>().add_wait(item);
  if (is_copy_queue(item.queue)) return;
  rank.waited_seconds += seconds(item.exposed);
  rank.waited_skew_seconds += seconds(item.exposed_skew);
  const std::int64_t ran = item.ended - std::min(item.started, item.ended - item.exposed);
  rank.state<WorkTimes>().add_shared(seconds(is_shared ? ran : item.exposed));
}

}  // namespace

DeviceTimes::DeviceTimes(const Queue& queue) : queue_(queue) { timed_queues().push_back(this); }

DeviceTimes::~DeviceTimes() { std::erase(timed_queues(), this); }

void DeviceTimes::submitted(QueueItem item, std::uint64_t flow, Mark begun, Mark ended,
                            std::shared_ptr<SharedWork> shared) {
  item.after.clear();
  RankContext::current().state<WorkTimes>().count(item);
  items_.push_back({std::move(item), flow, std::move(begun), std::move(ended), std::move(shared)});
}

void DeviceTimes::awaited(std::uint64_t sequence, Mark compute) { waits_.push_back({sequence, std::move(compute)}); }

// Items come one after the other: each is waited for until it has ended. Where compute has not come to its wait, which
// is asked when the item is over, it does not wait.
void DeviceTimes::expose(QueueItem& item) {
  if (waits_.empty()) return;
  const std::int64_t came = time_of(waits_.front().compute);
  if (came == 0) return;
  const std::int64_t from = std::max(came, last_ended_);
  if (from >= item.ended) return;
  item.exposed = item.ended - from;
  if (Trace* const trace = RankContext::current().trace)
    trace->add({.start = from,
                .end = item.ended,
                .name = kWaitName,
                .detail = trace->intern(describe(item)),
                .track = track_of(*trace, kComputeQueue, queue_),
                .kind = SpanKind::wait,
                .phase = item.phase});
}

void DeviceTimes::collect() {
  while (!items_.empty() && items_.front().ended->is_reached()) {
    Timed timed = std::move(items_.front());
    items_.pop_front();
    QueueItem& item = timed.item;
    while (!waits_.empty() && waits_.front().sequence < item.sequence) waits_.pop_front();
    const std::int64_t begun = time_of(timed.begun);
    item.ended = time_of(timed.ended);
    item.started = std::min(begun, item.ended);  // a clock may be set between two questions
    if (begun == 0 || item.ended == 0) continue;
    expose(item);
    last_ended_ = item.ended;
    RankContext& rank = RankContext::current();
    rank.state<WorkTimes>().add_times(item);
    if (rank.trace) add_span(*rank.trace, item, timed.flow, track_of(*rank.trace, item.queue, queue_));
    if (timed.shared) timed.shared->ran(item.started, item.ended);
    if (timed.shared && item.exposed > 0) unshared_.push_back(std::move(timed));
    else count_wait(item, timed.shared != nullptr);
  }
  add_skews();
}

// What of the waits for an item went by until the last rank had come to it.
void DeviceTimes::add_skews() {
  if (unshared_.size() > kMostUnshared) {
    count_wait(unshared_.front().item, true);
    unshared_.erase(unshared_.begin());
  }
  std::erase_if(unshared_, [](Timed& timed) {
    if (!timed.shared->is_skew_known()) return false;
    QueueItem& item = timed.item;
    const Skew skew = timed.shared->skew();
    const std::int64_t from = std::max(skew.from, item.ended - item.exposed), until = std::min(skew.until, item.ended);
    item.exposed_skew = std::max<std::int64_t>(until - from, 0);
    count_wait(item, true);
    return true;
  });
}

void DeviceTimes::finish() {
  collect();
  for (const Timed& timed : unshared_) count_wait(timed.item, true);
  unshared_.clear();
}

void DeviceTimes::clear() {
  items_.clear();
  waits_.clear();
  unshared_.clear();
}

void collect_device_times() {
  RankContext* const rank = RankContext::current_or_null();
  if (!rank) return;
  for (DeviceTimes* const times : timed_queues()) times->collect();
}

}  // namespace sherd
