// The others raise CommError with the reason of the rank that fails, and after reset() the group works. Oracle: the
// text of the error on every rank.
#include "tests/comm/conformance/faults.h"

#include <gmock/gmock.h>

#include <stdexcept>

#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/comm/backends.h"
#include "tests/comm/conformance/check_case.h"

namespace sherd::testing {
namespace {

using comm::CommOp;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Gathers `count` elements of each rank, and looks at them.
void gather(ProcessGroup& group, Device device, std::int64_t count) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), count);
  const Tensor in = to(ones({count}), device), out = to(zeros({count * group.size()}), device);
  const Loan loans[] = {{in.storage(), false}, {out.storage(), true}};
  group.issue({.op = CommOp::all_gather,
               .parts = {{.in = {in.storage()->address(), in.bytes(), device},
                          .out = {out.storage()->address(), out.bytes(), device},
                          .counts = counts}}},
              {.queue = RankContext::current().queue(kGatherQueue, device),
               .name = "unshard",
               .subject = "blocks.0",
               .loans = loans});
  (void)out.to_vector<float>();
}

/// The same queue's call of another kind, with as many elements.
void scatter(ProcessGroup& group, Device device) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), 4);
  const Tensor in = to(ones({4 * group.size()}), device), out = to(zeros({4}), device);
  const Loan loans[] = {{in.storage(), false}, {out.storage(), true}};
  group.issue({.op = CommOp::reduce_scatter,
               .parts = {{.in = {in.storage()->address(), in.bytes(), device},
                          .out = {out.storage()->address(), out.bytes(), device},
                          .counts = counts}}},
              {.queue = RankContext::current().queue(kGatherQueue, device),
               .name = "reduce",
               .subject = "blocks.0",
               .loans = loans});
  (void)out.to_vector<float>();
}

}  // namespace

void Faults::expect_told(const Culprit& culprit, const std::string& text) const {
  const auto messages = GetParam().run(3, [&](ProcessGroup& group, Device device) {
    const std::string error = error_of(
        [&] { group.rank() == 1 ? culprit(group, device) : gather(group, device, 4), gather(group, device, 4); });
    EXPECT_THAT(error, HasSubstr(text));
    EXPECT_THAT(error_of([&] { gather(group, device, 4); }), HasSubstr(text)) << "the poison stays";
    RankContext::current().drain_queues();
    group.reset();
    check_case(group, {.ranks = 3, .op = CommOp::all_reduce, .queue = kReduceQueue}, device);
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

TEST_P(Faults, RanksThatDisagreeAreNamedWithTheirCalls) {
  expect_told([](ProcessGroup& group, Device device) { gather(group, device, 5); },
              "ranks 0, 2 call all_gather #1 of lane 1 for blocks.0 [f32 x 4,4,4] (unshard), rank 1 calls "
              "all_gather #1 of lane 1 for blocks.0 [f32 x 5,5,5] (unshard)");
}

TEST_P(Faults, RanksThatCallDifferentThingsAreNamedWithThem) {
  expect_told([](ProcessGroup& group, Device device) { scatter(group, device); },
              "ranks 0, 2 call all_gather #1 of lane 1 for blocks.0 [f32 x 4,4,4] (unshard), rank 1 calls ");
}

TEST_P(Faults, AnAbortReachesWaitingAndLaterRanks) {
  expect_told([](ProcessGroup& group, Device) { group.abort("the learning rate is NaN"); },
              "rank 1 aborted the group: the learning rate is NaN");
}

TEST_P(Faults, AWrongCallOnOneRankIsAnErrorThereAndTellsThePeers) {
  expect_told(
      [](ProcessGroup& group, Device device) {
        const Tensor x = to(zeros({3}, DType::i64), device);
        const Buffer buffer{x.storage()->address(), x.bytes(), device};
        const Loan loan{x.storage(), true};
        try {
          group.issue(
              {.op = CommOp::all_reduce,
               .parts = {{.in = buffer, .out = buffer, .dtype = DType::i64, .counts = {3}}},
               .reduction = {.kind = ReduceKind::avg}},
              {.queue = RankContext::current().queue(kReduceQueue, device), .name = "average", .loans = {&loan, 1}});
          x.storage()->wait_to_read();
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
  const auto messages = GetParam().run(3, [&](ProcessGroup& group, Device device) {
    if (group.rank() == 0) {
      group.set_deadline(std::chrono::milliseconds(200));
      group.host().lane(kGatherQueue).set_deadline(std::chrono::milliseconds(200));
    }
    if (group.rank() == 1) has_expired.wait();
    const std::string error = error_of([&] { gather(group, device, 4); });
    if (group.rank() == 0) has_expired.set();
    EXPECT_THAT(error, AllOf(HasSubstr("(deadline 0.2 s)"), HasSubstr("not there: rank 1")));
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

TEST_P(Faults, AnExceptionOnOneRankIsQuotedByTheOthers) {
  const auto messages = GetParam().run(3, [](ProcessGroup& group, Device device) {
    if (group.rank() == 2) throw std::runtime_error("loss is infinite in step 7");
    gather(group, device, 4);
  });
  EXPECT_EQ(messages[2], "loss is infinite in step 7");
  for (const std::size_t rank : {0U, 1U})
    EXPECT_THAT(messages[rank], HasSubstr("rank 2 aborted the group: loss is infinite in step 7"));
}

TEST_P(Faults, ARankThatReturnsEarlyIsNotWaitedFor) {
  const auto messages = GetParam().run(3, [](ProcessGroup& group, Device device) {
    gather(group, device, 4);
    if (group.rank() != 1) gather(group, device, 9000);
  });
  EXPECT_EQ(messages[1], "");
  for (const std::size_t rank : {0U, 2U})
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("rank 1"), HasSubstr("has left the group")));
}

}  // namespace sherd::testing
