#include "runtime/cuda/nccl/rank_comms.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <fmt/ranges.h>

#include "runtime/comm/group/host_group.h"
#include "runtime/cuda/nccl/agreed_comms.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/error.h"

namespace sherd::cuda::nccl {

namespace {

constexpr int kMaxCtas = 16;  // of queues beside which compute runs
constexpr auto kLook = std::chrono::microseconds(50);

int max_ctas_of(std::string_view queue) { return queue == kGatherQueue || queue == kReduceQueue ? kMaxCtas : 0; }

Context& context_of(Device device) { return static_cast<Context&>(RankContext::current().device(device)); }

}  // namespace

RankComms::RankComms(const NcclApi& api, std::shared_ptr<ProcessGroup> host, NcclGroupOptions options)
    : api_(api),
      host_(std::move(host)),
      options_(std::move(options)),
      failure_(context_of(options_.device).failure),
      watchdog_(options_.device.index, options_.deadline,
                {.failure = [this] { return host_->host().failure(); },
                 .tell = [this](const std::string& why) { return tell(why); }}) {}

RankComms::~RankComms() {
  const bool is_well = watchdog_.reason().empty() && host_->host().failure().empty();
  if (is_well && std::uncaught_exceptions() == 0) close();
}

// All begin to close before any is waited for: ranks may come in any order.
void RankComms::close() {
  watchdog_.clear();
  try {
    for (const Group& group : groups_)
      for (const auto& comm : group.comms) {
        comm->set_deadline(std::min(options_.closing_deadline, options_.deadline));
        comm->finalize();
      }
    for (const Group& group : groups_)
      for (const auto& comm : group.comms) comm->close();
  } catch (const Error&) {}  // another rank does not end as well as this one: what is left is aborted
}

std::size_t RankComms::add(std::shared_ptr<ProcessGroup> host, std::vector<int> ranks) {
  Group group{std::move(host), {}};
  if (group.host->size() > 1) make(group);
  groups_.push_back(std::move(group));
  order_.add(std::move(ranks));
  return groups_.size() - 1;
}

void RankComms::make(Group& group) {
  (void)context_of(options_.device).stream();  // makes the device the thread's
  std::vector<QueueCommOptions> wanted;
  for (const std::string& queue : options_.queues)
    wanted.push_back({.name = fmt::format("{} {}", group.host->name(), queue),
                      .max_ctas = max_ctas_of(queue),
                      .deadline = options_.deadline,
                      // A rank that cannot join waits for the others, which wait that long for it.
                      .init_deadline = std::min(options_.init_deadline, options_.deadline / 2)});
  group.comms = make_comms(api_, *group.host, wanted);
  for (const auto& comm : group.comms) watchdog_.add(comm);
}

// Where ranks call different things, that is what is told, and not what NCCL makes of it.
void RankComms::await(const MeetingTime& met) const {
  while (*met == 0 && watchdog_.reason().empty()) std::this_thread::sleep_for(kLook);
}

void RankComms::launch(std::size_t group, std::string_view queue, std::span<const ListCall> list, cudaStream_t stream,
                       const MeetingTime& met, const std::string& subject) {
  const auto known = std::ranges::find(options_.queues, queue);
  if (known == options_.queues.end())
    sherd::fail(
        "the queue \"{}\" has no communicator in the group {}, which was made with those of {}; name it in "
        "NcclGroupOptions::queues",
        queue, groups_[group].host->name(), fmt::join(options_.queues, ", "));
  Group& of = groups_[group];
  if (of.comms.empty() && of.host->size() == 1) make(of);  // which nobody else comes to
  check(!of.comms.empty(), "the last reset() of the group {} did not complete; call reset() again", of.host->name());
  const auto& comm = of.comms[static_cast<std::size_t>(known - options_.queues.begin())];
  const cudaEvent_t started = watchdog_.mark(stream);
  try {
    comm->launch(list, stream);
  } catch (const CommError& error) {
    watchdog_.forget(started);
    await(met);
    if (const std::string told = watchdog_.reason(); !told.empty()) throw CommError(told);
    abort(error.message());
    throw;
  }
  watchdog_.expect(comm, text_of(list) + subject, stream, {started, met});
  if (options_.on_launch) options_.on_launch(comm->name(), comm->launched());
}

void RankComms::fail(const CommError& error) {
  failure_->set(error);
  watchdog_.stop(error.message());
}

/// What all ranks are told, in the words that they see.
std::string RankComms::tell(const std::string& why) {
  HostGroup& host = host_->host();
  host.abort(why);  // where it has failed already, that reason stays
  const std::string told = host.failure();
  const std::string reason = told.empty() ? why : told;
  failure_->set(CommError(reason));
  return reason;
}

void RankComms::abort(std::string_view reason) { watchdog_.stop(tell(std::string(reason))); }

// Communicators end first, each on its own rank: what they say of each other's end is told to nobody.
void RankComms::reset() {
  watchdog_.stop("the group is reset");
  host_->reset();
  watchdog_.clear();
  ++generation_;
  order_.restart();
  for (Group& group : groups_) group.comms.clear();
  failure_->clear();
  for (Group& group : groups_)
    if (group.host->size() > 1) make(group);
}

void RankComms::set_deadline(std::chrono::nanoseconds deadline) {
  options_.deadline = deadline;
  host_->set_deadline(deadline);
  watchdog_.set_deadline(deadline);
  for (const Group& group : groups_)
    for (const auto& comm : group.comms) comm->set_deadline(deadline);
}

}  // namespace sherd::cuda::nccl
