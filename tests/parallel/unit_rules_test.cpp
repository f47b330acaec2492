// Rules that make units: which modules they name on small trees, worked out by hand, and that what they make trains as
// one rank does.
#include <gtest/gtest.h>

#include "nn/models/gpt.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Names = std::vector<std::string>;
const std::vector<std::int64_t> kEqualSizes{4, 4, 4, 4, 4, 4};  // four blocks and the head, 20 each

Names names_of(const std::vector<nn::UnitHandle>& units) {
  Names names;
  for (const nn::UnitHandle& unit : units) names.push_back(unit.name());
  return names;
}

/// Units of a fresh net by `rule`, after training it beside one rank's.
Names trained(const Group& group, const std::vector<std::int64_t>& sizes, const nn::UnitRule& rule,
              const nn::UnitPolicy& options = {}) {
  Net net(sizes), reference(sizes);
  const Names names = names_of(nn::shard_units(net, DeviceMesh(group), rule, options));
  net.materialize(nn::Seed{5});
  reference.materialize(nn::Seed{5});
  expect_trains_alike(on_slices(net, *group, sizes.front(), sizes.back()),
                      on_batches(reference, sizes.front(), sizes.back()), {});
  return names;
}

TEST(UnitRules, ATypeOrAPredicateNamesUnitsAndTheRootIsLast) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      EXPECT_EQ(trained(group, kTwoBlocks, nn::units_of_type<Block>()), (Names{"blocks.0", "blocks.1", "(model)"}));
      EXPECT_EQ(trained(group, kTwoBlocks, nn::units_of_type<nn::Linear>()),
                (Names{"blocks.0.linear", "blocks.1.linear", "head", "(model)"}));
      EXPECT_EQ(
          trained(group, kTwoBlocks, nn::units_where("head", [](const nn::Module& m) { return m.name() == "head"; })),
          (Names{"head", "(model)"}));
    });
}

TEST(UnitRules, InnerUnitsAreMadeBeforeThoseAroundThem) {
  run_ranks(2, [](const Group& group) {
    const auto any = [](const nn::Module& m) { return !nn::is_container(m); };
    EXPECT_EQ(trained(group, kTwoBlocks, nn::units_where("modules", any)),
              (Names{"blocks.0.linear", "blocks.0", "blocks.1.linear", "blocks.1", "head", "(model)"}));
  });
}

TEST(UnitRules, NumbersOfParametersCountWhatInnerUnitsLeave) {
  run_ranks(2, [](const Group& group) {
    EXPECT_EQ(trained(group, kTwoBlocks, nn::units_of_parameters(71)), (Names{"blocks.1.linear", "(model)"}));
    EXPECT_EQ(trained(group, kTwoBlocks, nn::units_of_parameters(40)),
              (Names{"blocks.0.linear", "blocks.1.linear", "head", "(model)"}));
    // The list has 147, and no forward.
    EXPECT_EQ(trained(group, kTwoBlocks, nn::units_of_parameters(147)), (Names{"(model)"}));
  });
}

TEST(UnitRules, BytesFillUnitsInOrderAndBalanceThem) {
  run_ranks(2, [](const Group& group) {
    // Four modules of 80 bytes fit, so two units do: three and two of them.
    const Names balanced{"blocks.0+blocks.1+blocks.2", "blocks.3+head", "(model)"};
    EXPECT_EQ(trained(group, kEqualSizes, nn::units_of_bytes(320)), balanced);
    Net half(kEqualSizes);
    EXPECT_EQ(names_of(nn::shard_units(half, DeviceMesh(group), nn::units_of_bytes(160),
                                       {.mp_policy = {.param_dtype = DType::bf16}})),
              balanced);
    // A block is taken apart, and its linear is larger still.
    EXPECT_EQ(trained(group, {4, 4, 4}, nn::units_of_bytes(79)), (Names{"blocks.0.linear", "head", "(model)"}));
    EXPECT_EQ(trained(group, {4, 4, 4}, nn::units_of_bytes(1 << 20)), (Names{"blocks.0+head", "(model)"}));
  });
}

struct TiedEnds : nn::Layer<TiedEnds> {
  struct User : nn::Layer<User> {
    nn::Parameter& weight;
    explicit User(nn::Parameter& tied) : weight(share_parameter("weight", tied)) {}
    Tensor forward(const Tensor& x) { return linear(x, weight); }
  };
  nn::Linear &first, &middle;
  User& last;
  TiedEnds()
      : first(add<nn::Linear>("first", 5, 5, nn::Linear::Options{.bias = false})),
        middle(add<nn::Linear>("middle", 5, 5)),
        last(add<User>("last", first.weight)) {}
  Tensor forward(const Tensor& x) { return last(middle(first(x))); }
};

TEST(UnitRules, F14_TiedParametersGoToTheUnitAroundTheirUsers) {
  for (const std::string name : {"parameters=1", "bytes=100"})
    run_ranks(2, [&name](const Group& group) {
      TiedEnds net, reference;
      EXPECT_EQ(names_of(nn::shard_units(net, DeviceMesh(group), nn::units_by(name))), (Names{"middle", "(model)"}))
          << name;
      net.materialize(nn::Seed{6});
      reference.materialize(nn::Seed{6});
      expect_trains_alike(on_slices(net, *group, 5, 5), on_batches(reference, 5, 5), {});
    });
}

TEST(UnitRules, NamesMakeUnitsOfModels) {
  run_ranks(2, [](const Group& group) {
    const nn::Gpt::Config config{.vocabulary = 16, .tokens = 8, .layers = 2, .heads = 2, .width = 8};
    nn::Gpt reference(config);
    reference.materialize(nn::Seed{3});
    const Tensor tokens = Tensor::from<std::int64_t>({3, 1, 4, 1, 5, 9, 2, 6}, {1, 8});
    const double expected = reference(tokens, tokens).item<double>();
    const auto units_by = [&](std::string_view name) {
      nn::Gpt model(config);
      const Names names = names_of(nn::shard_units(model, DeviceMesh(group), nn::units_by(name)));
      model.materialize(nn::Seed{3});
      const Tensor loss = model(tokens, tokens);
      backward(loss);
      EXPECT_NEAR(loss.item<double>(), expected, 1e-5) << name;
      return names;
    };
    EXPECT_EQ(units_by("coarse"), (Names{"(model)"}));
    EXPECT_EQ(units_by("block"), (Names{"blocks.0", "blocks.1", "(model)"}));
    EXPECT_EQ(units_by("fine"), (Names{"blocks.0.attn", "blocks.0.mlp", "blocks.0", "blocks.1.attn", "blocks.1.mlp",
                                       "blocks.1", "(model)"}));
  });
}

TEST(UnitRules, ListsAreTakenAsTheyAreAndSettingsHold) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    const DeviceMesh mesh(group);
    const auto blocks = net.blocks.items();
    const auto units =
        nn::shard_units(net, mesh, nn::units_of_modules({{blocks[0], blocks[1]}}), {.reshard_after_forward = false});
    EXPECT_EQ(names_of(units), (Names{"blocks.0+blocks.1", "(model)"}));
    net.materialize();
    sum(net(batch_of(2, 6, 0, "x")));
    EXPECT_TRUE(units[0].is_unsharded());
  });
}

TEST(UnitRules, ModulesThatAreWrappedAlreadyStayAsTheyAre) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    const DeviceMesh mesh(group);
    for (Block* block : net.blocks.items()) nn::fully_shard(*block, mesh);
    EXPECT_EQ(names_of(nn::shard_units(net, mesh, nn::units_of_type<Block>())), (Names{"(model)"}));
  });
}

TEST(UnitRules, MistakesAreNamed) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    Net net(kTwoBlocks);
    expect_error([&] { nn::units_by("blok"); }, {"blok", "block", "coarse"});
    expect_error([&] { nn::units_by("bytes=0"); }, {"\"bytes=0\"", "a whole number from 1", "bytes=32e6"});
    expect_error([&] { nn::units_by("parameters=1.5"); }, {"\"parameters=1.5\"", "a whole number from 1"});
    const auto units_of = [&net](const nn::UnitRule& rule) { return rule(net, {}); };
    for (const char* name : {"bytes=32e6", "bytes=32MB", "bytes=32M", "bytes=32000000"})
      EXPECT_EQ(units_of(nn::units_by(name)), units_of(nn::units_of_bytes(32'000'000))) << name;
    EXPECT_EQ(units_of(nn::units_by("bytes=0.125Ki")), units_of(nn::units_of_bytes(128)));
    EXPECT_NE(units_of(nn::units_by("bytes=0.125Ki")), units_of(nn::units_of_bytes(32'000'000)));
    expect_error([&] { nn::units_by("parameters=32M"); }, {"\"parameters=32M\"", "parameters=32e6"});
    EXPECT_EQ(units_of(nn::units_by("parameters=40")), units_of(nn::units_of_parameters(40)));
    expect_error([&] { nn::units_of_parameters(0); }, {"at least one", "0"});
    expect_error([&] { nn::units_of_bytes(-1); }, {"at least one byte", "-1"});
    expect_error([&] { nn::shard_units(net, mesh, nn::units_where("norms", [](const nn::Module&) { return false; })); },
                 {"the model has no norms"});
    expect_error([&] { nn::shard_units(net, mesh, nn::units_of_type<nn::ModuleList<>>()); }, {"blocks", "container"});
    expect_error([&] { nn::shard_units(net, mesh, nn::units_of_modules({{&net}})); }, {"the model itself"});
    nn::Linear layer(3, 3);
    expect_error([&] { nn::shard_units(layer, mesh, nn::units_by("fine")); }, {"fine", "no list of modules"});
    nn::shard_units(net, mesh, nn::units_by("block"));
    expect_error([&] { nn::shard_units(net, mesh, nn::units_by("block")); }, {"already"});
  });
}

// What is wrong with the third block is found before the first is wrapped.
TEST(UnitRules, ErrorsComeBeforeTheFirstModuleIsWrapped) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    Net net(kThreeBlocks), reference(kThreeBlocks);
    const auto blocks = net.blocks.items();
    const auto refused = [&](const nn::UnitRule& rule, const nn::UnitPolicy& policy,
                             std::initializer_list<std::string_view> parts) {
      expect_error([&] { nn::shard_units(net, mesh, rule, policy); }, parts);
      net.for_each_module([](nn::Module& m) { EXPECT_FALSE(nn::is_fully_sharded(m)) << m.path(); });
      for (const nn::Parameter* p : net.parameters()) EXPECT_FALSE(p->value().is_distributed()) << p->name();
    };
    const auto is_in_third = [](const nn::Parameter& p) { return p.name() == "blocks.2.linear.weight"; };
    nn::UnitPolicy placed, typed;
    placed.placement = [&](const nn::Parameter& p) { return nn::shard_dim(is_in_third(p) ? 5 : 0); };
    typed.mp_policy.types_of = [&](const nn::Parameter& p) {
      return is_in_third(p) ? nn::ParameterTypes{.grad_dtype = DType::i64} : nn::ParameterTypes{};
    };
    refused(nn::units_by("block"), placed, {"\"blocks.2.linear.weight\"", "no dim 5"});
    refused(nn::units_by("block"), typed, {"\"blocks.2.linear.weight\"", "i64"});
    refused(nn::units_of_modules({{blocks[0]}, {blocks[1]}, {blocks[0]}}), {}, {"\"blocks.0\" is wrapped already"});
    refused(nn::units_of_modules({{blocks[0]}, {&blocks[0]->linear_layer}}), {},
            {"\"blocks.0.linear\"", "\"blocks.0\"", "inside out"});
    net.materialize(nn::Seed{5});
    reference.materialize(nn::Seed{5});
    refused(nn::units_by("block"), placed, {"no dim 5"});
    for (std::size_t i = 0; i < net.parameters().size(); ++i)
      EXPECT_TRUE(same_bits(net.parameters()[i]->value().detach(), reference.parameters()[i]->value().detach()));
    EXPECT_EQ(names_of(nn::shard_units(net, mesh, nn::units_by("block"))),
              (Names{"blocks.0", "blocks.1", "blocks.2", "(model)"}));
    expect_trains_alike(on_slices(net, *group, 6, 5), on_batches(reference, 6, 5), {});
  });
}

TEST(UnitRules, ValuesAreThereInAllOfAUnitOrInNone) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    nn::Linear& second = net.blocks.items()[1]->linear_layer;
    second.weight.set(zeros({7, 10}));
    expect_error([&] { nn::shard_units(net, DeviceMesh(group), nn::units_by("block")); },
                 {"\"blocks.1.linear.bias\" is on meta", "all or none"});
    EXPECT_FALSE(nn::is_fully_sharded(*net.blocks.items()[0]));
  });
}

}  // namespace
}  // namespace sherd::testing
