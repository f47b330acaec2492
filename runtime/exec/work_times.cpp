#include "runtime/exec/work_times.h"

#include "runtime/exec/context.h"
#include "runtime/exec/device_times.h"
#include "runtime/exec/queue_item.h"

namespace sherd {

namespace {
double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }
}  // namespace

WorkTime& WorkTime::operator+=(const WorkTime& other) {
  calls += other.calls;
  seconds += other.seconds;
  exposed += other.exposed;
  skew += other.skew;
  return *this;
}

WorkTime& WorkTime::operator-=(const WorkTime& other) {
  calls -= other.calls;
  seconds -= other.seconds;
  exposed -= other.exposed;
  skew -= other.skew;
  return *this;
}

WorkTime& WorkTimes::entry(const QueueItem& item) {
  if (const auto found = by_work_.find({item.queue, item.name, item.subject}); found != by_work_.end())
    return *found->second;
  WorkTime& time = all_.emplace_back();
  time.queue = item.queue;
  time.name = item.name;
  time.subject = item.subject;
  by_work_.emplace(Texts{time.queue, time.name, time.subject}, &time);
  return time;
}

void WorkTimes::add(const QueueItem& item) {
  count(item);
  add_times(item);
  add_wait(item);
}

void WorkTimes::count(const QueueItem& item) { entry(item).calls += item.calls; }

void WorkTimes::add_times(const QueueItem& item) { entry(item).seconds += seconds(item.ended - item.started); }

void WorkTimes::add_wait(const QueueItem& item) {
  WorkTime& time = entry(item);
  time.exposed += seconds(item.exposed);
  time.skew += seconds(item.exposed_skew);
}

std::vector<WorkTime> WorkTimes::list() const { return {all_.begin(), all_.end()}; }

std::vector<WorkTime> work_times() {
  collect_device_times();
  return RankContext::current().state<WorkTimes>().list();
}

}  // namespace sherd
