// The hazard check finds each missing edge, whatever the timing, and nothing when all are there.
#include "runtime/exec/hazards.h"

#include <gtest/gtest.h>

#include <optional>

#include "runtime/exec/context.h"
#include "runtime/exec/host_queue.h"
#include "runtime/op/core/step_names.h"
#include "runtime/op/rows/ops.h"
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

// What one storage has given back another is given, at the same address.
// Work that lets go of bytes which it reads is not waited for; work of its queue that has written them still is.
TEST(Hazards, LettingGoIsOfReadsOnly) {
  for (const bool is_written : {false, true}) {
    RankScope scope;
    HazardChecker checker;
    checker.remove({QueueEdge::depend, kGather});
    const Tensor x = zeros({4});
    if (is_written) submit(kGather, {{x.storage(), true}}, "fill");
    const std::vector<Loan> reads{{x.storage(), false}};
    Queue& gather = RankContext::current().queue(kGather);
    static_cast<HostQueue&>(gather).submit({.name = "work", .subject = "save", .run = [] {}, .loans = reads},
                                           [](const Storage&) { return true; });
    checker.let_go(gather, *x.storage());
    const auto write = [&] { submit(kReduce, {{x.storage(), true}}, "sum"); };
    if (is_written) expect_error(write, {"\"reduce work sum\"", "after \"gather work fill\", which writes"});
    else EXPECT_NO_THROW(write());
  }
}

TEST(Hazards, MemoryIsTheSameBytesAsAnotherStorage) {
  for (const bool is_removed : {false, true}) {
    RankScope scope;
    HazardChecker checker;
    if (is_removed) checker.remove({QueueEdge::reuse, kGather});
    Tensor first = zeros({8});
    const std::uint64_t old = first.storage()->id();
    const std::byte* const address = first.storage()->address();
    first = Tensor();
    const Tensor second = Tensor::empty({8}, DType::f32);
    ASSERT_EQ(second.storage()->address(), address);
    const auto gather = [&] { submit(kGather, {{second.storage(), true}}, "second"); };
    if (!is_removed) {
      gather();
      (void)second.raw();
      EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
    } else {
      expect_error(gather, {"\"gather work second\", which writes or frees storage " +
                                std::to_string(second.storage()->id()) + " (32 B of activations)",
                            "after \"the rank's thread\", which writes storage " + std::to_string(old) +
                                " (32 B of activations) in the same memory"});
    }
  }
}

TEST(Hazards, MemoryIsReusedInParts) {
  constexpr std::int64_t kHalf = 1 << 20;  // so large that any place serves that holds it
  RankScope scope;
  HazardChecker checker;
  checker.remove({QueueEdge::reuse, kGather});
  Tensor whole = zeros({2 * kHalf});
  const std::uint64_t old = whole.storage()->id();
  const std::byte* const address = whole.storage()->address();
  whole = Tensor();
  const Tensor left = Tensor::empty({kHalf}, DType::f32), right = Tensor::empty({kHalf}, DType::f32);
  ASSERT_EQ(left.storage()->address(), address);
  ASSERT_EQ(right.storage()->address(), address + kHalf * 4);
  submit(kReduce, {{left.storage(), true}}, "left");
  EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
  expect_error(
      [&] {
        submit(kGather, {{right.storage(), true}}, "right");
      },
      {"\"gather work right\"", "which writes storage " + std::to_string(old), "in the same memory"});
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
