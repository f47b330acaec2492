// Gathered parameters that somebody keeps for longer than their unit does: a kernel that is given one reads nothing
// that is not there, and says which unit's it was; and a model that is gone before the backward pass of its result has
// run gathers for it all the same. Oracles: the message, and the same model kept alive.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "nn/offload_activations.h"
#include "nn/optim/sgd.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/recompute.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/strategy_cases.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// A linear that leaves its gathered weight to whoever asks.
struct LeavesWeight : nn::Layer<LeavesWeight> {
  nn::Linear& inner;
  Tensor kept;
  LeavesWeight(std::int64_t in, std::int64_t out) : inner(add<nn::Linear>("inner", in, out)) {}
  Tensor forward(const Tensor& x) {
    kept = inner.weight.value().detach();
    return inner(x);
  }
};

struct LeakyNet : nn::Layer<LeakyNet> {
  nn::ModuleList<LeavesWeight>& blocks;
  explicit LeakyNet(int count) : blocks(add<nn::ModuleList<LeavesWeight>>("blocks")) {
    for (int i = 0; i < count; ++i) blocks.append(8, 8);
  }
  Tensor forward(Tensor x) {
    for (LeavesWeight* block : blocks.items()) x = (*block)(x);
    return x;
  }
};

std::vector<StrategyCase> cases_on(int ranks) {
  std::vector<StrategyCase> cases = strategy_cases();
  std::erase_if(cases, [&](const StrategyCase& c) { return c.ranks() != ranks; });
  return cases;
}

Tensor input_of(const StrategyCase& c) {
  const Tensor x = batch_of(4, 8, 1, "x");
  return c.bf16 ? cast(x, DType::bf16) : x;
}

// Each is a kernel of another kind: pointwise, product, view and copy, in place, reduction, collective.
void expect_refused(const Tensor& kept, ProcessGroup& group, std::string_view unit) {
  const auto refused = [&](auto&& call) { expect_error(call, {unit, " full, ", "is released", "unshard()"}); };
  const Tensor like = zeros(kept.shape(), kept.dtype());
  refused([&] { kept * 1.0; });
  refused([&] { matmul(like, kept); });
  refused([&] { contiguous(transpose(kept, 0, 1)); });
  refused([&] { copy_into(kept, like); });
  refused([&] { fill_into(kept, 1); });
  refused([&] { copy_into(like, kept); });
  refused([&] { sum(kept); });
  refused([&] { kept.to_vector<float>(); });
  refused([&] { all_reduce(kept, group); });
  refused([&] { kept.data<float>(); });
}

void expect_kept_weights_are_refused(const Group& group, const StrategyCase& c) {
  SCOPED_TRACE(c.text());
  LeakyNet net(2);
  shard(net, c.mesh(group), c.policy(), c.policy());
  net.materialize(nn::Seed{1});
  nn::Sgd optimizer(net.parameters(), {.lr = 0.1});
  const Tensor loss = mean(net(input_of(c)));
  if (c.row->stays == Stays::never) expect_refused(net.blocks.items()[0]->kept, *group, "blocks.0");
  backward(loss);
  if (c.row->stays != Stays::until_update) expect_refused(net.blocks.items()[1]->kept, *group, "blocks.1");
  optimizer.step_and_clear();
  if (c.gathers()) expect_refused(net.blocks.items()[0]->kept, *group, "blocks.0");
  else EXPECT_EQ((net.blocks.items()[0]->kept * 1.0).to_vector<float>().size(), 64u);  // the parameter itself
}

TEST(KeptWeights, AKernelRefusesWhatItsUnitHasReleasedInEveryStrategy) {
  for (const int ranks : {2, 4})
    run_ranks(ranks, [&](const Group& group) {
      for (const StrategyCase& c : cases_on(ranks)) expect_kept_weights_are_refused(group, c);
    });
}

TEST(KeptWeights, AKernelRefusesThemOnProcessesToo) {
  run_processes(2, [](const Group& group) {
    for (const StrategyCase& c : cases_on(2))
      if (!c.bf16) expect_kept_weights_are_refused(group, c);
  });
}

// Slices, storage that is kept, a gather of two halves.
TEST(KeptWeights, AKernelRefusesThemWhateverTheUnitDoesBesides) {
  run_ranks(4, [](const Group& group) {
    for (const bool keeps_storage : {false, true})
      for (const int slices : {0, 2}) {
        LeakyNet net(2);
        nn::UnitPolicy policy;
        if (slices > 0) policy.reshard_after_forward = slices;
        shard(net, DeviceMesh(group), policy, policy);
        nn::units(net).set_keep_unsharded_storage(keeps_storage);
        net.materialize(nn::Seed{1});
        const Tensor loss = mean(net(batch_of(4, 8, 1, "x")));
        expect_refused(net.blocks.items()[0]->kept, *group, "blocks.0");
        const Tensor slice = net.blocks.items()[0]->inner.weight.value().local().detach();
        backward(loss);
        if (slices > 0) expect_error([&] { slice * 1.0; }, {"blocks.0 slices", "is released"});
      }
  });
}

TEST(KeptWeights, AHookInBackwardThatReadsThemEndsTheStepOnAllRanks) {
  run_ranks(2, [](const Group& group) {
    for (const char* const strategy : {"full_shard", "shard_grad_op"}) {
      LeakyNet net(2);
      shard(net, DeviceMesh(group), nn::strategy(strategy), nn::strategy(strategy));
      net.materialize(nn::Seed{1});
      Slot input("input", true);
      input.set(batch_of(4, 8, 1, "x"));
      const Tensor x = input.value() * 1.0;
      register_grad_hook(x, [&](const Tensor& g) { return g + matmul(g, net.blocks.items()[1]->kept); });
      const Tensor loss = mean(net(x));
      expect_error([&] { backward(loss); }, {"blocks.1", " full", "is released"});
      for (nn::Parameter* p : net.parameters()) p->clear_grad();
      nn::reset_after_error(net);
      backward(mean(net(batch_of(4, 8, 1, "x"))));
    }
  });
}

TEST(KeptWeights, ACapturedStepThatReadsThemIsAnErrorInEveryCall) {
  run_ranks(2, [](const Group& group) {
    LeakyNet net(2);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{1});
    auto step = compile([&](const Tensor& x) {
      const Tensor y = net(x);
      return y + matmul(y, net.blocks.items()[0]->kept);
    });
    for (int call = 0; call < 3; ++call) {
      expect_error([&] { step(batch_of(4, 8, 1, "x")); }, {"blocks.0", " full", "is released"});
      nn::reset_after_error(net);
    }
  });
}

// ---- models that are gone before backward ----

struct Around {
  const char* text;
  std::function<void(Net&, const std::string& folder)> set = [](Net&, const std::string&) {};
};

const std::vector<Around>& surroundings() {
  static const std::vector<Around> all = {
      {"nothing"},
      {"recompute", [](Net& net, const std::string&) { nn::recompute_blocks(net); }},
      {"offloaded activations",
       [](Net& net, const std::string& folder) {
         nn::offload_activations(net, {.folder = folder, .bytes_in_flight = 1 << 10, .least_bytes = 1});
       }},
  };
  return all;
}

std::unique_ptr<Net> net_of(const StrategyCase& c, const DeviceMesh& mesh, const Around& around,
                            const std::string& folder) {
  auto net = std::make_unique<Net>(std::vector<std::int64_t>{8, 8, 8, 4});
  around.set(*net, folder);
  shard(*net, mesh, c.policy(), c.policy());
  net->materialize(nn::Seed{5});
  return net;
}

/// The gradient of the model's input, and what is in memory when all of it is over.
Tensor input_gradient(const StrategyCase& c, const Group& group, const Around& around, const std::string& folder,
                      bool drops_model) {
  Slot input("input", true);
  input.set(input_of(c));
  std::unique_ptr<Net> net = net_of(c, c.mesh(group), around, folder);
  {
    Tensor loss = mean(cast((*net)(input.value()), DType::f32));
    if (drops_model) net.reset();
    backward(loss);
  }
  if (drops_model) {
    EXPECT_EQ(held(MemoryCategory::unsharded), 0) << "what backward gathered is freed with its last reader";
    EXPECT_EQ(held(MemoryCategory::parameters), 0);
  }
  return input.grad();
}

void expect_backward_without_model(const Group& group, const StrategyCase& c) {
  const TempDir folder;
  for (const Around& around : surroundings()) {
    SCOPED_TRACE(fmt::format("{} with {}", c.text(), around.text));
    const Tensor expected = input_gradient(c, group, around, folder.path(), false);
    EXPECT_TRUE(same_bits(input_gradient(c, group, around, folder.path(), true), expected));
  }
}

TEST(KeptWeights, BackwardOfAModelThatIsGoneGathersForItInEveryStrategy) {
  for (const int ranks : {2, 4})
    run_ranks(ranks, [&](const Group& group) {
      for (const StrategyCase& c : cases_on(ranks)) expect_backward_without_model(group, c);
    });
  run_ranks(1, [&](const Group& group) {
    for (const StrategyRow& row : kStrategyRows)
      for (const bool bf16 : {false, true})
        if (!nn::strategy(row.name).needs_replicas) expect_backward_without_model(group, {&row, 1, 1, bf16});
  });
}

/// What a unit does besides; each leaves something else behind that backward needs.
struct Besides {
  const char* text;
  std::function<void(nn::UnitPolicy&, const std::string& folder)> policy = [](nn::UnitPolicy&, const std::string&) {};
  std::function<void(Net&)> set = [](Net&) {};
};

TEST(KeptWeights, BackwardOfAModelThatIsGoneGathersWhateverItsUnitsDoBesides) {
  const std::vector<Besides> all = {
      {"slices", [](nn::UnitPolicy& p, const std::string&) { p.reshard_after_forward = 2; }},
      {"offloaded shards", [](nn::UnitPolicy& p, const std::string& folder) { p.offload = {.folder = folder}; }},
      {"no prefetch", [](nn::UnitPolicy& p, const std::string&) { p.prefetch = false; }},
      {.text = "kept memory", .set = [](Net& net) { nn::units(net).set_keep_unsharded_storage(true); }},
      {.text = "8 bits",
       .set =
           [](Net& net) {
             for (const nn::UnitHandle& unit : nn::units(net)) unit.set_gather_transform(nn::int8_gather());
           }},
  };
  run_ranks(4, [&](const Group& group) {
    const TempDir folder;
    for (const Besides& besides : all) {
      SCOPED_TRACE(besides.text);
      Tensor gradients[2];
      for (const bool drops_model : {false, true}) {
        Slot input("input", true);
        input.set(batch_of(4, 8, 1, "x"));
        auto net = std::make_unique<Net>(std::vector<std::int64_t>{8, 8, 8, 4});
        nn::UnitPolicy policy;
        besides.policy(policy, folder.path());
        shard(*net, DeviceMesh(group), policy, policy);
        besides.set(*net);
        net->materialize(nn::Seed{5});
        Tensor loss = mean((*net)(input.value()));
        if (drops_model) net.reset();
        backward(loss);
        loss = Tensor();
        EXPECT_EQ(drops_model ? held(MemoryCategory::unsharded) + held(MemoryCategory::parameters) : 0, 0);
        gradients[drops_model] = input.grad();
      }
      EXPECT_TRUE(same_bits(gradients[1], gradients[0]));
    }
  });
}

// What is between forward and backward is read by the loss itself, and nothing that was gathered is.
TEST(KeptWeights, BackwardReadsSlicesOfAModelThatIsGone) {
  run_ranks(4, [](const Group& group) {
    auto net = std::make_unique<Net>(std::vector<std::int64_t>{8, 8, 8, 4});
    nn::UnitPolicy policy;
    policy.reshard_after_forward = 2;
    shard(*net, DeviceMesh(group), policy, policy);
    net->materialize(nn::Seed{5});
    (*net)(batch_of(4, 8, 1, "x"));
    Slot scale("scale", true);
    scale.set(ones({}));
    Tensor loss;
    double expected = 0;
    {
      const Tensor slice = net->parameters()[0]->value().local().detach();
      EXPECT_EQ(slice.numel(), net->parameters()[0]->numel() / 2);
      expected = sum(slice).item<double>();
      loss = sum(slice * scale.value());
    }
    net.reset();
    backward(loss);
    EXPECT_NEAR(scale.grad().item<double>(), expected, 1e-5);
    loss = Tensor();
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

TEST(KeptWeights, BackwardOfAModelThatIsGoneGathersBesideTensorParallelism) {
  run_ranks(4, [&](const Group& group) {
    const DeviceMesh root(group, {{"replicate", 1}, {"dp", 2}, {"tp", 2}});
    for (const bool sequence : {false, true}) {
      Tensor gradients[2];
      for (const bool drops_model : {false, true}) {
        Slot input("input", true);
        input.set(random_normal({2, 4, 3}, 5));
        auto net = std::make_unique<ResidualNet>(6, 8);
        shard_2d(*net, root, {1, 2, 2}, sequence);
        net->materialize(nn::Seed{5});
        Tensor loss = mean((*net)(input.value()));
        if (drops_model) net.reset();
        backward(loss);
        gradients[drops_model] = input.grad();
      }
      EXPECT_TRUE(same_bits(gradients[1], gradients[0]));
    }
  });
}

TEST(KeptWeights, BackwardOfAModelThatIsGoneWithItsMeshHasIt) {
  run_ranks(4, [&](const Group& group) {
    auto root =
        std::make_unique<DeviceMesh>(group, std::vector<DeviceMesh::Axis>{{"replicate", 1}, {"dp", 2}, {"tp", 2}});
    auto net = std::make_unique<ResidualNet>(6, 8);
    shard_2d(*net, *root, {1, 2, 2}, true);
    net->materialize(nn::Seed{5});
    Slot input("input", true);
    input.set(random_normal({2, 4, 3}, 5));
    const Tensor loss = mean((*net)(input.value()));
    RankContext::current().drain_queues();
    net.reset();
    root.reset();
    backward(loss);
    EXPECT_TRUE(input.grad().defined());
  });
}

// A layout is no handle on its mesh (dtensor/spec.h). Where nobody keeps that, backward says so.
TEST(KeptWeights, BackwardOfTensorParallelismAloneNeedsItsMesh) {
  run_ranks(2, [&](const Group& group) {
    auto root = std::make_unique<DeviceMesh>(group, std::vector<DeviceMesh::Axis>{{"dp", 1}, {"tp", 2}});
    auto net = std::make_unique<ResidualNet>(6, 8);
    nn::parallelize(*net, (*root)["tp"], plan_of(true));
    net->materialize(nn::Seed{5});
    Slot input("input", true);
    input.set(random_normal({2, 4, 3}, 5));
    const Tensor loss = mean((*net)(input.value()));
    RankContext::current().drain_queues();
    net.reset();
    root.reset();
    expect_error([&] { backward(loss); }, {"the mesh of a tensor", "is gone", "keep the DeviceMesh alive"});
  });
}

// The graph is kept, read twice, and dropped unread.
TEST(KeptWeights, TheTapeKeepsAUnitForAsLongAsItself) {
  run_ranks(2, [](const Group& group) {
    const StrategyCase c{&kStrategyRows[3], 1, 2};
    const auto make = [&] { return net_of(c, c.mesh(group), surroundings()[0], ""); };
    Slot input("input", true);
    input.set(input_of(c));
    std::unique_ptr<Net> net = make();
    Tensor loss = mean((*net)(input.value()));
    net.reset();
    backward(loss, {.retain_graph = true});
    const Tensor once = input.grad() * 2.0;
    backward(loss);
    EXPECT_TRUE(same_bits(input.grad(), once));
    net = make();
    Tensor unread = mean((*net)(input.value()));
    net.reset();
    EXPECT_GT(held(MemoryCategory::parameters), 0) << "its shards";
    unread = Tensor();
    loss = Tensor();
    EXPECT_EQ(held(MemoryCategory::parameters) + held(MemoryCategory::unsharded), 0);
  });
}

// Peers are on their way into a gather that the rank no longer comes to.
TEST(KeptWeights, AnErrorInBackwardOfAModelThatIsGoneReachesItsPeers) {
  run_ranks(2, [](const Group& group) {
    const StrategyCase c{&kStrategyRows[3], 1, 2};
    std::unique_ptr<Net> net = net_of(c, c.mesh(group), surroundings()[0], "");
    Tensor loss = mean((*net)(input_of(c)));
    register_grad_hook(loss, [&](const Tensor& g) {
      check(group->rank() != 1, "this rank stops here");
      return g;
    });
    net.reset();
    expect_error([&] { backward(loss); }, {"this rank stops here"});
    loss = Tensor();
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

}  // namespace
}  // namespace sherd::testing
