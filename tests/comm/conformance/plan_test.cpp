// What a composed group does for a call: lists, and how long they are. Oracle: counted by hand.
#include <gtest/gtest.h>

#include "runtime/comm/group/composed_plan.h"

namespace sherd::testing {
namespace {

using comm::BareCall;
using comm::CommOp;

constexpr Abilities kLibrary{.lists = true, .same_counts = true};

CollectivePart part_of(float* in, void* out, std::vector<std::int64_t> counts) {
  return {.in = {in, 1 << 20, Device::cpu()}, .out = {out, 1 << 20, Device::cpu()}, .counts = std::move(counts)};
}

TEST(ComposedPlan, AGatherIsOneListOfCastsAndOneOfCalls) {
  float in[8] = {};
  bf16 out[16] = {};
  CollectivePart part = part_of(in, out, {8, 8});
  part.out_dtype = DType::bf16;
  comm::Scratch scratch;
  const auto plan =
      composed_plan({.op = CommOp::all_gather, .parts = {part, part, part}}, {1, 2, kLibrary, true}, scratch);
  EXPECT_EQ(plan.before.size(), 3U);
  ASSERT_EQ(plan.calls.size(), 3U);
  EXPECT_TRUE(plan.calls[2].op == BareCall::Op::all_gather && plan.calls[2].in == out + 8 && plan.calls[2].count == 8);
  EXPECT_TRUE(plan.after.empty() && plan.sums.empty() && !plan.exchange && scratch.used() == 0);
}

TEST(ComposedPlan, UnequalPartsHaveARootEach) {
  float in[5] = {}, out[5] = {};
  comm::Scratch scratch;
  const auto gather = composed_plan({.op = CommOp::all_gather, .parts = {part_of(in, out, {3, 0, 2})}},
                                    {0, 3, kLibrary, true}, scratch);
  const auto sum = composed_plan({.op = CommOp::reduce_scatter, .parts = {part_of(in, out, {3, 0, 2})}},
                                 {0, 3, kLibrary, false}, scratch);
  for (const auto* calls : {&gather.calls, &sum.calls}) {
    ASSERT_EQ(calls->size(), 2U);
    EXPECT_TRUE((*calls)[0].peer == 0 && (*calls)[0].count == 3 && (*calls)[1].peer == 2 && (*calls)[1].count == 2);
  }
}

TEST(ComposedPlan, OrderedSumsMoveAsManyBytesAsARing) {
  float in[12] = {}, out[4] = {};
  CollectivePart part = part_of(in, out, {4, 4, 4});
  part.wire = DType::bf16;
  comm::Scratch scratch;
  const auto plan = composed_plan({.op = CommOp::reduce_scatter, .parts = {part}}, {2, 3, kLibrary, true}, scratch);
  ASSERT_TRUE(plan.calls.empty() && plan.exchange);
  EXPECT_TRUE(plan.exchange->sends.size() == 2 && plan.exchange->receives.size() == 2);
  EXPECT_TRUE(plan.exchange->sends[1].peer == 1 && plan.exchange->sends[1].bytes == 4 * 2);
  EXPECT_TRUE(plan.exchange->sums.size() == 1 && plan.exchange->sums[0].inputs.size() == 3);
}

}  // namespace
}  // namespace sherd::testing
