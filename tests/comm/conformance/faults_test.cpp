// What every rank is told of one that fails, over any group: the others raise CommError with its reason, and after
// reset() the group works. Oracle: the text of the error on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/comm/backends.h"
#include "tests/comm/conformance/check_case.h"
#include "tests/comm/conformance/engines.h"

namespace sherd::testing {
namespace {

using comm::CommOp;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Gathers `count` elements of each rank, and looks at them.
void gather(ProcessGroup& group, std::int64_t count) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), count);
  const Tensor in = ones({count}), out = zeros({count * group.size()});
  const Loan loans[] = {{in.storage(), false}, {out.storage(), true}};
  group.issue(
      {.op = CommOp::all_gather,
       .parts = {{.in = {in.storage()->address(), in.bytes(), Device::cpu()},
                  .out = {out.storage()->address(), out.bytes(), Device::cpu()},
                  .counts = counts}}},
      {.queue = RankContext::current().queue(kGatherQueue), .name = "unshard", .subject = "blocks.0", .loans = loans});
  (void)out.to_vector<float>();
}

class Faults : public ::testing::TestWithParam<Engine> {
 protected:
  /// Rank 1 does that, the others gather; all are told `text`, and can go on.
  template <class Culprit>
  void expect_told(const Culprit& culprit, const std::string& text) const {
    const auto messages = GetParam().run(3, [&](ProcessGroup& group, Device device) {
      const std::string error =
          error_of([&] { group.rank() == 1 ? culprit(group) : gather(group, 4), gather(group, 4); });
      EXPECT_THAT(error, HasSubstr(text));
      EXPECT_THAT(error_of([&] { gather(group, 4); }), HasSubstr(text)) << "the poison stays";
      RankContext::current().drain_queues();
      group.reset();
      check_case(group, {.ranks = 3, .op = CommOp::all_reduce, .queue = kReduceQueue}, device);
    });
    for (const std::string& message : messages) EXPECT_EQ(message, "");
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, Faults, ::testing::ValuesIn(host_engines()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Faults, RanksThatDisagreeAreNamedWithTheirCalls) {
  expect_told([](ProcessGroup& group) { gather(group, 5); },
              "ranks 0, 2 call all_gather #1 of lane 1 for blocks.0 [f32 x 4,4,4] (unshard), rank 1 calls "
              "all_gather #1 of lane 1 for blocks.0 [f32 x 5,5,5] (unshard)");
}

TEST_P(Faults, AnAbortReachesWaitingAndLaterRanks) {
  expect_told([](ProcessGroup& group) { group.abort("the learning rate is NaN"); },
              "rank 1 aborted the group: the learning rate is NaN");
}

TEST_P(Faults, AWrongCallOnOneRankIsAnErrorThereAndTellsThePeers) {
  expect_told(
      [](ProcessGroup& group) {
        const Tensor x = zeros({3}, DType::i64);
        const Buffer buffer{x.storage()->address(), x.bytes(), Device::cpu()};
        const Loan loan{x.storage(), true};
        try {
          group.issue({.op = CommOp::all_reduce,
                       .parts = {{.in = buffer, .out = buffer, .dtype = DType::i64, .counts = {3}}},
                       .reduction = {.kind = ReduceKind::avg}},
                      {.queue = RankContext::current().queue(kReduceQueue), .name = "average", .loans = {&loan, 1}});
          (void)x.raw();
          ADD_FAILURE() << "an average of integers was accepted";
        } catch (const CommError& error) {
          ADD_FAILURE() << "a local mistake is no CommError: " << error.what();
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("all_reduce: avg times 1 of i64 is not exact"));
        }
      },
      "made a call that is wrong: all_reduce: avg times 1 of i64 is not exact");
}

TEST_P(Faults, ARankThatComesTooLateIsMissed) {
  SharedFlag has_expired;
  const auto messages = GetParam().run(3, [&](ProcessGroup& group, Device) {
    if (group.rank() == 0) {
      group.set_deadline(std::chrono::milliseconds(200));
      group.host().lane(kGatherQueue).set_deadline(std::chrono::milliseconds(200));
    }
    if (group.rank() == 1) has_expired.wait();
    const std::string error = error_of([&] { gather(group, 4); });
    if (group.rank() == 0) has_expired.set();
    EXPECT_THAT(error, AllOf(HasSubstr("(deadline 0.2 s)"), HasSubstr("not there: rank 1")));
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

TEST_P(Faults, AnExceptionOnOneRankIsQuotedByTheOthers) {
  const auto messages = GetParam().run(3, [](ProcessGroup& group, Device) {
    if (group.rank() == 2) throw std::runtime_error("loss is infinite in step 7");
    gather(group, 4);
  });
  EXPECT_EQ(messages[2], "loss is infinite in step 7");
  for (const std::size_t rank : {0U, 1U})
    EXPECT_THAT(messages[rank], HasSubstr("rank 2 aborted the group: loss is infinite in step 7"));
}

TEST_P(Faults, ARankThatReturnsEarlyIsNotWaitedFor) {
  const auto messages = GetParam().run(3, [](ProcessGroup& group, Device) {
    gather(group, 4);
    if (group.rank() != 1) gather(group, 9000);
  });
  EXPECT_EQ(messages[1], "");
  for (const std::size_t rank : {0U, 2U})
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("rank 1"), HasSubstr("has left the group")));
}

}  // namespace
}  // namespace sherd::testing
