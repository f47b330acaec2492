// redistribute, align_gradient: values, gradients, and how often ranks communicate for each pair of placements.
#include "dtensor/transition/redistribute.h"

#include <gtest/gtest.h>

#include <future>

#include "compile/compile.h"
#include "dtensor/api.h"
#include "dtensor/transition/placement_rows.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/dtensor/layouts.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct Calls {
  std::int64_t all_gather = 0, all_to_all = 0, reduce_scatter = 0, all_reduce = 0;
  friend bool operator==(const Calls&, const Calls&) = default;
};
std::ostream& operator<<(std::ostream& out, const Calls& c) {
  return out << fmt::format("all_gather {} all_to_all {} reduce_scatter {} all_reduce {}", c.all_gather, c.all_to_all,
                            c.reduce_scatter, c.all_reduce);
}

// The collectives that `run` called on a group. A collective is counted when it ends.
template <class Run>
Calls calls_of(ProcessGroup& group, Run&& run) {
  RankContext::current().drain_queues();
  const CommCounts before = group.host().counts();
  run();
  RankContext::current().drain_queues();
  CommCounts c = group.host().counts();
  c -= before;
  return {c.all_gather.calls, c.all_to_all.calls, c.reduce_scatter.calls, c.all_reduce.calls};
}

struct Pair {
  Placement from, to;
  Calls forward, backward;
};
const std::vector<Pair> kTable{
    {Shard(0), Replicate(), {.all_gather = 1}, {}},
    {Shard(1), Replicate(), {.all_gather = 1}, {}},
    {Shard(0), Shard(1), {.all_to_all = 1}, {.all_to_all = 1}},
    {Shard(1), Shard(0), {.all_to_all = 1}, {.all_to_all = 1}},
    {Replicate(), Shard(0), {}, {.all_gather = 1}},
    {Replicate(), Shard(1), {}, {.all_gather = 1}},
    {Partial(), Replicate(), {.all_reduce = 1}, {}},
    {Partial(), Shard(0), {.reduce_scatter = 1}, {.all_gather = 1}},
    {Partial(), Shard(1), {.reduce_scatter = 1}, {.all_gather = 1}},
    {Replicate(), Replicate(), {}, {}},
    {Shard(0), Shard(0), {}, {}},
};

TEST(Redistribute, F114_ValueAndCollectivesOfEachPair) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      for (const Shape& shape : {Shape{5, 3}, Shape{8, 4}, Shape{1, 2}})
        for (const Pair& pair : kTable) {
          const Tensor whole = counting(shape);
          const Tensor x = laid_out(whole, Spec::of(mesh, pair.from));
          Tensor y;
          EXPECT_EQ(calls_of(*group, [&] { y = redistribute(x, {pair.to}); }),
                    group->size() == 1 ? Calls{} : pair.forward)
              << to_string(pair.from) << " to " << to_string(pair.to);
          EXPECT_EQ(y.layout(), Spec::of(mesh, pair.to));
          EXPECT_EQ(y.shape(), shape);
          EXPECT_TRUE(same_bits(y.local(), part_of(whole, *Spec::of(mesh, pair.to))));
        }
    });
}

// loss = sum(x * w) of full tensors, computed from local tensors: dx = w.
TEST(Redistribute, F115_GradientAndCollectivesOfEachPair) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      for (const Shape& shape : {Shape{5, 3}, Shape{8, 4}, Shape{1, 2}})
        for (const Pair& pair : kTable) {
          const Tensor w = mul(counting(shape), -0.5);
          Slot slot("x", /*requires_grad=*/true);
          slot.set(laid_out(counting(shape), Spec::of(mesh, pair.from)));
          const Tensor y = redistribute(slot.value(), {pair.to});
          const Tensor loss = sum(mul(to_local(y), part_of(w, *Spec::of(mesh, pair.to))));
          EXPECT_EQ(calls_of(*group, [&] { backward(loss); }), group->size() == 1 ? Calls{} : pair.backward)
              << to_string(pair.from) << " to " << to_string(pair.to);
          const Spec* expected = Spec::of(mesh, pair.from.is_partial() ? Replicate() : pair.from);
          EXPECT_EQ(slot.grad().layout(), expected);
          EXPECT_TRUE(same_bits(slot.grad().local(), part_of(w, *expected)));
        }
    });
}

// Bytes that a group's collectives have moved.
template <class Run>
std::int64_t bytes_of(ProcessGroup& group, Run&& run) {
  RankContext::current().drain_queues();
  const CommCounts before = group.host().counts();
  run();
  RankContext::current().drain_queues();
  CommCounts c = group.host().counts();
  c -= before;
  return c.all_gather.bytes + c.all_to_all.bytes + c.reduce_scatter.bytes + c.all_reduce.bytes;
}

// Values are small integers and halves, exact in bf16, so casts and their order do not change them.
TEST(Redistribute, F207_ValuesAndGradientsTravelInTheTypesGiven) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Shape shape{8, 4};
      for (const Pair& pair : kTable)
        for (const auto& [forward, back] : {std::pair(DType::bf16, DType::f16),
                                            {DType::bf16, DType::f32},
                                            {DType::f32, DType::bf16},
                                            {DType::f64, DType::f16}}) {
          const std::string what =
              fmt::format("{} to {}, {} and {}", to_string(pair.from), to_string(pair.to), name(forward), name(back));
          const Tensor w = mul(counting(shape), -0.5);
          Slot slot("x", /*requires_grad=*/true);
          slot.set(laid_out(counting(shape), Spec::of(mesh, pair.from)));
          Tensor y, plain;
          const auto move = [&](const RedistributeOptions& options) {
            return redistribute(slot.value(), {pair.to}, options);
          };
          const std::int64_t sent =
              bytes_of(*group, [&] { y = move({.forward_dtype = forward, .backward_dtype = back}); });
          const std::int64_t sent_as_f32 = bytes_of(*group, [&] { plain = move({}); });
          EXPECT_EQ(sent * 4, sent_as_f32 * byte_size(forward)) << what;
          EXPECT_EQ(y.dtype(), forward) << what;
          EXPECT_EQ(y.layout(), plain.layout()) << what;
          EXPECT_TRUE(same_bits(cast(y.local(), DType::f32), plain.local())) << what;

          const Tensor part = part_of(w, *Spec::of(mesh, pair.to));
          const Tensor loss = sum(mul(cast(to_local(y), DType::f32), part)),
                       plain_loss = sum(mul(to_local(plain), part));
          const std::int64_t back_sent = bytes_of(*group, [&] { backward(loss); });
          EXPECT_EQ(slot.grad().dtype(), DType::f32) << what;
          const Tensor gradient = contiguous(slot.grad().local());
          slot.clear_grad();
          const std::int64_t back_as_f32 = bytes_of(*group, [&] { backward(plain_loss); });
          if (pair.from != pair.to) {  // else the gradient of `plain` takes no redistribution
            EXPECT_EQ(back_sent * 4, back_as_f32 * byte_size(back)) << what;
          }
          EXPECT_TRUE(same_bits(gradient, contiguous(slot.grad().local()))) << what;
        }
    });
}

// What is rounded is what is sent: the sum of bf16 terms is not the bf16 of the sum.
TEST(Redistribute, F207_TermsAreRoundedBeforeTheyAreSent) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const float own = group->rank() == 0 ? 1.0F : 1.0F / 512;  // 1 + 2^-9 + ... : bf16 has 8 bits
    const Tensor x = from_local(full({2}, own + 1.0F / 512), mesh, {Partial()});
    const Tensor rounded = add(cast(cast(full({2}, 1.0 + 1.0 / 512), DType::bf16), DType::f32),
                               cast(cast(full({2}, 2.0 / 512), DType::bf16), DType::f32));
    const Tensor sum = redistribute(x, {Replicate()}, {.forward_dtype = DType::bf16});
    EXPECT_TRUE(same_bits(sum.local(), cast(rounded, DType::bf16)));
  });
}

TEST(Redistribute, F207_OnlyFloatsTravelInAnotherType) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor ids = distribute(cast(counting({4}), DType::i64), mesh, Shard(0)),
                 x = distribute(counting({4}), mesh, Shard(0));
    const auto to_all = [](const Tensor& t, const RedistributeOptions& options) {
      redistribute(t, {Replicate()}, options);
    };
    expect_error([&] { to_all(ids, {.forward_dtype = DType::f32}); }, {"i64[4]{0: dp}", "travel as f32", "cast()"});
    expect_error([&] { to_all(x, {.forward_dtype = DType::i32}); }, {"f32[4]{0: dp}", "travel as i32"});
    expect_error([&] { to_all(x, {.backward_dtype = DType::i32}); }, {"f32[4]{0: dp}", "travel as i32"});
    EXPECT_EQ(redistribute(x, {Shard(0)}).impl(), x.impl()) << "nothing to do";
    const CommCounts before = group->host().counts();
    EXPECT_EQ(describe(redistribute(x, {Shard(0)}, {.forward_dtype = DType::bf16})), "bf16[4]{0: dp}");
    EXPECT_EQ(group->host().counts().all_gather.calls, before.all_gather.calls);
  });
}

// The gradient of a gathered tensor is Partial: one reduction, straight to the shards.
TEST(Redistribute, F115_APartialGradientOfAGatherIsOneReduceScatter) {
  for (int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      for (int dim : {0, 1}) {
        const Tensor w = counting({5, 4});
        Slot slot("x", /*requires_grad=*/true);
        slot.set(laid_out(counting({5, 4}), Spec::of(mesh, Shard(dim))));
        const Tensor all = to_local(redistribute(slot.value(), {Replicate()}), {.grad_placements = {{Partial()}}});
        const Tensor loss = sum(mul(all, part_of(w, *Spec::of(mesh, Partial()))));
        EXPECT_EQ(calls_of(*group, [&] { backward(loss); }), Calls{.reduce_scatter = 1});
        EXPECT_TRUE(same_bits(slot.grad().local(), part_of(w, *Spec::of(mesh, Shard(dim)))));
      }
    });
}

TEST(Redistribute, F115_GradientsOnTwoAxesOfEveryPair) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const std::vector<const Spec*> specs = all_layouts(mesh, {Replicate(), Shard(0), Shard(1), Partial()});
    const Tensor w = counting({5, 3});
    for (const Spec* from : specs)
      for (const Spec* to : specs) {
        if (to->is_partial()) continue;
        Slot slot("x", /*requires_grad=*/true);
        slot.set(laid_out(w, from));
        backward(sum(mul(to_local(redistribute(slot.value(), to)), part_of(w, *to))));
        EXPECT_EQ(slot.grad().layout(), gradient_spec(from));
        ASSERT_TRUE(same_bits(slot.grad().local(), part_of(w, *gradient_spec(from))))
            << from->describe() << " to " << to->describe();
      }
  });
}

TEST(Redistribute, SameLayoutIsTheSameTensor) {
  const DeviceMesh mesh(make_single_group());
  const Tensor x = distribute(counting({4, 2}), mesh, Shard(1));
  EXPECT_EQ(redistribute(x, {Shard(-1)}).impl(), x.impl());
  EXPECT_EQ(redistribute(x, Spec::of(mesh, Shard(1))).impl(), x.impl());
}

TEST(Redistribute, SlicingMovesNoBytes) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = laid_out(counting({4, 2}), Spec::of(mesh, Replicate()));
    EXPECT_EQ(redistribute(x, {Shard(0)}).local().storage()->id(), x.local().storage()->id());
  });
}

TEST(Redistribute, InEveryDtype) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    for (DType dtype : {DType::f64, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8, DType::boolean})
      for (Placement from : {Shard(0), Shard(1), Replicate()})
        for (Placement to : {Shard(0), Shard(1), Replicate()}) {
          const Tensor whole = cast(counting({4, 5}), dtype);
          const Tensor y = redistribute(laid_out(whole, Spec::of(mesh, from)), {to});
          EXPECT_TRUE(same_bits(y.local(), part_of(whole, *Spec::of(mesh, to)))) << name(dtype);
        }
  });
}

TEST(Redistribute, OnTheMetaDeviceOnlyShapesChange) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = distribute(Tensor::empty({5, 4}, DType::bf16, Device::meta()), mesh, Shard(0), kOwnData);
    const Calls none = calls_of(*group, [&] {
      const Tensor y = redistribute(x, {Shard(1)});
      EXPECT_EQ(describe(y), "bf16[5,4]{1: dp}");
      EXPECT_TRUE(y.local().is_meta());
    });
    EXPECT_EQ(none, Calls{});
  });
}

TEST(Redistribute, F116_RefusalsNameTheTensorAndTheRank) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor rows = laid_out(counting({4, 2}), Spec::of(mesh, Shard(0)));
    const std::string rank = fmt::format("rank {} of 2", group->rank());
    const Tensor sums = laid_out(counting({4, 2}), Spec::of(mesh, Partial()));
    const Calls none = calls_of(*group, [&] {
      expect_error([&] { redistribute(rows, {Partial()}); },
                   {"redistribute", "f32[4,2]{0: dp}", "S0 would become P", "by ops only", rank});
      expect_error([&] { redistribute(sums, {Partial(ReduceKind::max)}); }, {"f32[4,2]{+dp}", "P would become Pmax"});
      expect_error([&] { redistribute(rows, {Shard(2)}); }, {"2"});
      expect_error([&] { redistribute(rows, {Shard(0), Shard(0)}); }, {"2 placements", "mesh(dp=2)"});
      const DeviceMesh other(group, "tp");
      expect_error([&] { redistribute(rows, Spec::of(other, Shard(0))); },
                   {"redistribute", "mesh(dp=2)", "mesh(tp=2)", rank});
      expect_error([&] { redistribute(counting({4, 2}), {Shard(0)}); }, {"f32[4,2]", "plain tensor"});
    });
    EXPECT_EQ(none, Calls{});
  });
}

// Wrong input that each rank takes for right: no rank waits for what the other does not send.
TEST(Redistribute, RanksThatAskForDifferentLayoutsAreNamedOnAll) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor rows = laid_out(counting({4, 2}), Spec::of(mesh, Shard(0)));
    for (int round = 0; round < 2; ++round) {
      expect_error(
          [&] { redistribute(rows, {group->rank() == 0 ? Replicate() : Shard(1)}).local().to_vector<float>(); },
          {"rank 0 calls all_gather", "rank 1 calls all_to_all"});
      group->reset();
      EXPECT_TRUE(same_bits(full_tensor(rows), counting({4, 2}))) << "the group goes on";
    }
  });
}

TEST(Redistribute, F116_ASliceAndItsRootAreTwoMeshes) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const Tensor x = laid_out(counting({4, 2}), Spec::of(mesh["tp"], Shard(0)));
    expect_error([&] { redistribute(x, Spec::of(mesh, {Replicate(), Shard(0)})); }, {"mesh(tp=2)", "mesh(dp=2,tp=2)"});
  });
}

// The peer comes only after this rank's call has returned, so a call that waited would run into the deadline.
TEST(Redistribute, F126_IsWaitedForWhereItIsFirstRead) {
  std::promise<void> returned;
  std::shared_future<void> called = returned.get_future().share();
  run_ranks(2, [&](const Group& group) {
    group->set_deadline(std::chrono::seconds(20));
    const DeviceMesh mesh(group);
    const Tensor whole = counting({6, 2});
    const Tensor x = laid_out(whole, Spec::of(mesh, Shard(0)));
    if (group->rank() == 1) called.wait();
    const Tensor y = redistribute(redistribute(x, {Replicate()}), {Shard(1)});
    if (group->rank() == 0) returned.set_value();
    EXPECT_TRUE(same_bits(y.local(), part_of(whole, *Spec::of(mesh, Shard(1)))));
  });
}

TEST(Redistribute, ACapturedStepReplaysItsCollectivesBitForBit) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    Slot slot("w", /*requires_grad=*/true);
    slot.set(laid_out(counting({5, 4}), Spec::of(mesh, Shard(0))));
    const auto function = [&](const Tensor& scale) {
      slot.clear_grad();
      const Tensor columns = redistribute(slot.value(), {Shard(1)});
      backward(sum(mul(to_local(columns), scale)));
      return slot.grad().local();
    };
    auto step = compile(function, {.group = nullptr});  // which compares nothing
    for (int i = 1; i <= 4; ++i) {
      const Tensor expected = full({part_of(counting({5, 4}), *Spec::of(mesh, Shard(0))).size(0), 4}, i, DType::f32);
      const Calls calls =
          calls_of(*group, [&] { EXPECT_TRUE(same_bits(step(Tensor::scalar(i)), expected)) << "call " << i; });
      EXPECT_EQ(calls, Calls({.all_to_all = 2})) << "call " << i;
    }
  });
}

// ---- align_gradient ----

TEST(AlignGradient, ReducesAPartialGradientOnceForAllUses) {
  for (Placement lies : {Replicate(), Shard(0), Shard(1)})
    run_ranks(3, [&](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor w = counting({5, 3});
      Slot slot("x", /*requires_grad=*/true);
      slot.set(laid_out(counting({5, 3}), Spec::of(mesh, lies)));
      const Tensor x = align_gradient(slot.value());
      EXPECT_EQ(x.layout(), slot.value().layout());
      EXPECT_EQ(x.local().storage()->id(), slot.value().local().storage()->id());
      const Tensor all = to_local(redistribute(x, {Replicate()}), {.grad_placements = {{Partial()}}});
      const Tensor loss = sum(mul(all, part_of(w, *Spec::of(mesh, Partial()))));
      const Calls calls = calls_of(*group, [&] { backward(loss); });
      EXPECT_EQ(calls, lies.is_replicate() ? Calls{.all_reduce = 1} : Calls{.reduce_scatter = 1});
      EXPECT_TRUE(same_bits(slot.grad().local(), part_of(w, *Spec::of(mesh, lies))));
    });
}

TEST(AlignGradient, IsTheTensorItselfWhereNothingIsRecorded) {
  const DeviceMesh mesh(make_single_group());
  const Tensor x = distribute(counting({4}), mesh, Shard(0));
  EXPECT_EQ(align_gradient(x).impl(), x.impl());
  expect_error([] { align_gradient(counting({4})); }, {"f32[4]", "plain tensor"});
}

// A block's output is the only handle on its Partial values: their sum needs no second buffer, and no copy.
TEST(Redistribute, TheSumIsWrittenOverTermsThatNobodyElseHolds) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Spec* terms = Spec::of(mesh, Partial());
    for (const bool is_held : {false, true}) {
      Tensor local = full({8, 16}, 2);
      const std::byte* const address = local.storage()->address();
      Tensor x = Tensor::distributed({8, 16}, terms, local);
      const Tensor held = is_held ? local : Tensor();
      local = Tensor();
      const Tensor sum = redistribute(std::move(x), {Replicate()});
      EXPECT_EQ(sum.local().storage()->address() == address, !is_held);
      EXPECT_TRUE(same_bits(sum.local(), full({8, 16}, 4)));
      if (is_held) { EXPECT_TRUE(same_bits(held, full({8, 16}, 2))); }
    }
  });
}

TEST(Redistribute, ItsRowsAreInTheTableOnceThereIsAMesh) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    EXPECT_EQ(&find_op("redistribute"), &op::redistribute);
    EXPECT_EQ(&find_op("align_gradient"), &op::align_gradient);
    EXPECT_EQ(&find_op("from_local"), &op::from_local);
    EXPECT_EQ(&find_op("to_local"), &op::to_local);
  });
}

}  // namespace
}  // namespace sherd::testing
