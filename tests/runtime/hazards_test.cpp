// The hazard check finds each missing edge, whatever the timing, and nothing when all are there.
#include "runtime/exec/hazards.h"

#include <gtest/gtest.h>

#include <optional>

#include "runtime/exec/context.h"
#include "runtime/exec/stream.h"
#include "runtime/op/ops.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

constexpr StreamKind kGather = StreamKind::all_gather, kReduce = StreamKind::reduce_scatter;

Stream& stream(StreamKind kind) { return RankContext::current().stream(kind); }

void submit(StreamKind kind, std::vector<Loan> loans, std::string_view subject) {
  stream(kind).submit({.name = "work", .subject = subject, .run = [] {}, .loans = loans});
}

// A program that needs every edge: the thread writes, a gather reads and writes, a reduction reads what it wrote.
void use_all_edges() {
  Tensor shard = zeros({4}), full = zeros({8}), reduced = zeros({4});
  for (int step = 0; step < 3; ++step) {
    submit(kGather, {{shard.storage(), false}, {full.storage(), true}}, "first");  // submit
    submit(kGather, {{full.storage(), true}}, "second");                           // order
    (void)reduced.raw();  // a write that the gathers do not know of: submit, of the reduction
    submit(kReduce, {{full.storage(), false}, {reduced.storage(), true}}, "sum");  // depend
    (void)reduced.raw();                                                           // touch
    (void)shard.raw();
    (void)full.raw();
  }
  submit(kGather, {{full.storage(), true}}, "last");
  full.storage()->release_data();  // release
}

TEST(Hazards, CompleteProgramHasNone) {
  RankScope scope;
  HazardChecker checker;
  use_all_edges();
  EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
  EXPECT_GT(checker.num_checked(), 20);
}

struct Case {
  RemovedEdge removed;
  std::string_view who, after;
};

TEST(Hazards, EveryMissingEdgeIsFoundAndNamed) {
  const Case cases[] = {
      {{StreamEdge::submit, kGather},
       "\"all_gather work first\", which reads",
       "after \"the rank's thread\", which writes"},
      {{StreamEdge::submit, kReduce}, "\"reduce_scatter work sum\", which writes", "after \"the rank's thread\""},
      {{StreamEdge::order, kGather}, "\"all_gather work second\"", "after \"all_gather work first\", which writes"},
      {{StreamEdge::depend, kGather}, "\"reduce_scatter work sum\"", "after \"all_gather work second\", which writes"},
      {{StreamEdge::touch, kReduce, true}, "\"the rank's thread\"", "after \"reduce_scatter work sum\", which writes"},
  };
  for (const Case& c : cases)
    for (int repeat = 0; repeat < 5; ++repeat) {
      RankScope scope;
      HazardChecker checker;
      checker.remove(c.removed);
      SCOPED_TRACE(c.who);
      expect_error(use_all_edges, {"hazard: nothing orders", c.who, c.after});
      EXPECT_FALSE(checker.found().empty());
    }
}

TEST(Hazards, FreeingTooEarlyIsNoted) {
  RankScope scope;
  HazardChecker checker;
  checker.remove({StreamEdge::release, kGather, true});
  use_all_edges();
  ASSERT_EQ(checker.found().size(), 1U);
  EXPECT_NE(checker.found()[0].find("all_gather work last"), std::string::npos) << checker.found()[0];
}

TEST(Hazards, BytesThatWorkOnlyReadsMustNotBeWritten) {
  RankScope scope;
  HazardChecker checker;
  checker.remove({StreamEdge::touch, kGather, false});
  const Tensor shard = zeros({4}), full = zeros({8});
  submit(kGather, {{shard.storage(), false}, {full.storage(), true}}, "first");
  expect_error([&] { fill_into(shard, 1); }, {"the rank's thread", "all_gather work first", "which reads it"});
}

TEST(Hazards, EndWithTheScope) {
  RankScope scope;
  {
    HazardChecker checker;
    EXPECT_EQ(RankContext::current().hazards, &checker);
  }
  EXPECT_EQ(RankContext::current().hazards, nullptr);
  use_all_edges();
}

}  // namespace
}  // namespace sherd::testing
