// The table of collectives and the faults of tests/comm/conformance on groups over the emulated NCCL, in five releases,
// and the one order in which all ranks launch.
#include <gtest/gtest.h>

#include <mutex>
#include <utility>
#include <vector>

#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/cuda/nccl/nccl_group.h"
#include "runtime/exec/context.h"
#include "tests/comm/conformance/check_case.h"
#include "tests/comm/conformance/faults.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/cuda/nccl/nccl_engine.h"
#include "tests/support/emulated_gpu/control.h"

namespace sherd::cuda::nccl {
namespace {

using namespace sherd::testing;  // NOLINT
using comm::CommOp;

constexpr int kReleases[] = {21803, 22304, 22707, 22809, 23203};

fake::Configuration release(int version) {
  fake::Configuration posed;
  posed.version = version;
  return posed;
}

class FakeGroup : public FakeNccl {
 protected:
  /// Every `step`-th case of the table; SHERD_EMULATED_GPU_DEVICES=7 adds a world of 7.
  static void check_table(const Engine& engine, std::size_t step, bool whole = false) {
    std::vector<int> worlds = engine.worlds;
    if (int devices = 0; cudaGetDeviceCount(&devices) == cudaSuccess && devices >= 7) worlds.push_back(7);
    const std::vector<CollectiveCase> cases = pairwise_cases(worlds);
    for (const int ranks : worlds) {
      const auto messages = engine.run(ranks, [&](ProcessGroup& group, Device device) {
        for (std::size_t i = 0; i < cases.size(); i += step) {
          CollectiveCase c = cases[i];
          c.whole = whole;
          const bool is_rounded = whole && c.dtype == DType::f64 && byte_size(c.wire) < 8;
          if (c.ranks == ranks && !is_rounded && !check_case(group, c, device)) return;
        }
      });
      for (const std::string& message : messages) EXPECT_EQ(message, "") << ranks << " ranks";
    }
    EXPECT_EQ(emulated::report(), "");
  }
};

TEST_F(FakeGroup, EveryTwoSettingsLeaveTheRightBytes) { check_table(nccl_engine(), 1); }

TEST_F(FakeGroup, FastSumsOfWholeNumbersAreExact) {
  NcclGroupOptions fast = quick_options();
  fast.sums = SumsBy::fast;
  check_table(nccl_engine(fast), 1, /*whole=*/true);
}

TEST_F(FakeGroup, EveryReleaseLeavesTheRightBytes) {
  for (const int version : kReleases) {
    start(release(version));
    check_table(nccl_engine(), 5);
  }
}

// The number of lists that a rank with nothing to move launches is that of the others.
TEST_F(FakeGroup, AllRanksLaunchInOneOrder) {
  constexpr int kFour = 4;
  using Log = std::vector<std::pair<std::string, std::uint64_t>>;
  std::vector<Log> logs(kFour);
  const int worlds[] = {kFour};
  const auto messages = host_engines().front().run(kFour, [&](ProcessGroup& host, Device) {
    NcclGroupOptions options = quick_options();
    Log& log = logs[static_cast<std::size_t>(host.rank())];
    options.on_launch = [&log](std::string_view name, std::uint64_t number) { log.emplace_back(name, number); };
    const auto group = group_over(host.shared_from_this(), options);
    const auto pair = group->subgroup(std::vector<int>{host.rank() / 2 * 2, host.rank() / 2 * 2 + 1}, "tp");
    const int two[] = {2};
    std::mt19937 random(11);
    for (int i = 0; i < 60; ++i) {
      const bool in_pair = i % 3 == 0;
      CollectiveCase c = draw_case(in_pair ? std::span<const int>(two) : worlds, random);
      if (c.op == CommOp::send) continue;  // pairs have an order of their own
      check_case(in_pair ? *pair : *group, c, device_of_rank(host.rank()));
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
  EXPECT_GT(logs[0].size(), 40u);
  for (const Log& log : logs) EXPECT_EQ(log, logs[0]);
}

// The host's counts of device collectives are those of the same calls over the host's group.
TEST_F(FakeGroup, CountsAreThoseOfTheHostsGroup) {
  const auto counts_of = [](ProcessGroup& group, Device device) {
    const CollectiveCase cases[] = {{.ranks = 3, .size = 3000, .queue = kGatherQueue},
                                    {.ranks = 3, .op = CommOp::reduce_scatter, .is_list = true, .queue = kReduceQueue},
                                    {.ranks = 3, .op = CommOp::all_to_all, .queue = "collective"}};
    RankContext::current().drain_queues();
    const CommCounts before = group.host().counts();
    for (const CollectiveCase& c : cases) check_case(group, c, device);
    RankContext::current().drain_queues();
    CommCounts counts = group.host().counts();
    return counts -= before;
  };
  const auto messages = host_engines().front().run(3, [&](ProcessGroup& host, Device cpu) {
    const CommCounts expected = counts_of(host, cpu);
    const auto group = group_over(host.shared_from_this());
    const CommCounts got = counts_of(*group, device_of_rank(host.rank()));
    for (const CommOp op : {CommOp::all_gather, CommOp::reduce_scatter, CommOp::all_to_all}) {
      EXPECT_EQ(got.of(op).calls, expected.of(op).calls) << comm::name(op);
      EXPECT_EQ(got.of(op).bytes, expected.of(op).bytes) << comm::name(op);
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

TEST_F(FakeGroup, SubgroupsAreGroups) {
  const int two[] = {2};
  const std::vector<CollectiveCase> cases = pairwise_cases(two);
  const auto messages = nccl_engine().run(4, [&](ProcessGroup& group, Device device) {
    const int column = group.rank() % 2;
    const auto pair = group.subgroup(std::vector<int>{column + 2, column}, "tp");
    EXPECT_EQ(pair->name(), "tp#1");
    EXPECT_EQ(pair->kind(), "nccl");
    EXPECT_TRUE(pair->abilities().ordered_sum);
    for (std::size_t i = 0; i < cases.size(); i += 4)
      if (!check_case(*pair, cases[i], device)) return;
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

TEST_F(FakeGroup, ProgramsReachItThroughTheBackend) {
  EXPECT_EQ(why_no_device_group(Device::cuda(0)), "");
  EXPECT_EQ(why_no_device_group(Device::cpu()), "no library moves memory of the host");
  const auto messages = host_engines().front().run(2, [](ProcessGroup& host, Device) {
    NcclGroupOptions options = quick_options();
    options.device = device_of_rank(host.rank());
    const auto group = make_device_group(host.shared_from_this(), options);
    EXPECT_EQ(group->kind(), "nccl");
    EXPECT_TRUE(group->supports(options.device) && group->supports(Device::cpu()));
    check_case(*group, {.op = CommOp::all_reduce, .queue = kReduceQueue}, options.device);
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

TEST_F(FakeGroup, ARankWithoutTheLibraryIsNamedOnAll) {
  const NcclApi none(Library("libnccl_that_is_not_there.so.2")), here = fake_api();
  const auto messages = host_engines().front().run(2, [&](ProcessGroup& host, Device) {
    NcclGroupOptions options = quick_options();
    options.device = device_of_rank(host.rank());
    (void)make_nccl_group(host.rank() == 1 ? none : here, host.shared_from_this(), options);
  });
  EXPECT_EQ(messages[0].find("rank 1: NCCL: "), 0u) << messages[0];
  for (const std::string& message : messages)
    EXPECT_NE(message.find("libnccl_that_is_not_there.so.2"), std::string::npos) << message;
}

// What other ranks run in another order would hang, so options are compared before.
TEST_F(FakeGroup, RanksThatWantOtherSumsAreNamed) {
  const auto messages = host_engines().front().run(2, [](ProcessGroup& host, Device) {
    NcclGroupOptions options = quick_options();
    options.sums = host.rank() == 1 ? SumsBy::fast : SumsBy::ordered;
    (void)group_over(host.shared_from_this(), options);
  });
  for (const std::string& message : messages)
    EXPECT_NE(message.find("the order of sums is ordered on rank 0; fast on rank 1; give all ranks the same options"),
              std::string::npos)
        << message;
}

}  // namespace
}  // namespace sherd::cuda::nccl

namespace sherd::testing {

INSTANTIATE_TEST_SUITE_P(FakeNccl, Faults, ::testing::Values(cuda::nccl::nccl_engine()),
                         [](const auto& param) { return param.param.name; });

}  // namespace sherd::testing
