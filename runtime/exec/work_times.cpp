#include "runtime/exec/work_times.h"

#include "runtime/exec/context.h"
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

void WorkTimes::add(const QueueItem& item) {
  key_.assign(item.queue);
  key_.append(1, '\0').append(item.name).append(1, '\0').append(item.subject);
  auto place = by_work_.find(key_);
  if (place == by_work_.end())
    place = by_work_
                .emplace(key_, WorkTime{.queue = std::string(item.queue),
                                        .name = std::string(item.name),
                                        .subject = item.subject})
                .first;
  WorkTime& time = place->second;
  ++time.calls;
  time.seconds += seconds(item.ended - item.started);
  time.exposed += seconds(item.exposed);
  time.skew += seconds(item.exposed_skew);
}

std::vector<WorkTime> WorkTimes::list() const {
  std::vector<WorkTime> all;
  for (const auto& [key, time] : by_work_) all.push_back(time);
  return all;
}

std::vector<WorkTime> work_times() { return RankContext::current().state<WorkTimes>().list(); }

}  // namespace sherd
