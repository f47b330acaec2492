// fully_shard's arguments and what wrapping does to parameters, before any forward.
#include <gtest/gtest.h>

#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

TEST(FullyShard, F1_ParametersAreShardedOnDimZero) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks);
      const DeviceMesh mesh(group);
      shard(net, mesh);
      for (const nn::Parameter* p : net.parameters()) {
        ASSERT_TRUE(p->value().is_distributed()) << p->name();
        const Spec& spec = Spec::from(p->value());
        EXPECT_EQ(spec.mesh(), mesh);
        EXPECT_EQ(spec.placements()[0], Shard(0));
        EXPECT_EQ(p->value().shape(), p->shape());
      }
      EXPECT_EQ(describe(net.head.weight.value()), "f32[5,7]{0: dp}");
    });
}

TEST(FullyShard, F2_DefaultMeshIsOneAxisOverAllRanks) {
  run_ranks(3, [](const Group&) {
    Net net(kTwoBlocks);
    nn::fully_shard(net);
    const DeviceMesh mesh = Spec::from(net.head.weight.value()).mesh();
    EXPECT_EQ(mesh.ndim(), 1);
    EXPECT_EQ(mesh.size(), 3);
  });
}

TEST(FullyShard, F3_MeshesOfMoreAxesAreRefused) {
  run_ranks(4, [](const Group& group) {
    Net net(kTwoBlocks);
    const DeviceMesh mesh(group, {{"a", 2}, {"b", 2}, {"c", 1}});
    expect_error([&] { nn::fully_shard(net, mesh); }, {"mesh(a=2,b=2,c=1)", "one axis", "two", "HSDP", "slice"});
    expect_error([&] { DeviceMesh(group, {{"", 4}}); }, {"needs a name"});
    expect_error([&] { DeviceMesh(group, {{"dp", 3}}); }, {"3 places", "4 ranks"});
  });
}

TEST(FullyShard, F4_ContainersAreRefusedAndListsAreOneGroup) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    const DeviceMesh mesh(group);
    expect_error([&] { nn::fully_shard(net.blocks, mesh); }, {"blocks", "container"});
    const auto refused = [&](const std::vector<nn::Module*>& list, std::initializer_list<std::string_view> parts) {
      expect_error([&] { nn::fully_shard(list, mesh); }, parts);
      EXPECT_FALSE(nn::is_fully_sharded(*net.blocks.items()[0]));
    };
    refused({}, {"the list of modules is empty"});
    refused({net.blocks.items()[0], nullptr}, {"a null pointer is among the modules"});
    refused({net.blocks.items()[0], &net.head, net.blocks.items()[0]}, {"\"blocks.0\" is twice in the list"});
    nn::fully_shard(std::vector<nn::Module*>{net.blocks.items()[0], net.blocks.items()[1]}, mesh);
    nn::fully_shard(net, mesh);
    net.materialize();
    EXPECT_EQ(nn::units(net).size(), 2u);
    EXPECT_EQ(nn::unit_of(*net.blocks.items()[0]), nn::unit_of(*net.blocks.items()[1]));
    const std::int64_t before = group->host().counts().all_gather.calls;
    sum(net(batch_of(2, 6, 0, "x")));
    EXPECT_EQ(settled_counts(*group).all_gather.calls - before, 2);
  });
}

TEST(FullyShard, F5_ZeroDimParametersAreRefusedAndOneElementOnesAreNot) {
  struct Scalar : nn::Layer<Scalar> {
    nn::Parameter& scale;
    explicit Scalar(const Shape& shape) : scale(add_parameter("scale", shape, nn::Init::ones())) {}
    Tensor forward(const Tensor& x) { return x * scale; }
  };
  run_ranks(2, [](const Group& group) {
    Scalar zero_dim(Shape{}), one_element(Shape{1});
    const DeviceMesh mesh(group);
    expect_error([&] { nn::fully_shard(zero_dim, mesh); }, {"scale", "0-d"});
    nn::fully_shard(one_element, mesh);
    one_element.materialize();
    const Tensor x = ones({3});
    backward(sum(one_element(x)));
    EXPECT_TRUE(same_bits(whole(one_element.scale.grad()), Tensor::from<float>({3}, {1})));
  });
}

TEST(FullyShard, F6_ValuesThatAreViewsAreTakenOver) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      nn::Linear layer(5, 7, {.bias = false});
      layer.materialize();
      const Tensor columns = transpose(batch_of(5, 7, 0, "columns"), 0, 1);
      EXPECT_FALSE(columns.is_contiguous());
      layer.weight.set(columns);
      nn::fully_shard(layer, DeviceMesh(group));
      EXPECT_TRUE(layer.weight.value().local().is_contiguous());
      EXPECT_TRUE(same_bits(whole(layer.weight.value()), columns));
    });
}

TEST(FullyShard, F8_ReshardIntegerOneIsFalseAllRanksIsTrue) {
  EXPECT_FALSE(nn::ReshardAfterForward(1).resolve(4));
  EXPECT_TRUE(nn::ReshardAfterForward(4).resolve(4));
  EXPECT_TRUE(nn::ReshardAfterForward(true).resolve(4));
  EXPECT_FALSE(nn::ReshardAfterForward(false).resolve(4));
  for (int wrong : {0, -1, 3, 5, 8})
    expect_error([&] { nn::ReshardAfterForward(wrong).resolve(4); }, {"divide the 4 ranks"});
  EXPECT_TRUE(nn::ReshardAfterForward(2).resolve(4));
  EXPECT_EQ(nn::ReshardAfterForward(2).slices(4), 2);
  for (const nn::ReshardAfterForward ends : {nn::ReshardAfterForward(1), nn::ReshardAfterForward(4),
                                             nn::ReshardAfterForward(true), nn::ReshardAfterForward(false)})
    EXPECT_EQ(ends.slices(4), 0);
}

TEST(FullyShard, F10_InnerGroupsKeepTheirParameters) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group));
    const auto groups = nn::units(net);
    ASSERT_EQ(groups.size(), 3u);  // root, two blocks
    EXPECT_EQ(nn::unit_of(net).parameters(), (std::vector<nn::Parameter*>{&net.head.weight, net.head.bias}));
    for (Block* block : net.blocks.items()) {
      const nn::UnitHandle inner = nn::unit_of(*block);
      EXPECT_EQ(inner.parameters(),
                (std::vector<nn::Parameter*>{&block->linear_layer.weight, block->linear_layer.bias}));
    }
  });
}

TEST(FullyShard, F11_ModuleWithoutParametersOfItsOwnCommunicatesNothing) {
  struct OuterNet : nn::Layer<OuterNet> {
    Net& net;
    OuterNet() : net(add<Net>("net", kTwoBlocks)) {}
    Tensor forward(const Tensor& x) { return net(x); }
  };
  run_ranks(2, [](const Group& group) {
    OuterNet outer;
    const DeviceMesh mesh(group);
    shard(outer.net, mesh);
    nn::fully_shard(outer, mesh);
    outer.materialize();
    const nn::UnitHandle unit = nn::unit_of(outer);
    EXPECT_FALSE(unit.has_parameters());
    expect_error([&] { unit.layout(); }, {"(model)", "no parameters of its own"});
    const std::int64_t before = group->host().counts().all_gather.calls;
    backward(sum(outer(batch_of(2, 6, 0, "x"))));
    // The inner net is no root now, so it is resharded after forward and gathered again: 3 + 3.
    EXPECT_EQ(settled_counts(*group).all_gather.calls - before, 6);
    EXPECT_EQ(group->host().counts().reduce_scatter.calls, 3);
    for (const nn::Parameter* p : outer.parameters()) EXPECT_TRUE(p->value().is_distributed());
  });
}

TEST(FullyShard, F12_WrappingTwiceIsRefused) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    const DeviceMesh mesh(group);
    nn::fully_shard(*net.blocks.items()[0], mesh);
    expect_error([&] { nn::fully_shard(*net.blocks.items()[0], mesh); }, {"blocks.0", "already"});
  });
}

struct TiedLinears : nn::Layer<TiedLinears> {
  struct User : nn::Layer<User> {
    nn::Parameter& weight;
    explicit User(nn::Parameter& tied) : weight(share_parameter("weight", tied)) {}
    Tensor forward(const Tensor& x) { return linear(x, weight); }
  };
  nn::Linear& first;
  User& second;
  TiedLinears()
      : first(add<nn::Linear>("first", 5, 5, nn::Linear::Options{.bias = false})),
        second(add<User>("second", first.weight)) {}
  Tensor forward(const Tensor& x) { return second(first(x)); }
};

TEST(FullyShard, F13_TiedParametersInsideAGroupAreOneSlot) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      TiedLinears tied, reference;
      nn::fully_shard(tied, DeviceMesh(group));
      tied.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      EXPECT_EQ(nn::unit_of(tied).parameters().size(), 1u);
      const Tensor x = batch_of(4, 5, 0, "x");
      nn::unit_of(tied).unshard();
      EXPECT_EQ(&tied.first.weight, &tied.second.weight);
      nn::unit_of(tied).reshard();
      backward(sum(square(tied(x))));
      backward(sum(square(reference(x))));
      if (group->size() > 1) { EXPECT_EQ(settled_counts(*group).reduce_scatter.bytes, 25 * 4); }
      EXPECT_TRUE(near(whole(tied.first.weight.grad()), reference.first.weight.grad()));
    });
}

TEST(FullyShard, F14_TiedWeightsOfTwoUnitsTrainLikeOneRank) {
  for (const bool wraps_second : {false, true})
    for (int ranks : {1, 2, 3})
      run_ranks(ranks, [&](const Group& group) {
        TiedLinears tied, reference;
        const DeviceMesh mesh(group);
        const nn::UnitHandle owner = nn::fully_shard(tied.first, mesh);
        if (wraps_second) nn::fully_shard(tied.second, mesh);
        nn::fully_shard(tied, mesh);
        tied.materialize(nn::Seed{3});
        reference.materialize(nn::Seed{3});
        expect_trains_alike(on_slices(tied, *group, 5, 5), on_batches(reference, 5, 5), {.steps = 4});
        EXPECT_FALSE(owner.is_gathered());
        GradMode off(false);
        tied(batch_of(2, 5, 0, "x"));
        EXPECT_FALSE(owner.is_gathered()) << "resharded by the last that used it";
      });
}

TEST(FullyShard, F14_TiedWeightsOfTwoRootsAreNamed) {
  run_ranks(2, [](const Group& group) {
    TiedLinears tied;
    const DeviceMesh mesh(group);
    nn::fully_shard(tied.first, mesh);
    nn::fully_shard(tied.second, mesh);
    tied.materialize();
    expect_error([&] { tied(batch_of(2, 5, 0, "x")); }, {"first.weight", "second", "common parent"});
  });
}

TEST(FullyShard, F15_BuffersStayWhole) {
  struct WithBuffer : nn::Layer<WithBuffer> {
    nn::Linear& inner;
    nn::Buffer& shift;
    WithBuffer()
        : inner(add<nn::Linear>("inner", 3, 3)), shift(add_buffer("shift", Tensor::from<float>({1, 2, 3}, {3}))) {}
    Tensor forward(const Tensor& x) { return inner(x) + shift; }
  };
  run_ranks(2, [](const Group& group) {
    WithBuffer model;
    nn::fully_shard(model, DeviceMesh(group));
    model.materialize();
    EXPECT_FALSE(model.shift.value().is_distributed());
    backward(sum(model(ones({2, 3}))));
    EXPECT_TRUE(same_bits(model.shift.value(), Tensor::from<float>({1, 2, 3}, {3})));
  });
}

TEST(FullyShard, F17_AWrappedModuleKeepsItsTypeAndIsNotCopied) {
  static_assert(!std::is_copy_constructible_v<Net> && !std::is_copy_assignable_v<Net>);
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    const nn::Module& module = net;
    nn::fully_shard(net, DeviceMesh(group));
    EXPECT_TRUE(typeid(module) == typeid(Net));
    EXPECT_TRUE(nn::is_fully_sharded(net));
    EXPECT_FALSE(nn::is_fully_sharded(net.head));
  });
}

TEST(FullyShard, F18_ShardSizesFollowTheChunkRule) {
  const std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> cases{
      {5, {2, 2, 1, 0}}, {3, {1, 1, 1, 0}}, {8, {2, 2, 2, 2}}, {1, {1, 0, 0, 0}}, {9, {3, 3, 3, 0}}};
  run_ranks(4, [&](const Group& group) {
    for (const auto& [rows, expected] : cases) {
      nn::Linear layer(3, rows);
      nn::fully_shard(layer, DeviceMesh(group));
      const auto mine = expected[static_cast<std::size_t>(group->rank())];
      EXPECT_EQ(layer.weight.value().local().shape(), (Shape{mine, 3})) << rows;
      EXPECT_EQ(layer.bias->value().local().shape(), (Shape{mine})) << rows;
    }
  });
}

// Bytes of the shard arena that belong to no parameter: they start at zero and nobody writes them.
void expect_gaps_are_zero(nn::Module& module) {
  for (const nn::UnitHandle& group : nn::units(module)) {
    const Ref<Storage> arena = group.parameters()[0]->value().local().storage();
    std::vector<bool> owned(static_cast<std::size_t>(arena->bytes()), false);
    for (const nn::Parameter* p : group.parameters()) {
      const Tensor local = p->value().local();
      const auto begin = static_cast<std::size_t>(local.offset() * byte_size(local.dtype()));
      std::fill_n(owned.begin() + static_cast<std::ptrdiff_t>(begin), local.bytes(), true);
    }
    for (std::size_t i = 0; i < owned.size(); ++i)
      if (!owned[i]) { ASSERT_EQ(arena->read()[i], std::byte{0}) << group.name() << " byte " << i; }
  }
}

TEST(FullyShard, F19_GapsStayZero) {
  run_ranks(3, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{1});
    expect_gaps_are_zero(net);
    nn::AdamW optimizer(net.parameters(), {.lr = 0.1});
    for (int i = 0; i < 2; ++i) {
      backward(mean_square(net(batch_of(3, 6, 0, "x")), batch_of(3, 5, 0, "y")));
      optimizer.step_and_clear();
    }
    expect_gaps_are_zero(net);
  });
}

TEST(FullyShard, F20_FullValuesAreReleasedAtWrapTime) {
  run_ranks(2, [](const Group& group) {
    const Accounting& memory = RankContext::current().allocator().accounting();
    nn::Linear layer(256, 512, {.bias = false});
    layer.materialize();
    EXPECT_EQ(memory.current(MemoryCategory::parameters), 512 * 256 * 4);
    nn::fully_shard(layer, DeviceMesh(group));
    EXPECT_EQ(memory.current(MemoryCategory::parameters), 512 * 256 * 4 / 2);
    EXPECT_EQ(memory.current(MemoryCategory::unsharded), 0);
  });
}

TEST(FullyShard, F21_ShardsCoverEveryElementOnce) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks);
      shard(net, DeviceMesh(group));
      std::int64_t own = 0;
      for (const nn::Parameter* p : net.parameters()) own += p->value().local().numel();
      group->host().all_reduce({in_place(&own, DType::i64, 1)}, {});
      EXPECT_EQ(own, net.num_parameters());
    });
}

TEST(FullyShard, F22_MetaInitialisationEqualsDirect) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net direct(kTwoBlocks), wrapped_on_meta(kTwoBlocks), wrapped_with_values(kTwoBlocks);
      const DeviceMesh mesh(group);
      direct.materialize(nn::Seed{42});
      shard(wrapped_on_meta, mesh);
      expect_error([&] { wrapped_on_meta(batch_of(2, 6, 0, "x")); },
                   {"materialize", "head.weight", "blocks.0.linear.weight"});
      nn::reset_after_error(wrapped_on_meta);
      wrapped_on_meta.materialize(nn::Seed{42});
      wrapped_with_values.materialize(nn::Seed{42});
      shard(wrapped_with_values, mesh);
      const auto expected = direct.parameters(), a = wrapped_on_meta.parameters(), b = wrapped_with_values.parameters();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(same_bits(whole(a[i]->value()), expected[i]->value())) << expected[i]->name();
        EXPECT_TRUE(same_bits(whole(b[i]->value()), expected[i]->value())) << expected[i]->name();
      }
    });
}

TEST(FullyShard, F23_MetaInitialisationWithUnevenAndEmptyShards) {
  run_ranks(4, [](const Group& group) {
    for (std::int64_t rows : {8, 5, 3, 1}) {
      nn::Linear direct(6, rows), sharded(6, rows);
      direct.materialize(nn::Seed{9});
      nn::fully_shard(sharded, DeviceMesh(group));
      sharded.materialize(nn::Seed{9});
      EXPECT_TRUE(same_bits(whole(sharded.weight.value()), direct.weight.value())) << rows;
      EXPECT_TRUE(same_bits(whole(sharded.bias->value()), direct.bias->value())) << rows;
    }
  });
}

}  // namespace
}  // namespace sherd::testing
