// from_local, to_local, full_tensor, and distribute over several axes. (Over one axis: distribute_test.cpp.)
#include "dtensor/api.h"

#include <gtest/gtest.h>

#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/dtensor/layouts.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

template <class Run>
std::int64_t total_calls(ProcessGroup& group, Run&& run) {
  const auto total = [&] {
    RankContext::current().drain_queues();  // a collective is counted when it ends
    const CommCounts c = group.host().counts();
    return c.all_gather.calls + c.reduce_scatter.calls + c.all_reduce.calls + c.broadcast.calls + c.barrier.calls +
           c.all_to_all.calls;
  };
  const std::int64_t before = total();
  run();
  return total() - before;
}

Tensor rank_values(const Group& group, const Shape& shape) {
  return add(counting(shape), 100.0 * static_cast<double>(group->rank()));
}

// ---- from_local ----

TEST(FromLocal, F120_IsALabelOnlyAndRoundTrips) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor local = rank_values(group, {2, 3});
      const std::int64_t calls = total_calls(*group, [&] {
        const Tensor x = from_local(local, mesh, {Shard(0)});
        EXPECT_EQ(describe(x), fmt::format("f32[{},3]{{0: dp}}", 2 * group->size()));
        EXPECT_EQ(to_local(x).storage()->id(), local.storage()->id());
        EXPECT_EQ(from_local(local, mesh, {Shard(-1)}).shape(), (Shape{2, 3 * group->size()}));
        EXPECT_EQ(from_local(local, mesh, {Partial()}).shape(), (Shape{2, 3}));
      });
      EXPECT_EQ(calls, 0);
    });
}

TEST(FromLocal, F120_UnevenPartsNeedTheShape) {
  for (int ranks : {2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor whole = counting({5, 2});
      const Spec* rows = Spec::of(mesh, Shard(0));
      const Tensor part = part_of(whole, *rows);
      const Tensor x = from_local(part, mesh, {Shard(0)}, {.run_check = true, .shape = Shape{5, 2}});
      EXPECT_TRUE(same_bits(full_tensor(x), whole));
      // Without the shape every rank takes the others' shards for as long as its own: the check sees that they are
      // not.
      if (5 % group->size() != 0)
        expect_error([&] { from_local(part, mesh, {Shard(0)}, {.run_check = true}); },
                     {"from_local", "do not make one tensor", "rank 0", "f32["});
    });
}

TEST(FromLocal, WrongPartsAreNamed) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor part = counting({2, 3});
    if (group->rank() == 0)  // two rows are rank 1's shard
      expect_error([&] { from_local(part, mesh, {Shard(0)}, {.shape = Shape{5, 3}}); },
                   {"from_local", "f32[2,3]", "[5,3]", "{0: dp}", "[3,3]"});
    expect_error([&] { from_local(part, mesh, {Shard(0)}, {.shape = Shape{4}}); }, {"f32[2,3]", "[4]"});
    expect_error([&] { from_local(part, mesh, {Shard(2)}); }, {"2"});
    expect_error([&] { from_local(part, Spec::of(mesh, Shard(2))); }, {"f32[2,3]", "no dim 2", "{2: dp}"});
    expect_error([&] { from_local(part, mesh, {Shard(0), Shard(1)}); }, {"2 placements", "mesh(dp=2)"});
    expect_error([&] { from_local(Tensor::scalar(1), mesh, {Shard(0)}); }, {"0-d"});
    expect_error([&] { from_local(from_local(part, mesh, {Shard(0)}), mesh, {Shard(0)}); }, {"distributed already"});
  });
}

TEST(FromLocal, F120_TheCheckFindsWhatRanksDoNotAgreeOn) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const bool odd_one = group->rank() == 2;
    const auto expect_refused = [&](const Tensor& local, Placement p, std::optional<Shape> shape,
                                    std::initializer_list<std::string_view> parts) {
      expect_error([&] { from_local(local, mesh, {p}, {.run_check = true, .shape = shape}); }, parts);
    };
    expect_refused(counting({odd_one ? 3 : 2, 2}), Shard(0), {}, {"from_local", "rank 2", "f32[3,2]", "f32[9,2]"});
    expect_refused(cast(counting({2}), odd_one ? DType::bf16 : DType::f32), Shard(0), {}, {"rank 2", "bf16[2]"});
    expect_refused(odd_one ? counting({2, 1}) : counting({2}), Shard(0), {}, {"rank 2", "f32[2,1]"});
    expect_refused(counting({odd_one ? 2 : 1}), Shard(0), Shape{3},
                   {odd_one ? "not this rank's part" : "rank 2 of mesh(dp=3)"});
    expect_refused(add(counting({4}), odd_one ? 1 : 0), Replicate(), {},
                   {"ranks 0 and 2", "same part", "values differ"});
    expect_refused(odd_one ? Tensor::scalar(1) : counting({2}), Shard(-1), {},
                   {odd_one ? "0-d" : "rank 2 of mesh(dp=3)"});
    from_local(add(counting({4}), odd_one ? 1 : 0), mesh, {Partial()}, {.run_check = true});
    from_local(counting({4}), mesh, {Replicate()}, {.run_check = true});
  });
}

TEST(FromLocal, F120_TheCheckKnowsWhoHoldsCopies) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const Tensor whole = counting({5, 3});
    for (const Spec* spec : all_layouts(mesh, {Replicate(), Shard(0), Shard(1), Partial()})) {
      const Tensor part = part_of(whole, *spec);
      EXPECT_EQ(from_local(part, spec, {.run_check = true, .shape = Shape{5, 3}}).layout(), spec);
    }
    const Spec* columns = Spec::of(mesh, {Replicate(), Shard(0)});
    const Tensor wrong = add(counting({2}), group->rank() == 3 ? 1 : 0);
    expect_error([&] { from_local(wrong, columns, {.run_check = true}); }, {"ranks 1 and 3"});
  });
}

// loss = sum(x * w) of full tensors: the local gradient is w's shard in this layout, and all of w if x is
// Partial(sum).
TEST(FromLocal, F115_GradientIsTheLocalPart) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor w = counting({5, 3});
      for (Placement lies : {Replicate(), Shard(0), Shard(1), Partial(), Partial(ReduceKind::avg)}) {
        const Spec* spec = Spec::of(mesh, lies);
        Slot slot("x", /*requires_grad=*/true);
        slot.set(part_of(counting({5, 3}), *spec));
        const Tensor x = from_local(slot.value(), mesh, {lies}, {.shape = Shape{5, 3}});
        backward(sum(mul(full_tensor(x), w)));
        const double share = lies.is_partial(ReduceKind::avg) ? 1.0 / group->size() : 1;
        EXPECT_TRUE(near(slot.grad(), mul(part_of(w, *gradient_spec(spec)), share))) << to_string(lies);
      }
    });
}

// Each rank uses its replica in its own way: the gradients that come back are Partial, and code further up adds them.
// A gradient that is replicated is counted once.
TEST(FromLocal, GradientsMayComeBackAsTerms) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor w = counting({2, 3});
      for (Placement arrives : {Partial(), Replicate()}) {
        Slot slot("x", /*requires_grad=*/true);
        slot.set(counting({2, 3}));
        const Tensor x = from_local(slot.value(), mesh, {Replicate()}, {.grad_placements = {{Partial()}}});
        const Spec* spec = Spec::of(mesh, arrives);
        const Tensor loss = sum(mul(to_local(x, {.grad_placements = {{arrives}}}), part_of(w, *spec)));
        EXPECT_EQ(total_calls(*group, [&] { backward(loss); }), 0);
        EXPECT_TRUE(near(all_reduce(slot.grad(), *group), w)) << to_string(arrives);
      }
      expect_error([&] { from_local(w, mesh, {Replicate()}, {.grad_placements = {{Shard(0)}}}); },
                   {"from_local as {}", "{0: dp}", "only Replicate and Partial"});
    });
}

TEST(FromLocal, MaximaHaveNoDerivative) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    Slot slot("x", /*requires_grad=*/true);
    slot.set(counting({3}));
    const Tensor x = full_tensor(from_local(slot.value(), mesh, {Partial(ReduceKind::max)}));
    expect_error([&] { backward(sum(x)); }, {"from_local", "Pmax", "no derivative", "detach()"});
  });
}

// ---- to_local ----

TEST(ToLocal, OnlyAPartHasAnAddress) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor x = from_local(ones({2, 3}), DeviceMesh(group, "dp"), {Shard(0)});
    expect_error([&] { x.data<float>(); }, {"f32[4,3]", "distributed over ranks", "local()", "full_tensor()"});
    EXPECT_EQ(x.local().data<float>()[0], 1);
  });
}

TEST(ToLocal, F121_GradientIsLabelledAsTheTensorLies) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      for (Placement lies : {Replicate(), Shard(0), Shard(1), Partial()}) {
        const Spec* spec = Spec::of(mesh, lies);
        Slot slot("x", /*requires_grad=*/true);
        slot.set(laid_out(counting({5, 3}), spec));
        const Tensor local = to_local(slot.value());
        EXPECT_FALSE(local.is_distributed());
        const Tensor factor = rank_values(group, local.shape());
        EXPECT_EQ(total_calls(*group, [&] { backward(sum(mul(local, factor))); }), 0);
        EXPECT_EQ(slot.grad().layout(), gradient_spec(spec));
        EXPECT_TRUE(same_bits(slot.grad().local(), factor));
      }
    });
}

// A peer counted the gradient once per rank here: a gradient that is Partial is labelled so again in backward, and
// added up.
TEST(ToLocal, TakingALabelOffAndPuttingItOnIsNothingInBackwardToo) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor w = counting({5, 3});
      for (Placement lies : {Replicate(), Shard(0), Shard(1), Partial()}) {
        Slot slot("x", /*requires_grad=*/true);
        slot.set(laid_out(counting({5, 3}), Spec::of(mesh, lies)));
        const Tensor x = from_local(to_local(slot.value()), mesh, {lies}, {.shape = Shape{5, 3}});
        backward(sum(mul(full_tensor(x), w)));
        EXPECT_TRUE(same_bits(full_tensor(slot.grad()), w)) << to_string(lies);
      }
    });
}

TEST(ToLocal, F121_APartialGradientOfAReplicatedTensorIsOneAllReduce) {
  for (int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      Slot slot("x", /*requires_grad=*/true);
      slot.set(laid_out(counting({2, 2}), Spec::of(mesh, Replicate())));
      const Tensor x = to_local(align_gradient(slot.value()), {.grad_placements = {{Partial()}}});
      const Tensor loss = sum(mul(x, rank_values(group, {2, 2})));
      const CommCounts before = group->host().counts();
      EXPECT_EQ(total_calls(*group, [&] { backward(loss); }), 1);
      EXPECT_EQ(group->host().counts().all_reduce.calls, before.all_reduce.calls + 1);
      const auto n = static_cast<double>(group->size());
      EXPECT_TRUE(near(slot.grad().local(), add(mul(counting({2, 2}), n), 100 * n * (n - 1) / 2)));
    });
}

TEST(ToLocal, F121_TheGradientMayNotBeCutOtherwise) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor rows = laid_out(counting({4, 4}), Spec::of(mesh, Shard(0)));
    const auto as = [&](Placement p) { to_local(rows, {.grad_placements = {{p}}}); };
    expect_error([&] { as(Replicate()); }, {"to_local of {0: dp}", "lie as {}", "only Replicate and Partial"});
    expect_error([&] { as(Shard(1)); }, {"{1: dp}", "only Replicate and Partial"});
    expect_error([&] { as(Partial()); }, {"{+dp}"});
    const Tensor copies = laid_out(counting({4, 4}), Spec::of(mesh, Replicate()));
    expect_error([&] { to_local(copies, {.grad_placements = {{Partial(ReduceKind::avg)}}}); }, {"{avg dp}", "summed"});
    expect_error([&] { to_local(counting({4})); }, {"plain tensor"});
    expect_error([&] { to_local(rows, {.shape = Shape{4, 4}}); }, {"a shape is for from_local()", "f32[4,4]{0: dp}"});
    as(Shard(-2));
  });
}

TEST(ToLocal, F121_TheCheckFindsReplicatedGradientsThatDiffer) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const auto run = [&](const Tensor& factor, std::vector<Placement> grad) {
      Slot slot("x", /*requires_grad=*/true);
      slot.set(laid_out(counting({2, 2}), Spec::of(mesh, Replicate())));
      const Tensor x = to_local(slot.value(), {.grad_placements = grad, .run_check = true});
      backward(sum(mul(x, factor)));
    };
    run(counting({2, 2}), {Replicate()});
    run(rank_values(group, {2, 2}), {Partial()});
    expect_error([&] { run(rank_values(group, {2, 2}), {Replicate()}); },
                 {"gradient of to_local", "ranks 0 and 1", "values differ"});
  });
}

// ---- full_tensor ----

TEST(FullTensor, F122_OneGatherPerCutAndTheGradientComesBackSharded) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor w = counting({5, 3});
    Slot slot("x", /*requires_grad=*/true);
    slot.set(laid_out(counting({5, 3}), Spec::of(mesh, Shard(1))));
    Tensor whole;
    EXPECT_EQ(total_calls(*group, [&] { whole = full_tensor(slot.value()); }), 1);
    EXPECT_EQ(total_calls(*group, [&] { backward(sum(mul(whole, w))); }), 0);
    EXPECT_EQ(slot.grad().layout(), slot.value().layout());
    EXPECT_TRUE(same_bits(slot.grad().local(), part_of(w, *Spec::of(mesh, Shard(1)))));
  });
}

TEST(FullTensor, F124_EveryLayoutOfTwoAxesGivesTheWhole) {
  run_ranks(6, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 3}});
    for (const Shape& shape : {Shape{16, 5}, Shape{17, 3}, Shape{5, 1}, Shape{0, 2}}) {
      const Tensor whole = counting(shape);
      for (const Spec* spec : all_layouts(mesh, {Replicate(), Shard(0), Shard(1), Partial()}))
        EXPECT_TRUE(same_bits(full_tensor(laid_out(whole, spec)), whole))
            << spec->describe() << " of " << to_string(shape);
    }
  });
}

TEST(FullTensor, F122_EachCutDimIsGatheredByItsAxis) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const Tensor w = mul(counting({5, 3}), -0.5);
    Slot slot("x", /*requires_grad=*/true);
    slot.set(laid_out(counting({5, 3}), Spec::of(mesh, {Shard(1), Shard(0)})));
    const std::int64_t dp = mesh.group("dp").host().counts().all_gather.calls,
                       tp = mesh.group("tp").host().counts().all_gather.calls;
    Tensor whole;
    const std::int64_t joint = total_calls(*group, [&] {
      whole = full_tensor(slot.value());
      EXPECT_TRUE(same_bits(whole, counting({5, 3})));
    });
    EXPECT_EQ(joint, 0);
    EXPECT_EQ(mesh.group("dp").host().counts().all_gather.calls, dp + 1);
    EXPECT_EQ(mesh.group("tp").host().counts().all_gather.calls, tp + 1);
    const CommCounter counter;
    backward(sum(mul(whole, w)));
    EXPECT_EQ(counter.describe(), "no communication");
    EXPECT_EQ(slot.grad().layout(), slot.value().layout());
    EXPECT_TRUE(same_bits(slot.grad().local(), part_of(w, Spec::from(slot.grad()))));
  });
}

TEST(FullTensor, PartsMayBeViews) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    for (int dim : {0, 1}) {
      const Tensor part = transpose(part_of(transpose(counting({5, 4}), 0, 1), *Spec::of(mesh, Shard(1 - dim))), 0, 1);
      const Tensor x = from_local(part, mesh, {Shard(dim)}, {.shape = Shape{5, 4}});
      EXPECT_TRUE(same_bits(full_tensor(x), counting({5, 4})));
      EXPECT_TRUE(same_bits(redistribute(x, {Shard(1 - dim)}).local(),
                            part_of(counting({5, 4}), *Spec::of(mesh, Shard(1 - dim)))));
    }
  });
}

// ---- distribute over several axes ----

TEST(Distribute, F124_EveryLayoutOfTwoAxes) {
  run_ranks(6, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 3}, {"tp", 2}});
    for (const Spec* spec : all_layouts(mesh, {Replicate(), Shard(0), Shard(1)})) {
      const Tensor whole = counting({7, 3});
      const Tensor x = distribute(whole, spec, kOwnData);
      EXPECT_TRUE(same_bits(x.local(), part_of(whole, *spec))) << spec->describe();
      EXPECT_TRUE(x.local().is_contiguous());
    }
  });
}

TEST(Distribute, F113_OverTwoAxesOnlyTheSourceRanksDataCounts) {
  run_ranks(6, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 3}, {"tp", 2}});
    for (int source : {0, 1, 4}) {
      const Tensor x = distribute(rank_values(group, {5, 3}), mesh, {Shard(0), Shard(-1)}, source);
      EXPECT_TRUE(same_bits(full_tensor(x), add(counting({5, 3}), 100.0 * source))) << "source " << source;
    }
    expect_error([&] { distribute(counting({4}), mesh, {Shard(0)}); }, {"1 placements", "mesh(dp=3,tp=2)"});
    expect_error([&] { distribute(counting({4}), mesh, {Replicate(), Shard(0)}, 6); }, {"source 6", "has 6"});
  });
}

TEST(Distribute, NoLayoutIsAnError) {
  run_ranks(1, [](const Group& group) {
    const Tensor plain = ones({2}), x = distribute(plain, DeviceMesh(group), {Shard(0)});
    const Spec* const none = nullptr;
    expect_error([&] { distribute(plain, none); }, {"distribute of f32[2]", "given no layout"});
    expect_error([&] { from_local(plain, none); }, {"from_local of f32[2]", "given no layout"});
    expect_error([&] { redistribute(x, none); }, {"redistribute of f32[2]", "given no layout"});
  });
}

}  // namespace
}  // namespace sherd::testing
