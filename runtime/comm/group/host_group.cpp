#include "runtime/comm/group/host_group.h"

#include <utility>
#include <vector>

#include "runtime/comm/group/subject.h"
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

namespace comm {

std::vector<GatherPart> gather_parts(const Collective& call, int rank) {
  std::vector<GatherPart> parts;
  for (const CollectivePart& p : call.parts)
    parts.push_back({p.out.address, p.out_dtype.value_or(p.dtype), p.counts, p.in.address, p.dtype, p.blocks});
  for (GatherPart& part : parts) {
    std::int64_t before = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rank); ++r) before += part.counts[r];
    const auto* place = static_cast<const std::byte*>(part.data) + before * byte_size(part.dtype);
    const bool is_plain = part.source_dtype == part.dtype && part.blocks == 1;
    if (part.source == place && is_plain) part.source = nullptr;  // there already
    // An empty part has no address, and its rank too must say that parts are cast, or strewn over blocks.
    static constexpr std::byte kNowhere{};
    if (part.source == nullptr && !is_plain) part.source = &kNowhere;
  }
  return parts;
}

std::vector<ScatterPart> scatter_parts(const Collective& call) {
  std::vector<ScatterPart> parts;
  for (const CollectivePart& p : call.parts)
    parts.push_back({p.in.address, p.out.address, p.dtype, p.counts, p.accumulate, p.wire, p.out_dtype, p.blocks});
  return parts;
}

namespace {

void swap(HostGroup& lane, const Collective& call) {
  std::vector<SwapPart> parts;
  for (const CollectivePart& p : call.parts)
    parts.push_back({p.in.address, p.out.address, p.dtype, p.counts, p.out_counts});
  lane.all_to_all(parts);
}

/// all_reduce, broadcast, send and recv, which work where the elements are.
std::vector<FlatPart> flat_parts(const Collective& call) {
  std::vector<FlatPart> parts;
  for (const CollectivePart& p : call.parts) {
    void* const at = call.op == CommOp::send ? p.in.address : p.out.address;
    parts.push_back({at, p.dtype, p.counts[0], p.in.address != at ? p.in.address : nullptr});
  }
  return parts;
}

}  // namespace

void run_on_host(HostGroup& lane, const Collective& call) {
  switch (call.op) {
    case CommOp::all_gather: return lane.all_gather(gather_parts(call, lane.rank()));
    case CommOp::reduce_scatter: return lane.reduce_scatter(scatter_parts(call), call.reduction);
    case CommOp::all_reduce: return lane.all_reduce(flat_parts(call), call.reduction);
    case CommOp::broadcast: return lane.broadcast(flat_parts(call), call.peer);
    case CommOp::all_to_all: return swap(lane, call);
    case CommOp::send: return lane.send(flat_parts(call), call.peer);
    case CommOp::recv: return lane.recv(flat_parts(call), call.peer);
    case CommOp::barrier: return lane.barrier();
  }
}

void check_issue(const ProcessGroup& group, const Collective& call, const CollectiveSite& site) {
  const Device device = check_buffers(call, group.rank(), group.size(), site.queue.device());
  if (!group.supports(device) || device != site.queue.device())
    fail("{} of buffers on {} in a {} group, on the queue {} of {}: {}", name(call.op), to_string(device), group.kind(),
         site.queue.name(), to_string(site.queue.device()),
         group.supports(device) ? "give a queue of the device where the buffers are"
                                : "it moves host memory; wrap it (staged_group.h), or move the tensors with to()");
}

QueueWork work_of(HostGroup& lane, const Collective& call, const CollectiveSite& site) {
  return {.name = site.name,
          .subject = site.subject,
          .bytes = call.bytes(),
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
    run_on_host(lane, call);
  };
  site.queue.submit(std::move(work));
}

}  // namespace comm

}  // namespace sherd
