// Styles and plans: a module spread over an axis computes what one rank does, with the communication that its plan
// says and no other.
#include "nn/parallel/tensor_parallel.h"

#include <gtest/gtest.h>

#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"
#include "nn/layers/embedding.h"
#include "nn/layers/mlp.h"
#include "nn/layers/norm.h"
#include "nn/optim/adamw.h"
#include "nn/shardable.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/comm_counter.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using nn::Plan;

Tensor noise(const Shape& shape, std::string_view what) { return random_normal(shape, random_key(3, what, "test")); }

struct Expected {
  std::int64_t all_gather = 0, reduce_scatter = 0, all_reduce = 0;
};
// What has been counted, which is then forgotten.
void expect_counts(CommCounter& counter, const Expected& expected, int ranks, const char* what) {
  const std::int64_t on = ranks > 1;
  EXPECT_EQ(counter.of(comm::CommOp::all_gather).calls, on * expected.all_gather) << what << "\n" << counter.describe();
  EXPECT_EQ(counter.of(comm::CommOp::reduce_scatter).calls, on * expected.reduce_scatter) << what << "\n"
                                                                                          << counter.describe();
  EXPECT_EQ(counter.of(comm::CommOp::all_reduce).calls, on * expected.all_reduce) << what << "\n" << counter.describe();
  EXPECT_EQ(counter.total().calls, on * (expected.all_gather + expected.reduce_scatter + expected.all_reduce)) << what;
  counter.clear();
}

// One forward and one backward of both; `x` is the same on all ranks.
template <class M>
void expect_same_pass(M& spread, M& reference, const Tensor& x, const DeviceMesh& mesh, const Expected& forward,
                      const Expected& backward_counts) {
  const StrictCommunication strict;
  Slot in("x", true), in_reference("x", true);
  in.set(distribute(x, mesh, Replicate(), kOwnData));
  in_reference.set(x);
  CommCounter counter;
  Tensor out = spread(in.value());
  expect_counts(counter, forward, mesh.size(), "forward");
  Tensor expected = reference(in_reference.value());
  EXPECT_TRUE(near(whole(out), expected, 1e-5));
  const Tensor cotangent = noise(expected.shape(), "cotangent");
  const Tensor spread_cotangent = redistribute(distribute(cotangent, mesh, Replicate(), kOwnData), &Spec::from(out));
  counter.clear();
  backward(out, {.grad = spread_cotangent});
  expect_counts(counter, backward_counts, mesh.size(), "backward");
  backward(expected, {.grad = cotangent});
  EXPECT_TRUE(near(whole(in.grad()), in_reference.grad(), 1e-5));
  expect_same_gradients(spread, reference);
}

nn::GeluMlp::Options mlp_sizes(std::int64_t width, std::int64_t hidden, bool bias) {
  nn::GeluMlp::Options o;
  o.width = width;
  o.hidden = hidden;
  o.bias = bias;
  o.init = o.output_init = nn::Init::normal(0.5);
  return o;
}

const Plan kMlpPlan{{"up", nn::colwise()}, {"down", nn::rowwise()}};

TEST(TensorParallel, F151_MlpIsOneAllReduceEachWay) {
  for (int ranks : {1, 2, 3, 4})
    for (const auto& [hidden, bias] : {std::pair(12, true), {7, false}, {5, true}, {3, true}})
      run_ranks(ranks, [&](const Group& group) {
        nn::GeluMlp mlp(mlp_sizes(5, hidden, bias)), reference(mlp_sizes(5, hidden, bias));
        const DeviceMesh mesh(group, "tp");
        nn::parallelize(mlp, mesh, kMlpPlan);
        mlp.materialize(nn::Seed{1});
        reference.materialize(nn::Seed{1});
        expect_same_bits(mlp, reference);
        expect_same_pass(mlp, reference, noise({2, 3, 5}, "x"), mesh, {.all_reduce = 1}, {.all_reduce = 1});
      });
}

// Values that are there are cut; the model need not start on meta.
// A linear layer of the user's own, with its matrix the other way round, and one that says nothing of itself.
struct OwnLinear : nn::Layer<OwnLinear>, nn::Shardable {
  OwnLinear(std::int64_t in, std::int64_t out)
      : kernel(add_parameter("kernel", {in, out}, nn::Init::normal(1))),
        shift(add_parameter("shift", {out}, nn::Init::normal(1))) {}
  Tensor forward(const Tensor& x) { return linear(x, transpose(kernel, 0, 1), shift); }
  Roles roles() const override { return {.out = {{"kernel", 1}, {"shift", 0}}, .in = {{"kernel", 0}}}; }
  nn::Parameter &kernel, &shift;
};
struct SilentLinear : nn::Layer<SilentLinear> {
  nn::Parameter& kernel = add_parameter("kernel", {4, 4}, nn::Init::normal(1));
  Tensor forward(const Tensor& x) { return matmul(x, kernel); }
};
struct WrongLinear : SilentLinear, nn::Shardable {
  Roles roles() const override { return {.out = {{"kernels", 1}}, .in = {{"kernels", 0}}}; }
};
struct OwnMlp : nn::Layer<OwnMlp> {
  OwnLinear &up = add<OwnLinear>("up", 6, 12), &down = add<OwnLinear>("down", 12, 6);
  Tensor forward(const Tensor& x) { return down(gelu(up(x))); }
};

TEST(TensorParallel, ALayerOfTheUsersOwnSaysWhatMayBeSharded) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group, "tp");
      OwnMlp spread, reference;
      nn::parallelize(spread, mesh, {{"up", nn::colwise()}, {"down", nn::rowwise()}});
      spread.materialize(nn::Seed{5});
      reference.materialize(nn::Seed{5});
      EXPECT_EQ(describe(spread.up.kernel.value()), describe(distribute(noise({6, 12}, "x"), mesh, Shard(1))));
      EXPECT_EQ(describe(spread.up.shift.value()), describe(distribute(noise({12}, "x"), mesh, Shard(0))));
      EXPECT_EQ(describe(spread.down.kernel.value()), describe(distribute(noise({12, 6}, "x"), mesh, Shard(0))));
      expect_same_pass(spread, reference, noise({4, 6}, "x"), mesh, {.all_reduce = 1}, {.all_reduce = 1});
      SilentLinear silent;
      expect_error([&] { nn::parallelize(silent, mesh, {{"", nn::colwise()}}); }, {"is neither", "nn::Shardable"});
      WrongLinear wrong;
      expect_error([&] { nn::parallelize(wrong, mesh, {{"", nn::rowwise()}}); }, {"roles() name", "\"kernel\""});
    });
}

TEST(TensorParallel, F151_ParametersWithValuesKeepThem) {
  run_ranks(2, [](const Group& group) {
    nn::GeluMlp mlp(mlp_sizes(4, 6, true)), reference(mlp_sizes(4, 6, true));
    mlp.materialize(nn::Seed{1});
    reference.materialize(nn::Seed{1});
    const DeviceMesh mesh(group, "tp");
    const Accounting& memory = RankContext::current().allocator().accounting();
    const std::int64_t before = memory.current(MemoryCategory::parameters);
    nn::parallelize(mlp, mesh, kMlpPlan);
    std::int64_t parts = 0;
    for (const nn::Parameter* p : mlp.parameters()) parts += p->value().local().bytes();
    EXPECT_EQ(memory.current(MemoryCategory::parameters), before - 4 * reference.num_parameters() + parts)
        << "whole values are not kept beside their parts";
    EXPECT_EQ(describe(mlp.up.weight.value()), "f32[6,4]{0: tp}");
    EXPECT_EQ(describe(mlp.up.bias->value()), "f32[6]{0: tp}");
    EXPECT_EQ(describe(mlp.down.weight.value()), "f32[4,6]{1: tp}");
    EXPECT_EQ(describe(mlp.down.bias->value()), "f32[4]{}");
    EXPECT_EQ(mlp.down.weight.value().local().bytes(), 4 * 3 * 4);
    mlp.materialize(nn::Seed{2});  // changes nothing
    expect_same_bits(mlp, reference);
  });
}

// A plain input is taken for what the style says; its gradient is whole on every rank.
TEST(TensorParallel, F151_PlainInputsAndMicroBatches) {
  run_ranks(2, [](const Group& group) {
    nn::GeluMlp mlp(mlp_sizes(4, 6, true)), reference(mlp_sizes(4, 6, true));
    const DeviceMesh mesh(group, "tp");
    nn::parallelize(mlp, mesh, kMlpPlan);
    mlp.materialize();
    reference.materialize();
    Slot in("x", true), in_reference("x", true);
    for (Slot* slot : {&in, &in_reference}) slot->set(noise({2, 3, 4}, "x"));
    for (int micro = 0; micro < 3; ++micro) {
      const Tensor out = mlp(in.value()), expected = reference(in_reference.value());
      const Tensor cotangent = noise(expected.shape(), fmt::format("g{}", micro));
      backward(out, {.grad = distribute(cotangent, mesh, Replicate(), kOwnData)});
      backward(expected, {.grad = cotangent});
    }
    EXPECT_FALSE(in.grad().is_distributed());
    EXPECT_TRUE(near(in.grad(), in_reference.grad(), 1e-5));
    expect_same_gradients(mlp, reference);
  });
}

struct NormedMlp : nn::Layer<NormedMlp> {
  nn::LayerNorm& norm;
  nn::GeluMlp& mlp;
  NormedMlp() : norm(add<nn::LayerNorm>("norm", 6)), mlp(add<nn::GeluMlp>("mlp", mlp_sizes(6, 8, true))) {}
  Tensor forward(const Tensor& x) { return mlp(norm(x)); }
};

// T = 4 on 3 ranks is uneven, on 3 ranks of 2 tokens one rank holds none.
TEST(TensorParallel, F152_SequenceParallelGathersAndScatters) {
  for (int ranks : {1, 2, 3})
    for (std::int64_t tokens : {4, 2})
      run_ranks(ranks, [&](const Group& group) {
        NormedMlp net, reference;
        const DeviceMesh mesh(group, "tp");
        nn::parallelize(net, mesh,
                        {{"norm", nn::sequence_parallel()},
                         {"mlp.up", nn::colwise()},
                         {"mlp.down", nn::rowwise({.output = Shard(1)})},
                         {"", nn::prepare_input({.to = Shard(1)})}});
        net.materialize(nn::Seed{1});
        reference.materialize(nn::Seed{1});
        // Backward also gathers the input's gradient, and sums those of the norm in one launch.
        expect_same_pass(net, reference, noise({2, tokens, 6}, "x"), mesh, {.all_gather = 1, .reduce_scatter = 1},
                         {.all_gather = 2, .reduce_scatter = 1, .all_reduce = 1});
      });
}

Tensor ids_of(const Shape& shape, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * 7 + 3) % static_cast<std::size_t>(vocabulary));
  return Tensor::from<std::int32_t>(ids, shape);
}

TEST(TensorParallel, F153_EmbeddingsCutByRowsOrColumns) {
  for (int ranks : {1, 2, 3, 4})
    for (bool rows : {true, false})
      run_ranks(ranks, [&](const Group& group) {
        constexpr std::int64_t kVocabulary = 7, kWidth = 5;  // uneven on any number of ranks
        nn::Embedding embedding(kVocabulary, kWidth), reference(kVocabulary, kWidth);
        const DeviceMesh mesh(group, "tp");
        nn::parallelize(embedding, mesh, {{"", rows ? nn::rowwise() : nn::colwise()}});
        EXPECT_EQ(describe(embedding.weight.value()), rows ? "f32[7,5]{0: tp}" : "f32[7,5]{1: tp}");
        embedding.materialize(nn::Seed{5});
        reference.materialize(nn::Seed{5});
        const StrictCommunication strict;
        const Tensor ids = ids_of({2, 6}, kVocabulary);
        CommCounter counter;
        const Tensor out = embedding(ids), expected = reference(ids);
        expect_counts(counter, {.all_reduce = rows}, ranks, "forward");
        EXPECT_EQ(Spec::from(out).placement(0), rows ? Replicate() : Shard(2));
        EXPECT_TRUE(same_bits(whole(out), expected));
        const Tensor cotangent = noise(expected.shape(), "g");
        const Tensor spread = distribute(cotangent, mesh, Spec::from(out).placement(0), kOwnData);
        counter.clear();
        backward(out, {.grad = spread});
        expect_counts(counter, {}, ranks, "backward");
        backward(expected, {.grad = cotangent});
        expect_same_gradients(embedding, reference);
      });
}

struct Tower : nn::Layer<Tower> {
  nn::ModuleList<Block>& blocks;
  nn::RmsNorm& norm;
  Tower() : blocks(add<nn::ModuleList<Block>>("blocks")), norm(add<nn::RmsNorm>("norm", 4)) {
    for (int i = 0; i < 12; ++i) blocks.append(4, 4);
  }
  Tensor forward(Tensor x) {
    for (Block* block : blocks.items()) x = (*block)(x);
    return norm(x);
  }
};

TEST(TensorParallel, F154_WildcardsMatchPartByPart) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    const auto cut_with = [&](const std::string& pattern) {
      Tower tower;
      nn::parallelize(tower, mesh, {{pattern, nn::colwise()}});
      std::vector<std::string> cut;
      for (const nn::Parameter* p : tower.parameters()) {
        EXPECT_TRUE(p->value().is_distributed()) << p->name();
        if (p->name().ends_with("weight") && Spec::from(p->value()).placement(0).is_shard(0)) cut.push_back(p->name());
      }
      return cut;
    };
    const auto name = [](int i) { return fmt::format("blocks.{}.linear.weight", i); };
    EXPECT_EQ(cut_with("blocks.*.linear").size(), 12u);
    EXPECT_EQ(cut_with("blocks.1?.linear"), (std::vector{name(10), name(11)}));
    EXPECT_EQ(cut_with("blocks.[02].*"), (std::vector{name(0), name(2)}));
    EXPECT_EQ(cut_with("*.3.l*r"), (std::vector{name(3)}));
  });
}

TEST(TensorParallel, F154_PlansThatDoNotFitAreRefusedAndChangeNothing) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    Tower tower;
    const auto refused = [&](const Plan& plan, std::initializer_list<std::string_view> parts) {
      expect_error([&] { nn::parallelize(tower, mesh, plan); }, parts);
      EXPECT_FALSE(nn::is_parallelized(tower));
      for (const nn::Parameter* p : tower.parameters()) EXPECT_FALSE(p->value().is_distributed()) << p->name();
    };
    refused({{"blocks.*.liner", nn::colwise()}}, {"\"blocks.*.liner\"", "colwise", "matches no module", "linear"});
    refused({{"blocks.*", nn::rowwise()}}, {"rowwise", "Linear and Embedding", "\"blocks.0\""});
    refused({{"norm", nn::colwise()}}, {"colwise", "\"norm\""});
    refused({{"blocks.0.linear", nn::colwise()}, {"blocks.*.linear", nn::rowwise()}},
            {"\"blocks.0.linear.weight\"", "S0", "colwise", "S1", "rowwise"});
    const auto custom = [](const char* parameter, Placement placement) {
      return Plan{{"norm", {.name = "mine", .any = nn::Style::Layout{.parameters = {{parameter, placement}}}}}};
    };
    refused(custom("gain", Shard(0)), {"mine", "\"norm\"", "\"gain\"", "does not have", "it has \"weight\""});
    refused(custom("weight", Shard(1)), {"\"norm.weight\"", "[4]", "no dim 1"});
    refused(custom("weight", Partial()), {"\"norm.weight\"", "cannot be Partial"});
    nn::parallelize(tower, mesh, {});
    EXPECT_TRUE(nn::is_parallelized(*tower.blocks.items()[3]));
    expect_error([&] { nn::parallelize(tower, mesh, {}); }, {"(model)", "parallelized already"});
    expect_error([&] { nn::parallelize(tower.norm, mesh, {}); }, {"\"norm\"", "parallelized already"});

    Tower sharded;
    nn::fully_shard(sharded, mesh);
    expect_error([&] { nn::parallelize(sharded, DeviceMesh(group, "other"), {}); },
                 {"blocks.0.linear.weight", "comes before fully_shard"});
  });
  run_ranks(4, [](const Group& group) {
    Tower tower;
    expect_error([&] { nn::parallelize(tower, DeviceMesh(group, {{"dp", 2}, {"tp", 2}}), {}); },
                 {"one mesh axis", "mesh(dp=2,tp=2)", "mesh[\"tp\"]"});
  });
}

// Block by block, then the rest: the call above leaves alone what inner calls have taken.
TEST(TensorParallel, F154_InnerModulesFirst) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    Tower tower, reference;
    for (Block* block : tower.blocks.items())
      nn::parallelize(*block, mesh, {{"linear", nn::colwise({.output = Replicate()})}});
    nn::parallelize(tower, mesh, {{"", nn::prepare_input({.from = Replicate()})}});
    EXPECT_EQ(describe(tower.parameter("blocks.7.linear.weight").value()), "f32[4,4]{0: tp}");
    EXPECT_EQ(describe(tower.norm.weight.value()), "f32[4]{}");
    tower.materialize();
    reference.materialize();
    const Tensor x = noise({3, 4}, "x");
    EXPECT_TRUE(near(whole(tower(x)), reference(x)));
    expect_error([&] { nn::parallelize(tower.blocks, mesh, {}); }, {"parallelized already"});
  });
}

struct TiedNet : nn::Layer<TiedNet> {
  nn::Embedding& in;
  struct Head : nn::Layer<Head> {
    nn::Parameter& weight;
    explicit Head(nn::Parameter& tied) : weight(share_parameter("weight", tied)) {}
    Tensor forward(const Tensor& x) { return linear(x, weight); }
  };
  Head& head;
  TiedNet() : in(add<nn::Embedding>("in", 6, 4)), head(add<Head>("head", in.weight)) {}
  Tensor forward(const Tensor& ids) { return head(in(ids)); }
};
nn::Style head_cut(Placement weight) {
  return {.name = "cut", .any = nn::Style::Layout{.parameters = {{"weight", weight}}, .inputs = Replicate()}};
}

TEST(TensorParallel, F154_TiedParametersAreCutOnce) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    TiedNet tied, reference;
    expect_error([&] { nn::parallelize(tied, mesh, {{"in", nn::rowwise()}, {"head", head_cut(Shard(1))}}); },
                 {"\"in.weight\"", "S0", "\"in\"", "S1", "\"head\""});
    expect_error([&] { nn::parallelize(tied.in, mesh, {{"", nn::rowwise()}}); },
                 {"\"in.weight\"", "also used by module \"head\""});
    nn::parallelize(tied, mesh, {{"in", nn::rowwise()}, {"head", head_cut(Shard(0))}});
    tied.materialize();
    reference.materialize();
    const StrictCommunication strict;
    const Tensor ids = ids_of({2, 3}, 6), cotangent = noise({2, 3, 6}, "g");
    backward(tied(ids), {.grad = distribute(cotangent, mesh, Shard(2), kOwnData)});
    backward(reference(ids), {.grad = cotangent});
    expect_same_gradients(tied, reference);
  });
}

struct Pairs : nn::Layer<Pairs> {
  std::string seen;
  std::pair<Tensor, Tensor> forward(const Tensor& a, const Tensor& b, int scale, const Tensor& c) {
    seen = fmt::format("{} {} {}", describe(a), describe(b), c.defined() ? describe(c) : "none");
    return {mul(a, scale), b};
  }
};

TEST(TensorParallel, F155_PreparedInputsAndOutputs) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    const Tensor a = noise({4, 6}, "a"), b = noise({4, 6}, "b");
    const auto spread = [&](const Tensor& t, Placement p) { return distribute(t, mesh, p, kOwnData); };
    {
      Pairs pairs;
      nn::parallelize(pairs, mesh,
                      {{"", nn::prepare_input({.from = {Replicate(), std::nullopt, std::nullopt, Shard(0)},
                                               .to = {Shard(-1), std::nullopt, std::nullopt, Replicate()}})},
                       {"", nn::prepare_output({.to = {Shard(0), std::nullopt}})}});
      auto [x, y] = pairs(a, b, 2, narrow(a, 0, 0, 2));
      EXPECT_EQ(pairs.seen, "f32[4,6]{1: tp} f32[4,6] f32[4,6]{}");
      EXPECT_EQ(describe(x), "f32[4,6]{0: tp}");
      EXPECT_TRUE(same_bits(whole(x), mul(a, 2)));
      EXPECT_FALSE(y.is_distributed());
      pairs(spread(a, Shard(0)), b, 1, Tensor());  // an undefined tensor passes
      EXPECT_EQ(pairs.seen, "f32[4,6]{1: tp} f32[4,6] none");
    }
    {
      Pairs pairs;  // by position, results as plain parts
      nn::parallelize(pairs, mesh,
                      {{"", nn::prepare_input({.from = nn::Style::Layouts::at({{1, Replicate()}}),
                                               .to = nn::Style::Layouts::at({{1, Shard(0)}})})},
                       {"", nn::prepare_output({.to = nn::Style::Layouts::at({{1, Replicate()}}), .local = true})}});
      const auto [x, y] = pairs(a, b, 3, Tensor());
      EXPECT_EQ(pairs.seen, "f32[4,6] f32[4,6]{0: tp} none");
      EXPECT_TRUE(same_bits(x, mul(a, 3)));
      EXPECT_TRUE(same_bits(y, b));
      EXPECT_FALSE(y.is_distributed());
    }
  });
}

TEST(TensorParallel, F155_WrongNumbersOfLayoutsAndUnknownPlainTensors) {
  const auto refused = [](const nn::Style& style, std::initializer_list<std::string_view> parts) {
    run_ranks(2, [&](const Group& group) {
      const DeviceMesh mesh(group, "tp");
      Pairs pairs;
      nn::parallelize(pairs, mesh, {{"", style}});
      expect_error([&] { pairs(ones({2, 2}), ones({2, 2}), 1, Tensor()); }, parts);
      group->reset();
    });
  };
  refused(nn::prepare_input({.from = {Replicate()}, .to = {Shard(0), std::nullopt}}),
          {"prepare_input", "(model)", "1 input layouts for 4 inputs"});
  refused(nn::prepare_input({.to = nn::Style::Layouts::at({{7, Shard(0)}})}), {"8 input layouts for 4 inputs"});
  refused(nn::prepare_output({.to = {Shard(0)}, .from = nn::Style::Layouts::at({{0, Replicate()}})}),
          {"prepare_output", "1 output layouts for 2 outputs"});
  refused(nn::prepare_input({.to = nn::Style::Layouts::at({{1, Shard(0)}})}),
          {"input 1", "plain tensor f32[2,2]", "prepare_input", "mesh(tp=2)", "`from`"});
  refused(nn::prepare_input({.from = nn::Style::Layouts::at({{0, Shard(2)}})}), {"2", "dim"});
}

TEST(TensorParallel, F155_TensorsOfAnotherMeshAreRefused) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp"), other(group, "other");
    nn::GeluMlp mlp(mlp_sizes(4, 4, false));
    nn::parallelize(mlp, mesh, kMlpPlan);
    mlp.materialize();
    const Tensor x = distribute(ones({2, 4}), other, Replicate(), kOwnData);
    expect_error([&] { mlp(x); }, {"input 0 of module \"up\"", "mesh(other=2)", "mesh(tp=2)"});
    group->reset();
  });
}

struct Failing : nn::ModuleHook {
  void before_forward(nn::Module&) override { fail("out of luck"); }
};

TEST(TensorParallel, PlainGradientsOfDistributedParametersAreRefused) {
  run_ranks(2, [](const Group& group) {
    nn::GeluMlp mlp(mlp_sizes(4, 6, false));
    nn::parallelize(mlp, DeviceMesh(group, "tp"), kMlpPlan);
    mlp.materialize();
    nn::Parameter& weight = mlp.up.weight;
    expect_error([&] { weight.sink().accept(weight, ones({6, 4})); },
                 {"\"up.weight\" is f32[6,4]{0: tp}", "plain tensor f32[6,4]", "from_local()"});
  });
}

TEST(TensorParallel, PlainValuesOfDistributedParametersAreRefused) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      nn::Linear linear(4, 4, {.bias = false});
      nn::parallelize(linear, DeviceMesh(group, "tp"), {});
      linear.materialize();
      linear.weight.set(noise({4, 4}, "weight"));
      const Tensor loss = sum(linear(noise({2, 4}, "x")));
      expect_error([&] { backward(loss); },
                   {"parameter \"weight\" lies on mesh(tp=", "is the plain tensor f32[4,4]", "distribute()"});
    });
}

// Left on one rank, a step ends on all of them, soon and with the reason.
TEST(TensorParallel, AnErrorOnOneRankReachesTheOthers) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    nn::GeluMlp mlp(mlp_sizes(4, 6, false));
    nn::parallelize(mlp, mesh, kMlpPlan);
    mlp.materialize();
    if (group->rank() == 1) mlp.down.add_hook(std::make_shared<Failing>());
    try {
      whole(mlp(ones({2, 4}))).to_vector<float>();
      ADD_FAILURE() << "no error on rank " << group->rank();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("out of luck"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace sherd::testing
