// Prefetch: what is gathered when, that it never changes a bit, and that memory does not depend on how fast a link is.
#include <gtest/gtest.h>

#include <functional>

#include "compile/compile.h"
#include "nn/models/gpt.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/unit/unit_schedule.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/parallel/nets.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// A root whose own parameters are used first and last, as a transformer's are.
struct StemStack : nn::Layer<StemStack> {
  nn::Linear& stem;
  nn::ModuleList<Block>& blocks;
  nn::Linear& head;
  std::vector<std::size_t> path{0, 1, 2};  // which blocks run, in this order
  StemStack()
      : stem(add<nn::Linear>("stem", 6, 8)),
        blocks(add<nn::ModuleList<Block>>("blocks")),
        head(add<nn::Linear>("head", 8, 5)) {
    for (int i = 0; i < 3; ++i) blocks.append(8, 8);
  }
  Tensor forward(Tensor x) {
    x = stem(x);
    for (const std::size_t i : path) x = (*blocks.items()[i])(x);
    return head(x);
  }
};

void shard_stack(StemStack& net, const Group& group, std::optional<bool> blocks, std::optional<bool> root) {
  nn::UnitPolicy block_options, root_options;
  if (blocks) block_options.reshard_after_forward = nn::ReshardAfterForward(*blocks);
  if (root) root_options.reshard_after_forward = nn::ReshardAfterForward(*root);
  shard(net, DeviceMesh(group), block_options, root_options);
  net.materialize(nn::Seed{3});
}

// The order in which the rows of fully_shard were issued: "unshard 1  reduce 2 ...", R for the root.
std::string unit_events(const ir::Program& program) {
  std::string text;
  for (const ir::GraphNode& node : program.nodes) {
    EXPECT_EQ(node.op, &find_op(node.op->name));
    const bool is_gather = node.op == &op::gather_start, is_reduction = node.op == &op::reduce_start;
    if (!is_gather && !is_reduction) continue;
    const std::string attrs = node.attrs.print();
    const std::size_t block = attrs.find("blocks.");
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", is_gather ? "unshard" : "reduce",
                        block == std::string::npos ? 'R' : attrs[block + 7]);
  }
  return text;
}

std::string events_of_a_step(const Group& group, std::optional<bool> blocks, std::optional<bool> root) {
  StemStack net;
  shard_stack(net, group, blocks, root);
  auto step = compile_once([&](const Tensor& x) {
    const Tensor loss = sum(net(x));
    backward(loss);
    for (nn::Parameter* p : net.parameters()) p->clear_grad();
    return loss;
  });
  for (int i = 0; i < 2; ++i) step(batch_of(2, 6, 0, "x"));
  return unit_events(step.graph()->program);
}

// FSDP2's order: in backward the next group is gathered before the present one computes.
TEST(FullyShard, F48_EventOrder) {
  run_ranks(2, [](const Group& group) {
    const std::string forward = "unshard R, unshard 0, unshard 1, unshard 2";
    const std::string backward = ", unshard 2, unshard 1, reduce 2, unshard 0, reduce 1, reduce 0, reduce R";
    EXPECT_EQ(events_of_a_step(group, {}, {}), forward + backward);
    EXPECT_EQ(events_of_a_step(group, true, true), forward + ", unshard R" + backward);
    EXPECT_EQ(events_of_a_step(group, false, false), forward + ", reduce 2, reduce 1, reduce 0, reduce R");
  });
}

struct PrefetchVariant {
  std::string name;
  bool reshard = true, prefetch = true;
  int explicit_depth = 0;  // modules in every explicit list
  int max_reductions = 1;
};

void apply_lists(Net& net, int depth) {
  const auto& blocks = net.blocks.items();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::vector<nn::UnitHandle> next, previous;
    for (std::size_t d = 1; d <= static_cast<std::size_t>(depth); ++d) {
      if (i + d < blocks.size()) next.push_back(nn::unit_of(*blocks[i + d]));
      if (d <= i) previous.push_back(nn::unit_of(*blocks[i - d]));
    }
    nn::unit_of(*blocks[i]).set_forward_prefetch(next);
    nn::unit_of(*blocks[i]).set_backward_prefetch(previous);
  }
}

// All weights after a few steps with two micro-batches each, clipping and an evaluation in between.
std::vector<float> train(const Group& group, const PrefetchVariant& variant) {
  Net net(kThreeBlocks);
  nn::UnitPolicy options{.reshard_after_forward = nn::ReshardAfterForward(variant.reshard),
                         .prefetch = variant.prefetch};
  shard(net, DeviceMesh(group), options, {.prefetch = variant.prefetch});
  net.materialize(nn::Seed{3});
  apply_lists(net, variant.explicit_depth);
  nn::units(net).set_max_reductions(variant.max_reductions);
  nn::AdamW optimizer(net.parameters(), {.lr = 0.05});
  for (std::uint64_t step = 0; step < 4; ++step) {
    for (std::uint64_t micro = 0; micro < 2; ++micro) {
      const Tensor x = batch_of(12, 6, 2 * step + micro, "x"), y = batch_of(12, 5, step, "y");
      backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
    }
    nn::clip_grad_norm(optimizer, 0.5);
    optimizer.step_and_clear();
    GradMode off(false);
    net(batch_of(2, 6, step, "evaluation"));
  }
  std::vector<float> weights;
  for (const nn::Parameter* p : net.parameters())
    for (const float value : whole(p->value()).to_vector<float>()) weights.push_back(value);
  return weights;
}

const PrefetchVariant kVariants[] = {{"on demand", true, false},
                                     {"implicit", true, true},
                                     {"kept, on demand", false, false},
                                     {"kept, implicit", false, true},
                                     {"lists of one", true, true, 1},
                                     {"lists of two", true, false, 2},
                                     {"kept, lists of two", false, true, 2},
                                     {"three reductions in flight", true, true, 0, 3}};

void expect_same_bits_however_prefetched(const Group& group) {
  const std::vector<float> expected = train(group, kVariants[0]);
  for (const PrefetchVariant& variant : kVariants) EXPECT_EQ(train(group, variant), expected) << variant.name;
}

TEST(FullyShard, F60_PrefetchNeverChangesABit) {
  for (int ranks : {1, 2, 3, 4}) run_ranks(ranks, expect_same_bits_however_prefetched);
}

TEST(FullyShard, F60_PrefetchNeverChangesABitWithProcesses) {
  for (int ranks : {2, 3}) run_processes(ranks, expect_same_bits_however_prefetched);
}

TEST(FullyShard, F60_PrefetchTrainsLikeOneRank) {
  run_ranks(3, [](const Group& group) {
    Net net(kThreeBlocks), reference(kThreeBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    expect_trains_alike(on_slices(net, *group, 6, 5), on_batches(reference, 6, 5), {.steps = 5});
  });
}

struct Memory {
  CategoryBytes forward, step;
  std::int64_t root = 0, neighbours = 0, largest = 0, all = 0;
};

// Peaks of a steady step: of its forward alone, and of all of it.
Memory memory_of(const Group& group, const std::optional<LinkShape>& link, const nn::UnitPolicy& options) {
  if (link) group->host().shape_link(*link);
  Net net({32, 64, 48, 80, 40, 8});
  shard(net, DeviceMesh(group), options, options);
  net.materialize();
  nn::AdamW optimizer(net.parameters());
  Accounting& memory = RankContext::current().allocator().accounting();
  Memory seen;
  for (int step = 0; step < 3; ++step) {
    memory.reset_peaks();
    const Tensor loss = sum(net(batch_of(2, 32, 0, "x")));
    seen.forward = memory.peak();
    backward(loss);
    optimizer.step_and_clear();
    seen.step = memory.peak();
  }
  std::int64_t before = 0;
  for (Block* block : net.blocks.items()) {
    const std::int64_t bytes = nn::unit_of(*block).gathered_bytes();
    seen.neighbours = std::max(seen.neighbours, before + bytes);
    seen.largest = std::max(seen.largest, bytes);
    before = bytes;
    seen.all += bytes;
  }
  seen.root = nn::unit_of(net).gathered_bytes();
  seen.all += seen.root;
  return seen;
}

std::int64_t at(const CategoryBytes& bytes, MemoryCategory category) {
  return bytes[static_cast<std::size_t>(category)];
}

TEST(FullyShard, F39_PeakIsTheRootAndTwoNeighbours) {
  const std::optional<LinkShape> links[] = {
      {}, LinkShape{.bytes_per_second = 1e9, .seconds = 1e-3}, LinkShape{.bytes_per_second = 2e6, .seconds = 0}};
  std::vector<Memory> all;
  for (const auto& link : links)
    run_ranks(2, [&](const Group& group) {
      const Memory seen = memory_of(group, link, {});
      EXPECT_EQ(at(seen.forward, MemoryCategory::unsharded), seen.root + seen.neighbours);
      EXPECT_EQ(at(seen.step, MemoryCategory::unsharded), seen.root + seen.neighbours);
      EXPECT_EQ(at(seen.step, MemoryCategory::communication), seen.largest);
      if (group->rank() == 0) all.push_back(seen);
    });
  // Not a byte depends on timing, in any category.
  for (const Memory& seen : all) {
    EXPECT_EQ(seen.forward, all[0].forward);
    EXPECT_EQ(seen.step, all[0].step);
  }
}

TEST(FullyShard, F39_WithoutPrefetchPeakIsTheRootAndOne) {
  run_ranks(2, [](const Group& group) {
    const Memory seen = memory_of(group, {}, {.prefetch = false});
    EXPECT_EQ(at(seen.step, MemoryCategory::unsharded), seen.root + seen.largest);
  });
}

// Besides shards and their gradients: every unit once, and in backward one unit's full gradients.
TEST(FullyShard, F40_WithoutReshardPeakIsAllUnitsAndOneReduction) {
  for (const bool prefetch : {true, false})
    run_ranks(2, [=](const Group& group) {
      const Memory seen = memory_of(group, {}, {.reshard_after_forward = false, .prefetch = prefetch});
      EXPECT_EQ(at(seen.forward, MemoryCategory::unsharded), seen.all);
      EXPECT_EQ(at(seen.forward, MemoryCategory::communication), 0);
      EXPECT_EQ(at(seen.step, MemoryCategory::unsharded), seen.all);
      EXPECT_EQ(at(seen.step, MemoryCategory::communication), seen.largest);
    });
}

TEST(FullyShard, F57_ReductionsInFlightAreLimited) {
  run_ranks(2, [](const Group& group) {
    Net net({16, 16, 16, 16, 16, 16});
    shard(net, DeviceMesh(group));
    net.materialize();
    for (int bad : {0, -1})
      expect_error([&] { nn::units(net).set_max_reductions(bad); }, {"at least one", std::to_string(bad)});
    const std::int64_t one = nn::unit_of(net).gathered_bytes();
    Accounting& memory = RankContext::current().allocator().accounting();
    for (int limit : {1, 2, 3}) {
      nn::units(net).set_max_reductions(limit);
      memory.reset_peaks();
      backward(sum(net(batch_of(2, 16, 0, "x"))));
      EXPECT_EQ(memory.peak(MemoryCategory::communication), limit * one);
      for (nn::Parameter* p : net.parameters()) p->clear_grad();
      EXPECT_EQ(memory.current(MemoryCategory::communication), 0);
    }
  });
}

TEST(FullyShard, F73_GathersAfterTheOptimizerSeeNewWeightsAndItWaitedOnce) {
  run_ranks(2, [](const Group& group) {
    Net net(kThreeBlocks), reference(kThreeBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    Block& block = *net.blocks.items()[0];
    nn::AdamW optimizer(net.parameters(), {.lr = 0.5}), expected(reference.parameters(), {.lr = 0.5});
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Tensor x = batch_of(12, 6, step, "x"), y = batch_of(12, 5, step, "y");
      backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
      backward(mean_square(reference(x), y));
      // A gather of the old weights is still reading the shards, here and by the peer, when the optimizer comes.
      nn::unit_of(block).unshard();
      nn::unit_of(block).reshard();
      nn::UnshardHandle reading = nn::unit_of(block).unshard_async();
      const Ref<Storage> shards = [&] {
        nn::unit_of(block).reshard();
        return block.linear_layer.weight.value().local().storage();
      }();
      optimizer.step_and_clear();
      EXPECT_FALSE(shards->is_lent());  // waited for once; the next write does not wait
      expected.step_and_clear();
      nn::unit_of(block).unshard();
      EXPECT_TRUE(near(block.linear_layer.weight.value(), reference.blocks.items()[0]->linear_layer.weight.value()));
      nn::unit_of(block).reshard();
      for (const nn::UnitHandle& g : nn::units(net)) EXPECT_FALSE(g.is_gathered());
    }
  });
}

TEST(FullyShard, F36_HandleWaitsAndReadingWaitsToo) {
  run_ranks(2, [](const Group& group) {
    group->host().shape_link({.bytes_per_second = 1e9, .seconds = 5e-3});
    Net net(kThreeBlocks), reference(kThreeBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    nn::UnshardHandle handle = nn::unit_of(net).unshard_async();
    const Tensor weight = net.head.weight.value();
    EXPECT_TRUE(weight.storage()->is_lent());
    handle.wait();
    EXPECT_FALSE(weight.storage()->is_lent());
    EXPECT_TRUE(same_bits(weight, reference.head.weight.value()));
    nn::unit_of(*net.blocks.items()[0]).unshard();  // no handle
    EXPECT_TRUE(same_bits(net.blocks.items()[0]->linear_layer.weight.value(),
                          reference.blocks.items()[0]->linear_layer.weight.value()));
  });
}

TEST(FullyShard, PrefetchListsNeedWrappedModules) {
  run_ranks(2, [](const Group& group) {
    Net net(kThreeBlocks);
    shard(net, DeviceMesh(group));
    Block& block = *net.blocks.items()[0];
    expect_error([&] { nn::unit_of(block).set_forward_prefetch({nn::unit_of(block.linear_layer)}); },
                 {"blocks.0.linear", "not wrapped"});
    expect_error([&] { nn::unit_of(block).set_backward_prefetch({nn::unit_of(net.head)}); }, {"head", "not wrapped"});
    expect_error([&] { nn::unit_of(net.head).set_forward_prefetch({nn::unit_of(block)}); }, {"head", "not wrapped"});
    Net plain(kThreeBlocks);
    expect_error([&] { nn::units(plain).set_requires_gradient_sync(false); },
                 {"\"(model)\" is not wrapped", "shard_units()"});
  });
}

// Branches, repeated modules and modules that do not run: guesses go wrong, results and memory do not.
TEST(FullyShard, F64_F65_PrefetchSurvivesBranchesAndRepeats) {
  const std::vector<std::vector<std::size_t>> paths{{0, 1, 2}, {0, 2}, {2, 1, 0}, {0, 0, 1, 1}, {1}, {}, {0, 1, 2}};
  for (int ranks : {2, 3})
    run_ranks(ranks, [&](const Group& group) {
      StemStack net, reference;
      shard_stack(net, group, {}, {});
      reference.materialize(nn::Seed{3});
      nn::AdamW optimizer(net.parameters(), {.lr = 0.01}), expected(reference.parameters(), {.lr = 0.01});
      const Accounting& memory = RankContext::current().allocator().accounting();
      for (std::uint64_t step = 0; step < paths.size(); ++step) {
        net.path = reference.path = paths[step];
        const Tensor x = batch_of(12, 6, step, "x"), y = batch_of(12, 5, step, "y");
        backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
        backward(mean_square(reference(x), y));
        optimizer.step_and_clear();
        expected.step_and_clear();
        EXPECT_EQ(memory.current(MemoryCategory::unsharded), 0) << "step " << step;
        {
          GradMode off(false);
          net.path = reference.path = paths[(step + 3) % paths.size()];
          EXPECT_TRUE(near(net(x), reference(x), 1e-4));
        }
        EXPECT_EQ(memory.current(MemoryCategory::unsharded), 0) << "step " << step;
      }
    });
}

TEST(FullyShard, F68_PrefetchWithTwoForwardsAndAReplayedBackward) {
  run_ranks(2, [](const Group& group) {
    StemStack net, reference;
    shard_stack(net, group, {}, {});
    reference.materialize(nn::Seed{3});
    for (int step = 0; step < 2; ++step) {
      const Tensor x = batch_of(2, 6, 0, "x"), y = batch_of(2, 6, 1, "x");
      const auto run = [&](StemStack& model) {
        for (nn::Parameter* p : model.parameters()) p->clear_grad();
        const Tensor loss = sum(square(model(x))) + sum(square(model(y)));
        backward(loss, {.retain_graph = true});
        backward(loss);
      };
      run(net);
      run(reference);
      EXPECT_TRUE(near(whole(net.stem.weight.grad()), reference.stem.weight.grad(), 1e-5));
    }
  });
}

/// One weight at both ends: one of them has it, the other is wrapped without a parameter of its own.
struct TiedStack : nn::Layer<TiedStack> {
  using Look = std::function<void()>;
  /// Looks when backward has used the weight and has not left it yet.
  struct End : nn::Layer<End> {
    nn::Parameter& weight;
    Look look = [] {};
    End() : weight(add_parameter("weight", {6, 6}, nn::Init::normal(0.3))) {}
    explicit End(nn::Parameter& other) : weight(share_parameter("weight", other)) {}
    Tensor forward(const Tensor& x) {
      const Tensor input = mul(x, 0.5);
      if (input.requires_grad())
        register_grad_hook(input, [this](const Tensor&) {
          look();
          return Tensor();
        });
      return linear(input, weight);
    }
  };
  /// Looks when it computes.
  struct Middle : nn::Layer<Middle> {
    nn::Linear& inner;
    Look look = [] {};
    Middle() : inner(add<nn::Linear>("inner", 6, 6)) {}
    Tensor forward(const Tensor& x) {
      look();
      return relu(inner(x));
    }
  };
  End &owner, &borrower;
  nn::ModuleList<Middle>& blocks;
  const bool owner_is_first;
  TiedStack(int num_blocks, bool is_owner_first)
      : owner(add<End>("owner")),
        borrower(add<End>("borrower", owner.weight)),
        blocks(add<nn::ModuleList<Middle>>("blocks")),
        owner_is_first(is_owner_first) {
    for (int i = 0; i < num_blocks; ++i) blocks.append();
  }
  Tensor forward(Tensor x) {
    x = (owner_is_first ? owner : borrower)(x);
    for (Middle* block : blocks.items()) x = (*block)(x);
    return (owner_is_first ? borrower : owner)(x);
  }
};

void shard_ends(TiedStack& net, const Group& group, bool prefetch = true) {
  for (nn::Module* end : {&net.owner, &net.borrower}) nn::fully_shard(*end, DeviceMesh(group), {.prefetch = prefetch});
  shard(net, DeviceMesh(group), {.prefetch = prefetch}, {.prefetch = prefetch});
  net.materialize(nn::Seed{3});
}

// The block before the end that borrows starts its gather, and in backward that end the gather of the block.
TEST(FullyShard, F14_AWeightIsPrefetchedForWhoBorrowsIt) {
  run_ranks(2, [](const Group& group) {
    TiedStack net(2, /*is_owner_first=*/true);
    shard_ends(net, group);
    const nn::UnitHandle weight = nn::unit_of(net.owner), last = nn::unit_of(*net.blocks.items()[1]);
    std::vector<bool> in_forward, in_backward;
    for (TiedStack::Middle* block : net.blocks.items())
      block->look = [&] { in_forward.push_back(weight.is_gathered()); };
    net.borrower.look = [&] { in_backward.push_back(last.is_gathered()); };
    for (int step = 0; step < 3; ++step) backward(sum(net(batch_of(2, 6, 0, "x"))));
    EXPECT_EQ(in_forward, (std::vector<bool>{false, false, false, true, false, true})) << "the first tells the order";
    EXPECT_EQ(in_backward, (std::vector<bool>{true, true, true}));
  });
  // Where it comes first, and last in backward, a block starts the gather for it.
  run_ranks(2, [](const Group& group) {
    TiedStack net(2, /*is_owner_first=*/false);
    shard_ends(net, group);
    const nn::UnitHandle weight = nn::unit_of(net.owner);
    std::vector<bool> is_gathered;
    for (TiedStack::Middle* block : net.blocks.items())
      block->inner.weight.on_grad_accumulated([&](Slot&) { is_gathered.push_back(weight.is_gathered()); });
    for (int step = 0; step < 2; ++step) backward(sum(net(batch_of(2, 6, 0, "x"))));
    EXPECT_EQ(is_gathered, (std::vector<bool>{false, true, false, true}));
  });
}

TEST(FullyShard, F14_F44_WhatIsBorrowedIsGatheredAsOftenWithPrefetch) {
  struct Case {
    int blocks;
    bool owner_is_first;
    std::int64_t gathers;  // of forward, where both ends gather the weight, and of backward
  };
  // In backward the weight stays until its gradient is complete, unless its owner's backward is over before.
  constexpr Case kCases[] = {{2, true, 4 + 3}, {2, false, 4 + 4}, {0, true, 2 + 1}, {0, false, 2 + 1}};
  for (const auto& [blocks, owner_is_first, gathers] : kCases)
    for (const bool prefetch : {true, false})
      run_ranks(2, [&, blocks = blocks, owner_is_first = owner_is_first, gathers = gathers](const Group& group) {
        SCOPED_TRACE(fmt::format("{} blocks, owner first {}, prefetch {}", blocks, owner_is_first, prefetch));
        TiedStack net(blocks, owner_is_first), reference(blocks, owner_is_first);
        shard_ends(net, group, prefetch);
        reference.materialize(nn::Seed{3});
        for (std::uint64_t step = 0; step < 3; ++step) {
          const Tensor x = batch_of(12, 6, step, "x");
          const CommCounts before = settled_counts(*group);
          backward(mean(square(net(slice_of(x, *group)))));
          const CommCounts used = counts_since(before, *group);
          EXPECT_EQ(used.all_gather.calls, gathers) << "step " << step;
          EXPECT_EQ(used.reduce_scatter.calls, 1 + blocks);
          EXPECT_EQ(held(MemoryCategory::unsharded), 0);
          backward(mean(square(reference(x))));
        }
        expect_same_gradients(net, reference);
        for (const nn::UnitHandle& unit : nn::units(net)) EXPECT_EQ(unit.late_gathers(), 0) << unit.name();
      });
}

TEST(UnitSchedule, FollowsTheForwardBefore) {
  nn::UnitSchedule schedule;
  using Units = std::vector<nn::UnitId>;
  constexpr nn::UnitId kNone = nn::kNoUnit;
  const auto forward = [&](const Units& path) {
    schedule.begin_forward();
    Units next;
    for (const nn::UnitId unit : path) next.push_back(schedule.enter(unit));
    schedule.end_forward();
    return next;
  };
  EXPECT_EQ(forward({0, 1, 2}), (Units{kNone, kNone, kNone}));
  EXPECT_EQ(forward({0, 1, 2}), (Units{1, 2, kNone}));
  EXPECT_EQ(forward({0, 3, 2}), (Units{1, kNone, kNone}));  // 3 is new; 2 was found after 0
  EXPECT_EQ(forward({0, 3, 2}), (Units{3, 2, kNone}));
  EXPECT_EQ(schedule.enter(0), kNone);  // outside of a forward

  // The first call, then one that holds two.
  const auto first = schedule.leave(0, schedule.begin());
  const auto outer_begun = schedule.begin(), inner_begun = schedule.begin();
  const auto inner = schedule.leave(2, inner_begun), second = schedule.leave(3, schedule.begin()),
             outer = schedule.leave(1, outer_begun);
  EXPECT_TRUE(schedule.is_over(second, inner));
  EXPECT_FALSE(schedule.is_over(outer, second) || schedule.is_over(outer, inner));
  EXPECT_TRUE(schedule.is_over(outer, first) && schedule.is_over(inner, first));
  const auto backward = [&](nn::UnitId unit, nn::UnitSchedule::Call call) {
    const auto plan = schedule.begin_backward(unit, call);
    return std::pair(Units(plan.over.begin(), plan.over.end()), plan.next);
  };
  using Plan = std::pair<Units, nn::UnitId>;
  EXPECT_EQ(backward(1, outer), (Plan{{}, 3}));
  EXPECT_EQ(backward(3, second), (Plan{{}, 2}));
  EXPECT_EQ(backward(2, inner), (Plan{{3}, 0}));  // the outer one's is not over before those within it
  EXPECT_EQ(backward(0, {}), (Plan{{}, kNone}));  // of no call
  EXPECT_EQ(backward(0, first), (Plan{{1, 2}, kNone}));
  schedule.end_backward();
  EXPECT_EQ(backward(3, second), (Plan{{}, kNone}));  // of a backward that has ended
  EXPECT_FALSE(schedule.is_over(outer, schedule.leave(0, schedule.begin())));
}

/// A block runs in training only, so that another mode has another order of units.
struct SkippingNet : nn::Layer<SkippingNet> {
  nn::Linear& a = add<nn::Linear>("a", 8, 8);
  nn::Linear& b = add<nn::Linear>("b", 8, 8);
  nn::Linear& c = add<nn::Linear>("c", 8, 8);
  Tensor forward(const Tensor& x) { return c(training() ? b(a(x)) : a(x)); }
};

// The first recording in a new mode gathers early by the order of the mode before, the second by its own: no difference
// that a replay would be wrong by. Oracle: the same calls, run eagerly.
TEST(FullyShard, RecordingsOfTwoPredictionsAreOneStep) {
  run_ranks(2, [](const Group& group) {
    const auto losses = [&](bool is_captured) {
      SkippingNet net;
      for (nn::Linear* layer : {&net.a, &net.b, &net.c}) nn::fully_shard(*layer, DeviceMesh(group));
      nn::fully_shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{1});
      const auto run = [&](const Tensor& x) {
        const Tensor loss = mean(square(net(x)));
        backward(loss);
        for (nn::Parameter* p : net.parameters()) p->clear_grad();
        return loss.detach();
      };
      auto step = compile(run);  // which compares two recordings
      std::vector<float> seen;
      for (int i = 0; i < 16; ++i) {
        net.train(i < 6 || i >= 12);
        const Tensor x = full({2, 8}, 1.0 + i + group->rank());
        seen.push_back((is_captured ? step(x) : run(x)).to_vector<float>()[0]);
        if (is_captured && (i == 5 || i == 11 || i == 15)) {
          EXPECT_TRUE(step.why().starts_with("replayed")) << i << step.why();
        }
      }
      return seen;
    };
    EXPECT_EQ(losses(true), losses(false));
  });
}

}  // namespace
}  // namespace sherd::testing
