// The dist layer: ops without a sharding rule are refused by name; optimizer and norm rows work on local extents.
#include <gtest/gtest.h>

#include <cmath>

#include "dtensor/api.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

Tensor values(const Shape& shape, std::string_view what) { return random_normal(shape, random_key(3, what, "test")); }

TEST(DistLayer, OpsWithoutARuleAreRefusedByNameOnEveryRank) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor rows = distribute(values({4, 4}, "a"), mesh, Shard(0));
      const Tensor plain = values({4, 4}, "b");
      expect_error([&] { matmul(plain, rows); }, {"matmul", "no sharding rule", "full_tensor()", "f32[4,4]{0: dp}"});
      expect_error([&] { add(rows, plain); }, {"add", "no sharding rule", "f32[4,4]{0: dp}", "f32[4,4]"});
      expect_error([&] { sum(rows); }, {"sum", "no sharding rule"});
      expect_error([&] { transpose(rows, 0, 1); }, {"no sharding rule"});
      expect_error([&] { fill_into(rows, 0); }, {"f32[4,4]{0: dp}", "no sharding rule", "local()"});
      expect_error([&] { copy_into(rows, plain); }, {"f32[4,4]{0: dp}", "no sharding rule", "local()"});
      const Tensor copy = distribute(plain, mesh, Replicate());
      expect_error([&] { relu(copy); }, {"relu", "no sharding rule", "f32[4,4]{}"});
    });
}

TEST(DistLayer, RefusalNamesTheRank) {
  run_ranks(2, [](const Group& group) {
    const Tensor rows = distribute(values({4, 4}, "a"), DeviceMesh(group), Shard(0));
    expect_error([&] { relu(rows); }, {fmt::format("rank {} of 2", group->rank())});
  });
}

TEST(DistLayer, RefusesBeforeAutogradRecords) {
  const DeviceMesh mesh(make_single_group());
  Slot slot("w", /*requires_grad=*/true);
  slot.set(distribute(values({4, 4}, "w"), mesh, Shard(0)));
  expect_error([&] { relu(slot.value()); }, {"relu", "no sharding rule"});
  EXPECT_FALSE(slot.grad().defined());
}

TEST(DistLayer, PowerSumSeesEachRanksOwnElements) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor whole = values({5, 3}, "g");
      const Tensor rows = distribute(whole, mesh, Shard(0));
      double expected = 0;
      const Spec::Range own = chunk_range(5, group->size(), group->rank());
      const std::vector<double> all = whole.to_vector<double>();
      for (std::int64_t i = 3 * own.begin; i < 3 * own.end; ++i)
        expected += all[static_cast<std::size_t>(i)] * all[static_cast<std::size_t>(i)];
      const Tensor list[] = {rows};
      EXPECT_NEAR(power_sum(list, 2).item<double>(), expected, 1e-6);
    });
}

// Sharded and whole updates of the same tensors must give the same bits: every element is on its own.
TEST(DistLayer, OptimizerRowsOnShardsEqualThoseOnTheWhole) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const auto update = [&](bool sharded) {
        std::vector<Tensor> t;
        for (const char* what : {"p", "m", "v", "g"}) {
          const Tensor value = what == std::string_view("v") ? square(values({7, 3}, what)) : values({7, 3}, what);
          t.push_back(sharded ? distribute(value, mesh, Shard(0)) : value);
        }
        const std::span<const Tensor> all(t);
        adamw_step(all.subspan(0, 1), all.subspan(1, 1), all.subspan(2, 1), all.subspan(3, 1), Tensor::scalar(0.1),
                   Tensor::scalar(3), Tensor::scalar(0.5), {.weight_decay = 0.1});
        sgd_step(all.subspan(0, 1), all.subspan(1, 1), all.subspan(3, 1), Tensor::scalar(0.1), Tensor::scalar(1),
                 {.momentum = 0.9});
        return t;
      };
      const std::vector<Tensor> whole = update(false), shards = update(true);
      const Tensor start = values({7, 3}, "p");
      EXPECT_FALSE(same_bits(whole[0], start));
      for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bits(full_tensor(shards[i]), whole[i])) << i;
    });
}

}  // namespace
}  // namespace sherd::testing
