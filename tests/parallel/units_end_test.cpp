// What a model that was made and dropped leaves of its units: nothing. Layouts are of sizes, so a program that makes
// models of many sizes would fill any table of them.
#include <gtest/gtest.h>

#include <optional>

#include "compile/compile.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct Way {
  const char* name;
  nn::UnitPolicy options;
  bool accumulates = false;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {"full_shard", {}},
      {"bf16", {.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}}, true},
      {"slices", {.reshard_after_forward = nn::ReshardAfterForward(2)}},
      {"shard_grad_op", nn::strategy("shard_grad_op")}};
  return all;
}

TEST(FullyShard, LayoutsOfUnitsEndWithTheirModel) {
  const std::size_t before = UnitLayout::count_interned();
  run_ranks(4, [](const Group& group) {
    for (const Way& way : ways()) {
      Net net(kTwoBlocks);
      shard(net, DeviceMesh(group), way.options, way.options);
      net.materialize(nn::Seed{3});
      if (way.accumulates) {
        nn::units(net).set_requires_gradient_sync(false);
        backward(sum(net(batch_of(2, 6, 0, "x"))));
        nn::units(net).set_requires_gradient_sync(true);
      }
      backward(sum(net(batch_of(2, 6, 0, "x"))));
      const nn::UnitHandle unit = nn::unit_of(net);
      EXPECT_GT(UnitLayout::count_interned(), 0u);
      EXPECT_EQ(label_of(unit.layout()), "(model)") << way.name << ": what was made before has given its label back";
    }
  });
  EXPECT_EQ(UnitLayout::count_interned(), before);
}

// Its attributes are the layouts: they stay as long as it does.
TEST(FullyShard, ACapturedStepKeepsTheLayoutsOfItsUnits) {
  const std::size_t before = UnitLayout::count_interned();
  run_ranks(2, [](const Group& group) {
    std::optional<CompiledStep> step;
    ir::Program program;
    {
      Net net(kTwoBlocks);
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{3});
      step.emplace([&](std::span<const Tensor> in) -> std::vector<Tensor> {
        const Tensor loss = sum(net(in[0]));
        backward(loss);
        return {loss};
      });
      const Tensor in[] = {batch_of(2, 6, 0, "x")};
      for (int call = 0; call < 4; ++call) (*step)(in);
      ASSERT_NE(step->graph(), nullptr);
      program = step->graph()->program;
    }
    step.reset();
    int units = 0;
    for (const ir::GraphNode& node : program.nodes)
      if (node.op == &op::gather_start) units += node.attrs.as<UnitAttrs>().unit->name.empty() ? 0 : 1;
    EXPECT_GT(units, 0);
  });
  EXPECT_EQ(UnitLayout::count_interned(), before);
}

}  // namespace
}  // namespace sherd::testing
