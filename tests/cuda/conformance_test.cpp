// The table of collectives (tests/comm/conformance) on groups of devices: staged through the host, and composed over a
// library that has no more than NCCL. Every rank is a thread with a device of its own.
#include <gtest/gtest.h>

#include <span>

#include "runtime/comm/group/composed_group.h"
#include "runtime/comm/group/device_group.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/staged_group.h"
#include "runtime/op/rows/ops.h"
#include "tests/comm/conformance/check_case.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/bare_group.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using GroupConformance = cuda::CudaTest;
using LibraryGroups = cuda::CudaTest;

constexpr int kWorlds[] = {1, 2, 3, 4};

/// Runs the table with buffers on the rank's device.
template <class Make>
void check_table(const Make& make, bool whole = false, std::span<const int> worlds = kWorlds) {
  const std::vector<CollectiveCase> cases = pairwise_cases(worlds);
  for (const int ranks : worlds)
    run_ranks(ranks, [&](const Group& host) {
      const Group group = make(host);
      for (CollectiveCase c : cases) {
        c.whole = whole;
        const bool is_rounded = whole && c.dtype == DType::f64 && byte_size(c.wire) < 8;
        if (c.ranks == ranks && !is_rounded && !check_case(*group, c, cuda::device_of_rank(host->rank()))) return;
      }
    });
}

TEST_F(GroupConformance, StagedGroupsLeaveTheRightBytes) {
  check_table([](const Group& host) { return make_staged_group(host); });
}

TEST_F(GroupConformance, ComposedGroupsLeaveTheRightBytes) {
  check_table([](const Group& host) { return make_composed_group(make_bare_group(host)); });
}

TEST_F(GroupConformance, FastSumsOfWholeNumbersAreExact) {
  check_table([](const Group& host) { return make_composed_group(make_bare_group(host), SumsBy::fast); }, true);
}

// By the NCCL that is installed, or the emulated one beside the emulated device.
TEST_F(LibraryGroups, LeaveTheRightBytesOnOneRankAndOnTwo) {
  if (const std::string why = why_no_device_group(kCuda); !why.empty()) GTEST_SKIP() << why;
  const int worlds[] = {1, 2};
  const std::size_t count = cuda::device_of_rank(1) == kCuda ? 1 : 2;  // a device for each rank
  for (const SumsBy sums : {SumsBy::ordered, SumsBy::fast})
    check_table(
        [sums](const Group& host) {
          return make_device_group(host, {.device = cuda::device_of_rank(host->rank()), .sums = sums});
        },
        sums == SumsBy::fast, std::span(worlds).first(count));
}

// Lists of more items than the arguments of a kernel hold.
TEST_F(GroupConformance, LongListsAreSeveralLaunches) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_composed_group(make_bare_group(host));
    const Device there = cuda::device_of_rank(host->rank());
    constexpr std::int64_t kParts = 150, kCount = 6;
    const Tensor in = to(full({kParts * kCount}, host->rank() + 1.0), there), out = to(zeros({kParts * 3}), there);
    Collective call{.op = comm::CommOp::reduce_scatter};
    const auto part_of = [&](const Tensor& t, std::int64_t first, std::int64_t count) {
      return Buffer{t.storage()->address() + 4 * first, 4 * count, there};
    };
    for (std::int64_t i = 0; i < kParts; ++i)
      call.parts.push_back({.in = part_of(in, i * kCount, kCount),
                            .out = part_of(out, i * 3, 3),
                            .counts = {3, 3},
                            .wire = DType::bf16,
                            .blocks = 3});
    const Loan loans[] = {{in.storage(), false}, {out.storage(), true}};
    group->issue(std::move(call),
                 {.queue = RankContext::current().queue(kReduceQueue, there), .name = "reduce", .loans = loans});
    EXPECT_EQ(to(out, Device::cpu()).to_vector<float>(), std::vector<float>(kParts * 3, 3));
  });
}

}  // namespace
}  // namespace sherd::testing
