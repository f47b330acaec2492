// A ghost rank of n trains as a rank of n threads does, without bytes and without peers. Oracle: the thread's accounts
// and the collectives that it issues, by category and byte by byte, in a first step and in a settled one.
#include <gtest/gtest.h>

#include <vector>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/job/world.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct GhostCase {
  Grid3 grid{1, 1, 1};
  bool shards = true, sequence = false, bf16 = false, int8 = false;
  std::string text() const {
    return fmt::format("replicate={} dp={} tp={}{}{}{}{}", grid.replicas, grid.dp, grid.tp,
                       shards ? " fully_shard" : "", sequence ? " sequence" : "", bf16 ? " bf16" : "",
                       int8 ? " int8" : "");
  }
};

/// What a rank holds after a step, has held at most of each category and at its peak, and has issued.
struct StepRecord {
  CategoryBytes held, peak, at_peak;
  std::vector<std::string> collectives;
};

std::vector<std::string> lines_of(const CommCounter& counter) {
  std::vector<std::string> lines;
  for (const CommCounter::Entry& e : counter.entries())
    lines.push_back(fmt::format("{} {} for \"{}\" in \"{}\" over {}: {} calls, {} bytes", comm::name(e.kind), e.op,
                                e.cause, e.module, e.ranks, e.item.calls, e.item.bytes));
  return lines;
}

void prepare(ResidualNet& net, const DeviceMesh& root, const GhostCase& c) {
  nn::UnitPolicy options;
  if (c.bf16) options.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
  if (c.grid.tp > 1) nn::parallelize(net, root["tp"], plan_of(c.sequence));
  if (c.shards) shard(net, c.grid.data(root), options, {.mp_policy = options.mp_policy});
  if (c.int8)
    for (const nn::UnitHandle& unit : nn::units(net)) {
      unit.set_gather_transform(nn::int8_gather());
      unit.set_custom_reduce(nn::int8_reduce());
    }
  net.materialize(nn::Seed{11});
}

/// Records of a rank's first step and its third.
std::vector<StepRecord> records_of(const Group& group, const GhostCase& c) {
  const DeviceMesh root = c.grid.mesh(group);
  ResidualNet net(5, 8);
  prepare(net, root, c);
  nn::AdamW optimizer(net.parameters());
  Accounting& account = RankContext::current().allocator().accounting();
  std::vector<StepRecord> records;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const CommCounter counter;
    account.reset_peaks();
    backward(mean_square(net(rows_of(batch3(12, 3, step, "x"), root)), rows_of(batch3(12, 2, step, "y"), root)));
    nn::clip_grad_norm(optimizer, 0.1);
    optimizer.step();
    optimizer.clear_gradients();
    if (step != 1) records.push_back({account.current(), account.peak(), account.at_peak(), lines_of(counter)});
  }
  return records;
}

void expect_ghosts_are_like_threads(const GhostCase& c) {
  SCOPED_TRACE(c.text());
  const int ranks = c.grid.ranks();
  std::vector<std::vector<StepRecord>> expected(static_cast<std::size_t>(ranks));
  run_ranks(ranks,
            [&](const Group& group) { expected[static_cast<std::size_t>(group->rank())] = records_of(group, c); });
  for (int r = 0; r < ranks; ++r) {
    const RankScope scope(fmt::format("rank {}", r), {.ghost = true});
    set_world_group(make_ghost_group(r, ranks));
    const std::vector<StepRecord> actual = records_of(world_group(), c);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      SCOPED_TRACE(fmt::format("rank {}, {} step", r, i == 0 ? "first" : "settled"));
      const StepRecord& e = expected[static_cast<std::size_t>(r)][i];
      EXPECT_EQ(describe(actual[i].held), describe(e.held));
      EXPECT_EQ(actual[i].held, e.held);
      EXPECT_EQ(actual[i].peak, e.peak);
      EXPECT_EQ(actual[i].at_peak, e.at_peak);
      EXPECT_EQ(actual[i].collectives, e.collectives);
      EXPECT_EQ(e.collectives.empty(), ranks == 1);
    }
  }
}

TEST(GhostStep, ShardsLikeThreads) {
  for (const bool bf16 : {false, true})
    for (const int ranks : {1, 2, 4}) expect_ghosts_are_like_threads({.grid = {1, ranks, 1}, .bf16 = bf16});
}

TEST(GhostStep, ReplicatesShardsLikeThreads) {
  for (const bool bf16 : {false, true}) {
    expect_ghosts_are_like_threads({.grid = {2, 2, 1}, .bf16 = bf16});
    expect_ghosts_are_like_threads({.grid = {2, 1, 1}, .bf16 = bf16});
  }
}

TEST(GhostStep, F96_CommunicatesIn8BitsLikeThreads) {
  for (const bool bf16 : {false, true}) {
    expect_ghosts_are_like_threads({.grid = {1, 2, 1}, .bf16 = bf16, .int8 = true});
    expect_ghosts_are_like_threads({.grid = {1, 4, 1}, .bf16 = bf16, .int8 = true});
    expect_ghosts_are_like_threads({.grid = {2, 2, 1}, .bf16 = bf16, .int8 = true});
  }
}

TEST(GhostStep, ComputesTensorParallelLikeThreads) {
  for (const bool sequence : {false, true})
    expect_ghosts_are_like_threads({.grid = {1, 1, 2}, .shards = false, .sequence = sequence});
}

TEST(GhostStep, ShardsTensorParallelLayersLikeThreads) {
  for (const bool bf16 : {false, true})
    for (const bool sequence : {false, true})
      expect_ghosts_are_like_threads({.grid = {1, 2, 2}, .sequence = sequence, .bf16 = bf16});
}

// One rank of a job that no machine holds.
TEST(GhostStep, TellsWhetherAModelFits) {
  const RankScope scope("rank 5 of 1024", {.ghost = true});
  const DeviceMesh mesh(make_ghost_group(5, 1024), "dp");
  Net net({std::int64_t{1} << 20, std::int64_t{1} << 20, 1});
  shard(net, mesh);
  net.materialize();
  EXPECT_GT(held(MemoryCategory::parameters), std::int64_t{1} << 32) << "a thousandth of 4 TB";
  const auto step = [&] { backward(mean(square(net(batch_of(1, std::int64_t{1} << 20, 0, "x"))))); };
  step();
  const std::int64_t needed = RankContext::current().allocator().accounting().total_peak();
  EXPECT_GT(needed, std::int64_t{1} << 42) << "a layer is gathered in full";
  RankContext::current().drain_queues();  // the last reduction holds its buffer until somebody waits
  RankContext::current().allocator().set_limit(needed / 2);
  try {
    step();
    FAIL() << "half of what is needed was enough";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("unsharded"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sherd::testing
