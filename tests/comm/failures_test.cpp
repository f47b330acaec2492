// What every rank is told when ranks disagree, are late, give up, or leave; and that the group works again after
// reset(). The oracle is the text of the error on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/backends.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void gather(HostGroup& group, const std::vector<std::int64_t>& counts, DType dtype = DType::f32, int blocks = 1) {
  std::vector<double> data(20000);
  CollectivePart part = in_place(data.data(), dtype, counts);
  part.blocks = blocks;
  if (blocks > 1) part.in.address = &data[10000];
  group.all_gather({part});
}

void reduce(HostGroup& group, std::int64_t count, ReduceOptions options = {}, DType dtype = DType::f32) {
  std::vector<double> data(20000);
  group.all_reduce({in_place(data.data(), dtype, count)}, options);
}

void send(HostGroup& group, int root) {
  float x = 0;
  group.broadcast({in_place(&x, DType::f32, 1)}, root);
}

/// The group can be used: the sum of ranks is right.
void expect_works(HostGroup& group) {
  auto x = static_cast<float>(group.rank());
  group.all_reduce({in_place(&x, DType::f32, 1)}, {});
  EXPECT_EQ(x, static_cast<float>(group.size() * (group.size() - 1) / 2));
}

class Failures : public OnAllBackends {};
INSTANTIATE_TEST_SUITE_P(Groups, Failures, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Failures, DifferentTypesCountsKindsRootsAndBarriersAreRefused) {
  struct Case {
    std::function<void(HostGroup&)> one, other;
    std::string text;
  };
  const Case cases[] = {
      {[](auto& g) { gather(g, {1, 2, 3}); }, [](auto& g) { gather(g, {1, 2, 3}, DType::i32); },
       "ranks 0, 2 call all_gather #1 [f32 x 1,2,3], rank 1 calls all_gather #1 [i32 x 1,2,3]"},
      {[](auto& g) { gather(g, {5000, 5000, 0}); }, [](auto& g) { gather(g, {5000, 0, 5000}); },
       "ranks 0, 2 call all_gather #1 [f32 x 5000,5000,0], rank 1 calls all_gather #1 [f32 x 5000,0,5000]"},
      {[](auto& g) { gather(g, {4, 4, 4}, DType::f32, 2); }, [](auto& g) { gather(g, {4, 4, 4}, DType::f32, 4); },
       "ranks 0, 2 call all_gather #1 [f32 in 2 blocks x 4,4,4], rank 1 calls all_gather #1 [f32 in 4 blocks x 4,4,4]"},
      {[](auto& g) { reduce(g, 7); }, [](auto& g) { reduce(g, 7, {.kind = ReduceKind::max}); },
       "ranks 0, 2 call all_reduce #1 [f32 x 7 sum], rank 1 calls all_reduce #1 [f32 x 7 max]"},
      {[](auto& g) { reduce(g, 9000); }, [](auto& g) { reduce(g, 9000, {.scale = 0.5}); },
       "ranks 0, 2 call all_reduce #1 [f32 x 9000 sum], rank 1 calls all_reduce #1 [f32 x 9000 sum times 0.5]"},
      {[](auto& g) { send(g, 0); }, [](auto& g) { send(g, 2); },
       "ranks 0, 2 call broadcast #1 [f32 x 1 root 0], rank 1 calls broadcast #1 [f32 x 1 root 2]"},
      {[](auto& g) { g.barrier(); }, [](auto& g) { send(g, 0); },
       "ranks 0, 2 call barrier #1, rank 1 calls broadcast #1 [f32 x 1 root 0]"},
  };
  for (const Case& each : cases) {
    run(3, [&](HostGroup& group) {
      const std::string error = error_of([&] { group.rank() == 1 ? each.other(group) : each.one(group); });
      EXPECT_THAT(error, HasSubstr(each.text));
    });
  }
}

TEST_P(Failures, ThreeDifferentCallsAreAllNamed) {
  run(3, [](HostGroup& group) {
    const std::string error = error_of([&] { reduce(group, group.rank() + 1); });
    for (const char* text : {"rank 0 calls all_reduce #1 [f32 x 1 sum]", "rank 1 calls all_reduce #1 [f32 x 2 sum]",
                             "rank 2 calls all_reduce #1 [f32 x 3 sum]"})
      EXPECT_THAT(error, HasSubstr(text));
  });
}

TEST_P(Failures, LongListsThatDifferAtTheEndAreRefused) {
  run(2, [](HostGroup& group) {
    std::vector<float> data(400);
    std::vector<CollectivePart> parts;
    for (std::size_t i = 0; i < 400; ++i) parts.push_back(in_place(&data[i], DType::f32, 1));
    if (group.rank() == 1) parts.back().counts[0] = 0;
    const std::string error = error_of([&] { group.all_reduce(parts, {}); });
    EXPECT_THAT(error, AllOf(HasSubstr("more sum]"), HasSubstr("differ in the part of the list that is not shown")));
    EXPECT_LT(error.size(), 900U);
  });
}

TEST_P(Failures, NothingIsTouchedWhenRanksDisagree) {
  run(2, [](HostGroup& group) {
    std::vector<float> data(9000, static_cast<float>(group.rank()));
    EXPECT_THROW(group.all_reduce({in_place(data.data(), DType::f32, group.rank() == 0 ? 8999 : 9000)}, {}), CommError);
    EXPECT_EQ(data, std::vector<float>(9000, static_cast<float>(group.rank())));
    EXPECT_EQ(group.counts().all_reduce.calls, 0);
  });
}

TEST_P(Failures, DeadlineNamesWhoIsMissingAndWhatItDoes) {
  SharedFlag is_outside, has_expired;
  run(3, [&](HostGroup& group) {
    group.barrier();
    std::string error;
    if (group.rank() == 1) {
      is_outside.set();
      has_expired.wait();
      error = error_of([&] { gather(group, {1, 1, 1}); });
    } else {
      is_outside.wait();
      if (group.rank() == 0) group.set_deadline(std::chrono::milliseconds(200));
      error = error_of([&] { gather(group, {1, 1, 1}); });
      if (group.rank() == 0) has_expired.set();
    }
    EXPECT_THAT(error, HasSubstr("in all_gather #2 [f32 x 1,1,1] (deadline 0.2 s); not there: rank 1 (outside any "
                                 "collective of this group, its last call: barrier #1"));
    EXPECT_THAT(error, HasSubstr("rank 0 waited "));
  });
}

TEST_P(Failures, ResetMakesTheGroupWorkAgain) {
  constexpr int rounds = 20;
  SharedFlag has_ended[rounds][3];  // an abort also stops ranks that are the last to leave the collective before it
  run(3, [&](HostGroup& group) {
    for (int round = 0; round < rounds; ++round) {
      if (group.rank() == round % 3) group.abort(fmt::format("round {}", round));
      // A rank may be stopped by the abort in the first barrier or only in the second.
      const std::string error = error_of([&] { group.barrier(), group.barrier(); });
      EXPECT_THAT(error, HasSubstr(fmt::format("round {}", round)));
      group.reset();
      expect_works(group);
      gather(group, {5000, 1, 5000});
      has_ended[round][group.rank()].set();
      for (const SharedFlag& ended : has_ended[round]) ended.wait();
    }
    EXPECT_EQ(group.counts().all_reduce.calls, rounds);
  });
}

TEST_P(Failures, SequenceNumbersGoOnAfterReset) {
  run(2, [](HostGroup& group) {
    group.barrier();
    EXPECT_THAT(error_of([&] { group.rank() == 0 ? group.barrier() : send(group, 0); }), HasSubstr("barrier #2"));
    group.reset();
    EXPECT_THAT(error_of([&] { group.rank() == 0 ? group.barrier() : send(group, 0); }), HasSubstr("barrier #3"));
    group.reset();
    expect_works(group);
  });
}

TEST_P(Failures, ResetAgainstACallIsReportedAndThenCompletes) {
  run(2, [](HostGroup& group) {
    if (group.rank() == 1) {
      EXPECT_THAT(error_of([&] { group.barrier(); }), HasSubstr("rank 0 calls reset(), rank 1 calls barrier #1"));
    }
    group.reset();
    expect_works(group);
  });
}

TEST_P(Failures, ResetHasADeadlineAndCanBeRepeated) {
  SharedFlag has_expired;
  run(2, [&](HostGroup& group) {
    if (group.rank() == 0) {
      group.set_deadline(std::chrono::milliseconds(100));
      EXPECT_THAT(error_of([&] { group.reset(); }), AllOf(HasSubstr("in reset()"), HasSubstr("not there: rank 1")));
      EXPECT_THAT(error_of([&] { group.barrier(); }), HasSubstr("call reset() again"));
      group.set_deadline(std::chrono::seconds(30));
      has_expired.set();
    }
    has_expired.wait();
    group.reset();
    expect_works(group);
  });
}

TEST_P(Failures, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  run(2, [](HostGroup& group) {
    float x = 0;
    const std::vector<std::int64_t> one{1, 0}, negative{1, -1};
    const auto refused = [&](auto&& call, const std::string& text) {
      try {
        call();
        ADD_FAILURE() << "accepted: " << text;
      } catch (const Error& error) { EXPECT_THAT(error.message(), HasSubstr(text)); }
    };
    refused([&] { send(group, 2); }, "broadcast: the root is 2, the group has 2 ranks");
    refused([&] { send(group, -1); }, "broadcast: the root is -1");
    refused([&] { gather(group, negative); }, "all_gather: a count is -1");
    refused([&] { reduce(group, -5); }, "all_reduce: the count is -5");
    refused([&] { reduce(group, 1, {.kind = ReduceKind::avg}, DType::i64); }, "avg times 1 of i64 is not exact");
    refused([&] { reduce(group, 1, {.scale = 0.5}, DType::i32); }, "sum times 0.5 of i32 is not exact");
    refused([&] { reduce(group, 1, {}, DType::boolean); }, "sum of bool is not defined");
    refused([&] { group.all_reduce({in_place(nullptr, DType::f32, 1)}, {}); }, "the data pointer is null");
    const CollectivePart cast{.in = {&x}, .out = {&x}, .counts = one, .out_dtype = DType::i32};
    refused([&] { group.all_gather({cast}); }, "f32 cannot be gathered as i32");
    const CollectivePart scatter{.in = {&x}, .out = {group.rank() == 0 ? nullptr : &x}, .counts = one};
    if (group.rank() == 0) refused([&] { group.reduce_scatter({scatter}, {}); }, "the data pointer is null");
    EXPECT_EQ(group.counts().all_reduce.calls, 0);
    group.reset();
    expect_works(group);
  });
}

// The others unwind in the middle of a large call, while peers may be reading their tensors: those must not be
// freed under the reader (the sanitizers see it).
TEST_P(Failures, AbortInTheMiddleOfLargeCallsIsSafe) {
  run(3, [](HostGroup& group) {
    for (int round = 0; round < 30; ++round) {
      const std::string error = error_of([&] {
        for (int call = 0; call < 1000; ++call) {
          if (group.rank() == 0 && call == round % 5) group.abort("enough");
          auto data = std::make_unique<float[]>(30000);
          group.all_reduce({in_place(data.get(), DType::f32, 30000)}, {});
        }
      });
      ASSERT_THAT(error, HasSubstr("rank 0 aborted the group: enough"));
      group.reset();
    }
    expect_works(group);
  });
}

}  // namespace
}  // namespace sherd::testing
