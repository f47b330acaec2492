// Collectives of device memory through the host. Oracle: the same collectives of host memory over the same kind of
// group, bit for bit.
#include "runtime/comm/group/staged_group.h"

#include <gtest/gtest.h>

#include <future>

#include "dtensor/api.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/channels.h"
#include "runtime/comm/group/chunks.h"
#include "runtime/exec/context.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using StagedGroups = cuda::CudaTest;
using comm::CommOp;
using Group = std::shared_ptr<ProcessGroup>;

const Device kCuda = Device::cuda(0);

Buffer buffer_of(const Tensor& t) {
  return {t.storage()->address() + t.offset() * byte_size(t.dtype()), t.bytes(), t.device()};
}

Tensor values(const Shape& shape, int seed, int rank) {
  return mul(draw(normal(shape), DType::f32, static_cast<std::uint64_t>(10 * seed + rank + 1)), 1.1);
}

TEST_F(StagedGroups, SupportDevicesAndTheHost) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    EXPECT_TRUE(group->supports(kCuda) && group->supports(Device::cpu()));
    EXPECT_FALSE(host->supports(kCuda));
    EXPECT_EQ(group->kind(), "staged");
    EXPECT_EQ(group->name(), host->name());
    EXPECT_EQ(&group->host(), host.get());
    EXPECT_TRUE(group->abilities().casts && group->abilities().ordered_sum && !group->abilities().windows);
    EXPECT_EQ(gather_text(*group, "x").size(), 2u);
    const Group pair = group->subgroup(std::vector<int>{1, 0}, "tp");
    EXPECT_TRUE(pair->supports(kCuda));
    EXPECT_EQ(pair->rank(), 1 - group->rank());
    const Tensor mine = ones({3});
    EXPECT_EQ(all_reduce(mine, *pair).to_vector<float>(), std::vector<float>(3, 2));
  });
}

TEST_F(StagedGroups, RowsAreBitwiseThoseOfTheHost) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [ranks](const Group& host) {
      const Group group = make_staged_group(host);
      const auto same = [&](std::string_view what, const Tensor& x, auto&& row) {
        const Tensor expected = row(x, *host), got = row(on_device(x), *group);
        EXPECT_EQ(got.device(), kCuda);
        EXPECT_TRUE(same_bits(on_host(got), expected)) << what;
      };
      const int me = host->rank();
      for (const ReduceKind kind : {ReduceKind::sum, ReduceKind::avg, ReduceKind::max})
        same("all_reduce", values({5, 4}, 1, me),
             [&](const Tensor& x, ProcessGroup& g) { return all_reduce(x, g, kind); });
      same("all_reduce", zeros({0, 3}), [&](const Tensor& x, ProcessGroup& g) { return all_reduce(x, g); });
      same("broadcast", values({7}, 2, me), [&](const Tensor& x, ProcessGroup& g) { return broadcast_from(x, g, 1); });
      for (int dim = 0; dim < 3; ++dim) {
        Shape whole{5, 7, 4}, part = whole;
        part[dim] = chunk_size(whole[dim], ranks, me);
        same("all_gather", values(part, 3, me),
             [&](const Tensor& x, ProcessGroup& g) { return all_gather(x, g, whole[dim], dim); });
        same("reduce_scatter", values(whole, 4, me),
             [&](const Tensor& x, ProcessGroup& g) { return reduce_scatter(x, g, ReduceKind::sum, dim); });
        const int split = (dim + 1) % 3;
        same("all_to_all", values(part, 5, me),
             [&](const Tensor& x, ProcessGroup& g) { return all_to_all(x, g, dim, whole[dim], split); });
      }
    });
}

TEST_F(StagedGroups, DistributedTensorsMoveOnDevices) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const DeviceMesh mesh(group, "dp");
    const Tensor local = full({2, 3}, group->rank() + 1.0, DType::f32, kCuda);
    const Tensor rows = from_local(local, mesh, {Shard(0)});
    const Tensor all = full_tensor(rows + rows);
    EXPECT_EQ(all.device(), kCuda);
    EXPECT_EQ(all.to_vector<float>(), (std::vector<float>{2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4}));
  });
}

// What a unit does: shards are gathered and cast, full gradients reduced onto earlier ones over a narrower wire.
TEST_F(StagedGroups, UnitsCastAccumulateAndShareBuffers) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const int me = group->rank();
    const auto unit = [&](Device device, ProcessGroup& over) {
      const auto at = [&](const Tensor& t) { return device == kCuda ? on_device(t) : dense_copy(t); };
      const std::int64_t own = me == 0 ? 6 : 3;
      const Tensor shard = at(values({own}, 1, me)), gathered = at(zeros({9}, DType::bf16));
      const Tensor gradient = at(values({9}, 2, me)), sum = at(values({own}, 3, me)), flag = at(full({1}, me + 1.0));
      const Loan loans[] = {{shard.storage(), false}, {gathered.storage(), true}};
      over.issue(
          {.op = CommOp::all_gather,
           .parts = {{.in = buffer_of(shard), .out = buffer_of(gathered), .counts = {6, 3}, .out_dtype = DType::bf16}}},
          {.queue = RankContext::current().queue(kGatherQueue, device), .name = "unshard", .loans = loans});
      const Loan reduced[] = {{gradient.storage(), false}, {sum.storage(), true}, {flag.storage(), true}};
      over.issue({.op = CommOp::reduce_scatter,
                  .parts = {{.in = buffer_of(gradient),
                             .out = buffer_of(sum),
                             .counts = {6, 3},
                             .wire = DType::bf16,
                             .accumulate = true}},
                  .reduction = {.scale = 0.5}},
                 {.queue = RankContext::current().queue(kReduceQueue, device), .name = "reduce", .loans = reduced});
      over.issue({.op = CommOp::all_reduce, .parts = {{.in = buffer_of(flag), .out = buffer_of(flag), .counts = {1}}}},
                 {.queue = RankContext::current().queue(kReduceQueue, device), .name = "count", .loans = reduced});
      return std::array{to(cast(gathered, DType::f32), Device::cpu()), to(sum, Device::cpu()), to(flag, Device::cpu())};
    };
    const auto expected = unit(Device::cpu(), *host), got = unit(kCuda, *group);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << i;
    EXPECT_EQ(got[2].item<float>(), 3);
  });
}

// Rank 1 does not come before rank 0 has queued everything: nothing of it waits on rank 0's thread.
TEST_F(StagedGroups, IssuingWaitsForNobody) {
  std::promise<void> is_queued;
  const std::shared_future<void> queued = is_queued.get_future().share();
  run_ranks(2, [&](const Group& host) {
    const Group group = make_staged_group(host);
    if (group->rank() == 1) queued.wait();
    Tensor x = full({100}, group->rank() + 1.0, DType::f32, kCuda);
    for (int i = 0; i < 10; ++i) {
      x = all_reduce(std::move(x), *group, ReduceKind::avg);
      x = add(std::move(x), all_reduce(full({100}, 1.0, DType::f32, kCuda), *group));
    }
    if (group->rank() == 0) is_queued.set_value();
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>(100, 21.5));
  });
}

TEST_F(StagedGroups, FailuresOfTheGroupReachWhoWaitsForTheDevice) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const Tensor x = full({100}, 1.0, DType::f32, kCuda);
    const Tensor y = group->rank() == 0 ? all_reduce(x, *group) : broadcast_from(x, *group, 0);
    std::string message;
    try {
      (void)y.to_vector<float>();
    } catch (const CommError& error) { message = error.what(); }
    EXPECT_NE(message.find("rank 0 calls all_reduce"), std::string::npos) << message;
    EXPECT_NE(message.find("rank 1 calls broadcast"), std::string::npos) << message;
    group->reset();
    EXPECT_EQ(all_reduce(x, *group).to_vector<float>()[99], 2);
  });
}

TEST_F(StagedGroups, StagingMemoryIsReused) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const Accounting& memory = RankContext::current().device(kCuda).allocator().accounting();
    Tensor x = full({1000}, 1.0, DType::f32, kCuda);
    std::int64_t settled = 0;
    for (int i = 0; i < 30; ++i) {
      x = all_reduce(std::move(x), *group, ReduceKind::avg);
      EXPECT_EQ(x.to_vector<float>()[0], 1);
      if (i == 1) settled = memory.total();
    }
    EXPECT_EQ(memory.total(), settled);
  });
}

}  // namespace
}  // namespace sherd::testing
