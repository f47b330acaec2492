#include "runtime/comm/group/host_group.h"

#include <utility>
#include <vector>

#include "runtime/comm/group/subject.h"
#include "runtime/exec/price.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {

constexpr CommCounts::Item CommCounts::* kItems[] = {  // by CommOp
    &CommCounts::all_gather, &CommCounts::reduce_scatter, &CommCounts::all_reduce, &CommCounts::broadcast,
    &CommCounts::barrier,    &CommCounts::all_to_all,     &CommCounts::send,       &CommCounts::recv};

void add(CommCounts& to, const CommCounts& from, int sign) {
  for (const auto item : kItems) {
    (to.*item).calls += sign * (from.*item).calls;
    (to.*item).bytes += sign * (from.*item).bytes;
    (to.*item).copied += sign * (from.*item).copied;
  }
  to.seconds += sign * from.seconds;
}

}  // namespace

const CommCounts::Item& CommCounts::of(comm::CommOp op) const { return this->*kItems[static_cast<int>(op)]; }
CommCounts::Item& CommCounts::of(comm::CommOp op) { return this->*kItems[static_cast<int>(op)]; }

CommCounts& CommCounts::operator+=(const CommCounts& other) {
  add(*this, other, 1);
  return *this;
}

CommCounts& CommCounts::operator-=(const CommCounts& other) {
  add(*this, other, -1);
  return *this;
}

void HostGroup::meet(const Collective&) { barrier(); }

namespace comm {

void check_issue(const ProcessGroup& group, const Collective& call, const CollectiveSite& site) {
  const Device device = check_buffers(call, group.rank(), group.size(), site.queue.device());
  if (!group.supports(device) || device != site.queue.device())
    fail("{} of buffers on {} in a {} group, on the queue {} of {}: {}", name(call.op), to_string(device), group.kind(),
         site.queue.name(), to_string(site.queue.device()),
         group.supports(device) ? "give a queue of the device where the buffers are"
                                : "it moves host memory; wrap it (staged_group.h), or move the tensors with to()");
}

std::optional<WireUse> wire_of(const ProcessGroup& group, CommOp op) {
  if (group.size() == 1) return {};
  const auto use = [&](Movement movement) { return WireUse{movement, group.name(), group.grid()}; };
  switch (op) {
    case CommOp::all_gather:
    case CommOp::broadcast: return use(Movement::gather);
    case CommOp::reduce_scatter: return use(Movement::scatter);
    case CommOp::all_reduce: return use(Movement::reduce_all);
    case CommOp::all_to_all: return use(Movement::all_to_all);
    default: return {};
  }
}

QueueWork work_of(HostGroup& lane, const Collective& call, const CollectiveSite& site) {
  return {.name = site.name,
          .subject = site.subject,
          .bytes = call.bytes(),
          .wire = wire_of(lane, call.op),
          .loans = site.loans,
          .abort = [&lane](std::string_view reason) { lane.abort(reason); },
          .max_in_flight = site.max_in_flight};
}

void issue_on_host(HostGroup& group, Collective call, const CollectiveSite& site) {
  check_issue(group, call, site);
  HostGroup& lane = group.lane(site.queue.name());
  QueueWork work = work_of(lane, call, site);
  work.run = [&lane, call = std::move(call), subject = std::string(site.subject), part = std::string(site.part)] {
    const SubjectScope scope(subject, part);
    lane.run(call);
  };
  site.queue.submit(std::move(work));
}

}  // namespace comm

}  // namespace sherd
