// The hazard check finds each missing edge, whatever the timing, and nothing when all are there.
#include "runtime/exec/hazards.h"

#include <gtest/gtest.h>

#include <optional>

#include "runtime/exec/context.h"
#include "runtime/exec/host_queue.h"
#include "runtime/op/ops.h"
#include "runtime/op/step_names.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

constexpr std::string_view kGather = "gather", kReduce = "reduce";

void submit(std::string_view queue, std::vector<Loan> loans, std::string_view subject) {
  RankContext::current().queue(queue).submit({.name = "work", .subject = subject, .run = [] {}, .loans = loans});
}

// A program that needs every edge: the thread writes, a gather reads and writes, a reduction reads what it wrote.
void use_all_edges() {
  Tensor shard = zeros({4}), full = zeros({8}), reduced = zeros({4});
  for (int step = 0; step < 3; ++step) {
    submit(kGather, {{shard.storage(), false}, {full.storage(), true}}, "first");  // submit
    submit(kGather, {{full.storage(), true}}, "second");                           // order
    (void)reduced.raw_to_write();  // that the gathers do not know of: submit, of the reduction
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
      {{QueueEdge::submit, kGather}, "\"gather work first\", which reads", "after \"the rank's thread\", which writes"},
      {{QueueEdge::submit, kReduce}, "\"reduce work sum\", which writes", "after \"the rank's thread\""},
      {{QueueEdge::order, kGather}, "\"gather work second\"", "after \"gather work first\", which writes"},
      {{QueueEdge::depend, kGather}, "\"reduce work sum\"", "after \"gather work second\", which writes"},
      {{QueueEdge::touch, kReduce, true}, "\"the rank's thread\"", "after \"reduce work sum\", which writes"},
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
  checker.remove({QueueEdge::release, kGather, true});
  use_all_edges();
  ASSERT_EQ(checker.found().size(), 1U);
  EXPECT_NE(checker.found()[0].find("gather work last"), std::string::npos) << checker.found()[0];
}

TEST(Hazards, BytesThatWorkOnlyReadsMustNotBeWritten) {
  RankScope scope;
  HazardChecker checker;
  checker.remove({QueueEdge::touch, kGather, false});
  const Tensor shard = zeros({4}), full = zeros({8});
  submit(kGather, {{shard.storage(), false}, {full.storage(), true}}, "first");
  expect_error([&] { fill_into(shard, 1); }, {"the rank's thread", "gather work first", "which reads it"});
}

TEST(Hazards, SayTheNameOfTheBuffer) {
  RankScope scope;
  HazardChecker checker;
  checker.remove({QueueEdge::touch, kGather, true});
  const Tensor full = zeros({8});
  const auto named = name_storage("blocks.3 full", full.storage());
  submit(kGather, {{full.storage(), true}}, "blocks.3");
  expect_error([&] { (void)full.raw(); }, {"reads storage " + std::to_string(full.storage()->id()) +
                                               " (blocks.3 full, 32 B of activations), after",
                                           "\"gather work blocks.3\", which writes it"});
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
