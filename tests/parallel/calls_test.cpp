// Modules that are not called once each from the root's forward: by themselves, in chunks, in part, as a list without
// a root above, and passes whose backwards come in another order. Gradients are those of one rank on the whole batch.
#include <gtest/gtest.h>

#include <utility>

#include "nn/layers/norm.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// A sum over this rank's rows whose gradient, averaged over the ranks, is that of the sum over all rows.
Tensor as_mean(const Tensor& own_sum, const ProcessGroup& group) {
  return mul(own_sum, static_cast<double>(group.size()));
}

/// The whole gradient is the reference's, or neither has one.
void expect_same_gradient(const nn::Parameter& actual, const nn::Parameter& expected) {
  ASSERT_EQ(actual.grad().defined(), expected.grad().defined()) << actual.name();
  if (!actual.grad().defined()) return;
  EXPECT_TRUE(near(whole(actual.grad()), expected.grad(), 1e-5)) << actual.name();
}
void expect_same_gradients_or_none(const nn::Module& actual, const nn::Module& expected) {
  const auto a = actual.parameters(), e = expected.parameters();
  ASSERT_EQ(a.size(), e.size());
  for (std::size_t i = 0; i < a.size(); ++i) expect_same_gradient(*a[i], *e[i]);
}

void clear_gradients(const nn::Module& module) {
  for (nn::Parameter* p : module.parameters()) p->clear_grad();
}

TEST(FullyShard, F27_AListMayBeTheRoot) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      nn::Linear first(6, 8), second(8, 5), first_reference(6, 8), second_reference(8, 5);
      const nn::UnitHandle unit = nn::fully_shard({&first, &second}, DeviceMesh(group));
      for (nn::Linear* layer : {&first, &second, &first_reference, &second_reference}) layer->materialize(nn::Seed{3});
      for (std::uint64_t step = 0; step < 3; ++step) {
        const CommCounts before = settled_counts(*group);
        const Tensor x = batch_of(12, 6, step, "x");
        backward(as_mean(sum(square(second(relu(first(slice_of(x, *group)))))), *group));
        backward(sum(square(second_reference(relu(first_reference(x))))));
        if (group->size() > 1) {
          CommCounts used = settled_counts(*group);
          used -= before;
          EXPECT_EQ(used.all_gather.calls, 1) << "a root's parameters stay until backward";
          EXPECT_EQ(used.reduce_scatter.calls, 1);
        }
        EXPECT_FALSE(unit.is_unsharded());
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      }
      expect_same_gradients_or_none(first, first_reference);
      expect_same_gradients_or_none(second, second_reference);
    });
}

TEST(FullyShard, F28_UnshardBeforeTheFirstForward) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      Net net(kUneven), reference(kUneven);
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      nn::unit_of(net).unshard();
      nn::unit_of(*net.blocks.items()[0]).unshard();
      nn::UnshardHandle other = nn::unit_of(*net.blocks.items()[1]).unshard_async();
      other.wait();
      for (std::uint64_t step = 0; step < 2; ++step) {
        const Tensor x = batch_of(12, 5, step, "x");
        const Tensor own = net(slice_of(x, *group)), all = reference(x);
        EXPECT_TRUE(near(own, slice_of(all.detach(), *group), 1e-5));
        backward(as_mean(sum(square(own)), *group));
        backward(sum(square(all)));
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      }
      expect_same_gradients(net, reference);
    });
}

TEST(FullyShard, F63_ABlockIsCalledByItself) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      Net net(kUneven), reference(kUneven);
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      const auto train_alike = [&](std::uint64_t from) {
        const auto moved = [from](Side side) {
          return Side{side.model, [loss = side.loss, from](std::uint64_t step) { return loss(from + step); },
                      side.ranks};
        };
        expect_trains_alike(moved(on_slices(net, *group, 5, 2)), moved(on_batches(reference, 5, 2)), {.steps = 2});
      };
      train_alike(0);  // the whole model first: it becomes the root
      for (std::uint64_t step = 0; step < 2; ++step) {
        const Tensor x = batch_of(12, 7, step, "x");
        backward(as_mean(sum(square((*net.blocks.items()[1])(slice_of(x, *group)))), *group));
        backward(sum(square((*reference.blocks.items()[1])(x))));
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        expect_same_gradients_or_none(net, reference);
      }
      clear_gradients(net);
      clear_gradients(reference);
      train_alike(2);
    });
}

/// Two results, of which the model below uses one.
struct Fork : nn::Layer<Fork> {
  nn::Linear &used, &unused;
  Fork() : used(add<nn::Linear>("used", 6, 8)), unused(add<nn::Linear>("unused", 6, 8)) {}
  std::pair<Tensor, Tensor> forward(const Tensor& x) { return {relu(used(x)), unused(x)}; }
};

struct ForkNet : nn::Layer<ForkNet> {
  Fork& fork;
  Block& idle;  // in no forward
  nn::Linear& head;
  ForkNet() : fork(add<Fork>("fork")), idle(add<Block>("idle", 8, 8)), head(add<nn::Linear>("head", 8, 5)) {}
  Tensor forward(const Tensor& x) { return head(fork(x).first); }
};

TEST(FullyShard, F65_OutputsAndModulesThatNobodyUses) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      ForkNet net, reference;
      const DeviceMesh mesh(group);
      nn::fully_shard(net.fork, mesh);
      nn::fully_shard(net.idle, mesh);
      nn::fully_shard(net, mesh);
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      nn::AdamW optimizer(net.parameters(), {.lr = 0.01}), expected(reference.parameters(), {.lr = 0.01});
      for (std::uint64_t step = 0; step < 3; ++step) {
        const CommCounts before = settled_counts(*group);
        const Tensor x = batch_of(12, 6, step, "x"), y = batch_of(12, 5, step, "y");
        backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
        backward(mean_square(reference(x), y));
        if (group->size() > 1) {
          EXPECT_EQ(settled_counts(*group).reduce_scatter.calls - before.reduce_scatter.calls, 2);
        }
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        EXPECT_FALSE(net.fork.unused.weight.grad().defined());
        EXPECT_FALSE(net.idle.linear_layer.weight.grad().defined());
        expect_same_gradients_or_none(net, reference);
        optimizer.step_and_clear();
        expected.step_and_clear();
      }
      expect_same_values(net, reference);
    });
}

// As a pipeline runs them: two micro-batches forward, then their backwards, the first one first or last.
TEST(FullyShard, F68_BackwardsOfTwoForwardsInEitherOrder) {
  for (const bool reshard : {true, false})
    for (const bool last_first : {true, false})
      run_ranks(2, [=](const Group& group) {
        Net net(kUneven), reference(kUneven);
        shard(net, DeviceMesh(group), {.reshard_after_forward = nn::ReshardAfterForward(reshard)});
        net.materialize(nn::Seed{3});
        reference.materialize(nn::Seed{3});
        for (std::uint64_t step = 0; step < 2; ++step) {
          const Tensor a = batch_of(12, 5, step, "a"), b = batch_of(12, 5, step, "b");
          const Tensor loss_a = as_mean(sum(square(net(slice_of(a, *group)))), *group),
                       loss_b = as_mean(sum(net(slice_of(b, *group))), *group);
          backward(last_first ? loss_b : loss_a);
          backward(last_first ? loss_a : loss_b);
          backward(sum(square(reference(a))) + sum(reference(b)));
          EXPECT_EQ(held(MemoryCategory::unsharded), 0);
          expect_same_gradients(net, reference);
        }
      });
}

/// The loss is computed from chunks of rows, each with a backward of its own, outside of the root's forward.
struct ChunkedNet : nn::Layer<ChunkedNet> {
  Block& body;
  nn::LayerNorm& norm;
  nn::Linear& head;
  ChunkedNet()
      : body(add<Block>("body", 6, 8)), norm(add<nn::LayerNorm>("norm", 8)), head(add<nn::Linear>("head", 8, 5)) {}
  Tensor forward(const Tensor& x) { return body(x); }
  Tensor loss_of(const Tensor& hidden) { return sum(square(head(norm(hidden)))); }
};

TEST(FullyShard, F69_F190_AChunkedLossReducesOncePerChunk) {
  constexpr std::int64_t kChunks = 3, kRows = 2;  // of each rank
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      ChunkedNet net, reference;
      const DeviceMesh mesh(group);
      nn::fully_shard(net.body, mesh);
      nn::fully_shard({&net.norm, &net.head}, mesh);
      nn::fully_shard(net, mesh);
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      for (std::uint64_t step = 0; step < 2; ++step) {
        const CommCounts before = settled_counts(*group);
        const Tensor x = batch_of(kChunks * kRows * group->size(), 6, step, "x");
        const Tensor hidden = net(slice_of(x, *group));
        Slot leaf("hidden", /*requires_grad=*/true);
        leaf.set(hidden.detach());
        for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
          const Tensor rows = narrow(leaf.value(), 0, chunk * kRows, kRows);
          backward(as_mean(net.loss_of(rows), *group));
          EXPECT_EQ(held(MemoryCategory::unsharded), 0) << "chunk " << chunk;
        }
        backward(hidden, {.grad = leaf.grad()});
        backward(reference.loss_of(reference(x)));
        if (group->size() > 1) {
          CommCounts used = settled_counts(*group);
          used -= before;
          EXPECT_EQ(used.reduce_scatter.calls, kChunks + 1) << "each chunk's, and the body's";
        }
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        expect_same_gradients(net, reference);
      }
    });
}

/// Both blocks read inputs of the model.
struct Towers : nn::Layer<Towers> {
  Block &left, &right;
  Towers() : left(add<Block>("left", 6, 5)), right(add<Block>("right", 4, 5)) {}
  Tensor forward(const Tensor& x, const Tensor& y) { return left(x) + right(y); }
};

// No gradient leaves a block whose input needs none: its own are complete all the same, and the same bits.
TEST(FullyShard, F71_InputsWithAndWithoutGradients) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      Towers plain, with_gradients, reference;
      for (Towers* net : {&plain, &with_gradients}) {
        const DeviceMesh mesh(group);
        nn::fully_shard(net->left, mesh);
        nn::fully_shard(net->right, mesh);
        nn::fully_shard(*net, mesh);
      }
      for (Towers* net : {&plain, &with_gradients, &reference}) net->materialize(nn::Seed{3});
      const Tensor x = batch_of(12, 6, 0, "x"), y = batch_of(12, 4, 0, "y");
      const auto step = [&](Towers& net, const Tensor& own_x, const Tensor& own_y) {
        const CommCounts before = settled_counts(*group);
        backward(as_mean(sum(square(net(own_x, own_y))), *group));
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        CommCounts used = settled_counts(*group);
        used -= before;
        return std::pair(used.all_gather.calls, used.reduce_scatter.calls);
      };
      Slot own_x("x", /*requires_grad=*/true), own_y("y", /*requires_grad=*/true);
      own_x.set(slice_of(x, *group));
      own_y.set(slice_of(y, *group));
      const auto used = step(plain, slice_of(x, *group), slice_of(y, *group));
      EXPECT_EQ(used, (group->size() > 1 ? std::pair<std::int64_t, std::int64_t>(4, 2) : std::pair(0l, 0l)));
      EXPECT_EQ(step(with_gradients, own_x.value(), own_y.value()), used);
      backward(sum(square(reference(x, y))));
      expect_same_gradients(plain, reference);
      const auto a = plain.parameters(), b = with_gradients.parameters();
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(same_bits(a[i]->grad().local(), b[i]->grad().local())) << a[i]->name();
      EXPECT_EQ(own_x.grad().shape(), own_x.value().shape());
    });
}

TEST(FullyShard, F194_UnshardBeforeThereAreValuesIsRefused) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      Net net(kUneven);
      shard(net, DeviceMesh(group));
      expect_error([&] { nn::unit_of(net).unshard(); }, {"(model)", "no values", "materialize"});
      expect_error([&] { nn::unit_of(*net.blocks.items()[1]).unshard_async(); },
                   {"blocks.1", "no values", "materialize"});
      nn::unit_of(net).reshard();
      net.materialize();
      nn::unit_of(net).unshard();
      EXPECT_FALSE(net.head.weight.value().is_distributed());
    });
}

}  // namespace
}  // namespace sherd::testing
