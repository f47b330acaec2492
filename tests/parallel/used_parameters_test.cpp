// Ranks that use different parameters of one unit: a named error, or zeros on request. Methods other than forward, and
// what is wrong before the first step. Values are compared with a model that is whole on every rank.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "dtensor/scopes.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// Two linears of equal shapes, of which a call uses one, and a third that nobody uses.
struct Choosing : nn::Layer<Choosing> {
  nn::Linear &a, &b, &never;
  bool uses_a = true;
  Choosing() : a(add<nn::Linear>("a", 6, 6)), b(add<nn::Linear>("b", 6, 6)), never(add<nn::Linear>("never", 6, 6)) {}
  Tensor forward(const Tensor& x) { return relu(uses_a ? a(x) : b(x)); }
};

struct ChoosingNet : nn::Layer<ChoosingNet> {
  nn::ModuleList<Choosing>& blocks;
  nn::Linear& head;
  ChoosingNet() : blocks(add<nn::ModuleList<Choosing>>("blocks")), head(add<nn::Linear>("head", 6, 3)) {
    for (int i = 0; i < 3; ++i) blocks.append();
  }
  Tensor forward(Tensor x) {
    for (Choosing* block : blocks.items()) x = (*block)(x);
    return head(x);
  }
};

Tensor loss_of(ChoosingNet& net, const Tensor& x) { return mean(square(net(x))); }

TEST(FullyShard, F192_RanksThatUseDifferentParametersAreToldWhich) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      ChoosingNet net, reference;
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      Choosing& block = *net.blocks.items()[1];
      block.uses_a = group->rank() == 0;
      const Tensor x = batch_of(12, 6, 0, "x");
      expect_error(
          [&] {
            backward(loss_of(net, slice_of(x, *group)));
            RankContext::current().drain_queues();
            for (const nn::Parameter* p : net.parameters())
              if (p->grad().defined()) (void)p->grad().local().raw();
          },
          {"for blocks.1 of a.weight, a.bias alone", "for blocks.1 of b.weight, b.bias alone"});
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      for (nn::Parameter* p : net.parameters()) p->clear_grad();
      nn::reset_after_error(net);
      block.uses_a = true;
      backward(loss_of(net, slice_of(x, *group)));
      backward(loss_of(reference, x));
      EXPECT_TRUE(near(whole(block.a.weight.grad()), reference.blocks.items()[1]->a.weight.grad(), 1e-5));
      EXPECT_FALSE(block.b.weight.grad().defined());
    });
}

/// Two linears, in either order.
struct Swapping : nn::Layer<Swapping> {
  nn::Linear &a, &b;
  bool swaps = false;
  explicit Swapping(std::int64_t width)
      : a(add<nn::Linear>("a", width, width)), b(add<nn::Linear>("b", width, width)) {}
  Tensor forward(const Tensor& x) { return swaps ? a(b(x)) : b(a(x)); }
};

// In a first step, and in one whose order was recorded; small gathers, which take no thread, and large ones.
TEST(FullyShard, F192_RanksThatCallUnitsInAnotherOrderAreToldWhich) {
  for (const std::string& strategy : nn::strategy_names())
    for (const int recorded : {0, 2})
      for (const std::int64_t width : {8, 200}) {
        const bool is_grid = nn::strategy(strategy).needs_replicas;
        run_ranks(is_grid ? 4 : 2, [&](const Group& group) {
          SCOPED_TRACE(fmt::format("{}, {} steps before, width {}", strategy, recorded, width));
          const DeviceMesh mesh = is_grid ? DeviceMesh(group, {{"replicate", 2}, {"dp", 2}}) : DeviceMesh(group);
          Swapping net(width);
          for (nn::Module* module :
               {static_cast<nn::Module*>(&net.a), static_cast<nn::Module*>(&net.b), static_cast<nn::Module*>(&net)})
            nn::fully_shard(*module, mesh, nn::strategy(strategy));
          net.materialize(nn::Seed{3});
          const auto step = [&] {
            backward(sum(net(batch_of(2, width, 0, "x"))));
            RankContext::current().drain_queues();
            for (nn::Parameter* p : net.parameters()) (void)p->grad().local().raw();
          };
          const auto clear = [&] {
            for (nn::Parameter* p : net.parameters()) p->clear_grad();
          };
          for (int i = 0; i < recorded; ++i) step();
          net.swaps = group->rank() == 1;
          expect_error(step, {"for a [", "for b [", "the same calls in the same order"});
          clear();
          nn::reset_after_error(net);
          net.swaps = false;
          step();
          clear();
          EXPECT_EQ(held(MemoryCategory::gradients), 0);
        });
      }
}

/// Ranks, blocks and steps take turns.
void choose(ChoosingNet& model, int rank, std::uint64_t step) {
  for (std::size_t i = 0; i < 3; ++i)
    model.blocks.items()[i]->uses_a = (static_cast<std::uint64_t>(rank) + i + step) % 2 == 0;
}

/// Backward of a step on this rank's rows; of the reference on all, in the way of each rank.
void backward_both(ChoosingNet& net, ChoosingNet& reference, const ProcessGroup& group, std::uint64_t step) {
  const Tensor x = batch_of(12, 6, step, "x");
  choose(net, group.rank(), step);
  backward(loss_of(net, slice_of(x, group)));
  const std::int64_t rows = 12 / group.size();
  for (int rank = 0; rank < group.size(); ++rank) {
    choose(reference, rank, step);
    backward(loss_of(reference, narrow(x, 0, rank * rows, rows)) * (1.0 / group.size()));
  }
}

/// The gradients are the reference's, or zero, and cleared.
void expect_and_clear(ChoosingNet& net, ChoosingNet& reference) {
  const auto own = net.parameters(), expected = reference.parameters();
  for (std::size_t i = 0; i < own.size(); ++i) {
    ASSERT_TRUE(own[i]->grad().defined()) << own[i]->name();
    const Tensor average = expected[i]->grad().defined() ? expected[i]->grad().detach() : zeros(own[i]->shape());
    EXPECT_TRUE(near(own[i]->grad().local(), part_of(average, own[i]->grad()), 1e-5)) << own[i]->name();
    own[i]->clear_grad();
    expected[i]->clear_grad();
  }
  EXPECT_EQ(held(MemoryCategory::unsharded), 0);
}

TEST(FullyShard, F66_UnusedParametersCountAsZeroOnRequest) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      ChoosingNet net, reference;
      shard(net, DeviceMesh(group), {.reduce_unused = true});
      nn::units(net).set_reduce_unused(true);
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      for (std::uint64_t step = 0; step < 3; ++step) {
        const CommCounts before = settled_counts(*group);
        backward_both(net, reference, *group, step);
        if (group->size() > 1) {
          EXPECT_EQ(settled_counts(*group).reduce_scatter.calls - before.reduce_scatter.calls, 4);
        }
        expect_and_clear(net, reference);
      }
    });
}

// No pass reduces, so each leaves zeros for what it does not use: finalize_backward() reduces the same on all ranks.
TEST(FullyShard, F66_F86_UnusedParametersOfPassesThatWaitCountAsZeroToo) {
  for (const bool is_grid : {false, true})
    for (const bool is_by_hand : {false, true})
      run_ranks(4, [=](const Group& group) {
        ChoosingNet net, reference;
        shard(net, is_grid ? DeviceMesh(group, {{"replicate", 2}, {"dp", 2}}) : DeviceMesh(group));
        nn::units(net).set_reduce_unused(true);
        net.materialize(nn::Seed{3});
        reference.materialize(nn::Seed{3});
        for (std::uint64_t step = 0; step < 2; ++step) {
          nn::units(net).set_requires_gradient_sync(false);
          nn::unit_of(net).set_is_last_backward(!is_by_hand);
          backward_both(net, reference, *group, step);  // twice in the same way: a rank uses half of each block
          if (!is_by_hand) nn::units(net).set_requires_gradient_sync(true);
          backward_both(net, reference, *group, step);
          if (is_by_hand) {
            nn::units(net).set_requires_gradient_sync(true);
            nn::unit_of(net).set_is_last_backward(true);
            nn::finalize_backward(net);
          }
          expect_and_clear(net, reference);
        }
      });
}

// A batch that lies on the ranks makes gradients that are sums over them, where plain ones count as averages.
TEST(FullyShard, F66_F79_ZerosThatWaitTakeTheKindOfWhatIsAdded) {
  for (const bool is_bf16 : {false, true})
    for (const int ranks : {1, 2, 3})
      run_ranks(ranks, [=](const Group& group) {
        const DeviceMesh mesh(group);
        nn::UnitPolicy waiting;
        waiting.reduce_unused = true;
        if (is_bf16) waiting.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
        nn::UnitPolicy added = waiting;  // pass by pass
        added.gradients = nn::ShardedOver::shards;
        ChoosingNet net, other, reference;
        shard(net, mesh, waiting, waiting);
        shard(other, mesh, added, added);
        const ImplicitReplication implicit;
        for (ChoosingNet* each : {&net, &other, &reference}) {
          each->materialize(nn::Seed{3});
          for (std::uint64_t pass = 0; pass < 3; ++pass) {
            for (Choosing* block : each->blocks.items()) block->uses_a = pass != 1;
            const Tensor x = batch_of(12, 6, pass, "x");
            if (each != &reference) nn::units(*each).set_requires_gradient_sync(pass == 2);
            backward(sum(square((*each)(each == &reference ? x : distribute(x, mesh, Shard(0))))));
          }
        }
        const auto a = net.parameters(), b = other.parameters(), e = reference.parameters();
        for (std::size_t i = 0; i < a.size(); ++i) {
          ASSERT_TRUE(a[i]->grad().defined() && b[i]->grad().defined()) << a[i]->name();
          EXPECT_TRUE(near(a[i]->grad().local(), b[i]->grad().local(), 1e-5)) << a[i]->name();
          const Tensor expected = e[i]->grad().defined() ? e[i]->grad().detach() : zeros(e[i]->shape());
          if (is_bf16) continue;
          EXPECT_TRUE(near(a[i]->grad().local(), part_of(expected, a[i]->grad()), 1e-5)) << a[i]->name();
        }
      });
}

// ---- F74: methods other than forward ----

struct Encoder : nn::Layer<Encoder> {
  nn::Linear& inner;
  Encoder() : inner(add<nn::Linear>("inner", 6, 6)) {}
  Tensor forward(const Tensor& x) { return relu(inner(x)); }
  Tensor embed(const Tensor& x) { return square(inner(x)); }
};

struct EncodingNet : nn::Layer<EncodingNet> {
  Encoder& encoder;
  nn::Linear& head;
  EncodingNet() : encoder(add<Encoder>("encoder")), head(add<nn::Linear>("head", 6, 3)) {}
  Tensor forward(const Tensor& x) { return head(encoder(x)); }
  Tensor features(const Tensor& x) { return head(nn::call_hooked(encoder, &Encoder::embed, x)); }
  /// Calls a method of its own between hooks of its own.
  Tensor both(const Tensor& x) { return nn::call_hooked(*this, &EncodingNet::features, x) + head(x); }
};

TEST(FullyShard, F74_OtherMethodsGatherAndReshard) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      EncodingNet net, reference;
      const DeviceMesh mesh(group);
      const nn::UnitHandle encoder = nn::fully_shard(net.encoder, mesh);
      const nn::UnitHandle root = nn::fully_shard(net, mesh);
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      for (std::uint64_t step = 0; step < 4; ++step) {
        const Tensor x = batch_of(12, 6, step, "x");
        const auto method = step % 2 == 0 ? &EncodingNet::features : &EncodingNet::both;
        const CommCounts before = settled_counts(*group);
        backward(mean(square(nn::call_hooked(net, method, slice_of(x, *group)))));
        const CommCounts after = settled_counts(*group);
        if (group->size() > 1) {
          EXPECT_EQ(after.all_gather.calls - before.all_gather.calls, 3) << "the encoder's twice";
          EXPECT_EQ(after.reduce_scatter.calls - before.reduce_scatter.calls, 2);
        }
        backward(mean(square((reference.*method)(x))));
        expect_same_gradients(net, reference);
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        for (nn::Module* m : {static_cast<nn::Module*>(&net), static_cast<nn::Module*>(&reference)})
          for (nn::Parameter* p : m->parameters()) p->clear_grad();
      }
      EXPECT_EQ(encoder.late_gathers() + root.late_gathers(), 0);
      const GradMode off(false);
      const Tensor x = batch_of(3, 6, 9, "x");
      EXPECT_TRUE(near(nn::call_hooked(net, &EncodingNet::features, x), reference.features(x), 1e-5));
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    });
}

// ---- F200 to F202 ----

TEST(FullyShard, F200_WrappingFromTheRootDownIsRefusedForItsOwnReason) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    Net net({6, 10, 5});
    nn::fully_shard(net, mesh);
    expect_error([&] { nn::fully_shard(*net.blocks.items()[0], mesh); },
                 {"\"blocks.0\"", "\"(model)\"", "\"blocks.0.linear.weight\"", "inside out"});
    EXPECT_FALSE(nn::is_fully_sharded(*net.blocks.items()[0]));
    net.materialize();
    backward(sum(net(batch_of(2, 6, 0, "x"))));  // as it was
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

TEST(FullyShard, F201_AnErrorInTheFirstForwardOfOneRankReachesAll) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      Net net({6, 10, 5});
      shard(net, DeviceMesh(group));
      if (group->rank() != 1) net.materialize(nn::Seed{3});
      const Tensor x = batch_of(2, 6, 0, "x");
      const auto start = std::chrono::steady_clock::now();
      expect_error([&] { (void)net(x).raw(); }, {"no values yet", "blocks.0.linear.weight"});
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
      nn::reset_after_error(net);
      net.materialize(nn::Seed{3});
      Net reference({6, 10, 5});
      reference.materialize(nn::Seed{3});
      const GradMode off(false);
      EXPECT_TRUE(near(net(x), reference(x), 1e-5));
    });
}

TEST(FullyShard, F202_ADivideFactorThatIsNoNumberIsRefused) {
  run_ranks(1, [](const Group& group) {
    Net net({6, 10, 5});
    shard(net, DeviceMesh(group));
    for (const double factor : {std::numeric_limits<double>::infinity(), std::nan(""), 0.0, -1.0})
      expect_error([&] { nn::unit_of(net).set_gradient_divide_factor(factor); }, {"divide factor", "above 0"});
    for (const double factor : {1e-300, 1e300, 1e-42})
      expect_error([&] { nn::unit_of(net).set_gradient_divide_factor(factor); },
                   {"divide factor", fmt::format("{}", factor), "f32", "1e-37"});
  });
}

}  // namespace
}  // namespace sherd::testing
