#include "runtime/cuda/nccl/queue_comm.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "runtime/tensor/error.h"

namespace sherd::cuda::nccl {

namespace {

using Clock = std::chrono::steady_clock;
using Op = ListCall::Op;

constexpr int kPollsBeforePauses = 1000;
constexpr auto kPause = std::chrono::microseconds(50);

Config config_of(const NcclApi& api, const QueueCommOptions& options) {
  Config config = config_for(api.version);
  config.blocking = 0;
  config.split_share = 0;  // queues overlap
  if (options.max_ctas > 0) config.max_ctas = options.max_ctas;
  config.comm_name = options.name.c_str();
  return config;
}

double seconds_of(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::string text_of(std::span<const ListCall> calls) {
  constexpr const char* kNames[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast",
                                    "ncclReduce",    "ncclSend",      "ncclRecv"};
  if (calls.empty()) return "nothing";
  return fmt::format("{} of {} part{}, the first of {} elements", kNames[static_cast<std::size_t>(calls[0].op)],
                     calls.size(), calls.size() == 1 ? "" : "s", calls[0].count);
}

QueueComm::QueueComm(const NcclApi& api, const UniqueId& id, int size, int rank, QueueCommOptions options)
    : api_(api), options_(std::move(options)), size_(size), rank_(rank), deadline_(options_.deadline) {
  Config config = config_of(api_, options_);
  const std::string what = fmt::format("a communicator of {} ranks", size_);
  try {
    settle(api_.init_rank(&comm_, size_, id, rank_, &config), what,
           std::min(options_.deadline, options_.init_deadline));
  } catch (...) {
    if (comm_) static_cast<void>(api_.abort(comm_));
    throw;
  }
}

QueueComm::~QueueComm() {
  if (comm_) static_cast<void>(api_.abort(comm_));
}

std::string QueueComm::describe(const std::string& what, const std::string& why) const {
  return fmt::format("NCCL {}: {}, rank {} of {}: {}: {}", version_text(api_.version), name(), rank_, size_, what, why);
}

// The caller holds the mutex, or is the only one that knows the communicator.
void QueueComm::check(Result result, const std::string& what) {
  if (!stopped_.empty()) throw CommError(stopped_);
  if (result != Result::success && result != Result::in_progress)
    throw CommError(describe(what, api_.explain(result, comm_)));
}

void QueueComm::settle(Result result, const std::string& what, std::chrono::nanoseconds deadline) {
  const Clock::time_point until = Clock::now() + deadline;
  for (int polls = 0;; ++polls) {
    {
      const std::lock_guard lock(mutex_);
      if (polls > 0 && stopped_.empty()) {
        const Result asked = api_.async_error(comm_, &result);
        if (asked != Result::success) result = asked;
      }
      check(result, what);
      if (result == Result::success) return;
    }
    if (Clock::now() > until)
      throw NotCome(
          describe(what, fmt::format("not done after {:.1f} s: another rank has not come", seconds_of(deadline))));
    if (polls < kPollsBeforePauses) std::this_thread::yield();
    else std::this_thread::sleep_for(kPause);
  }
}

Result QueueComm::start(const ListCall& c, cudaStream_t stream) const {
  switch (c.op) {
    case Op::all_reduce: return api_.all_reduce(c.in, c.out, c.count, c.type, c.reduction, comm_, stream);
    case Op::all_gather: return api_.all_gather(c.in, c.out, c.count, c.type, comm_, stream);
    case Op::reduce_scatter: return api_.reduce_scatter(c.in, c.out, c.count, c.type, c.reduction, comm_, stream);
    case Op::broadcast: return api_.broadcast(c.in, c.out, c.count, c.type, c.peer, comm_, stream);
    case Op::reduce: return api_.reduce(c.in, c.out, c.count, c.type, c.reduction, c.peer, comm_, stream);
    case Op::send: return api_.send(c.in, c.count, c.type, c.peer, comm_, stream);
    case Op::recv: return api_.recv(c.out, c.count, c.type, c.peer, comm_, stream);
  }
  return Result::invalid_argument;
}

void QueueComm::launch(std::span<const ListCall> calls, cudaStream_t stream) {
  const std::string what = text_of(calls);
  Result result = Result::success;
  {
    const std::lock_guard lock(mutex_);
    check(Result::success, what);  // a group that was begun must end
    check(api_.group_start(), what);
    for (const ListCall& call : calls)
      if (result == Result::success) result = start(call, stream);
    const Result ended = api_.group_end();
    if (result == Result::success) result = ended;
  }
  settle(result, what, deadline_);
  ++launched_;
}

std::string QueueComm::error() {
  const std::lock_guard lock(mutex_);
  if (!stopped_.empty() || !comm_) return stopped_;
  Result result = Result::success;
  const Result asked = api_.async_error(comm_, &result);
  if (asked != Result::success) result = asked;
  return result == Result::success || result == Result::in_progress ? "" : api_.explain(result, comm_);
}

void QueueComm::stop(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (!stopped_.empty() || !comm_) return;
  stopped_ = reason.empty() ? "stopped" : reason;
  if (api_.revoke) {
    const Result result = api_.revoke(comm_, 0);
    if (result == Result::success || result == Result::in_progress) return;
  }
  static_cast<void>(api_.abort(std::exchange(comm_, nullptr)));
}

void QueueComm::finalize() {
  const std::lock_guard lock(mutex_);
  if (!comm_ || !stopped_.empty()) throw CommError(stopped_.empty() ? name() + " was closed before" : stopped_);
  check(api_.finalize(comm_), "closing");
  is_closing_ = true;
}

void QueueComm::close() {
  if (!is_closing_ || !comm_) finalize();
  settle(Result::in_progress, "closing", deadline_);
  const std::lock_guard lock(mutex_);
  check(api_.destroy(std::exchange(comm_, nullptr)), "closing");
}

}  // namespace sherd::cuda::nccl
