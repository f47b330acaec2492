// Distributed tensors of a ghost rank: layouts, local tensors and communication as on real ranks, and no values to
// compare.
#include <gtest/gtest.h>

#include "dtensor/api.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

TEST(GhostDTensor, PartsAreCheckedByTheirOwnRankAlone) {
  const RankScope rank("", {.ghost = true});
  const DeviceMesh mesh(make_ghost_group(2, 3), "dp");
  const Tensor part = zeros({1, 2});
  CommCounter counter;
  const Tensor x = from_local(part, mesh, {Shard(0)}, {.run_check = true, .shape = Shape{5, 2}});
  EXPECT_EQ(x.shape(), Shape({5, 2}));
  EXPECT_EQ(counter.of(comm::CommOp::all_gather).calls, 1) << "the row that real ranks compare";
  expect_error([&] { from_local(part, mesh, {Shard(0)}, {.run_check = true, .shape = Shape{9, 2}}); },
               {"from_local", "f32[1,2]", "[9,2]"});
}

TEST(GhostDTensor, RedistributesAndIsNotRead) {
  const RankScope rank("", {.ghost = true});
  const DeviceMesh mesh(make_ghost_group(1, 16384), "dp");
  const Tensor x = from_local(zeros({2, 3}), mesh, {Shard(0)});
  CommCounter counter;
  const Tensor whole = redistribute(x, {Replicate()});
  EXPECT_EQ(whole.local().shape(), Shape({32768, 3}));
  EXPECT_EQ(counter.total().bytes, std::int64_t{32768} * 3 * 4);
  expect_error([&] { whole.to_vector<float>(); }, {"f32[32768,3]", "this rank is a ghost"});
}

}  // namespace
}  // namespace sherd::testing
