// How communicators of the emulated NCCL are made, polled, split and ended, and what goes wrong on request.
#include <barrier>
#include <csignal>

#include <gtest/gtest.h>

#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/support/emulated_gpu/control.h"
#include "tests/support/processes.h"

namespace sherd::cuda::nccl {
namespace {

using FakeLife = FakeNccl;

std::string last_error(const FakeRank& rank) { return rank.api.last_error(nullptr); }

Result sum(const FakeRank& rank, const DeviceArray<float>& x, Comm comm, std::size_t n = 4) {
  return rank.api.all_reduce(x.data(), x.data(), n, kF32, RedOp::sum, comm, rank.stream);
}

TEST_F(FakeLife, NonBlockingInitIsPolledAndNotUsedBefore) {
  std::barrier looked(2);  // until then rank 0 is alone
  run_fake_threads(2, [&](FakeRank& rank, const std::vector<UniqueId>& ids) {
    const DeviceArray<float> x(4);
    Config config = rank.config(false);
    if (rank.rank == 0) {
      Result result = rank.api.init_rank(&rank.comm, 2, ids[0], 0, &config);
      ASSERT_EQ(result, Result::in_progress);
      rank.expect(sum(rank, x, rank.comm), Result::invalid_argument);
      EXPECT_NE(last_error(rank).find("ncclAllReduce: Attempt to use communicator before"), std::string::npos);
      rank.expect(rank.api.destroy(rank.comm), Result::invalid_usage);
      looked.arrive_and_wait();
      EXPECT_EQ(rank.settle(result), Result::success);
    } else {
      looked.arrive_and_wait();
      rank.comm = rank.join(ids[0], config);
    }
    rank.check(sum(rank, x, rank.comm), "summing");
    rank.stream.wait();
    rank.check(rank.api.finalize(rank.comm), "finalizing");
    rank.expect(rank.api.destroy(rank.comm));
  });
}

// The group is on the stream when it has been polled to success: an event that is recorded before comes before it.
TEST_F(FakeLife, AnEventBeforePollingPrecedesTheGroup) {
  run_fake_threads(1, [](FakeRank& rank, const std::vector<UniqueId>& ids) {
    rank.comm = rank.join(ids[0], rank.config(false));
    const DeviceArray<float> x(4);
    int early = 0;
    for (int group = 0; group < 40; ++group) {
      const Result result = sum(rank, x, rank.comm);
      if (result == Result::in_progress) {
        ++early;
        EXPECT_EQ(emulated::pending(), 0u) << "group " << group;
      }
      rank.expect(rank.settle(result));
      rank.stream.wait();
    }
    EXPECT_GT(early, 0);
    EXPECT_LT(early, 40) << "now and then it is ready at once";
    rank.expect(rank.api.abort(rank.comm));
  });
}

TEST_F(FakeLife, AbortLetsTheStreamGoOn) {
  run_fake_ranks(2, [](FakeRank& rank, const auto&) {
    const DeviceArray<float> x(rank.stream, {1, 2, 3, 4});
    if (rank.rank == 0) {
      rank.expect(sum(rank, x, rank.comm));  // rank 1 never comes
      rank.expect(rank.api.abort(rank.comm));
      const std::vector<float> values = x.read(rank.stream);
      EXPECT_NE(values, (std::vector<float>{2, 4, 6, 8}));
      EXPECT_TRUE(std::isnan(values[0])) << "anything may be there";
    } else {
      rank.expect(rank.api.abort(rank.comm));
    }
    rank.comm = nullptr;
  });
}

TEST_F(FakeLife, RevokeStopsAndLeavesAParentForSplits) {
  run_fake_ranks(2, [](const FakeRank& rank, const auto&) {
    const DeviceArray<float> x(rank.stream, {1, 2, 3, 4});
    if (rank.rank == 0) rank.expect(sum(rank, x, rank.comm));  // rank 1 never comes
    rank.expect(rank.api.revoke(rank.comm, 1), Result::invalid_argument);
    rank.expect(rank.api.revoke(rank.comm, 0));
    rank.stream.wait();
    rank.expect(sum(rank, x, rank.comm), Result::invalid_usage);
    EXPECT_NE(last_error(rank).find("ncclAllReduce: the communicator was revoked"), std::string::npos);
    rank.expect(rank.api.finalize(rank.comm), Result::invalid_usage);
    Comm again = nullptr;
    Config config = rank.config();
    rank.expect(rank.api.split(rank.comm, 0, rank.rank, &again, &config));
    const DeviceArray<float> y(rank.stream, {1, 2, 3, 4});
    rank.expect(sum(rank, y, again));
    EXPECT_EQ(y.read(rank.stream), (std::vector<float>{2, 4, 6, 8}));
    rank.expect(rank.api.destroy(again));
  });
}

// Colors 0 and 1 of ranks 0 2 and 1, in the order of keys; rank 3 is in none. The config is the parent's.
TEST_F(FakeLife, SplitByColorAndKey) {
  for (const bool blocking : {true, false})
    run_fake_threads(4, [&](FakeRank& rank, const std::vector<UniqueId>& ids) {
      rank.comm = rank.join(ids[0], rank.config(blocking));
      Comm part = nullptr;
      const int color = rank.rank == 3 ? kNoColor : rank.rank % 2;
      const Result result = rank.api.split(rank.comm, color, -rank.rank, &part, nullptr);
      if (rank.rank == 3) {
        rank.expect(result);
        EXPECT_EQ(part, nullptr);
      } else {
        ASSERT_EQ(rank.settle(result, part), Result::success) << last_error(rank);
        const std::size_t world = color == 0 ? 2 : 1;
        const DeviceArray<float> x(rank.stream, {static_cast<float>(rank.rank)}), all(world);
        rank.expect(rank.settle(rank.api.all_gather(x.data(), all.data(), 1, kF32, part, rank.stream), part));
        EXPECT_EQ(all.read(rank.stream), color == 0 ? (std::vector<float>{2, 0}) : std::vector<float>{1});
        rank.expect(rank.settle(rank.api.finalize(part), part));
        rank.expect(rank.api.destroy(part));
      }
      rank.check(rank.api.finalize(rank.comm), "finalizing");
      rank.expect(rank.api.destroy(rank.comm));
    });
}

TEST_F(FakeLife, RanksThatDoNotFitAreNamed) {
  run_fake_threads(2, [](FakeRank& rank, const std::vector<UniqueId>& ids) {
    sherd::cuda::check(cudaSetDevice(0), "cudaSetDevice");
    Config config = rank.config();
    rank.expect(rank.api.init_rank(&rank.comm, 2, ids[0], rank.rank, &config), Result::invalid_usage);
    EXPECT_NE(last_error(rank).find("Duplicate GPU detected : rank"), std::string::npos) << last_error(rank);
    EXPECT_EQ(rank.comm, nullptr);
    rank.expect(rank.api.init_rank(&rank.comm, 2, UniqueId{}, rank.rank, &config), Result::system_error);
    EXPECT_EQ(last_error(rank), "the unique id is none that ncclGetUniqueId made");
    rank.expect(rank.api.init_rank(&rank.comm, 2, ids[0], 2, &config), Result::invalid_argument);
  });
}

TEST_F(FakeLife, FaultsOnRequest) {
  fake::Configuration failing;
  failing.fault = {.kind = fake::Fault::Kind::fail_init, .rank = 0};
  start(failing);
  run_fake_threads(1, [](FakeRank& rank, const std::vector<UniqueId>& ids) {
    Config config = rank.config();
    rank.expect(rank.api.init_rank(&rank.comm, 1, ids[0], 0, &config), Result::system_error);
    EXPECT_EQ(last_error(rank), "rank 0: its communicator is not made, as was asked for");
  });
  for (const auto kind : {fake::Fault::Kind::hang, fake::Fault::Kind::error}) {
    failing.fault = {.kind = kind, .rank = 1, .group = 2};
    start(failing);
    run_fake_ranks(2, [kind](FakeRank& rank, const auto&) {
      const DeviceArray<float> x(rank.stream, {1, 2, 3, 4});
      rank.expect(sum(rank, x, rank.comm));
      EXPECT_EQ(x.read(rank.stream), (std::vector<float>{2, 4, 6, 8}));
      const Result result = sum(rank, x, rank.comm);  // may find it, too
      if (rank.rank == 1 && kind == fake::Fault::Kind::error) {
        std::string why;
        EXPECT_EQ(rank.error_of(rank.comm, why), Result::remote_error);
        EXPECT_NE(why.find("an asynchronous error, as was asked for"), std::string::npos) << why;
      } else {
        rank.expect(result);
        for (int poll = 0; poll < 100; ++poll) {
          Result now = Result::success;
          rank.expect(rank.api.async_error(rank.comm, &now));
          rank.expect(now);
          EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
        }
      }
      rank.expect(rank.api.abort(rank.comm));
      rank.stream.wait();
      rank.comm = nullptr;
    });
  }
}

// As a device would, freeing memory waits for the collective; here a report says for which.
TEST_F(FakeLife, WhoWaitsForACollectiveInVainIsToldItsName) {
  emulated::Configuration impatient;
  impatient.patience = std::chrono::milliseconds(50);
  emulated::reset(impatient);
  std::string report;
  run_fake_threads(2, [&](FakeRank& rank, const std::vector<UniqueId>& ids) {
    rank.comm = rank.join(ids[0], rank.config(true, "gather"));
    if (rank.rank != 0) return;
    DeviceArray<float> x(4), other(1);
    rank.expect(sum(rank, x, rank.comm));
    EXPECT_EQ(cudaFree(other.data()), cudaErrorLaunchTimeout);
    report = emulated::report();
    start({});
  });
  EXPECT_NE(report.find("cudaFree waits for device 0: stream "), std::string::npos) << report;
  EXPECT_NE(report.find(" waits for ncclAllReduce of 4 float32, op sum of gather"), std::string::npos) << report;
}

// Rank 1's process is killed by its second group; rank 0 waits in vain until it gives up.
TEST_F(FakeLife, AProcessThatDiesLeavesItsPeersWaiting) {
  const auto ends = sherd::testing::fork_ranks(2, [](Store& store, int r) {
    fake::Configuration dying;
    dying.fault = {.kind = fake::Fault::Kind::die, .rank = 1, .group = 2};
    start(dying);
    const NcclApi api = fake_api();
    UniqueId id{};
    if (r == 0) {
      check_nccl(api, api.get_unique_id(&id), "making an id");
      store.set("id", {id.bytes, sizeof id.bytes});
    } else {
      store.get("id", std::chrono::seconds(20)).copy(id.bytes, sizeof id.bytes);
    }
    sherd::cuda::check(cudaSetDevice(r), "cudaSetDevice");
    FakeRank rank{api, r, 2};
    rank.comm = rank.join(id, rank.config());
    const DeviceArray<float> x(rank.stream, {1, 2, 3, 4});
    rank.expect(sum(rank, x, rank.comm));
    EXPECT_EQ(x.read(rank.stream), (std::vector<float>{2, 4, 6, 8}));
    rank.expect(sum(rank, x, rank.comm));
    if (r == 1) rank.stream.wait();
    for (int poll = 0; poll < 100; ++poll) EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    rank.expect(api.abort(rank.comm));
    rank.stream.wait();
  });
  EXPECT_EQ(ends[0].status, 0) << ends[0].message;
  EXPECT_EQ(ends[1].status, 128 + SIGKILL) << ends[1].message;
}

}  // namespace
}  // namespace sherd::cuda::nccl
