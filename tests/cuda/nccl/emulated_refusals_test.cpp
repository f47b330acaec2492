// What the emulated NCCL refuses, by name: at the call where one rank can know, as an asynchronous error of the
// communicator where it takes two.
#include <barrier>
#include <functional>

#include <gtest/gtest.h>

#include "runtime/op/core/device_library.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/support/emulated_gpu/control.h"

namespace sherd::cuda::nccl {
namespace {

using FakeRefusals = FakeNccl;

// A call that one rank alone gets wrong. x: 8 floats of device 0.
struct WrongCall {
  const char* why;
  std::function<Result(const FakeRank&, float* x)> call;
  Result result = Result::invalid_argument;
};

const WrongCall kWrongCalls[] = {
    {"sendbuff of 12 bytes is not in memory of a device, or was freed",
     [](const FakeRank& r, float* x) {
       const float here[3] = {};
       return r.api.all_reduce(here, x, 3, kF32, RedOp::sum, r.comm, r.stream);
     }},
    {"recvbuff of 400 bytes is not in memory",
     [](const FakeRank& r, float* x) { return r.api.recv(x, 100, kF32, 0, r.comm, r.stream); }},
    {"sendbuff is in memory of device 1, the communicator is of device 0",
     [](const FakeRank& r, float* x) {
       static_cast<void>(cudaSetDevice(1));
       const DeviceArray<float> there(3);
       static_cast<void>(cudaSetDevice(0));
       return r.api.all_reduce(there.data(), x, 3, kF32, RedOp::sum, r.comm, r.stream);
     }},
    {"ncclAllReduce: sendbuff and recvbuff overlap, and not as it works in place",
     [](const FakeRank& r, float* x) { return r.api.all_reduce(x, x + 1, 3, kF32, RedOp::sum, r.comm, r.stream); }},
    {"ncclAllGather: sendbuff and recvbuff overlap",
     [](const FakeRank& r, float* x) { return r.api.all_gather(x + 1, x, 2, kF32, r.comm, r.stream); }},
    {"ncclBroadcast: there is no rank 1",
     [](const FakeRank& r, float* x) { return r.api.broadcast(x, x, 2, kF32, 1, r.comm, r.stream); }},
    {"ncclSend: there is no rank -1",
     [](const FakeRank& r, float* x) { return r.api.send(x, 2, kF32, -1, r.comm, r.stream); }},
    {"there is no such type",
     [](const FakeRank& r, float* x) {
       return r.api.all_gather(x, x, 1, static_cast<DataType>(99), r.comm, r.stream);
     }},
    {"the operator was destroyed, or is of another type",
     [](const FakeRank& r, float* x) {
       return r.api.all_reduce(x, x, 1, kF32, static_cast<RedOp>(7), r.comm, r.stream);
     }},
    {"the stream is not one, or was destroyed",
     [](const FakeRank& r, float* x) { return r.api.all_reduce(x, x, 1, kF32, RedOp::sum, r.comm, nullptr); }},
    {"the stream is of device 1, the communicator of device 0",
     [](const FakeRank& r, float* x) {
       static_cast<void>(cudaSetDevice(1));
       const TestStream there;
       static_cast<void>(cudaSetDevice(0));
       return r.api.all_reduce(x, x, 1, kF32, RedOp::sum, r.comm, there);
     }},
    {"ncclAllReduce: no communicator, or one that was destroyed",
     [](const FakeRank& r, float* x) {
       const Comm made = r.comm;
       EXPECT_EQ(r.api.abort(made), Result::success);
       return r.api.all_reduce(x, x, 1, kF32, RedOp::sum, made, r.stream);
     }},
    {"ncclAllReduce: the communicator was finalized",
     [](const FakeRank& r, float* x) {
       EXPECT_EQ(r.api.finalize(r.comm), Result::success);
       return r.api.all_reduce(x, x, 1, kF32, RedOp::sum, r.comm, r.stream);
     },
     Result::invalid_usage},
    {"calls 1 and 2 of a group touch the same bytes, and run in any order",
     [](const FakeRank& r, float* x) {
       static_cast<void>(r.api.group_start());
       static_cast<void>(r.api.all_reduce(x, x, 4, kF32, RedOp::sum, r.comm, r.stream));
       static_cast<void>(r.api.all_reduce(x + 3, x + 3, 4, kF32, RedOp::sum, r.comm, r.stream));
       return r.api.group_end();
     },
     Result::invalid_usage},
    {"one communicator on two streams in a group is not emulated",
     [](const FakeRank& r, float* x) {
       const TestStream other;
       static_cast<void>(r.api.group_start());
       static_cast<void>(r.api.all_reduce(x, x, 4, kF32, RedOp::sum, r.comm, r.stream));
       static_cast<void>(r.api.all_reduce(x + 4, x + 4, 4, kF32, RedOp::sum, r.comm, other));
       return r.api.group_end();
     },
     Result::invalid_usage},
    {"there is no rank 3",  // the group is lost with its call
     [](const FakeRank& r, float* x) {
       static_cast<void>(r.api.group_start());
       static_cast<void>(r.api.all_reduce(x, x, 4, kF32, RedOp::sum, r.comm, r.stream));
       static_cast<void>(r.api.broadcast(x, x, 4, kF32, 3, r.comm, r.stream));
       return r.api.group_end();
     }},
    {"ncclGroupEnd: not in a group", [](const FakeRank& r, float*) { return r.api.group_end(); },
     Result::invalid_usage},
    {"a stream that captures is not emulated", [](const FakeRank& r, float* x) {
       cudaGraph_t graph = nullptr;
       EXPECT_EQ(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
       const Result result = r.api.all_reduce(x, x, 4, kF32, RedOp::sum, r.comm, r.stream);
       EXPECT_EQ(cudaStreamEndCapture(r.stream, &graph), cudaSuccess);
       EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
       return result;
     }}};

TEST_F(FakeRefusals, WrongCallsOfOneRank) {
  for (const WrongCall& wrong : kWrongCalls) {
    run_fake_threads(1, [&](FakeRank& rank, const std::vector<UniqueId>& ids) {
      rank.comm = rank.join(ids[0], rank.config());
      const DeviceArray<float> x(8);
      const Result result = wrong.call(rank, x.data());
      EXPECT_EQ(result, wrong.result) << wrong.why;
      EXPECT_NE(std::string(rank.api.last_error(nullptr)).find(wrong.why), std::string::npos)
          << rank.api.last_error(nullptr) << "\ninstead of: " << wrong.why;
      static_cast<void>(rank.api.abort(rank.comm));
    });
    start({});
  }
}

TEST_F(FakeRefusals, ABufferThatIsFreedBeforeTheDeviceGetsThere) {
  emulated::Configuration late;
  late.early = false;
  emulated::reset(late);
  const NcclApi api = fake_api();
  UniqueId id{};
  ASSERT_EQ(api.get_unique_id(&id), Result::success);
  FakeRank rank{api};
  rank.comm = rank.join(id, rank.config());
  float* const x = DeviceArray<float>(8).data();  // freed here
  rank.expect(api.all_reduce(x, x, 8, kF32, RedOp::sum, rank.comm, rank.stream), Result::invalid_argument);
  EXPECT_EQ(emulated::report(), "");
}

// What ranks do that does not fit together, and what the communicator's error says on each rank that finds it.
struct Mismatch {
  const char* why;
  std::function<void(const FakeRank&, float* x)> call;
};

// The call itself may find it, too, if the other rank was first.
void found(const FakeRank& rank, Result result) {
  if (result != Result::invalid_usage) rank.expect(result);
}

const Mismatch kMismatches[] = {
    {"differs: ncclAllReduce of 4 float32, op sum on rank 0, ncclAllReduce of 5 float32, op sum on rank 1",
     [](const FakeRank& r, float* x) {
       found(r, r.api.all_reduce(x, x, r.rank == 0 ? 4 : 5, kF32, RedOp::sum, r.comm, r.stream));
     }},
    {"differs: ncclAllReduce of 4 float32, op sum on rank 0, ncclAllReduce of 4 int32, op sum on rank 1",
     [](const FakeRank& r, float* x) {
       found(r, r.api.all_reduce(x, x, 4, r.rank == 0 ? kF32 : DataType::int32, RedOp::sum, r.comm, r.stream));
     }},
    {"differs: ncclAllReduce of 4 float32, op max on rank 0, ncclAllReduce of 4 float32, op min on rank 1",
     [](const FakeRank& r, float* x) {
       found(r, r.api.all_reduce(x, x, 4, kF32, r.rank == 0 ? RedOp::max : RedOp::min, r.comm, r.stream));
     }},
    {"differs: ncclBroadcast of 4 float32, root 0 on rank 0, ncclBroadcast of 4 float32, root 1 on rank 1",
     [](const FakeRank& r, float* x) { found(r, r.api.broadcast(x, x, 4, kF32, r.rank, r.comm, r.stream)); }},
    {"differs: ncclAllGather of 2 float32 on rank 0, ncclBroadcast of 2 float32, root 0 on rank 1",
     [](const FakeRank& r, float* x) {
       if (r.rank == 0) found(r, r.api.all_gather(x, x, 2, kF32, r.comm, r.stream));
       else found(r, r.api.broadcast(x, x, 2, kF32, 0, r.comm, r.stream));
     }},
    {"rank 0 has a group of 1 calls, rank 1 one of 2",
     [](const FakeRank& r, float* x) {
       found(r, r.api.group_start());
       for (int i = 0; i <= r.rank; ++i)
         found(r, r.api.all_reduce(x + i, x + i, 1, kF32, RedOp::sum, r.comm, r.stream));
       found(r, r.api.group_end());
     }},
    {"message 1 differs: ncclRecv of 3 float32 on rank 0, ncclSend of 2 float32 on rank 1",
     [](const FakeRank& r, float* x) {
       if (r.rank == 1) found(r, r.api.send(x, 2, kF32, 0, r.comm, r.stream));
       else found(r, r.api.recv(x, 3, kF32, 1, r.comm, r.stream));
     }}};

TEST_F(FakeRefusals, WhatRanksDoNotAgreeOn) {
  for (const Mismatch& mismatch : kMismatches) {
    std::barrier both(2);  // until then rank 1's call is under way
    run_fake_threads(2, [&](FakeRank& rank, const std::vector<UniqueId>& ids) {
      rank.comm = rank.join(ids[0], rank.config());
      const DeviceArray<float> x(16);
      mismatch.call(rank, x.data());
      if (rank.rank == 0) {
        std::string why;
        EXPECT_EQ(rank.error_of(rank.comm, why), Result::invalid_usage);
        EXPECT_NE(why.find(mismatch.why), std::string::npos) << why << "\ninstead of: " << mismatch.why;
        // The error stays, and the item never ends by itself.
        rank.expect(rank.api.all_reduce(x.data(), x.data(), 1, kF32, RedOp::sum, rank.comm, rank.stream),
                    Result::invalid_usage);
      }
      both.arrive_and_wait();
      rank.expect(rank.api.abort(rank.comm));
      rank.stream.wait();
    });
    start({});
  }
}

// On one stream, too, where both devices wait for what the other has behind it.
TEST_F(FakeRefusals, TwoOrdersOverTwoCommunicators) {
  for (const bool one_stream : {true, false}) {
    run_fake_threads(
        2,
        [&](FakeRank& rank, const std::vector<UniqueId>& ids) {
          const Comm gather = rank.join(ids[0], rank.config(true, "gather"));
          const Comm reduce = rank.join(ids[1], rank.config(true, "reduce"));
          const TestStream other;
          const DeviceArray<float> x(4), y(4);
          const auto gathers = [&] {
            const float* own = x.data() + 2 * rank.rank;
            found(rank, rank.api.all_gather(own, x.data(), 2, kF32, gather, rank.stream));
          };
          const auto reduces = [&] {
            found(rank, rank.api.all_reduce(y.data(), y.data(), 4, kF32, RedOp::sum, reduce,
                                            one_stream ? static_cast<cudaStream_t>(rank.stream) : other));
          };
          if (rank.rank == 0) gathers();
          reduces();
          if (rank.rank == 1) gathers();
          std::string why, text;
          for (Result result = Result::success; result == Result::success;)
            for (const Comm comm : {gather, reduce})
              if (result == Result::success && rank.api.async_error(comm, &result) == Result::success &&
                  result != Result::success)
                why = rank.api.last_error(comm);
          EXPECT_NE(why.find("two orders over two communicators: "), std::string::npos) << why;
          EXPECT_NE(why.find("ncclAllGather of 2 float32 (of gather)"), std::string::npos) << why;
          EXPECT_NE(why.find("ncclAllReduce of 4 float32, op sum (of reduce)"), std::string::npos) << why;
          EXPECT_NE(why.find(rank.rank == 0 ? "on rank 1" : "on rank 0"), std::string::npos) << why;
          rank.expect(rank.api.abort(gather));
          rank.expect(rank.api.abort(reduce));
          rank.stream.wait();
          other.wait();
        },
        2);
    start({});
  }
}

TEST_F(FakeRefusals, CallsOfReleasesThatLackThem) {
  fake::Configuration old;
  old.version = 21803;
  start(old);
  run_fake_ranks(1, [](const FakeRank& rank, const auto&) {
    EXPECT_EQ(rank.api.version, 21803);
    EXPECT_EQ(rank.api.revoke, nullptr);
    EXPECT_NE(rank.api.missing.find("ncclCommRevoke (since 2.28.7)"), std::string::npos) << rank.api.missing;
    NcclApi bare = rank.api;
    for (const OptionalBinding& optional : optional_functions(bare))
      EXPECT_TRUE(bare.library.bind_optional(optional.binding));
    void* memory = nullptr;
    rank.expect(bare.revoke(rank.comm, 0), Result::invalid_usage);
    EXPECT_STREQ(rank.api.last_error(nullptr), "ncclCommRevoke is not in 2.18.3");
    rank.expect(bare.allocate(&memory, 8), Result::invalid_usage);
    EXPECT_STREQ(rank.api.last_error(nullptr), "ncclMemAlloc is not in 2.18.3");
    Comm comm = nullptr;
    UniqueId id{};
    Config config = rank.config();
    rank.expect(bare.init_rank_scalable(&comm, 1, 0, 1, &id, &config), Result::invalid_usage);
    EXPECT_STREQ(rank.api.last_error(nullptr), "ncclCommInitRankScalable is not in 2.18.3");
  });
}

TEST_F(FakeRefusals, InfoSaysWhatWasFound) {
  std::string found;
  for (const BackendFact& fact : cuda_library().backend->facts())
    if (fact.name == "NCCL") found = fact.value;
  EXPECT_EQ(found.find("2.28.9, /"), 0u) << found;
  EXPECT_TRUE(found.ends_with("/emulated/libnccl.so.2")) << found;
}

TEST_F(FakeRefusals, AConfigThatTheReleaseDoesNotKnow) {
  fake::Configuration old;
  old.version = 22304;
  start(old);
  run_fake_threads(1, [](FakeRank& rank, const std::vector<UniqueId>& ids) {
    Comm comm = nullptr;
    Config config = config_for(kKnownVersion);
    rank.expect(rank.api.init_rank(&comm, 1, ids[0], 0, &config), Result::invalid_argument);
    EXPECT_NE(std::string(rank.api.last_error(nullptr)).find("a config of 80 bytes and version 22809, 2.23.4 has 48"),
              std::string::npos)
        << rank.api.last_error(nullptr);
    rank.expect(rank.api.destroy(rank.join(ids[0], rank.config())));
  });
}

}  // namespace
}  // namespace sherd::cuda::nccl
