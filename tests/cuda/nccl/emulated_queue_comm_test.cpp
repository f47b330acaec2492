// The backend's communicators over the emulated NCCL: groups that are on the stream when launch() returns, deadlines,
// and the watchdog that ends what waits in vain.
#include <gtest/gtest.h>

#include "runtime/cuda/nccl/queue_comm.h"
#include "runtime/cuda/nccl/watchdog.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/support/expect_error.h"

namespace sherd::cuda::nccl {
namespace {

using FakeQueueComm = FakeNccl;
using sherd::testing::expect_error;
using std::chrono::milliseconds;
using Op = ListCall::Op;

std::shared_ptr<QueueComm> comm_of(const FakeRank& rank, const UniqueId& id, std::string name,
                                   std::chrono::nanoseconds deadline = std::chrono::seconds(60)) {
  return std::make_shared<QueueComm>(rank.api, id, rank.world, rank.rank,
                                     QueueCommOptions{.name = std::move(name), .max_ctas = 16, .deadline = deadline});
}

ListCall sum_of(const DeviceArray<float>& x, std::size_t count = 4) {
  return {.op = Op::all_reduce, .in = x.data(), .out = x.data(), .count = count, .type = kF32};
}

// What is put on the stream right after launch() comes after the group, though NCCL polls: by copies that would else
// read the values of before.
TEST_F(FakeQueueComm, AGroupIsOnTheStreamWhenLaunchReturns) {
  for (const int version : {21803, 22304, 22707, 22809, 23203}) {
    fake::Configuration posed;
    posed.version = version;
    start(posed);
    run_fake_threads(3, [](FakeRank& rank, const std::vector<UniqueId>& ids) {
      const auto comm = comm_of(rank, ids[0], "dp gather");
      for (int round = 0; round < 3; ++round) {
        const DeviceArray<float> x(rank.stream, {1, 2, 3, static_cast<float>(rank.rank)}), all(3), one(1);
        const float* own = x.data() + 3;
        const ListCall list[] = {
            sum_of(x, 3),
            {.op = Op::all_gather, .in = own, .out = all.data(), .count = 1, .type = kF32},
            {.op = Op::broadcast, .in = own, .out = one.data(), .count = 1, .type = kF32, .peer = 2}};
        comm->launch(list, rank.stream);
        EXPECT_EQ(x.read(rank.stream), (std::vector<float>{3, 6, 9, static_cast<float>(rank.rank)}));
        EXPECT_EQ(all.read(rank.stream), (std::vector<float>{0, 1, 2}));
        EXPECT_EQ(one.read(rank.stream), std::vector<float>{2});
      }
      EXPECT_EQ(comm->launched(), 3u);
      EXPECT_EQ(comm->error(), "");
      comm->close();
      expect_error([&] { comm->close(); }, {"dp gather was closed before"});
    });
  }
}

TEST_F(FakeQueueComm, MessagesReductionsAndScatters) {
  run_fake_threads(2, [](FakeRank& rank, const std::vector<UniqueId>& ids) {
    const auto comm = comm_of(rank, ids[0], "dp reduce");
    const auto r = static_cast<float>(rank.rank);
    const DeviceArray<float> x(rank.stream, {1 + r, 2 + r, 3 + r, 4 + r}), part(2), top(4), other(4);
    const int peer = 1 - rank.rank;
    const ListCall list[] = {{.op = Op::reduce_scatter, .in = x.data(), .out = part.data(), .count = 2, .type = kF32},
                             {.op = Op::reduce,
                              .in = x.data(),
                              .out = top.data(),
                              .count = 4,
                              .type = kF32,
                              .reduction = RedOp::max,
                              .peer = 1},
                             {.op = Op::send, .in = x.data(), .count = 4, .type = kF32, .peer = peer},
                             {.op = Op::recv, .out = other.data(), .count = 4, .type = kF32, .peer = peer}};
    comm->launch(list, rank.stream);
    EXPECT_EQ(part.read(rank.stream), rank.rank == 0 ? (std::vector<float>{3, 5}) : (std::vector<float>{7, 9}));
    const std::vector<float> largest = top.read(rank.stream);
    EXPECT_TRUE(rank.rank == 0 || largest == (std::vector<float>{2, 3, 4, 5}));
    EXPECT_EQ(other.read(rank.stream), (std::vector<float>{2 - r, 3 - r, 4 - r, 5 - r}));
    comm->close();
  });
}

TEST_F(FakeQueueComm, RefusedListsAndRanksThatDoNotComeAreNamed) {
  run_fake_threads(
      2,
      [](FakeRank& rank, const std::vector<UniqueId>& ids) {
        const auto comm = comm_of(rank, ids[0], "dp gather");
        const float here[4] = {};
        const ListCall list[] = {{.op = Op::all_gather, .in = here, .out = nullptr, .count = 4, .type = kF32}};
        expect_error([&] { comm->launch(list, rank.stream); },
                     {"NCCL 2.28.9: dp gather, rank ",
                      " of 2: ncclAllGather of 1 part, the first of 4 elements: invalid "
                      "argument",
                      "sendbuff of 16 bytes is not in memory of a device"});
        if (rank.rank == 1) return;
        expect_error(
            [&] { comm_of(rank, ids[1], "dp reduce", milliseconds(30)); },
            {"NCCL 2.28.9: dp reduce, rank 0 of 2: a communicator of 2 ranks: not done after 0.0 s: another rank "
             "has not come"});
      },
      2);
}

// A hang, and an error that NCCL reports, on rank 1: the watchdogs of both ranks end all communicators, also the one
// that has no part in it, and say why; the streams can be waited for.
TEST_F(FakeQueueComm, TheWatchdogEndsAllCommunicatorsOfARank) {
  for (const auto kind : {fake::Fault::Kind::hang, fake::Fault::Kind::error})
    for (const int version : {21803, 22809}) {  // without ncclCommRevoke, and with
      fake::Configuration failing;
      failing.version = version;
      failing.fault = {.kind = kind, .rank = 1, .group = 3};
      start(failing);
      run_fake_threads(
          2,
          [&](FakeRank& rank, const std::vector<UniqueId>& ids) {
            Watchdog watchdog(rank.rank, milliseconds(300));
            const auto gather = comm_of(rank, ids[0], "dp gather"), reduce = comm_of(rank, ids[1], "dp reduce");
            watchdog.add(gather);
            watchdog.add(reduce);
            const DeviceArray<float> x(rank.stream, {1, 2, 3, 4});
            const ListCall list[] = {sum_of(x)};
            const bool is_told = kind == fake::Fault::Kind::error && rank.rank == 1;
            for (const auto& comm : {gather, reduce, reduce}) {
              rank.stream.wait();  // what came before has ended well
              try {
                comm->launch(list, rank.stream);
                watchdog.expect(comm, text_of(list), rank.stream);
              } catch (const CommError&) { EXPECT_TRUE(is_told) << "launch() may find it, too"; }
            }
            while (watchdog.reason().empty()) std::this_thread::yield();
            rank.stream.wait();
            const std::string why = watchdog.reason();
            EXPECT_EQ(why.find("dp reduce: "), 0u) << why;
            EXPECT_NE(
                why.find(is_told ? "an asynchronous error, as was asked for"
                                 : "ncclAllReduce of 1 part, the first of 4 elements, launch 2, is not done after "
                                   "0.3 s: another rank has not come to it"),
                std::string::npos)
                << why;
            for (const auto& comm : {gather, reduce}) {
              expect_error([&] { comm->launch(list, rank.stream); }, {why});
              EXPECT_EQ(comm->error(), why);
            }
          },
          2);
    }
}

// A program that ends by an exception stops its own; its peers find out by their deadline.
TEST_F(FakeQueueComm, StoppingIsOfOneRank) {
  run_fake_threads(2, [](FakeRank& rank, const std::vector<UniqueId>& ids) {
    Watchdog watchdog(rank.rank, milliseconds(100));
    const auto comm = comm_of(rank, ids[0], "dp gather");
    watchdog.add(comm);
    const DeviceArray<float> x(rank.stream, {1, 2, 3, 4});
    const ListCall list[] = {sum_of(x)};
    if (rank.rank == 1) {
      watchdog.stop("rank 1 ends by an exception");
      expect_error([&] { comm->launch(list, rank.stream); }, {"rank 1 ends by an exception"});
      return;
    }
    comm->launch(list, rank.stream);
    watchdog.expect(comm, text_of(list), rank.stream);
    while (watchdog.reason().empty()) std::this_thread::yield();
    rank.stream.wait();
    EXPECT_NE(watchdog.reason().find("is not done after 0.1 s"), std::string::npos) << watchdog.reason();
  });
}

}  // namespace
}  // namespace sherd::cuda::nccl
