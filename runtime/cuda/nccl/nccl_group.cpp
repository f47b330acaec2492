#include "runtime/cuda/nccl/nccl_group.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/bare_group.h"
#include "runtime/comm/group/call_place.h"
#include "runtime/comm/group/composed_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/shared_times.h"
#include "runtime/comm/group/subject.h"
#include "runtime/cuda/device/stream.h"
#include "runtime/cuda/nccl/rank_comms.h"
#include "runtime/exec/context.h"
#include "runtime/exec/device_queue.h"
#include "runtime/os/host_name.h"
#include "runtime/tensor/error.h"

namespace sherd::cuda::nccl {

namespace {

using comm::BareCall;
using comm::RankPiece;

constexpr DataType kTypes[] = {DataType::float64, DataType::float32, DataType::bfloat16, DataType::float16,
                               DataType::int64,   DataType::int32,   DataType::uint8,    DataType::uint8};
static_assert(std::size(kTypes) == kNumDTypes);
constexpr ListCall::Op kOps[] = {ListCall::Op::all_gather, ListCall::Op::reduce_scatter, ListCall::Op::all_reduce,
                                 ListCall::Op::broadcast,  ListCall::Op::reduce,         ListCall::Op::send,
                                 ListCall::Op::recv};
constexpr RedOp kReductions[] = {RedOp::sum, RedOp::avg, RedOp::max, RedOp::min, RedOp::prod};  // by ReduceKind

ListCall list_call(const BareCall& call) {
  return {.op = kOps[static_cast<std::size_t>(call.op)],
          .in = call.in,
          .out = call.out,
          .count = static_cast<std::size_t>(call.count),
          .type = kTypes[static_cast<std::size_t>(call.dtype)],
          .reduction = kReductions[static_cast<std::size_t>(call.kind)],
          .peer = call.peer};
}

cudaStream_t stream_of(Queue& queue) {
  auto& on = static_cast<DeviceQueue&>(queue);
  (void)static_cast<Context&>(on.context()).stream();  // makes the device the thread's
  return static_cast<Stream&>(on.stream()).handle();
}

std::string text_of(const CollectiveSite& site) {
  if (site.subject.empty()) return fmt::format(" ({})", site.name);
  return fmt::format(" for {}{}{} ({})", site.subject, site.part.empty() ? "" : " ", site.part, site.name);
}

class NcclGroup final : public comm::BareGroup {
 public:
  /// `ranks` in the first group.
  NcclGroup(std::shared_ptr<RankComms> comms, std::shared_ptr<ProcessGroup> host, std::vector<int> ranks)
      : BareGroup({host->rank(), host->size(), "nccl", host->name(), {.lists = true, .same_counts = true}}),
        comms_(std::move(comms)),
        host_(std::move(host)),
        ranks_(std::move(ranks)),
        number_(comms_->add(host_, ranks_)) {}

  bool supports(Device device) const override { return device == comms_->device(); }
  std::shared_ptr<SharedWork> announce(const Collective& call, const CollectiveSite& site) override;
  void run(std::span<const BareCall> calls, Queue& queue) override;
  void exchange(std::span<const RankPiece> sends, std::span<const RankPiece> receives, Queue& queue) override;
  HostGroup& host() override { return host_->host(); }
  std::shared_ptr<comm::BareGroup> subgroup(std::span<const int> ranks, std::string_view label) override {
    std::shared_ptr<ProcessGroup> part = host_->subgroup(ranks, label);
    std::vector<int> of_first;
    for (const int r : ranks) of_first.push_back(ranks_[static_cast<std::size_t>(r)]);
    return std::make_shared<NcclGroup>(comms_, std::move(part), std::move(of_first));
  }

  void abort(std::string_view reason) override { comms_->abort(reason); }
  void reset() override { comms_->reset(); }
  void set_deadline(std::chrono::nanoseconds deadline) override { comms_->set_deadline(deadline); }

 private:
  void launch(std::span<const ListCall> list, Queue& queue) {
    comms_->launch(number_, queue.name(), list, stream_of(queue), met_, subject_);
  }

  comm::SharedTimes& times_of(std::string_view queue);

  const std::shared_ptr<RankComms> comms_;
  const std::shared_ptr<ProcessGroup> host_;
  const std::vector<int> ranks_;
  const std::size_t number_;                        // among the groups of `comms_`
  std::map<std::string, comm::SharedTimes> times_;  // by queue
  std::uint64_t generation_ = 0;                    // of `times_`
  // What was announced last; the lists that follow are its.
  MeetingTime met_;
  std::string subject_;
};

// Where ranks meet more slowly than devices communicate, the host may not run ahead for good: faults would be found
// later and later.
constexpr std::size_t kMostMeetings = 64;

// The item holds the host's group, but not the communicators: those end on the rank's thread.
std::shared_ptr<SharedWork> NcclGroup::announce(const Collective& call, const CollectiveSite& site) {
  met_ = std::make_shared<std::atomic<std::int64_t>>(0);
  subject_ = text_of(site);
  HostGroup& lane = host().lane(site.queue.name());
  std::shared_ptr<SharedWork> shared;
  comm::SharedWorks compared;
  std::string place;  // of a pair none: other ranks do not know of it
  if (call.op != comm::CommOp::send && call.op != comm::CommOp::recv) {
    comm::SharedTimes& times = times_of(site.queue.name());
    shared = times.next();
    compared = times.due();
    place = comms_->order().next(number_);
  }
  RankContext& rank = RankContext::current();
  const auto waited = std::pair(rank.waited_seconds, rank.waited_skew_seconds);
  rank.queue(site.queue.name())
      .submit(
          {.name = site.name,  // without a subject, which counts the work of the device
           .bytes = call.bytes(),
           .run =
               [met = met_, host = host_, &lane, call, compared = std::move(compared), comms = std::weak_ptr(comms_),
                subject = std::string(site.subject), part = std::string(site.part), place = std::move(place)] {
                 const comm::SubjectScope scope(subject, part);
                 const comm::CallPlaceScope order(place);
                 try {
                   lane.meet(call);
                   *met = Watchdog::now();
                   if (!compared.empty()) comm::compare_times(lane, compared);
                 } catch (const Error& error) {
                   if (const auto here = comms.lock()) here->fail(CommError(error.message()));
                 } catch (const std::exception& error) {
                   if (const auto here = comms.lock()) here->fail(CommError(error.what()));
                 }
               },
           .abort = [host = host_](std::string_view reason) { host->abort(reason); },
           .max_in_flight = kMostMeetings});
  // What the host waits for, so as not to run ahead, counts once compute waits for it.
  std::tie(rank.waited_seconds, rank.waited_skew_seconds) = waited;
  return shared;
}

// A reset() leaves ranks at different numbers.
comm::SharedTimes& NcclGroup::times_of(std::string_view queue) {
  if (std::exchange(generation_, comms_->generation()) != comms_->generation()) times_.clear();
  return times_[std::string(queue)];
}

void NcclGroup::run(std::span<const BareCall> calls, Queue& queue) {
  std::vector<ListCall> list;
  for (const BareCall& call : calls) list.push_back(list_call(call));
  launch(list, queue);
}

// A rank that has nothing to move comes too: its number of lists is that of the others.
void NcclGroup::exchange(std::span<const RankPiece> sends, std::span<const RankPiece> receives, Queue& queue) {
  std::vector<ListCall> list;
  const auto add = [&](ListCall::Op op, const RankPiece& piece) {
    list.push_back({.op = op,
                    .in = piece.address,
                    .out = piece.address,
                    .count = static_cast<std::size_t>(piece.bytes),
                    .type = DataType::uint8,
                    .peer = piece.peer});
  };
  for (const RankPiece& piece : sends) add(ListCall::Op::send, piece);
  for (const RankPiece& piece : receives) add(ListCall::Op::recv, piece);
  launch(list, queue);
}

SumsBy usual_sums(ProcessGroup& host) {
  constexpr int kMostOrdered = 8;
  const std::vector<std::string> names = gather_text(host, host_name());
  const bool is_one_host = std::set<std::string>(names.begin(), names.end()).size() == 1;
  return is_one_host && host.size() <= kMostOrdered ? SumsBy::ordered : SumsBy::fast;
}

}  // namespace

std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<ProcessGroup> host, NcclGroupOptions options) {
  return make_nccl_group(nccl_api(), std::move(host), std::move(options));
}

std::shared_ptr<ProcessGroup> make_nccl_group(const NcclApi& api, std::shared_ptr<ProcessGroup> host,
                                              NcclGroupOptions options) {
  together(*host, [&] { check(api.library.usable(), "NCCL: {}", api.library.reason()); });
  const SumsBy sums = options.sums ? *options.sums : usual_sums(*host);
  agree(*host,
        Facts{{"the order of sums", sums == SumsBy::ordered ? "ordered" : "fast"},
              {"the list of queues", fmt::format("{}", fmt::join(options.queues, ", "))}},
        {.what = fmt::format("ranks of {} make an NCCL group", host->name()),
         .remedy = "give all ranks the same options"});
  auto comms = std::make_shared<RankComms>(api, host, std::move(options));
  std::vector<int> ranks(static_cast<std::size_t>(host->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_composed_group(std::make_shared<NcclGroup>(std::move(comms), std::move(host), std::move(ranks)), sums);
}

const comm::DeviceGroups& device_groups() {
  static constexpr comm::DeviceGroups kGroups{
      .why_none = [] { return nccl_api().library.usable() ? std::string() : "NCCL: " + nccl_api().library.reason(); },
      .make = [](std::shared_ptr<ProcessGroup> host,
                 NcclGroupOptions options) { return make_nccl_group(std::move(host), std::move(options)); }};
  return kGroups;
}

}  // namespace sherd::cuda::nccl
