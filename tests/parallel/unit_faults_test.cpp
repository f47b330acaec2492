// Faults that were found beside PyTorch's FSDP2, each with the figure that it gives: gathers and bytes counted, values
// against one rank.
#include <gtest/gtest.h>

#include <memory>

#include "nn/optim/adamw.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// Gathers that `step` issues on this rank.
std::int64_t gathers_of(const Group& group, const std::function<void()>& step) {
  const CommCounts before = settled_counts(*group);
  step();
  return settled_counts(*group).all_gather.calls - before.all_gather.calls;
}

// ---- F193: an output that is also an input ----

/// Returns its input beside its output, as a residual that is carried through.
struct Carrying : nn::Layer<Carrying> {
  nn::Linear& inner;
  explicit Carrying(std::int64_t width) : inner(add<nn::Linear>("inner", width, width)) {}
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& carried) { return {relu(inner(x)) + carried, x}; }
};

struct CarryingNet : nn::Layer<CarryingNet> {
  nn::Linear& stem;
  nn::ModuleList<Carrying>& blocks;
  CarryingNet() : stem(add<nn::Linear>("stem", 8, 8)), blocks(add<nn::ModuleList<Carrying>>("blocks")) {
    for (int i = 0; i < 6; ++i) blocks.append(8);
  }
  Tensor forward(const Tensor& input) {
    Tensor x = stem(input), carried = x;
    for (Carrying* block : blocks.items()) std::tie(x, carried) = (*block)(x, carried);
    return x + carried;
  }
};

TEST(FullyShard, F193_AnInputThatIsReturnedIsNotGatheredAgain) {
  run_ranks(2, [](const Group& group) {
    CarryingNet net, reference;
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    Accounting& memory = RankContext::current().allocator().accounting();
    const std::int64_t block = nn::unit_of(*net.blocks.items()[0]).gathered_bytes();
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Tensor x = batch_of(4, 8, step, "x");
      memory.reset_peaks();
      // Seven units in forward, the root's stays; six blocks in backward.
      EXPECT_EQ(gathers_of(group, [&] { backward(mean(square(net(x)))); }), 13) << "step " << step;
      EXPECT_EQ(memory.peak(MemoryCategory::unsharded), nn::unit_of(net).gathered_bytes() + 2 * block);
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      backward(mean(square(reference(x))));
      expect_same_gradients(net, reference);
      for (nn::Module* m : {static_cast<nn::Module*>(&net), static_cast<nn::Module*>(&reference)})
        for (nn::Parameter* p : m->parameters()) p->clear_grad();
    }
    for (const nn::UnitHandle& unit : nn::units(net)) EXPECT_EQ(unit.late_gathers(), 0) << unit.name();
  });
}

// ---- F195: a loss that no wrapped module's output leads to ----

/// Leaves an auxiliary loss behind, which uses one of its two parameters.
struct WithAuxiliary : nn::Layer<WithAuxiliary> {
  nn::Parameter &scale, &shift;
  Tensor auxiliary;
  WithAuxiliary()
      : scale(add_parameter("scale", {6}, nn::Init::ones())), shift(add_parameter("shift", {6}, nn::Init::zeros())) {}
  Tensor forward(const Tensor& x) {
    auxiliary = sum(square(x * scale));
    return x * scale + shift;
  }
  /// Another method than forward.
  Tensor features(const Tensor& x) { return square(x * scale); }
};

struct AuxiliaryNet : nn::Layer<AuxiliaryNet> {
  WithAuxiliary& block;
  nn::Linear& head;
  AuxiliaryNet() : block(add<WithAuxiliary>("block")), head(add<nn::Linear>("head", 6, 3)) {}
  Tensor forward(const Tensor& x) { return head(block(x)); }
};

TEST(FullyShard, F195_AnAuxiliaryLossAloneBringsItsGradients) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      AuxiliaryNet net, reference;
      const DeviceMesh mesh(group);
      nn::fully_shard(net.block, mesh);
      nn::fully_shard(net, mesh);
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      for (std::uint64_t pass = 1; pass <= 2; ++pass) {  // passes add up
        const Tensor x = batch_of(4, 6, pass, "x");
        net(x);
        reference(x);
        backward(net.block.auxiliary);
        backward(reference.block.auxiliary);
        ASSERT_TRUE(net.block.scale.grad().defined());
        EXPECT_TRUE(near(net.block.scale.grad().local(),
                         part_of(reference.block.scale.grad().detach(), net.block.scale.grad()), 1e-5));
        EXPECT_FALSE(net.block.shift.grad().defined());
        EXPECT_TRUE(net.head.weight.value().is_distributed()) << "the root stayed gathered";
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      }
    });
}

TEST(FullyShard, F195_AMethodOtherThanForwardBringsItsGradients) {
  run_ranks(2, [](const Group& group) {
    WithAuxiliary block, reference;
    const nn::UnitHandle unit = nn::fully_shard(block, DeviceMesh(group));
    block.materialize();
    reference.materialize();
    const Tensor x = batch_of(4, 6, 0, "x");
    unit.unshard();  // no forward has run: there is no tree
    backward(sum(block.features(x)));
    backward(sum(reference.features(x)));
    ASSERT_TRUE(block.scale.grad().defined());
    EXPECT_TRUE(near(block.scale.grad().local(), part_of(reference.scale.grad().detach(), block.scale.grad()), 1e-5));
    EXPECT_FALSE(unit.is_unsharded());
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

// ---- F196, F197: adapters beside frozen weights ----

/// Its adapters train.
struct AdaptedNet : nn::Layer<AdaptedNet> {
  nn::ModuleList<Adapted>& blocks;
  explicit AdaptedNet(std::int64_t width) : blocks(add<nn::ModuleList<Adapted>>("blocks")) {
    for (int i = 0; i < 3; ++i) blocks.append(width, width);
    for (Adapted* block : blocks.items())
      for (nn::Parameter* p : block->base.parameters()) p->set_requires_grad(false);
  }
  Tensor forward(Tensor x) {
    for (Adapted* block : blocks.items()) x = (*block)(x);
    return x;
  }
};

TEST(FullyShard, F196_TheGradientBufferHoldsWhatTrains) {
  constexpr std::int64_t kWidth = 256;
  run_ranks(2, [](const Group& group) {
    AdaptedNet net(kWidth);
    shard(net, DeviceMesh(group));
    net.materialize();
    const nn::UnitHandle unit = nn::unit_of(*net.blocks.items()[0]);
    // Adapters of a block, each at a multiple of 64 bytes: down [2, W] and [2], up [W, 2] and [W]. On 2 ranks their
    // shards are halves.
    const std::int64_t adapters = (5 * kWidth + 16) * 4, shards = (5 * kWidth / 2 + 16) * 4;
    ASSERT_GT(unit.gathered_bytes(), 50 * adapters) << "the frozen part";
    Accounting& memory = RankContext::current().allocator().accounting();
    for (int step = 0; step < 2; ++step) {
      const Tensor loss = sum(net(batch_of(2, kWidth, 0, "x")));
      memory.reset_peaks();
      backward(loss);
      RankContext::current().drain_queues();
      EXPECT_EQ(memory.peak(MemoryCategory::communication), adapters);
      // One block's full gradients, and the shards of all three.
      EXPECT_LE(memory.peak(MemoryCategory::gradients), adapters + 3 * shards);
      for (const nn::Parameter* p : unit.parameters()) EXPECT_EQ(p->grad().defined(), p->requires_grad()) << p->name();
      for (nn::Parameter* p : net.parameters()) p->clear_grad();
    }
  });
}

/// Steps each parameter's own optimizer as soon as its gradient is complete.
void step_in_hooks(nn::Module& net, std::vector<std::unique_ptr<nn::Sgd>>& optimizers) {
  for (nn::Parameter* p : net.parameters()) {
    if (!p->requires_grad()) continue;
    optimizers.push_back(std::make_unique<nn::Sgd>(std::vector<nn::Parameter*>{p}, nn::Sgd::Options{.lr = 0.1}));
    p->on_grad_accumulated([optimizer = optimizers.back().get()](Slot&) { optimizer->step_and_clear(); });
  }
}

TEST(FullyShard, F197_AnOptimizerMayStepInHooksBesideFrozenParameters) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      AdaptedNet net(8), reference(8);
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      std::vector<std::unique_ptr<nn::Sgd>> optimizers;
      step_in_hooks(net, optimizers);
      nn::Sgd expected(reference.parameters(), {.lr = 0.1});
      for (std::uint64_t step = 0; step < 4; ++step) {
        const Tensor x = batch_of(12, 8, step, "x");
        const Tensor loss = mean(square(net(slice_of(x, *group)))), expected_loss = mean(square(reference(x)));
        backward(loss);
        backward(expected_loss);
        expected.step_and_clear();
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        for (const nn::Parameter* p : net.parameters()) EXPECT_FALSE(p->grad().defined()) << p->name();
        expect_same_values(net, reference, 1e-5);
      }
      for (const nn::UnitHandle& unit : nn::units(net)) EXPECT_EQ(unit.late_gathers(), 0) << unit.name();
    });
}

TEST(FullyShard, F197_AStepWhileParametersAreGatheredUpdatesTheShards) {
  run_ranks(2, [](const Group& group) {
    Net net({6, 10, 5}), reference({6, 10, 5});
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    nn::AdamW optimizer(net.parameters(), {.lr = 0.1}), expected(reference.parameters(), {.lr = 0.1});
    const Tensor x = batch_of(12, 6, 0, "x"), y = batch_of(12, 5, 0, "y");
    backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
    backward(mean_square(reference(x), y));
    nn::unit_of(net).unshard();
    const Tensor gathered = net.head.weight.value();
    EXPECT_FALSE(gathered.is_distributed());
    EXPECT_TRUE(net.head.weight.sharded_value().is_distributed());
    optimizer.step_and_clear();
    expected.step_and_clear();
    EXPECT_TRUE(net.head.weight.value().is_distributed()) << "what was gathered is of the old weights";
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    expect_same_values(net, reference);
    const GradMode off(false);
    EXPECT_TRUE(near(net(x), reference(x), 1e-5));
  });
}

// ---- F198: an exception that the model handles ----

struct Picky : nn::Layer<Picky> {
  nn::Linear& inner;
  Picky() : inner(add<nn::Linear>("inner", 6, 6)) {}
  Tensor forward(const Tensor& x) {
    const Tensor y = inner(x);
    check(x.size(0) > 1, "one row is not enough");
    return y;
  }
};

struct Patient : nn::Layer<Patient> {
  Picky &first, &second;
  Patient() : first(add<Picky>("first")), second(add<Picky>("second")) {}
  Tensor forward(const Tensor& x) {
    try {
      return first(x);
    } catch (const Error&) { return second(cat({x, x}, 0)); }
  }
};

TEST(FullyShard, F198_AnErrorThatTheModelHandlesEndsNothing) {
  run_ranks(2, [](const Group& group) {
    Patient net, reference;
    const DeviceMesh mesh(group);
    for (nn::Module* m : {&net.first, &net.second}) nn::fully_shard(*m, mesh);
    nn::fully_shard(net, mesh);
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    for (const std::int64_t rows : {1, 2, 1}) {
      const Tensor x = batch_of(rows, 6, 0, "x");
      const Tensor y = net(x), expected = reference(x);
      EXPECT_TRUE(near(y, expected, 1e-5));
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      backward(sum(y));
      backward(sum(expected));
      const nn::Linear &used = rows == 1 ? net.second.inner : net.first.inner,
                       &same = rows == 1 ? reference.second.inner : reference.first.inner;
      EXPECT_TRUE(near(whole(used.weight.grad()), same.weight.grad(), 1e-5));
    }
    // One that leaves the model still ends the step, for all ranks.
    expect_error([&] { net(batch_of(0, 6, 0, "x")); }, {"one row"});
    expect_error([&] { net(batch_of(2, 6, 0, "x")); }, {"aborted the group", "one row"});
    nn::reset_after_error(net);
    net(batch_of(2, 6, 0, "x"));
  });
}

// ---- F199: a weight that is used once more without a gradient ----

/// W (stop(W) x): when the gradient of W is complete, backward has yet to multiply by it.
struct Twice : nn::Layer<Twice> {
  nn::Parameter& weight;
  explicit Twice(std::int64_t width) : weight(add_parameter("weight", {width, width}, nn::Init::normal(0.3))) {}
  Tensor forward(const Tensor& x) { return linear(relu(linear(x, weight.value().detach())), weight); }
};

struct TwiceNet : nn::Layer<TwiceNet> {
  nn::Linear& stem;
  nn::ModuleList<Twice>& blocks;
  TwiceNet() : stem(add<nn::Linear>("stem", 8, 8)), blocks(add<nn::ModuleList<Twice>>("blocks")) {
    for (int i = 0; i < 3; ++i) blocks.append(8);
  }
  Tensor forward(const Tensor& input) {
    Tensor x = stem(input);
    for (Twice* block : blocks.items()) x = (*block)(x);
    return x;
  }
};

TEST(FullyShard, F199_AWeightUsedBehindDetachStaysUntilItsBackwardIsOver) {
  run_ranks(2, [](const Group& group) {
    TwiceNet net, reference;
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    for (int step = 0; step < 2; ++step) {
      const Tensor x = batch_of(4, 8, 0, "x");
      EXPECT_EQ(gathers_of(group, [&] { backward(sum(net(x))); }), 7);
      backward(sum(reference(x)));
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    }
    expect_same_gradients(net, reference);
    for (const nn::UnitHandle& unit : nn::units(net)) EXPECT_EQ(unit.late_gathers(), 0) << unit.name();
  });
}

// ---- F203: modules that are destroyed and replaced ----

/// Calls a block that is not of its tree, and may be another one in every step.
struct Replacing : nn::Layer<Replacing> {
  Block &first, &last;
  std::unique_ptr<Block> between = std::make_unique<Block>(6, 6);
  Replacing() : first(add<Block>("first", 6, 6)), last(add<Block>("last", 6, 6)) {}
  Tensor forward(const Tensor& x) { return last((*between)(first(x))); }
};

TEST(FullyShard, F203_AModuleThatIsReplacedIsForgotten) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    Replacing net;
    // The first block's unit holds one that comes and goes, and prefetches another.
    std::unique_ptr<Block> beside = std::make_unique<Block>(6, 6);
    const nn::UnitHandle shared = nn::fully_shard(std::vector<nn::Module*>{&net.first, beside.get()}, mesh);
    nn::UnitHandle between = nn::fully_shard(*net.between, mesh);
    nn::fully_shard(net.last, mesh);
    nn::fully_shard(net, mesh);
    for (nn::Module* m : {static_cast<nn::Module*>(&net), static_cast<nn::Module*>(beside.get()),
                          static_cast<nn::Module*>(net.between.get())})
      m->materialize(nn::Seed{3});
    shared.set_forward_prefetch({between});
    shared.set_backward_prefetch({between});
    const auto step = [&](std::uint64_t index) {
      for (nn::Parameter* p : net.parameters()) p->clear_grad();
      backward(sum(net(batch_of(4, 6, index, "x"))));
      RankContext::current().drain_queues();
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    };
    step(0);
    beside.reset();
    EXPECT_EQ(shared.parameters().size(), 2u);
    step(1);
    net.between.reset();
    EXPECT_FALSE(between.is_alive());
    expect_error([&] { between.unshard(); }, {"unit \"(model)\"", "were destroyed"});
    net.between = std::make_unique<Block>(6, 6);
    between = nn::fully_shard(*net.between, mesh);
    net.between->materialize(nn::Seed{3});
    step(2);
    Block reference(6, 6);
    reference.materialize(nn::Seed{3});
    EXPECT_TRUE(same_bits(whole(net.between->linear_layer.weight.value()), reference.linear_layer.weight.value()));
    EXPECT_TRUE(net.between->linear_layer.weight.grad().defined());
  });
}

// What they are to wait for is in flight when the model goes, which waits for it; they keep no memory.
TEST(FullyShard, F203_HandlesOutliveTheirModules) {
  run_ranks(2, [](const Group& group) {
    group->host().shape_link({.bytes_per_second = 1e9, .seconds = 2e-3});
    const Accounting& memory = RankContext::current().allocator().accounting();
    const std::int64_t before = memory.total();
    auto net = std::make_unique<Net>(kTwoBlocks);
    shard(*net, DeviceMesh(group));  // the only handles of the mesh: the last one waits for work in flight
    net->materialize(nn::Seed{3});
    nn::units(*net).set_requires_gradient_sync(false);
    backward(sum((*net)(batch_of(2, 6, 0, "x"))));
    nn::units(*net).set_requires_gradient_sync(true);
    const nn::Units reduced = nn::finalize_backward(*net);
    const nn::UnshardHandle gather = nn::unit_of(*net).unshard_async();
    const nn::UnitHandle unit = nn::unit_of(*net);
    net.reset();
    EXPECT_EQ(memory.total(), before);
    reduced.wait();
    gather.wait();
    expect_error([&] { unit.unshard_async(); }, {"were destroyed"});
  });
}

TEST(FullyShard, F203_EveryCallOfAHandleSaysThatItsModulesAreGone) {
  run_ranks(2, [](const Group& group) {
    auto gone = std::make_unique<Net>(kTwoBlocks);
    shard(*gone, DeviceMesh(group));
    const nn::UnitHandle unit = nn::unit_of(*gone);
    gone->materialize(nn::Seed{3});
    backward(sum((*gone)(batch_of(2, 6, 0, "x"))));
    Net stays(kTwoBlocks);
    shard(stays, DeviceMesh(group));
    stays.materialize(nn::Seed{3});
    nn::unit_of(stays).set_forward_prefetch({unit});
    nn::unit_of(stays).set_backward_prefetch({unit});
    gone.reset();
    EXPECT_FALSE(unit.is_alive());
    const std::vector<std::function<void()>> calls = {[&] { unit.name(); },
                                                      [&] { unit.has_parameters(); },
                                                      [&] { unit.parameters(); },
                                                      [&] { unit.parts(); },
                                                      [&] { unit.layout(); },
                                                      [&] { unit.gathered_bytes(); },
                                                      [&] { unit.is_unsharded(); },
                                                      [&] { unit.is_gathered(); },
                                                      [&] { unit.reshards_after_forward(); },
                                                      [&] { unit.order_in_forward(); },
                                                      [&] { unit.late_gathers(); },
                                                      [&] { unit.unshard(); },
                                                      [&] { unit.unshard_async(); },
                                                      [&] { unit.reshard(); },
                                                      [&] { unit.set_gradient_divide_factor(2); },
                                                      [&] { unit.set_requires_all_reduce(false); },
                                                      [&] { unit.set_requires_gradient_sync(false); },
                                                      [&] { unit.set_reshard_after_forward(2); },
                                                      [&] { unit.set_reduce_unused(true); },
                                                      [&] { unit.set_reshard_after_backward(false); },
                                                      [&] { unit.set_keep_unsharded_storage(true); },
                                                      [&] { unit.set_max_reductions(2); },
                                                      [&] { unit.set_forward_prefetch({}); },
                                                      [&] { unit.set_backward_prefetch({}); },
                                                      [&] { unit.set_custom_gather(nullptr); },
                                                      [&] { unit.set_gather_transform({}); },
                                                      [&] { unit.set_custom_reduce({}); },
                                                      [&] { unit.set_all_reduce_hook({}); }};
    for (const auto& call : calls)
      expect_error(call, {"the modules of the fully_shard unit \"(model)\" were destroyed", "unit_of()"});
    for (int step = 0; step < 2; ++step) backward(sum(stays(batch_of(2, 6, 0, "x"))));
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

// The unit goes with the last of its modules.
TEST(FullyShard, F203_AHandleWaitsForTheModulesThatAreLeft) {
  run_ranks(2, [](const Group& group) {
    Block stays(6, 6);
    auto goes = std::make_unique<Block>(6, 6);
    const nn::UnitHandle unit = nn::fully_shard(std::vector<nn::Module*>{&stays, goes.get()}, DeviceMesh(group));
    stays.materialize(nn::Seed{3});
    goes->materialize(nn::Seed{3});
    const Tensor expected = whole(stays.linear_layer.weight.value());
    const nn::UnshardHandle gather = unit.unshard_async();
    goes.reset();
    gather.wait();
    EXPECT_TRUE(same_bits(stays.linear_layer.weight.value().detach(), expected.detach()));
    unit.reshard();
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

// ---- F14: modules that are wrapped after the first forward ----

/// x W^T with the weight of another module.
struct Tied : nn::Layer<Tied> {
  nn::Parameter& weight;
  explicit Tied(nn::Parameter& other) : weight(share_parameter("weight", other)) {}
  Tensor forward(const Tensor& x) { return linear(x, weight); }
};

/// Two layers with one weight.
struct TiedPair : nn::Layer<TiedPair> {
  nn::Linear& first;
  Tied& second;
  TiedPair()
      : first(add<nn::Linear>("first", 6, 6, nn::Linear::Options{.bias = false})),
        second(add<Tied>("second", first.weight)) {}
  Tensor forward(const Tensor& x) { return second(relu(first(x))); }
};

/// A layer, and another with the weight of a module elsewhere, from when it is told which.
struct Learner : nn::Layer<Learner> {
  nn::Linear& own;
  nn::Parameter* other = nullptr;
  Learner() : own(add<nn::Linear>("own", 6, 6)) {}
  void use(nn::Parameter& weight) { other = &share_parameter("other", weight); }
  Tensor forward(const Tensor& x) {
    const Tensor y = relu(own(x));
    return other ? linear(y, *other) : y;
  }
};

/// Learners run before pairs.
struct Growing : nn::Layer<Growing> {
  nn::ModuleList<Learner>& learners;
  nn::ModuleList<TiedPair>& pairs;
  nn::Linear& head;
  Growing()
      : learners(add<nn::ModuleList<Learner>>("learners")),
        pairs(add<nn::ModuleList<TiedPair>>("pairs")),
        head(add<nn::Linear>("head", 6, 6)) {
    learners.append();
  }
  Tensor forward(Tensor x) {
    for (Learner* learner : learners.items()) x = (*learner)(x);
    for (TiedPair* pair : pairs.items()) x = (*pair)(x);
    return head(x);
  }
  /// Stage 0 adds a pair, 1 one that the first learner uses, 2 one that a learner of its own uses.
  void grow(int stage) {
    if (stage == 2) learners.append();
    TiedPair& pair = pairs.append();
    if (stage > 0) learners.items().back()->use(pair.first.weight);
  }
};

TEST(FullyShard, F14_ModulesThatAreWrappedLaterShareWeightsWithOthers) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      Growing net, reference;
      nn::fully_shard(*net.learners.items()[0], mesh);
      nn::fully_shard(net, mesh);
      const auto train = [&] {
        for (Growing* model : {&net, &reference}) model->materialize(nn::Seed{3});
        expect_trains_alike(on_slices(net, *group, 6, 6), on_batches(reference, 6, 6), {.steps = 2});
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      };
      train();
      for (const int stage : {0, 1, 2}) {
        SCOPED_TRACE(stage);
        for (Growing* model : {&net, &reference}) model->grow(stage);
        TiedPair& pair = *net.pairs.items().back();
        if (stage == 0) nn::fully_shard(pair.first, mesh);  // whose weight `second` uses
        nn::fully_shard(pair, mesh);
        if (stage == 2) nn::fully_shard(*net.learners.items().back(), mesh);
        train();
      }
    });
}

}  // namespace
}  // namespace sherd::testing
