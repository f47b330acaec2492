// Expert weights [experts, out, in] sharded over merged dims: cuts go through experts. Oracles: the tensor itself,
// shards of dim 0, and one rank on the whole batch.
#include <gtest/gtest.h>

#include <vector>

#include "nn/checkpoint/full/full_state.h"
#include "nn/checkpoint/local_box.h"
#include "nn/checkpoint/training_state.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

const Shape kExpertShapes[] = {{8, 6, 3}, {3, 4, 5}, {2, 3, 2}};

/// The mean of what each expert makes of x.
struct Experts : nn::Layer<Experts> {
  nn::Parameter& weight;
  explicit Experts(const Shape& shape) : weight(add_parameter("weight", shape, nn::Init::normal(0.5))) {}
  Tensor forward(const Tensor& x) {
    Tensor total;
    for (std::int64_t e = 0; e < weight.shape()[0]; ++e) {
      const Tensor matrix = view(narrow(weight.value(), 0, e, 1), {weight.shape()[1], weight.shape()[2]});
      const Tensor y = relu(linear(x, matrix));
      total = total.defined() ? total + y : y;
    }
    return mul(total, 1.0 / static_cast<double>(weight.shape()[0]));
  }
};

nn::UnitPolicy merging(int dims, nn::UnitPolicy policy = {}) {
  policy.placement = [dims](const nn::Parameter&) { return nn::shard_merged(dims); };
  return policy;
}

Tensor numbered_whole(const Shape& shape) {
  std::vector<float> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  return Tensor::from<float>(std::span<const float>(values), shape);
}

Tensor box_of(Tensor whole, const ckpt::Box& box) {
  for (int d = 0; d < box.shape.size(); ++d) whole = narrow(std::move(whole), d, box.offset[d], box.shape[d]);
  return contiguous(std::move(whole));
}

TEST(FullyShard, F171_BoxesOfAllRanksCoverEachElementOnce) {
  for (const Shape& shape : kExpertShapes)
    for (const int dims : {2, 3})
      run_ranks(4, [&](const Group& group) {
        Experts net(shape);
        net.materialize();
        const Tensor whole = numbered_whole(shape);
        net.weight.assign(whole);
        nn::fully_shard(net, DeviceMesh(group), merging(dims));
        EXPECT_EQ(net.weight.shape(), shape);
        EXPECT_EQ(net.weight.sharded_value().ndim(), shape.size() - dims + 1);
        Tensor counts = full(shape, 0);
        std::int64_t elements = 0;
        for (const auto& [box, values] : ckpt::local_parts(net.weight.sharded_value(), shape)) {
          EXPECT_TRUE(same_bits(contiguous(values), box_of(whole, box))) << to_string(box);
          Tensor place = counts;
          for (int d = 0; d < shape.size(); ++d) place = narrow(place, d, box.offset[d], box.shape[d]);
          if (numel(box) > 0) copy_into(place, full(box.shape, 1));
          elements += numel(box);
        }
        EXPECT_EQ(elements, net.weight.sharded_value().local().numel());
        EXPECT_TRUE(same_bits(all_reduce(counts, *group, ReduceKind::sum), full(shape, 1)));
      });
}

TEST(FullyShard, F171_EveryRankHasRowsWhereThereAreFewerExpertsThanRanks) {
  run_ranks(4, [](const Group& group) {
    Experts net({3, 4, 5});
    nn::fully_shard(net, DeviceMesh(group), merging(2));
    net.materialize();
    EXPECT_EQ(describe(net.weight.sharded_value()), "f32[12,5]{0: dp}");
    EXPECT_EQ(net.weight.sharded_value().local().shape(), (Shape{3, 5}));
    nn::unit_of(net).unshard();
    EXPECT_EQ(describe(net.weight.value()), "f32[3,4,5]");
    nn::unit_of(net).reshard();
  });
}

void expect_experts_train(const Group& group, const DeviceMesh& mesh, const Shape& shape,
                          const nn::UnitPolicy& policy) {
  Experts net(shape), reference(shape);
  nn::fully_shard(net, mesh, policy);
  net.materialize(nn::Seed{7});
  reference.materialize(nn::Seed{7});
  EXPECT_TRUE(same_bits(view(whole(net.weight.sharded_value()), shape), reference.weight.value().detach()));
  nn::AdamW optimizer(net.parameters(), {.lr = 0.05}), plain(reference.parameters(), {.lr = 0.05});
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Tensor x = batch_of(12, shape[2], step, "x");
    backward(mean(square(net(slice_of(x, *group)))));
    backward(mean(square(reference(x))));
    EXPECT_TRUE(near(view(whole(net.weight.grad()), shape), reference.weight.grad(), 1e-5));
    optimizer.step_and_clear();
    plain.step_and_clear();
  }
  EXPECT_TRUE(near(view(whole(net.weight.sharded_value()), shape), reference.weight.value().detach(), 1e-4));
}

TEST(FullyShard, F171_TrainsLikeOneRank) {
  for (const Shape& shape : kExpertShapes)
    for (const int ranks : {1, 2, 4})
      run_ranks(ranks, [&](const Group& group) {
        for (const int dims : {2, 3}) expect_experts_train(group, DeviceMesh(group), shape, merging(dims));
      });
}

TEST(FullyShard, F171_TrainsLikeOneRankOverReplicas) {
  for (const Shape& shape : kExpertShapes)
    run_ranks(4, [&](const Group& group) {
      for (const char* strategy : {"hybrid_shard", "hybrid_shard_state"})
        expect_experts_train(group, Grid{2, 2}.mesh(group), shape, merging(2, nn::strategy(strategy)));
    });
}

// What one layout has saved another loads, bit for bit, as one file and in full.
TEST(FullyShard, F171_SavesHoldTheTensorAsItIs) {
  for (const Shape& shape : kExpertShapes) {
    const TempDir dir;
    run_ranks(4, [&](const Group& group) {
      const DeviceMesh mesh(group);
      const auto trained = [&](Experts& net, const nn::UnitPolicy& policy, std::uint64_t seed) {
        nn::fully_shard(net, mesh, policy);
        net.materialize(nn::Seed{seed});
        auto optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05});
        backward(mean(square(net(batch_of(4, shape[2], 0, "x")))));
        optimizer->step_and_clear();
        return optimizer;
      };
      Experts merged(shape), by_expert(shape), again(shape);
      const auto a = trained(merged, merging(2), 1), b = trained(by_expert, {}, 2), c = trained(again, merging(3), 3);
      ckpt::Manifest manifest;
      manifest.step = 1;
      nn::save_checkpoint(dir.path() + "/a", manifest, nn::training_state(merged, a.get()), *group);
      const auto load = [&](const std::string& path, Experts& net, nn::Optimizer& optimizer) {
        const auto reader = ckpt::open_newest_good(path, *group, ckpt::Verify::bytes, [](const std::string&) {});
        nn::load_checkpoint(*reader, nn::training_state(net, &optimizer));
      };
      load(dir.path() + "/a", by_expert, *b);
      nn::save_checkpoint(dir.path() + "/b", manifest, nn::training_state(by_expert, b.get()), *group);
      load(dir.path() + "/b", again, *c);
      const nn::FullState x = nn::full_state_dict(merged, *group, a.get()),
                          y = nn::full_state_dict(by_expert, *group, b.get()),
                          z = nn::full_state_dict(again, *group, c.get());
      EXPECT_EQ(x.size(), group->rank() == 0 ? y.size() : 0);
      for (const auto& [name, value] : x) {
        EXPECT_TRUE(same_bits(value, y.at(name))) << name;
        EXPECT_TRUE(same_bits(value, z.at(name))) << name;
        if (name == "weight") { EXPECT_EQ(value.shape(), shape); }
      }
    });
  }
}

TEST(FullyShard, F171_FullParametersAreSeenAndWrittenInTheirShape) {
  run_ranks(4, [](const Group& group) {
    const Shape shape{3, 4, 5};
    Experts net(shape);
    nn::fully_shard(net, DeviceMesh(group), merging(2));
    net.materialize();
    const Tensor values = numbered_whole(shape);
    {
      const nn::FullParameters all(net, {.write_back = true});
      EXPECT_EQ(net.weight.value().shape(), shape);
      copy_into(net.weight.value().detach(), values);
    }
    EXPECT_TRUE(same_bits(view(whole(net.weight.sharded_value()), shape), values));
  });
}

}  // namespace
}  // namespace sherd::testing
