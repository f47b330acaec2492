// Ranks that are processes and are lost behind a meeting, when only devices still wait: the host's group names them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/nccl/failing_calls.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/cuda/nccl/nccl_engine.h"
#include "tests/support/processes.h"

namespace sherd::cuda::nccl {
namespace {

using namespace sherd::testing;  // NOLINT
using FakeLostRanks = FakeNccl;

constexpr int kKilled = 128 + SIGKILL;

/// Runs the body on three processes, rank 1 of which is lost in its second call.
template <class Lose>
std::vector<RankEnd> run_and_lose(const fake::Configuration& configuration, const std::string& words,
                                  const Lose& lose) {
  return fork_ranks(3, [&](Store& store, int rank) {
    fake::reset(configuration);
    const RankScope scope;
    ShmGroupOptions options;
    options.silence = std::chrono::seconds(1);
    const auto group = group_over(make_shm_group(store, rank, 3, options));
    const Device device = device_of_rank(rank);
    const FailingCall first(device, 7, false), second(device, 9, false);
    first.issue(*group);
    first.look();
    if (rank == 1) store.set("process", std::to_string(::getpid()));
    if (rank == 1) lose(second, *group, device);
    try {
      second.issue(*group);
      second.look();
      ADD_FAILURE() << "rank " << rank << " was told nothing";
    } catch (const CommError& error) { EXPECT_THAT(error.what(), ::testing::HasSubstr(words)); }
    if (rank == 0) ::kill(std::stoi(store.get("process", std::chrono::seconds(5))), SIGKILL);
  });
}

void expect_only_one_is_lost(const std::vector<RankEnd>& ends) {
  EXPECT_EQ(ends[0].status, 0) << ends[0].message;
  EXPECT_EQ(ends[1].status, kKilled) << ends[1].message;
  EXPECT_EQ(ends[2].status, 0) << ends[2].message;
}

// The device kills its process when it gets to the call, which all ranks have met in.
TEST_F(FakeLostRanks, ADeadProcessIsNamed) {
  fake::Configuration dying;
  dying.fault = {.kind = fake::Fault::Kind::die, .rank = 1, .group = 2};
  expect_only_one_is_lost(run_and_lose(dying, ") died", [](const FailingCall& call, ProcessGroup& group, Device) {
    call.issue(group);
    call.look();
  }));
}

// Its stream stands still, then it does.
TEST_F(FakeLostRanks, AFrozenProcessIsNamed) {
  expect_only_one_is_lost(
      run_and_lose({}, " is frozen: no sign of life", [](const FailingCall& call, ProcessGroup& group, Device device) {
        std::atomic<std::uint32_t>& word = RankContext::current().device(device).progress(Queue::kMaxPerRank - 1);
        word = 0;
        call.block_stream(device, word);
        call.issue(group);
        RankContext::current().queue(kGatherQueue).record().wait();
        ::raise(SIGSTOP);
      }));
}

}  // namespace
}  // namespace sherd::cuda::nccl
