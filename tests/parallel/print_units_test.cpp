// What print_units() says of small models, compared as a whole: bytes are worked out by hand, with every tensor of a
// unit's buffers beginning at a multiple of 64.
#include <gtest/gtest.h>

#include <sstream>

#include "nn/parallel/shard/wrap/print_units.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
const std::vector<std::int64_t> kSquares{16, 16, 16};  // a block and a head of 16 x 16 and 16

TEST(PrintUnits, SaysWhatUnitsHoldAndWhenTheyRan) {
  run_ranks(2, [](const Group& group) {
    Net net(kSquares);
    nn::shard_units(net, DeviceMesh(group), nn::units_by("block"),
                    {.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}});
    EXPECT_EQ(nn::print_units(net),
              "unit      ran  gathered  on this rank  of        type         reduced in  after forward\n"
              "(model)     -     576 B         576 B  2 shards  f32 as bf16  f32         reshard\n"
              "  head.weight  f32[16,16]{0: dp}\n"
              "  head.bias  f32[16]{0: dp}\n"
              "blocks.0    -     576 B         576 B  2 shards  f32 as bf16  f32         reshard\n"
              "  blocks.0.linear.weight  f32[16,16]{0: dp}\n"
              "  blocks.0.linear.bias  f32[16]{0: dp}\n"
              "2 units: 1.15 KB gathered if all are, 1.15 KB of shards on this rank\n");
    net.materialize();
    net(batch_of(2, 16, 0, "x"));
    EXPECT_EQ(nn::print_units(net, {.parameters = false}),
              "unit      ran  gathered  on this rank  of        type         reduced in  after forward\n"
              "(model)     0     576 B         576 B  2 shards  f32 as bf16  f32         keep\n"
              "blocks.0    1     576 B         576 B  2 shards  f32 as bf16  f32         reshard\n"
              "2 units: 1.15 KB gathered if all are, 1.15 KB of shards on this rank\n");
  });
}

TEST(PrintUnits, RoutesSayHowGradientsAreReducedAsThingsStand) {
  run_ranks(2, [](const Group& group) {
    Net net(kSquares);
    const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", 1}});
    nn::shard_units(net, mesh, nn::units_by("coarse"));
    net.materialize();
    const auto route = [&net] {
      const std::string text = nn::print_units(net, {.parameters = false, .routes = true});
      const std::size_t line = text.find("  4 parameters: ");
      return line == std::string::npos ? text : text.substr(line, text.find('\n', line) - line);
    };
    EXPECT_EQ(
        route(),
        "  4 parameters: scatter arrival>shard, sum_replicas shard>shard, keep shard>grad; sums 2 replicas in 1 level");
    nn::units(net).set_requires_all_reduce(false);
    EXPECT_EQ(route(), "  4 parameters: scatter arrival>shard, keep shard>unsummed");
    backward(sum(net(batch_of(2, 16, 0, "x"))));
    EXPECT_EQ(route(), "  4 parameters: scatter arrival>unsummed +unsummed, keep unsummed>unsummed");
    nn::units(net).set_requires_gradient_sync(false);
    EXPECT_EQ(route(), "  4 parameters: hold arrival>held");
  });
}

/// Its modules run in another order than they are in, and one does not run.
struct Shuffled : nn::Layer<Shuffled> {
  nn::Linear &a, &b, &c;
  Shuffled() : a(add<nn::Linear>("a", 16, 16)), b(add<nn::Linear>("b", 16, 16)), c(add<nn::Linear>("c", 16, 16)) {}
  Tensor forward(const Tensor& x) { return a(c(x)); }
};

TEST(PrintUnits, UnitsComeInTheOrderInWhichTheyRan) {
  run_ranks(2, [](const Group& group) {
    Shuffled net;
    const DeviceMesh mesh(group);
    for (nn::Linear* each : {&net.a, &net.b, &net.c}) nn::fully_shard(*each, mesh);
    nn::fully_shard(net, mesh);
    const std::string header = "unit  ran  gathered  on this rank  of        type  reduced in  after forward\n",
                      sum = "3 units: 3.26 KB gathered if all are, 1.73 KB of shards on this rank\n";
    EXPECT_EQ(nn::print_units(net, {.parameters = false}),
              header +
                  "a       -   1.09 KB         576 B  2 shards  f32   f32         reshard\n"
                  "b       -   1.09 KB         576 B  2 shards  f32   f32         reshard\n"
                  "c       -   1.09 KB         576 B  2 shards  f32   f32         reshard\n" +
                  sum);
    net.materialize();
    net(batch_of(2, 16, 0, "x"));
    EXPECT_EQ(nn::print_units(net, {.parameters = false}),
              header +
                  "c       0   1.09 KB         576 B  2 shards  f32   f32         reshard\n"
                  "a       1   1.09 KB         576 B  2 shards  f32   f32         reshard\n"
                  "b       -   1.09 KB         576 B  2 shards  f32   f32         reshard\n" +
                  sum);
  });
}

TEST(PrintUnits, F16_ListsReplicatedIgnoredAndFrozenParameters) {
  run_ranks(2, [](const Group& group) {
    Net net(kSquares);
    net.blocks.items()[0]->linear_layer.weight.set_requires_grad(false);
    nn::shard_units(net, DeviceMesh(group), nn::units_by("block"),
                    {.replicate_below_bytes = 65, .ignored = {&net.head.weight}});
    EXPECT_EQ(nn::print_units(net),
              "unit                 ran  gathered  on this rank  of          type  reduced in  after forward\n"
              "(model)/replicated     -         -          64 B  2 replicas  f32   f32         stays\n"
              "  head.bias  f32[16]{}\n"
              "blocks.0               -   1.02 KB         512 B  2 shards    f32   f32         reshard\n"
              "  blocks.0.linear.weight  f32[16,16]{0: dp}  frozen\n"
              "blocks.0/replicated    -         -          64 B  2 replicas  f32   f32         stays\n"
              "  blocks.0.linear.bias  f32[16]{}\n"
              "in no unit\n"
              "  head.weight  f32[16,16](meta)\n"
              "3 units: 1.02 KB gathered if all are, 640 B of shards on this rank\n"
              "1 parameter in no unit: 1.02 KB on this rank, its gradients are not reduced by units\n");
  });
}

// What a strategy keeps until the optimizer has written the shards does not reshard, whatever its option says.
TEST(PrintUnits, WhatAStrategyKeepsIsKept) {
  run_ranks(2, [](const Group& group) {
    const auto last_column = [&](nn::UnitPolicy policy) {
      Net net(kSquares);
      nn::shard_units(net, DeviceMesh(group), nn::units_by("block"), policy);
      net.materialize();
      net(batch_of(2, 16, 0, "x"));
      std::istringstream lines(nn::print_units(net, {.parameters = false}));
      std::vector<std::string> words;
      for (std::string line; std::getline(lines, line);) words.push_back(line.substr(line.rfind("  ") + 2));
      return std::vector<std::string>(words.begin() + 1, words.end() - 1);  // without the title and the sum
    };
    using Words = std::vector<std::string>;
    const auto rounded = [](nn::UnitPolicy policy) {
      policy.mp_policy = {.param_dtype = DType::bf16};
      return policy;
    };
    EXPECT_EQ(last_column(nn::strategy("full_shard")), (Words{"keep", "reshard"}));
    EXPECT_EQ(last_column(nn::strategy("shard_grad_op")), (Words{"keep", "keep"}));
    EXPECT_EQ(last_column(nn::strategy("shard_optimizer")), (Words{"keep", "keep"}));
    EXPECT_EQ(last_column(nn::strategy("no_shard")), (Words{"stays", "stays"}));
    EXPECT_EQ(last_column(rounded(nn::strategy("no_shard"))), (Words{"keep", "keep"}));
    nn::UnitPolicy small = rounded(nn::strategy("full_shard"));
    small.replicate_below_bytes = 65;
    EXPECT_EQ(last_column(small), (Words{"keep", "keep", "reshard", "keep"})) << "biases are units of their own";
  });
}

}  // namespace
}  // namespace sherd::testing
