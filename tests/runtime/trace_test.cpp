// What a trace records and how it reads, against timelines written by hand.
#include "runtime/exec/trace.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/trace_json.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/trace_check.h"

namespace sherd::testing {
namespace {

ReadTrace written(const Trace& trace, int rank = 0) { return read_trace(trace_file({trace_events(trace, rank)}, {})); }

std::vector<std::string> paths(const ReadTrace& read) {
  std::vector<std::string> result;
  for (const TraceSlice& s : read.slices) result.push_back(read.path_of(s));
  return result;
}
using Paths = std::vector<std::string>;

class TraceTest : public ::testing::Test {
 protected:
  // A span of the hand-written timeline.
  void span(std::int64_t start, std::int64_t end, std::string_view name, std::string_view module = {},
            StepPhase phase = StepPhase::forward, SpanKind kind = SpanKind::op, std::string_view track = "compute",
            std::uint64_t flow = 0) {
    trace_.add({start, end, name, module.empty() ? nullptr : trace_.intern(module), nullptr, 0, flow, 0,
                trace_.track(track), kind, phase});
  }
  Trace trace_{1000};
};

TEST_F(TraceTest, OpsNestUnderStepPhaseAndModules) {
  span(1010, 1020, "embedding", "tok");
  span(1020, 1030, "linear", "blocks.0.attn.wq");
  span(1031, 1040, "linear", "blocks.0.attn.wk");
  span(1045, 1050, "add", "blocks.0");
  span(1050, 1060, "add", "blocks.10");
  span(1060, 1061, "mean", "(model)");
  span(1070, 1080, "add_vjp", "blocks.10", StepPhase::backward);
  span(1080, 1081, "adamw", "", StepPhase::optimizer);
  span(1082, 1083, "copy");
  span(1000, 1100, "step 1", "", StepPhase::forward, SpanKind::part);  // outer spans end last
  const ReadTrace read = written(trace_);
  EXPECT_EQ(paths(read), (Paths{"step 1",
                                "step 1 > forward",
                                "step 1 > forward > tok",
                                "step 1 > forward > tok > embedding",
                                "step 1 > forward > blocks.0",
                                "step 1 > forward > blocks.0 > blocks.0.attn",
                                "step 1 > forward > blocks.0 > blocks.0.attn > blocks.0.attn.wq",
                                "step 1 > forward > blocks.0 > blocks.0.attn > blocks.0.attn.wq > linear",
                                "step 1 > forward > blocks.0 > blocks.0.attn > blocks.0.attn.wk",
                                "step 1 > forward > blocks.0 > blocks.0.attn > blocks.0.attn.wk > linear",
                                "step 1 > forward > blocks.0 > add",
                                "step 1 > forward > blocks.10",
                                "step 1 > forward > blocks.10 > add",
                                "step 1 > forward > mean",
                                "step 1 > backward",
                                "step 1 > backward > blocks.10",
                                "step 1 > backward > blocks.10 > add_vjp",
                                "step 1 > optimizer",
                                "step 1 > optimizer > adamw",
                                "step 1 > copy"}));
  const TraceSlice& attn = *read.named("blocks.0.attn")[0];
  EXPECT_DOUBLE_EQ(attn.start, 1.020);
  EXPECT_DOUBLE_EQ(attn.end, 1.040) << "from its first op to its last";
  EXPECT_EQ(attn.category, "module");
}

TEST_F(TraceTest, ASpanWithinAnOpOpensNoModulesAgain) {
  span(12, 18, "wait", "blocks.0", StepPhase::forward, SpanKind::wait);
  span(10, 20, "unshard", "blocks.0");
  span(30, 30, "zero_length", "blocks.0");
  EXPECT_EQ(paths(written(trace_)), (Paths{"forward", "forward > blocks.0", "forward > blocks.0 > unshard",
                                           "forward > blocks.0 > unshard > wait", "forward > blocks.0 > zero_length"}));
}

TEST_F(TraceTest, NestedPartsHaveModulesOfTheirOwn) {
  span(10, 20, "add", "a");
  span(32, 38, "add", "a");
  span(30, 40, "evaluate", "", StepPhase::forward, SpanKind::part);
  span(50, 60, "add", "a");
  EXPECT_EQ(
      paths(written(trace_)),
      (Paths{"forward", "forward > a", "forward > a > add", "evaluate", "evaluate > forward", "evaluate > forward > a",
             "evaluate > forward > a > add", "forward", "forward > a", "forward > a > add"}));
}

TEST_F(TraceTest, AnArrowLeadsFromWorkToItsFirstUse) {
  span(100, 200, "all_gather", "blocks.1", StepPhase::forward, SpanKind::work, "all_gather", 7);
  span(210, 220, "linear", "blocks.1");
  trace_.consume(8);  // of work that was not recorded
  const ReadTrace none = written(trace_);
  EXPECT_EQ(none.arrows.size(), 0u) << "an arrow without a beginning is left out";
  EXPECT_EQ(none.tracks.at("rank 0"), (Paths{"compute", "all_gather"}));

  Trace live(100);
  const std::int64_t start = Trace::now();
  {
    const Trace::Recording recording(live);
    const TraceSpan op("linear", SpanKind::op);
    live.consume(7);
    live.consume(7);
  }
  live.add({start - 1000, Trace::now(), "all_gather", nullptr, nullptr, 64, 7, 0, live.track("all_gather"),
            SpanKind::work, StepPhase::forward});
  const ReadTrace read = written(live);
  ASSERT_EQ(read.arrows.size(), 1u) << "only the first use";
  const auto [from, to] = read.arrows[0];
  EXPECT_EQ(read.slices[static_cast<std::size_t>(from)].name, "all_gather");
  EXPECT_EQ(read.slices[static_cast<std::size_t>(from)].track, "all_gather");
  EXPECT_EQ(read.slices[static_cast<std::size_t>(from)].args.at("bytes"), 64);
  EXPECT_EQ(read.slices[static_cast<std::size_t>(to)].name, "linear");
}

TEST_F(TraceTest, NothingIsRecordedWithoutARecording) {
  const Tensor a = ones({4});
  add(a, a);
  {
    const Trace::Recording recording(trace_);
    add(a, a);
  }
  add(a, a);
  EXPECT_EQ(trace_.spans().used, 1u);
}

TEST_F(TraceTest, OpsCarryShapesModuleAndPhase) {
  RankContext& context = RankContext::current();
  Slot w("w", true);
  w.set(ones({3, 2}));
  const Tensor x = ones({4, 3});
  {
    const Trace::Recording recording(trace_);
    context.module_path = context.intern("layers.0.up");
    const Tensor y = sum(matmul(x, w.value()));
    context.module_path = nullptr;
    backward(y);
  }
  const ReadTrace read = written(trace_);
  const TraceSlice& product = *read.named("matmul")[0];
  EXPECT_EQ(product.args.at("inputs"), "f32[4,3] f32[3,2]");
  EXPECT_EQ(product.args.at("module"), "layers.0.up");
  EXPECT_EQ(read.path_of(product), "forward > layers.0 > layers.0.up > matmul");
  EXPECT_TRUE(std::ranges::any_of(read.slices, [&](const TraceSlice& s) {
    return s.category == "op" && read.path_of(s).starts_with("backward > layers.0 > layers.0.up > ");
  })) << "the weight's gradient";
}

TEST_F(TraceTest, MemoryIsSampledWithScratch) {
  const Tensor a = ones({300, 300});
  {
    const Trace::Recording recording(trace_);
    const Tensor c = add(a, a);
    const Tensor d = layer_norm(transpose(a, 0, 1), ones({300}), {}, 1e-5);
  }
  const auto most = [this](const char* category) {
    std::int64_t bytes = 0;
    for (const TraceCount& count : written(trace_).counts) {
      EXPECT_EQ(count.name, "memory bytes");
      bytes = std::max(bytes, count.args.at(category).get<std::int64_t>());
    }
    return bytes;
  };
  const Accounting& account = RankContext::current().allocator().accounting();
  EXPECT_GE(most("activations"), account.current(MemoryCategory::activations) + 2 * 300 * 300 * 4);
  EXPECT_GE(most("workspace"), 300 * 300 * 4) << "gone when its op ends";
}

TEST_F(TraceTest, AFullBufferDropsAndSaysHowMany) {
  Trace small(3);
  {
    const Trace::Recording recording(small);
    const Tensor a = ones({2});
    for (int i = 0; i < 9; ++i) add(a, a);
  }
  EXPECT_EQ(small.spans().used, 3u);
  EXPECT_EQ(small.dropped(), 7) << "fill and nine additions are ten";
  const std::string text = trace_events(small, 0);
  EXPECT_NE(text.find("7 spans dropped: a trace keeps 3 per rank"), std::string::npos) << text;
  read_trace(trace_file({text}, {}));
  small.clear();
  EXPECT_EQ(small.dropped(), 0);
  expect_error([] { Trace(0); }, {"room for at least one span"});
}

TEST_F(TraceTest, ASpanEndsWhenAnErrorLeavesIt) {
  const Tensor a = ones({2, 3});
  try {
    const Trace::Recording recording(trace_);
    const TraceSpan step("step 1");
    matmul(a, a);
    FAIL() << "the shapes do not fit";
  } catch (const Error&) {}
  EXPECT_EQ(RankContext::current().trace, nullptr);
  EXPECT_EQ(paths(written(trace_)), (Paths{"step 1", "step 1 > matmul"}));
}

TEST_F(TraceTest, AWaitWithinAWaitIsPartOfIt) {
  {
    const Trace::Recording recording(trace_);
    const TraceSpan outer(kWaitName, SpanKind::wait);
    const TraceSpan part("inline");
    const TraceSpan inner(kWaitName, SpanKind::wait);
    EXPECT_EQ(inner.trace(), nullptr);
  }
  EXPECT_EQ(paths(written(trace_)), (Paths{"wait", "wait > inline"}));
  const Trace::Recording recording(trace_);
  EXPECT_NE(TraceSpan(kWaitName, SpanKind::wait).trace(), nullptr) << "after it ended";
}

TEST_F(TraceTest, AnyNameIsAString) {
  span(1, 2, *trace_.intern("a \"quoted\" \\ back\nslash"), "mod\"ule.\t");
  EXPECT_EQ(written(trace_).slices.back().name, "a \"quoted\" \\ back\nslash");
}

TEST_F(TraceTest, TracksOfRanksAreApart) {
  span(1, 2, "add");
  span(1, 2, "reduce", "", StepPhase::forward, SpanKind::work, "reduce_scatter");
  const ReadTrace read =
      read_trace(trace_file({trace_events(trace_, 0), "", trace_events(trace_, 2)}, {{"ranks", "3"}}));
  EXPECT_EQ(read.notes.at("ranks"), "3");
  ASSERT_EQ(read.tracks.size(), 2u);
  EXPECT_EQ(read.tracks.at("rank 0"), (Paths{"compute", "reduce_scatter"}));
  EXPECT_EQ(read.tracks.at("rank 2"), (Paths{"compute", "reduce_scatter"}));
}

TEST_F(TraceTest, RecordingAStepAgainAllocatesAndFaultsNothing) {
  const Tensor a = ones({64, 64});
  const Trace::Recording recording(trace_);
  const auto step = [&] {
    for (int i = 0; i < 50; ++i) add(matmul(a, a), a);
  };
  step();
  const auto spans = static_cast<std::int64_t>(trace_.spans().used);
  std::int64_t least_faults = 1;
  for (int repeat = 0; repeat < 5 && least_faults > 0; ++repeat) {  // the system may take a page away in between
    trace_.clear();
    step();
    EXPECT_EQ(static_cast<std::int64_t>(trace_.spans().used), spans);
    std::int64_t faults = 0;
    for (const Span& s : trace_.spans()) faults += s.page_faults;
    least_faults = repeat == 0 ? faults : std::min(least_faults, faults);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow memory faults
  EXPECT_EQ(least_faults, 0);
#endif
}

}  // namespace
}  // namespace sherd::testing
