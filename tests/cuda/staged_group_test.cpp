// Collectives of device memory through the host, each rank with a device of its own. Oracle: the same collectives of
// host memory over the same kind of group, bit for bit.
#include "runtime/comm/group/staged_group.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "dtensor/api.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/chunks.h"
#include "runtime/comm/group/lanes.h"
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

Buffer buffer_of(const Tensor& t) {
  return {t.storage()->address() + t.offset() * byte_size(t.dtype()), t.bytes(), t.device()};
}

Tensor values(const Shape& shape, int seed, int rank) {
  return mul(draw(normal(shape), DType::f32, static_cast<std::uint64_t>(10 * seed + rank + 1)), 1.1);
}

TEST_F(StagedGroups, SupportDevicesAndTheHost) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const Device there = cuda::device_of_rank(host->rank());
    EXPECT_TRUE(group->supports(there) && group->supports(Device::cpu()));
    EXPECT_FALSE(host->supports(there));
    EXPECT_EQ(group->kind(), "staged");
    EXPECT_EQ(group->name(), host->name());
    EXPECT_EQ(&group->host(), host.get());
    EXPECT_TRUE(group->abilities().casts && group->abilities().ordered_sum && !group->abilities().windows);
    EXPECT_EQ(gather_text(*group, "x").size(), 2u);
    const Group pair = group->subgroup(std::vector<int>{1, 0}, "tp");
    EXPECT_TRUE(pair->supports(there));
    EXPECT_EQ(pair->rank(), 1 - group->rank());
    const Tensor mine = ones({3});
    EXPECT_EQ(all_reduce(mine, *pair).to_vector<float>(), std::vector<float>(3, 2));
  });
}

TEST_F(StagedGroups, RowsAreBitwiseThoseOfTheHost) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [ranks](const Group& host) {
      const Group group = make_staged_group(host);
      const Device there = cuda::device_of_rank(host->rank());
      const auto same = [&](std::string_view what, const Tensor& x, auto&& row) {
        const Tensor expected = row(x, *host), got = row(on_device(x, there), *group);
        EXPECT_EQ(got.device(), there);
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
    const Device there = cuda::device_of_rank(host->rank());
    const Tensor local = full({2, 3}, group->rank() + 1.0, DType::f32, there);
    const Tensor rows = from_local(local, mesh, {Shard(0)});
    const Tensor all = full_tensor(rows + rows);
    EXPECT_EQ(all.device(), there);
    EXPECT_EQ(all.to_vector<float>(), (std::vector<float>{2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4}));
  });
}

// What a unit does: shards are gathered and cast, full gradients reduced onto earlier ones over a narrower wire.
TEST_F(StagedGroups, UnitsCastAccumulateAndShareBuffers) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const int me = group->rank();
    const auto unit = [&](Device device, ProcessGroup& over) {
      const auto at = [&](const Tensor& t) { return device == Device::cpu() ? dense_copy(t) : on_device(t, device); };
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
    const auto expected = unit(Device::cpu(), *host), got = unit(cuda::device_of_rank(me), *group);
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
    const Device there = cuda::device_of_rank(group->rank());
    if (group->rank() == 1) queued.wait();
    Tensor x = full({100}, group->rank() + 1.0, DType::f32, there);
    for (int i = 0; i < 10; ++i) {
      x = all_reduce(std::move(x), *group, ReduceKind::avg);
      x = add(std::move(x), all_reduce(full({100}, 1.0, DType::f32, there), *group));
    }
    if (group->rank() == 0) is_queued.set_value();
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>(100, 21.5));
  });
}

TEST_F(StagedGroups, FailuresOfTheGroupReachWhoWaitsForTheDevice) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const Device there = cuda::device_of_rank(group->rank());
    const Tensor x = full({100}, 1.0, DType::f32, there);
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

// A whole step of collectives that all fail, on two queues: the first error is told, a drain and a reset end the rest.
TEST_F(StagedGroups, ManyFailuresEndWithADrainAndAReset) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const Device there = cuda::device_of_rank(group->rank());
    Queue& gathers = RankContext::current().queue(kGatherQueue, there);
    Queue& reduces = RankContext::current().queue(kReduceQueue, there);
    std::vector<Tensor> tensors;
    const auto step = [&] {
      tensors.clear();
      for (int i = 0; i < 20; ++i) {
        tensors.push_back(full({100}, group->rank() + i, DType::f32, there));
        const Loan loan{tensors.back().storage(), true};
        const Buffer buffer = buffer_of(tensors.back());
        group->issue({.op = CommOp::all_reduce, .parts = {{.in = buffer, .out = buffer, .counts = {100}}}},
                     {.queue = i % 2 == 0 ? gathers : reduces, .name = "sum", .loans = {&loan, 1}});
      }
    };
    for (int round = 0; round < 3; ++round) {
      step();
      for (int i = 0; i < 20; ++i) EXPECT_EQ(tensors[static_cast<std::size_t>(i)].to_vector<float>()[99], 2 * i + 1);
      host->host().barrier();
      if (group->rank() == round % 2) group->abort("enough");
      step();
      expect_error([&] { (void)tensors.back().to_vector<float>(); }, {"enough"});
      RankContext::current().drain_queues();
      group->reset();
    }
    step();
    EXPECT_EQ(tensors.back().to_vector<float>()[0], 39);
  });
}

std::int64_t staged_bytes() {
  return RankContext::current().allocator().accounting().current(MemoryCategory::communication);
}

// Rank 1 comes late, so that everything is in flight that may be.
TEST_F(StagedGroups, StagingMemoryHasALimitOverAllQueues) {
  std::promise<void> is_full;
  const std::shared_future<void> full_up = is_full.get_future().share();
  run_ranks(2, [&](const Group& host) {
    constexpr std::int64_t kBlock = 8192, kLimit = 4 * kBlock;
    const Group group = make_staged_group(host, {.max_bytes = kLimit});
    const Device there = cuda::device_of_rank(group->rank());
    if (group->rank() == 1) full_up.wait();
    std::vector<Tensor> tensors;
    const auto sum = [&](std::string_view queue, std::int64_t count) {
      tensors.push_back(full({count}, static_cast<double>(tensors.size()), DType::f32, there));
      const Loan loan{tensors.back().storage(), true};
      const Buffer buffer = buffer_of(tensors.back());
      group->issue({.op = CommOp::all_reduce, .parts = {{.in = buffer, .out = buffer, .counts = {count}}}},
                   {.queue = RankContext::current().queue(queue, there), .name = "sum", .loans = {&loan, 1}});
    };
    for (int i = 0; i < 20; ++i) {
      if (group->rank() == 0 && i == 4) {
        EXPECT_EQ(staged_bytes(), kLimit);
        is_full.set_value();  // the next one waits
      }
      sum(i < 3 ? kGatherQueue : kReduceQueue, 1100);  // 4400 bytes: half of a block
      EXPECT_LE(staged_bytes(), kLimit);
    }
    sum(kGatherQueue, 20'000);
    EXPECT_EQ(staged_bytes(), 131'072) << "larger than all others together";
    sum(kGatherQueue, 100);
    EXPECT_LE(staged_bytes(), kLimit);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_EQ(tensors[i].to_vector<float>().back(), static_cast<float>(2 * i));
  });
}

TEST_F(StagedGroups, StagingMemoryIsReused) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const Device there = cuda::device_of_rank(group->rank());
    const Accounting& memory = RankContext::current().device(there).allocator().accounting();
    Tensor x = full({1000}, 1.0, DType::f32, there);
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
