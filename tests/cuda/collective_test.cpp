// Collectives of tensors on a device: copies in groups of one rank, refused by name in larger ones, and what a captured
// step does about those that go over the host.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "dtensor/api.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/comm/board/thread_group.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using CudaCollectives = cuda::CudaTest;
using Group = std::shared_ptr<ProcessGroup>;

TEST_F(CudaCollectives, OfOneRankAreCopies) {
  const Group group = make_single_group();
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
    const Tensor x = draw(ids({3, 4, 5}, 100), DType::f32, 1), there = on_device(cast(x, dtype));
    const std::vector<double> expected = x.to_vector<double>();
    for (const ReduceKind kind : {ReduceKind::sum, ReduceKind::avg, ReduceKind::max})
      EXPECT_EQ(all_reduce(there, *group, kind).to_vector<double>(), expected);
    for (int dim = 0; dim < 3; ++dim) {
      EXPECT_EQ(all_gather(there, *group, x.size(dim), dim).to_vector<double>(), expected);
      EXPECT_EQ(reduce_scatter(there, *group, ReduceKind::sum, dim).to_vector<double>(), expected);
    }
    EXPECT_EQ(all_to_all(there, *group, 0, 3, 2).to_vector<double>(), expected);
    EXPECT_EQ(broadcast_from(there, *group, 0).to_vector<double>(), expected);
    EXPECT_EQ(there.to_vector<double>(), expected) << "the input was written";
    EXPECT_EQ(all_reduce(dense_copy(there), *group).to_vector<double>(), expected) << "moved in";
  }
  EXPECT_EQ(all_reduce(on_device(zeros({0, 3})), *group).shape(), (Shape{0, 3}));
  EXPECT_EQ(all_reduce(permute(on_device(arange(6)), {0}), *group).device(), kCuda);
}

TEST_F(CudaCollectives, OfOneRankAreRecordedWithTheStep) {
  const Group group = make_single_group();
  auto step = compile_once([&](const Tensor& x) { return all_reduce(x * x, *group) + x; });
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(step(full({3}, i, DType::f32, kCuda)).to_vector<float>(),
              std::vector<float>(3, static_cast<float>(i * i + i)));
  EXPECT_NE(step.why().find("in one call"), std::string::npos) << step.why();
}

TEST_F(CudaCollectives, OfSeveralRanksAreRefusedOnEach) {
  run_ranks(2, [](const Group& group) {
    const Tensor x = ones({4, 4}, DType::f32, kCuda);
    const auto refused = [&](std::string_view row, auto&& work) {
      expect_error(work, {fmt::format("{} of 2 ranks on cuda:0", row), "chosen_group()", "to()"});
    };
    refused("all_reduce", [&] { all_reduce(x, *group); });
    refused("all_gather", [&] { all_gather(x, *group, 8); });
    refused("reduce_scatter", [&] { reduce_scatter(x, *group); });
    refused("all_to_all", [&] { all_to_all(x, *group, 0, 8, 1); });
    refused("broadcast", [&] { broadcast_from(x, *group, 0); });
    // A distributed tensor may be on devices as long as nothing has to move.
    const DeviceMesh mesh(group, "dp");
    const Tensor rows = from_local(x, mesh, {Shard(0)});
    EXPECT_EQ((rows + rows).local().to_vector<float>(), std::vector<float>(16, 2));
    refused("all_gather", [&] { (void)full_tensor(rows); });
  });
}

// Oracle: the numbers by hand. The interpreter replays such a step; why() says what keeps it from the device.
TEST_F(CudaCollectives, AStepThatReducesOverTheHostIsReplayedOpByOp) {
  run_ranks(2, [](const Group& group) {
    auto step =
        compile_once([&](const Tensor& x) { return to(all_reduce(to(x * x, Device::cpu()), *group), kCuda) + x; });
    const int rank = group->rank();
    for (int i = 0; i < 5; ++i) {
      const int mine = i + rank, other = i + 1 - rank;
      EXPECT_EQ(step(full({3}, mine, DType::f32, kCuda)).to_vector<float>(),
                std::vector<float>(3, static_cast<float>(mine * mine + other * other + mine)));
    }
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay);
    EXPECT_NE(step.why().find("part of the step runs on the host"), std::string::npos) << step.why();
  });
}

}  // namespace
}  // namespace sherd::testing
