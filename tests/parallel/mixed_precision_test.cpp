// Mixed precision under fully_shard. Oracle: the same model without sharding whose parameters were cast by hand, on
// each rank's slice; its gradients are rounded, added in the order of the tree and scaled by hand. Compared bit by bit.
#include <gtest/gtest.h>

#include "nn/layers/embedding.h"
#include "nn/layers/norm.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/trace.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/tree_sum.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using nn::MixedPrecision;

constexpr std::int64_t kRows = 12;

/// Every module of the net under one policy.
void shard_all(Net& net, const DeviceMesh& mesh, const MixedPrecision& policy) {
  shard(net, mesh, {.mp_policy = policy}, {.mp_policy = policy});
}

Tensor slice_for(const Tensor& global, int rank, int ranks) {
  const std::int64_t rows = global.size(0) / ranks;
  return narrow(global, 0, rank * rows, rows);
}

Tensor rounded(const Tensor& x, std::optional<DType> dtype) { return dtype ? cast(cast(x, *dtype), DType::f32) : x; }

/// Gradients of the unsharded net in `compute` type, reduced by hand.
struct Reference {
  Net net{kTwoBlocks};
  std::vector<Tensor> masters;

  Reference() {
    net.materialize(nn::Seed{5});
    for (nn::Parameter* p : net.parameters()) masters.push_back(p->value().detach());
  }
  Tensor loss(const Tensor& x, const Tensor& y, DType compute) {
    const auto parameters = net.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i]->set(cast(masters[i], compute));
    return mean_square(net(cast(x, compute)), cast(y, compute));
  }
  /// Mean over ranks of gradients, each rounded to `wire`, as is the result.
  std::vector<Tensor> gradients(const Tensor& x, const Tensor& y, int ranks, DType compute, std::optional<DType> wire) {
    std::vector<std::vector<Tensor>> of_ranks(masters.size());
    for (int rank = 0; rank < ranks; ++rank) {
      backward(loss(slice_for(x, rank, ranks), slice_for(y, rank, ranks), compute));
      const auto parameters = net.parameters();
      for (std::size_t i = 0; i < masters.size(); ++i) {
        of_ranks[i].push_back(rounded(cast(parameters[i]->grad().detach(), DType::f32), wire));
        parameters[i]->clear_grad();
      }
    }
    std::vector<Tensor> means;
    for (const std::vector<Tensor>& all : of_ranks) {
      const Tensor sum = tree_sum(all, [](const Tensor& a, const Tensor& b) { return add(a, b); });
      means.push_back(rounded(ranks == 1 ? sum : mul(sum, 1.0 / ranks), wire));
    }
    return means;
  }
};

/// One step under `policy` against the reference; the effective types are given by hand.
void expect_step(const Group& group, const MixedPrecision& policy, DType compute, std::optional<DType> wire) {
  Net net(kTwoBlocks);
  shard_all(net, DeviceMesh(group), policy);
  net.materialize(nn::Seed{5});
  Reference reference;
  const Tensor x = batch_of(kRows, kTwoBlocks.front(), 0, "x"), y = batch_of(kRows, kTwoBlocks.back(), 0, "y");
  const Tensor own_x = slice_of(x, *group), own_y = cast(slice_of(y, *group), compute);
  const Tensor out = net(own_x);
  EXPECT_EQ(out.dtype(), compute);
  const Tensor loss = mean_square(out, own_y);
  EXPECT_TRUE(same_bits(loss, reference.loss(own_x, own_y, compute)));
  backward(loss);
  const std::vector<Tensor> expected = reference.gradients(x, y, group->size(), compute, wire);
  const auto parameters = net.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(parameters[i]->grad().dtype(), DType::f32);
    EXPECT_EQ(parameters[i]->value().dtype(), DType::f32) << "sharded parameters keep their type";
    EXPECT_TRUE(same_bits(whole(parameters[i]->grad()), expected[i])) << parameters[i]->name();
  }
}

TEST(FullyShard, F88_ForwardRunsInBf16AndMastersStayF32) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      expect_step(group, {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}, DType::bf16, {});
    });
}

TEST(FullyShard, F88_WithProcesses) {
  for (int ranks : {2, 4})
    run_processes(ranks, [](const Group& group) {
      expect_step(group, {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}, DType::bf16, {});
    });
}

TEST(FullyShard, F88_GathersMoveHalfTheBytesAndStateStaysF32) {
  run_ranks(2, [](const Group& group) {
    std::int64_t bytes[2], reduced[2];
    for (const bool is_bf16 : {false, true}) {
      Net net(kTwoBlocks);
      MixedPrecision policy;
      if (is_bf16) policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
      shard_all(net, DeviceMesh(group), policy);
      net.materialize(nn::Seed{5});
      nn::AdamW optimizer(net.parameters(), {.lr = 0.01});
      const CommCounts before = group->host().counts();
      backward(mean(square(net(batch_of(4, kTwoBlocks.front(), 0, "x")))));
      optimizer.step_and_clear();
      CommCounts counts = group->host().counts();
      counts -= before;
      bytes[is_bf16] = counts.all_gather.bytes;
      reduced[is_bf16] = counts.reduce_scatter.bytes;
      const Accounting& memory = RankContext::current().allocator().accounting();
      EXPECT_EQ(memory.current(MemoryCategory::unsharded), 0);
      EXPECT_EQ(memory.current(MemoryCategory::gradients), 0);
    }
    EXPECT_EQ(2 * bytes[1], bytes[0]);
    EXPECT_EQ(2 * reduced[1], reduced[0]) << "bf16 gradients travel as bf16, whatever they are added up in";
  });
}

TEST(FullyShard, F89_F183_ReduceDtypeUnsetKeepsTheMeanInTheParametersOwnType) {
  for (int ranks : {1, 3, 4})
    run_ranks(ranks, [](const Group& group) { expect_step(group, {.param_dtype = DType::bf16}, DType::bf16, {}); });
}

TEST(FullyShard, F89_ABf16WireRoundsTheMean) {
  for (int ranks : {1, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      expect_step(group, {.param_dtype = DType::bf16, .reduce_dtype = DType::bf16}, DType::bf16, DType::bf16);
    });
}

TEST(FullyShard, F90_F32ParametersReducedInBf16) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks,
              [](const Group& group) { expect_step(group, {.reduce_dtype = DType::bf16}, DType::f32, DType::bf16); });
}

TEST(FullyShard, F88_F16Works) {
  run_ranks(2, [](const Group& group) {
    expect_step(group, {.param_dtype = DType::f16, .reduce_dtype = DType::f32}, DType::f16, {});
  });
}

// FSDP2 divides f16 gradients before and after their sum. Here the sum is one of f32, scaled once: neither the largest
// numbers overflow nor the smallest vanish.
TEST(FullyShard, F84_SumsOfF16NeitherOverflowNorVanish) {
  struct Scale : nn::Layer<Scale> {
    nn::Parameter& weight;
    Scale() : weight(add_parameter("weight", {4}, nn::Init::ones())) {}
    Tensor forward(const Tensor& x) { return cast(x * weight, DType::f32); }
  };
  for (const int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Scale net;
      nn::fully_shard(net, DeviceMesh(group), {.mp_policy = {.param_dtype = DType::f16, .reduce_dtype = DType::f16}});
      net.materialize();
      const Tensor gradients = Tensor::from<float>({40000, -60000, 1, 0x1p-24f}, {4});
      backward(sum(net(gradients)));
      EXPECT_TRUE(same_bits(whole(net.weight.grad()), gradients));
    });
}

/// Notes what it was given.
struct DTypeProbe : nn::Layer<DTypeProbe> {
  nn::Linear& linear;
  DType seen = DType::f64;
  DTypeProbe() : linear(add<nn::Linear>("linear", 4, 4)) {}
  Tensor forward(const Tensor& x) {
    seen = x.dtype();
    return x.dtype() == linear.weight.value().dtype() ? linear(x) : x;
  }
};
struct Outer : nn::Layer<Outer> {
  DTypeProbe& inner;
  nn::Linear& linear;
  DType between = DType::f64;
  Outer() : inner(add<DTypeProbe>("inner")), linear(add<nn::Linear>("linear", 4, 4)) {}
  Tensor forward(const Tensor& x) {
    const Tensor h = inner(linear(x));
    between = h.dtype();
    return cast(h, DType::f32);
  }
};

TEST(FullyShard, F91_OutputsAndInputsAreCastWhereThePolicySays) {
  for (int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const auto run = [&](const MixedPrecision& inner, const MixedPrecision& outer) {
        Outer net;
        nn::fully_shard(net.inner, mesh, {.mp_policy = inner});
        nn::fully_shard(net, mesh, {.mp_policy = outer});
        net.materialize(nn::Seed{1});
        const Tensor out = net(batch_of(2, 4, 0, "x"));
        backward(mean(out));
        for (nn::Parameter* p : net.linear.parameters()) EXPECT_EQ(p->grad().dtype(), DType::f32);
        return std::array{net.inner.seen, net.between, out.dtype()};
      };
      using enum DType;
      using Types = std::array<DType, 3>;
      EXPECT_EQ(run({.param_dtype = bf16}, {}), (Types{bf16, bf16, f32}));
      EXPECT_EQ(run({.param_dtype = bf16, .output_dtype = f32}, {}), (Types{bf16, f32, f32}));
      EXPECT_EQ(run({.param_dtype = bf16}, {.output_dtype = f64}), (Types{bf16, bf16, f64}));
      EXPECT_EQ(run({.param_dtype = f16}, {.param_dtype = bf16}), (Types{f16, f16, f32})) << "the inner policy wins";
      EXPECT_EQ(run({.param_dtype = bf16, .cast_forward_inputs = false}, {}), (Types{f32, f32, f32}));
    });
}

struct Lookup : nn::Layer<Lookup> {
  nn::Embedding& table;
  nn::Linear& head;
  Lookup() : table(add<nn::Embedding>("table", 9, 4)), head(add<nn::Linear>("head", 4, 3)) {}
  Tensor forward(const std::pair<Tensor, Tensor>& in) {
    EXPECT_EQ(in.first.dtype(), DType::i64);
    EXPECT_EQ(in.second.dtype(), DType::bf16);
    return head(table(in.first)) + in.second;
  }
};

TEST(FullyShard, F92_IntegersAreNotCastAndFrozenParametersMayThaw) {
  for (int ranks : {1, 3})
    run_ranks(ranks, [](const Group& group) {
      Lookup net;
      nn::fully_shard(net, DeviceMesh(group), {.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}});
      net.materialize(nn::Seed{3});
      const Tensor tokens = cast(full({2}, 4.0, DType::f32), DType::i64), shift = full({2, 3}, 0.5, DType::f32);
      for (nn::Parameter* p : net.parameters()) p->set_requires_grad(false);
      {
        GradMode off(false);
        EXPECT_EQ(net(std::pair(tokens, shift)).dtype(), DType::bf16);
      }
      for (nn::Parameter* p : net.parameters()) p->set_requires_grad(true);
      backward(mean(net(std::pair(tokens, shift))));
      for (nn::Parameter* p : net.parameters()) EXPECT_EQ(p->grad().dtype(), DType::f32) << p->name();
    });
}

struct Normed : nn::Layer<Normed> {
  nn::LayerNorm& norm;
  nn::Linear& linear;
  Normed() : norm(add<nn::LayerNorm>("norm", 4)), linear(add<nn::Linear>("linear", 4, 4)) {}
  Tensor forward(const Tensor& x) { return linear(norm(x)); }
};

TEST(FullyShard, F93_ANormKeptInF32ByItsOwnWrap) {
  for (int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      Normed net, reference;
      nn::fully_shard(net.norm, mesh, {.mp_policy = {.param_dtype = DType::f32, .output_dtype = DType::bf16}});
      nn::fully_shard(net, mesh, {.mp_policy = {.param_dtype = DType::bf16}});
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      for (nn::Parameter* p : reference.linear.parameters()) p->set(cast(p->value().detach(), DType::bf16));
      const Tensor x = batch_of(3, 4, 0, "x");
      const Tensor normed = reference.norm(cast(cast(x, DType::bf16), DType::f32));
      EXPECT_TRUE(same_bits(net(x), reference.linear(cast(normed, DType::bf16))));
    });
}

TEST(FullyShard, PoliciesOfOtherTypesAreRefused) {
  run_ranks(1, [](const Group& group) {
    Net net(kTwoBlocks);
    expect_error([&] { nn::fully_shard(net, DeviceMesh(group), {.mp_policy = {.param_dtype = DType::i32}}); },
                 {"mp_policy", "param_dtype is i32", "bf16"});
  });
}

// Two backward passes before a step add up in f32.
TEST(FullyShard, F79_MicroBatchesAddUpInF32) {
  for (int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks);
      shard_all(net, DeviceMesh(group), {.param_dtype = DType::bf16, .reduce_dtype = DType::f32});
      net.materialize(nn::Seed{5});
      Reference reference;
      std::vector<Tensor> sums;
      for (const std::uint64_t micro : {0U, 1U}) {
        const Tensor x = batch_of(kRows, kTwoBlocks.front(), micro, "x"),
                     y = batch_of(kRows, kTwoBlocks.back(), micro, "y");
        backward(mean_square(net(slice_of(x, *group)), cast(slice_of(y, *group), DType::bf16)));
        const std::vector<Tensor> g = reference.gradients(x, y, group->size(), DType::bf16, {});
        for (std::size_t i = 0; i < g.size(); ++i)
          if (micro == 0) sums.push_back(g[i]);
          else sums[i] = add(sums[i], g[i]);
      }
      const auto parameters = net.parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        EXPECT_TRUE(same_bits(whole(parameters[i]->grad()), sums[i])) << parameters[i]->name();
    });
}

// Backward reads what forward has cast, and frees it.
TEST(MixedPrecision, OneRankCastsItsParametersOncePerPass) {
  run_ranks(1, [](const Group& group) {
    Net net(kThreeBlocks);
    shard_all(net, DeviceMesh(group, "dp"), {.param_dtype = DType::bf16});
    net.materialize(nn::Seed{3});
    nn::AdamW optimizer(net.parameters(), nn::AdamW::Options{.lr = 0.01});
    Trace trace;
    const Trace::Recording recording(trace);
    const auto casts = [&trace] {
      return std::ranges::count_if(trace.spans(), [](const Span& s) { return s.name == "gather_start"; });
    };
    const auto units = static_cast<std::int64_t>(nn::units(net).size());
    std::int64_t passes = 0;
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        const Tensor x = cast(batch_of(4, 6, step, "x"), DType::bf16), y = cast(batch_of(4, 5, step, "y"), DType::bf16);
        backward(mean_square(net(x), y));
        EXPECT_EQ(casts(), ++passes * units) << "step " << step;
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      }
      optimizer.step_and_clear();
    }
    const GradMode off(false);
    (void)net(cast(batch_of(4, 6, 0, "x"), DType::bf16));
    EXPECT_EQ(held(MemoryCategory::unsharded), 0) << "no backward frees it later";
  });
}

}  // namespace
}  // namespace sherd::testing
