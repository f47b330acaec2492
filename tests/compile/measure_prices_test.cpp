// Measured prices. No test looks at how long something took: what is priced, that ranks agree, and that nothing of the
// step's state has changed.
#include "compile/run/measure_prices.h"

#include <gtest/gtest.h>

#include <set>

#include "compile/ir/analysis/seconds.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/trace.h"
#include "tests/compile/hand_made.h"
#include "tests/compile/recorded_step.h"
#include "tests/compile/training_step.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

void expect_priced(const Program& program, const Prices& prices) {
  const std::vector<NodeSeconds> nodes = node_seconds(program, prices);
  double compute = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const GraphNode& node = program.nodes[i];
    compute += nodes[i].compute;
    EXPECT_EQ(nodes[i].compute > 0, !node.op->traits.waits) << i << " " << node.op->name;
    EXPECT_EQ(nodes[i].queued > 0, transfer_of(node) && node.op->queue) << i << " " << node.op->name;
    EXPECT_TRUE(!is_computed(node) || prices.rows.contains(price_key(program, node))) << price_key(program, node);
  }
  const StepSeconds step = step_seconds(program, nodes);
  EXPECT_NEAR(step.compute, compute, 1e-9 * compute);
  EXPECT_NEAR(step.seconds, step.compute + step.exposed, 1e-9 * step.seconds) << "queues are done when the thread is";
}

// What ranks say of all nodes, in order.
std::string seconds_text(const Program& program, const Prices& prices) {
  std::string text;
  for (const NodeSeconds& node : node_seconds(program, prices))
    text += fmt::format("{} {}\n", node.compute, node.queued);
  return text;
}

TEST(MeasurePrices, EveryNodeOfRecordedStepsHasAPriceOnWhichRanksAgreeToTheBit) {
  for_each_step([](const StepCase& of, const RecordedStep& step) {
    const Program& program = step.complete();
    Accounting& accounting = RankContext::current().allocator().accounting();
    const std::int64_t step_peak = step.run(program).peak, held = accounting.total();
    accounting.reset_peaks();
    const Prices prices = measure_prices(program, {.most_seconds = 30, .group = step.group().shared_from_this()});
    EXPECT_LE(accounting.total_peak(), std::max(step_peak, held + (std::int64_t{1} << 21))) << of.name;
    EXPECT_EQ(accounting.total(), held) << of.name;

    expect_priced(program, prices);
    const std::string text = seconds_text(program, prices);
    for (const std::string& other : gather_text(step.group(), text)) EXPECT_EQ(other, text) << of.name;
    EXPECT_EQ(parse_prices(prices.print()), prices);
    EXPECT_EQ(prices.links.empty(), of.ranks == 1);
    std::set<std::string> keys;
    for (const GraphNode& node : program.nodes)
      if (is_computed(node)) keys.insert(price_key(program, node));
    const bool has_blocks = std::string_view(of.name) == "mini";
    EXPECT_LT(keys.size(), program.nodes.size() / (has_blocks ? 2 : 1)) << of.name;
  });
}

TEST(MeasurePrices, LeavesNoTraceAndChangesNothing) {
  GptTraining run;
  const std::vector<Tensor> in = run.batch(0);
  run.step(in);
  const Graph graph = recorded(in, [&] { return run.step(in); });
  const auto state = [&] {
    std::vector<std::vector<float>> values;
    for (const nn::Parameter* p : run.parameters()) values.push_back(p->value().to_vector<float>());
    return values;
  };
  const auto before = state();
  RankContext& context = RankContext::current();
  const std::int64_t held = context.allocator().accounting().total();
  Trace trace;
  const CommCounter counter;
  {
    const Trace::Recording recording(trace);
    expect_priced(graph.program, measure_prices(graph.program));
    EXPECT_EQ(context.trace, &trace);
  }
  EXPECT_EQ(trace.spans().used, 0u);
  EXPECT_EQ(counter.total().calls, 0);
  EXPECT_EQ(context.allocator().accounting().total(), held) << "all memory is given back";
  EXPECT_EQ(state(), before);
}

// Without time, and of calls that take no made-up values, prices are those of rates.
TEST(MeasurePrices, WhatIsNotRunIsPricedByRates) {
  Program program = program_of(1, 1);
  add(program, op::relu, {whole(0)}, {whole(1)});
  finish(program, {whole(1)});
  const Prices prices = measure_prices(program, {.most_seconds = 1e-12});
  EXPECT_FALSE(prices.rows.contains(price_key(program, program.nodes[0])));
  EXPECT_GT(seconds_of(program, 0, prices).compute, 0);
}

// Uneven shards: equal nodes cost the same though their sizes differ, also where calls that are equal here are not
// there.
TEST(MeasurePrices, RanksOfOtherSizesPriceEqualNodesAlike) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      const std::int64_t rows = group->rank() == 0 ? 2 : 1;
      Program program = program_of(1, 3);
      const auto part = [&](ValueId v, std::int64_t n) { return TensorRef{v, DType::f32, {n}, {1}, 0}; };
      add(program, op::relu, {part(0, 2)}, {part(1, 2)});
      add(program, op::relu, {part(0, rows)}, {part(2, rows)});
      add(program, op::exp, {part(0, rows)}, {part(3, rows)});
      finish(program, {part(1, 2)});
      const Prices prices = measure_prices(program, {.group = group});
      const std::string text = seconds_text(program, prices);
      for (const std::string& other : gather_text(*group, text)) EXPECT_EQ(other, text);
      EXPECT_EQ(seconds_of(program, 0, prices).compute, seconds_of(program, 1, prices).compute)
          << "one call on rank 0, hence one price on all";
    });
}

TEST(MeasurePrices, ProgramsOfOtherLengthsAndGhostsAreRefused) {
  run_ranks(2, [](const Group& group) {
    Program program = program_of(1, 2);
    add(program, op::relu, {whole(0)}, {whole(1)});
    if (group->rank() == 1) add(program, op::relu, {whole(1)}, {whole(2)});
    finish(program, {whole(1)});
    expect_error([&] { measure_prices(program, {.group = group}); },
                 {"the number of nodes is 1 on rank 0", "2 on rank 1", "measure the same step"});
  });
  expect_error([] { measure_prices(program_of(1, 1), {.most_seconds = 0}); }, {"in 0 s", "positive"});
  const RankScope scope("rank 0 of 2", {.ghost = true});
  expect_error([] { measure_prices(program_of(1, 1)); }, {"ghost", "on a real one"});
}

}  // namespace
}  // namespace sherd::testing
