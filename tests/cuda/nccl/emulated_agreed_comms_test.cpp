// Communicators that all ranks of a group make at one point, over the emulated NCCL.
#include <gtest/gtest.h>

#include "runtime/cuda/nccl/agreed_comms.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::cuda::nccl {
namespace {

using FakeAgreedComms = FakeNccl;
using sherd::testing::expect_error;
using std::chrono::milliseconds;

// The body on three ranks with a device each, with options for two communicators.
void on_three_ranks(const std::function<void(const NcclApi&, ProcessGroup&, std::span<const QueueCommOptions>)>& body) {
  const NcclApi api = fake_api();
  sherd::testing::run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    sherd::cuda::check(cudaSetDevice(group->rank()), "cudaSetDevice");
    const QueueCommOptions options[] = {{.name = "dp gather", .deadline = milliseconds(200)},
                                        {.name = "dp reduce", .deadline = std::chrono::seconds(60)}};
    body(api, *group, options);
  });
}

TEST_F(FakeAgreedComms, AreMadeInOneOrder) {
  fake::Configuration polled;
  polled.most_polls = 20;
  start(polled);
  on_three_ranks([](const NcclApi& api, ProcessGroup& group, std::span<const QueueCommOptions> options) {
    std::vector<QueueCommOptions> patient(options.begin(), options.end());
    patient[0].deadline = patient[1].deadline;
    const auto comms = make_comms(api, group, patient);
    ASSERT_EQ(comms.size(), 2u);
    const TestStream gather, reduce;
    const auto r = static_cast<float>(group.rank());
    const DeviceArray<float> x(gather, {r}), all(3), y(reduce, {1 + r});
    const ListCall gathers[] = {
        {.op = ListCall::Op::all_gather, .in = x.data(), .out = all.data(), .count = 1, .type = kF32}};
    const ListCall sums[] = {{.in = y.data(), .out = y.data(), .count = 1, .type = kF32}};
    comms[0]->launch(gathers, gather);
    comms[1]->launch(sums, reduce);
    EXPECT_EQ(all.read(gather), (std::vector<float>{0, 1, 2}));
    EXPECT_EQ(y.read(reduce), std::vector<float>{6});
    for (const auto& comm : comms) comm->close();
  });
}

TEST_F(FakeAgreedComms, RanksOfTwoReleasesAreNamedOnAll) {
  on_three_ranks([](const NcclApi& api, ProcessGroup& group, std::span<const QueueCommOptions> options) {
    NcclApi mine = api;
    if (group.rank() == 1) mine.version = 22707;
    expect_error([&] { make_comms(mine, group, options); },
                 {"ranks of world cannot talk by NCCL: NCCL's version is 2.28.9 on ranks 0, 2; 2.27.7 on rank 1",
                  "install one release for all, or name it by SHERD_NCCL_LIB"});
  });
}

TEST_F(FakeAgreedComms, OneThatIsNotMadeIsToldOnAll) {
  fake::Configuration failing;
  failing.fault = {.kind = fake::Fault::Kind::fail_init, .rank = 1};
  start(failing);
  on_three_ranks([](const NcclApi& api, ProcessGroup& group, std::span<const QueueCommOptions> options) {
    expect_error([&] { make_comms(api, group, options); },
                 {group.rank() == 1 ? "NCCL" : "rank 1: NCCL",
                  "dp gather, rank 1 of 3: a communicator of 3 ranks: unhandled system error"});
  });
}

}  // namespace
}  // namespace sherd::cuda::nccl
