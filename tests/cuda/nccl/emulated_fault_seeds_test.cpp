// Faults of every kind at a drawn rank, call and type, over groups of the emulated NCCL: each rank is told the rank and
// the call in time, and after reset() the group leaves the bytes of the table again. tools/soak/nccl_faults.sh draws
// more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>

#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/comm/conformance/check_case.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/nccl/failing_calls.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/cuda/nccl/nccl_engine.h"
#include "tests/support/ranks.h"

namespace sherd::cuda::nccl {
namespace {

using namespace sherd::testing;  // NOLINT
using comm::CommOp;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr auto kDeadline = std::chrono::milliseconds(300);

enum class Kind { order, mismatch, exception, missing, stuck, remote_error, hang, failed_init };
constexpr Kind kKinds[] = {Kind::order, Kind::mismatch,     Kind::exception, Kind::missing,
                           Kind::stuck, Kind::remote_error, Kind::hang,      Kind::failed_init};

struct Draw {
  Kind kind{};
  int culprit = 0;
  std::uint64_t good = 0;  ///< calls that end well before
  std::int64_t count = 0;
  bool sums = false;  ///< the failing call reduces
};

class FakeFaultSeeds : public FakeNccl, public ::testing::WithParamInterface<Kind> {
 protected:
  static fake::Configuration configured(const Draw& draw) {
    fake::Configuration configuration;
    configuration.refuses_orders = false;  // as NCCL, which says nothing
    // A list of ordered sums of a few elements is one launch, as a gather's is.
    const std::uint64_t group = draw.good + 1;
    if (draw.kind == Kind::remote_error) configuration.fault = {fake::Fault::Kind::error, draw.culprit, group};
    if (draw.kind == Kind::hang) configuration.fault = {fake::Fault::Kind::hang, draw.culprit, group};
    if (draw.kind == Kind::failed_init)
      configuration.fault = {.kind = fake::Fault::Kind::fail_init, .rank = draw.culprit};
    return configuration;
  }
  static NcclGroupOptions options() {
    NcclGroupOptions options = quick_options();
    options.deadline = options.init_deadline = kDeadline;
    return options;
  }
  /// What all ranks must be told.
  static ::testing::Matcher<std::string> told(const Draw& draw);
  static void run(const Draw& draw);
};

::testing::Matcher<std::string> FakeFaultSeeds::told(const Draw& draw) {
  const std::string rank = fmt::format("rank {}", draw.culprit), host = draw.sums ? "all_reduce #" : "all_gather #",
                    device = draw.sums ? "world reduce: nccl" : "world gather: ncclAllGather";
  switch (draw.kind) {
    case Kind::order:
      return AllOf(HasSubstr(rank + " calls all_"), HasSubstr("for blocks.0 [f32 x "), HasSubstr(" over all queues"));
    case Kind::mismatch: return AllOf(HasSubstr(rank + " calls " + host), HasSubstr("for blocks.0 [f32 x "));
    case Kind::exception: return HasSubstr(rank + " aborted the group: the loss is NaN");
    case Kind::missing: return AllOf(HasSubstr(host), HasSubstr("(deadline 0.3 s)"), HasSubstr("not there: " + rank));
    case Kind::stuck:
      return AllOf(HasSubstr(rank + " aborted the group: " + device), HasSubstr("for blocks.0"),
                   HasSubstr("the device of this rank has not come to it"));
    case Kind::remote_error:
      return AllOf(HasSubstr(rank + " of world "), HasSubstr("an asynchronous error, as was asked for"));
    case Kind::hang: return AllOf(HasSubstr(device), HasSubstr("after all ranks came to it"));
    case Kind::failed_init:
      return AllOf(HasSubstr(fmt::format("world gather, {} of 3: a communicator of 3 ranks", rank)),
                   HasSubstr("is not made, as was asked for"));
  }
  return HasSubstr("?");
}

void FakeFaultSeeds::run(const Draw& draw) {
  start(configured(draw));
  std::atomic<int> num_told{0};
  run_ranks(kRanks, [&](const std::shared_ptr<ProcessGroup>& host) {
    const Device device = device_of_rank(host->rank());
    const bool is_culprit = host->rank() == draw.culprit;
    std::shared_ptr<ProcessGroup> group;
    Clock::time_point since = Clock::now();
    std::string error = "no error";
    std::atomic<std::uint32_t>* word = nullptr;
    const auto all_others_are_told = [&] { return num_told == kRanks - 1; };
    const auto fail = [&] {
      group = group_over(host, options());
      group->set_deadline(kDeadline);
      for (std::uint64_t i = 0; i < draw.good; ++i) {
        const FailingCall call(device, draw.count + static_cast<std::int64_t>(i), draw.sums);
        call.issue(*group);
        call.look();
      }
      host->host().barrier();
      word = &RankContext::current().device(device).progress(Queue::kMaxPerRank - 1);
      word->store(0);
      since = Clock::now();
      if (draw.kind == Kind::exception && is_culprit) group->abort("the loss is NaN");
      while (draw.kind == Kind::missing && is_culprit && !all_others_are_told()) std::this_thread::yield();
      const std::int64_t count = draw.count + (draw.kind == Kind::mismatch && is_culprit ? 1 : 0);
      const FailingCall first(device, count, draw.sums), second(device, count, !draw.sums);
      if (draw.kind == Kind::stuck && is_culprit) first.block_stream(device, *word);
      const bool swaps = draw.kind == Kind::order && is_culprit;
      if (draw.kind == Kind::order) (swaps ? second : first).issue(*group);
      (swaps || draw.kind != Kind::order ? first : second).issue(*group);
      while (draw.kind == Kind::stuck && is_culprit && !all_others_are_told()) std::this_thread::yield();
      word->store(1);
      first.look();
      if (draw.kind == Kind::order) second.look();
    };
    try {
      fail();
    } catch (const CommError& told) { error = told.what(); }
    const auto took = Clock::now() - since;
    ++num_told;
    EXPECT_THAT(error, told(draw)) << "rank " << host->rank() << ", culprit " << draw.culprit;
    EXPECT_LT(took, kDeadline + std::chrono::seconds(2));
    RankContext::current().drain_queues();
    if (draw.kind == Kind::failed_init) {
      host->host().barrier();
      if (host->rank() == 0) fake::reset();
      host->host().barrier();
      group = group_over(host);
    } else {
      group->reset();
      group->set_deadline(std::chrono::seconds(30));
    }
    for (const CommOp op : {CommOp::all_gather, CommOp::reduce_scatter, CommOp::all_reduce})
      check_case(*group, {.ranks = kRanks, .op = op, .size = 501, .queue = kReduceQueue}, device);
  });
}

TEST_P(FakeFaultSeeds, AreToldByRankAndCallInTime) {
  const unsigned seed = 20261201 + static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed());
  std::mt19937 random(seed * 8 + static_cast<unsigned>(GetParam()));
  const Draw draw{.kind = GetParam(),
                  .culprit = static_cast<int>(random() % kRanks),
                  .good = random() % 4,
                  .count = static_cast<std::int64_t>(1 + random() % 600),
                  .sums = random() % 2 == 0};
  SCOPED_TRACE(fmt::format("seed {}: kind {}, rank {}, after {} calls, {} elements, {}", seed,
                           static_cast<int>(draw.kind), draw.culprit, draw.good, draw.count,
                           draw.sums ? "sums" : "gathers"));
  run(draw);
}
INSTANTIATE_TEST_SUITE_P(Kinds, FakeFaultSeeds, ::testing::ValuesIn(kKinds));

}  // namespace
}  // namespace sherd::cuda::nccl
