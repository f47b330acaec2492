// Lookups and losses on sharded tensors against one rank: values, gradients, and how much is communicated.
#include <gtest/gtest.h>

#include <functional>
#include <numbers>

#include "compile/compile.h"
#include "dtensor/api.h"
#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

Tensor values(const Shape& shape, std::string_view what) { return random_normal(shape, random_key(9, what, "test")); }

void expect_near(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-5 + 1e-5 * std::abs(y[i])) << i;
}

struct Outcome {
  Tensor value;
  std::vector<Tensor> gradients;
};

// One forward and backward, with the inputs that `place` makes of full ones.
template <class F>
Outcome run(const std::vector<Tensor>& inputs, const F& f, const Tensor& cotangent = {}) {
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Tensor> tensors;
  for (const Tensor& t : inputs) {
    const bool floats = is_floating(t.dtype());
    slots.push_back(std::make_unique<Slot>("x", floats));
    slots.back()->set(t);
    tensors.push_back(floats ? slots.back()->value() : t);
  }
  const Tensor y = f(tensors);
  backward(y, {.grad = cotangent});
  Outcome result{y.detach(), {}};
  for (const auto& s : slots)
    if (s->requires_grad()) result.gradients.push_back(s->grad());
  return result;
}

void expect_same(const Outcome& cut, const Outcome& whole) {
  expect_near(full_tensor(cut.value), whole.value);
  for (std::size_t i = 0; i < whole.gradients.size(); ++i)
    expect_near(full_tensor(cut.gradients[i]), whole.gradients[i]);
}

// Every axis of the mesh takes any of the placements.
void for_each_layout(const DeviceMesh& mesh, const std::vector<Placement>& choices,
                     const std::function<void(std::span<const Placement>)>& body) {
  std::vector<std::size_t> at(static_cast<std::size_t>(mesh.ndim()), 0);
  for (;;) {
    std::vector<Placement> placements;
    for (std::size_t i : at) placements.push_back(choices[i]);
    body(placements);
    std::size_t a = at.size();
    while (a > 0 && ++at[a - 1] == choices.size()) at[--a] = 0;
    if (a == 0) return;
  }
}

void on_groups(const std::function<void(const DeviceMesh&, ProcessGroup&)>& body) {
  for (int ranks : {1, 2, 3}) run_ranks(ranks, [&](const Group& group) { body(DeviceMesh(group, "tp"), *group); });
  run_ranks(4, [&](const Group& group) { body(DeviceMesh(group, {{"dp", 2}, {"tp", 2}}), *group); });
}

TEST(IndexRules, F138_EmbeddingByRowsColumnsAndBatch) {
  on_groups([](const DeviceMesh& mesh, ProcessGroup&) {
    const Tensor table = values({7, 5}, "table"), grad = values({3, 4, 5}, "grad");
    const Tensor ids = Tensor::from<std::int64_t>({0, 6, 3, 3, 1, 2, 4, 5, 6, 0, 0, 3}, {3, 4});
    const auto lookup = [](const std::vector<Tensor>& in) { return embedding(in[0], in[1]); };
    const Outcome whole = run({table, ids}, lookup, grad);
    const Tensor whole_grad = distribute(grad, mesh, std::vector<Placement>(mesh.ndim()));
    for_each_layout(mesh, {Replicate(), Shard(0), Shard(1)}, [&](std::span<const Placement> pt) {
      for_each_layout(mesh, {Replicate(), Shard(0), Shard(1)}, [&](std::span<const Placement> pi) {
        expect_same(run({distribute(table, mesh, pt), distribute(ids, mesh, pi)}, lookup, whole_grad), whole);
      });
    });
  });
}

TEST(IndexRules, F138_RowsOfTheTableGiveTermsAndTheGradientIsMadeInParts) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    const Tensor ids = distribute(Tensor::from<std::int64_t>({0, 6, 3, 3}, {4}), mesh, Replicate());
    const StrictCommunication strict;
    Slot table("table", true);
    table.set(distribute(values({7, 5}, "table"), mesh, Shard(0)));
    const Tensor rows = embedding(table.value(), ids);
    EXPECT_EQ(describe(rows), "f32[4,5]{+tp}");
    backward(rows, {.grad = distribute(values({4, 5}, "grad"), mesh, Replicate())});
    EXPECT_EQ(describe(table.grad()), "f32[7,5]{0: tp}");
    const Tensor bad = distribute(Tensor::from<std::int64_t>({0, 7}, {2}), mesh, Replicate());
    expect_error([&] { embedding(table.value(), bad); }, {"embedding", "7"});
  });
}

// With a sharded batch, or columns of the table sharded, nothing is communicated; the gradient of a replicated table
// is Partial.
TEST(IndexRules, F138_BatchAndColumnsCommunicateNothing) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    const Tensor whole = Tensor::from<std::int64_t>({0, 6, 3, 3, 5}, {5}), grad = values({5, 5}, "grad");
    const auto expect = [&](Placement of_table, Placement of_ids, const char* rows, const char* gradient) {
      Slot table("table", true), expected("table", true);
      expected.set(values({7, 5}, "table"));
      table.set(distribute(values({7, 5}, "table"), mesh, of_table));
      const Tensor ids = distribute(whole, mesh, of_ids), like = embedding(expected.value(), whole);
      const StrictCommunication strict;
      const Tensor found = embedding(table.value(), ids);
      EXPECT_EQ(describe(found), rows);
      const CommCounts before = group->host().counts();
      backward(found, {.grad = distribute(grad, mesh, Spec::from(found).placement(0), kOwnData)});
      EXPECT_EQ(group->host().counts().all_gather.calls + group->host().counts().all_reduce.calls,
                before.all_gather.calls + before.all_reduce.calls);
      EXPECT_EQ(describe(table.grad()), gradient);
      backward(like, {.grad = grad});
      expect_near(full_tensor(found), like);
      expect_near(full_tensor(table.grad()), expected.grad());
    };
    expect(Replicate(), Shard(0), "f32[5,5]{0: tp}", "f32[7,5]{+tp}");
    expect(Shard(1), Replicate(), "f32[5,5]{1: tp}", "f32[7,5]{1: tp}");
  });
}

TEST(LossRules, F135_CrossEntropyOverCutRowsAndClasses) {
  on_groups([](const DeviceMesh& mesh, ProcessGroup&) {
    const Tensor logits = mul(values({5, 3, 7}, "logits"), 4);
    const Tensor targets = Tensor::from<std::int64_t>({0, 6, 3, 3, -100, 2, 4, 5, 6, 0, 0, -100, 1, 1, 2}, {5, 3});
    const auto loss = [](const std::vector<Tensor>& in) { return cross_entropy(in[0], in[1]); };
    const Outcome whole = run({logits, targets}, loss);
    for_each_layout(mesh, {Replicate(), Shard(0), Shard(1), Shard(2)}, [&](std::span<const Placement> pl) {
      for_each_layout(mesh, {Replicate(), Shard(0)}, [&](std::span<const Placement> pt) {
        expect_same(run({distribute(logits, mesh, pl), distribute(targets, mesh, pt)}, loss), whole);
      });
    });
  });
}

TEST(LossRules, F135_NoTargetCounts) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    const Tensor targets = Tensor::from<std::int64_t>({-100, -100, -100}, {3});
    for (const Placement& p : {Shard(0), Shard(1)}) {
      const Outcome cut = run({distribute(values({3, 4}, "logits"), mesh, p), distribute(targets, mesh, Replicate())},
                              [](const std::vector<Tensor>& in) { return cross_entropy(in[0], in[1]); });
      EXPECT_EQ(full_tensor(cut.value).item<float>(), 0);
      for (double g : full_tensor(cut.gradients[0]).to_vector<double>()) EXPECT_EQ(g, 0);
    }
  });
}

// A mean over the targets that count: ranks hold 2, 2 and 1 rows, and 2, 1 and 1 of them count. Two numbers are summed
// in forward, nothing moves in backward.
// Two equal logits: the loss is log 2, however large they are. At 1e4 a float has steps of 0.001.
TEST(LossRules, F135_CutClassesKeepTheDigitsOfLargeLogits) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    const Tensor targets = distribute(Tensor::from<std::int64_t>({0, 1}, {2}), mesh, Replicate(), kOwnData);
    const Tensor logits = distribute(full({2, 2}, 1e4), mesh, Shard(1), kOwnData);
    EXPECT_FLOAT_EQ(full_tensor(cross_entropy(logits, targets)).item<float>(), std::numbers::ln2_v<float>);
    const Tensor x = distribute(full({2, 1}, 100), mesh, Replicate(), kOwnData);
    const Tensor weight = distribute(full({2, 1}, 100), mesh, Shard(0), kOwnData);
    EXPECT_FLOAT_EQ(full_tensor(linear_cross_entropy(x, weight, targets)).item<float>(), std::numbers::ln2_v<float>);
  });
}

TEST(LossRules, F135_CutRowsExchangeTwoNumbers) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group, "dp");
    const Tensor whole = values({5, 9}, "logits"), ids = Tensor::from<std::int64_t>({0, 8, -100, 5, 3}, {5});
    Slot logits("logits", true), expected("logits", true);
    logits.set(distribute(whole, mesh, Shard(0)));
    expected.set(whole);
    const Tensor targets = distribute(ids, mesh, Shard(0));
    const StrictCommunication strict;
    CommCounter counter;
    const Tensor loss = cross_entropy(logits.value(), targets);
    EXPECT_EQ(counter.total(), (CommCounter::Item{1, 2 * 4})) << counter.describe();
    EXPECT_EQ(counter.of(comm::CommOp::all_reduce).calls, 1);
    counter.clear();
    backward(loss);
    EXPECT_EQ(counter.describe(), "no communication");
    EXPECT_EQ(describe(logits.grad()), "f32[5,9]{0: dp}");
    const Tensor like = cross_entropy(expected.value(), ids);
    backward(like);
    expect_near(loss.local(), like);
    expect_near(full_tensor(logits.grad()), expected.grad());
  });
}

// Loss-parallel: two small all-reduces forward (a maximum; a sum of exponentials with the targets' logits), none back.
TEST(LossRules, F135_CutClassesAreNeverGathered) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    Slot logits("logits", true);
    logits.set(distribute(values({6, 9}, "logits"), mesh, Shard(1)));
    const Tensor targets = distribute(Tensor::from<std::int64_t>({0, 8, 4, 5, -100, 3}, {6}), mesh, Replicate());
    const CommCounts before = group->host().counts();
    const Tensor loss = cross_entropy(logits.value(), targets);
    EXPECT_EQ(describe(loss), "f32[]{}");
    CommCounts spent = group->host().counts();
    spent -= before;
    EXPECT_EQ(spent.all_reduce.calls, 2);
    EXPECT_EQ(spent.all_reduce.bytes, (6 + 12) * 4);
    backward(loss);
    EXPECT_EQ(describe(logits.grad()), "f32[6,9]{1: tp}");
    spent = group->host().counts();
    spent -= before;
    EXPECT_EQ(spent.all_reduce.calls, 2);
    EXPECT_EQ(spent.all_gather.calls, 0);
    const Tensor bad = distribute(Tensor::from<std::int64_t>({0, 8, 9, 5, -100, 3}, {6}), mesh, Replicate());
    expect_error([&] { cross_entropy(logits.value(), bad); }, {"cross_entropy", "9"});
  });
}

const auto kLinearLoss = [](const std::vector<Tensor>& in) { return linear_cross_entropy(in[0], in[1], in[2]); };

TEST(LossRules, F135_LinearCrossEntropyOverCutRowsAndClasses) {
  on_groups([](const DeviceMesh& mesh, ProcessGroup&) {
    const Tensor x = values({5, 3, 4}, "x"), weight = values({7, 4}, "weight");
    const Tensor targets = Tensor::from<std::int64_t>({0, 6, 3, 3, -100, 2, 4, 5, 6, 0, 0, -100, 1, 1, 2}, {5, 3});
    const Outcome whole = run({x, weight, targets}, kLinearLoss);
    for_each_layout(mesh, {Replicate(), Shard(0), Shard(1), Shard(2)}, [&](std::span<const Placement> px) {
      for_each_layout(mesh, {Replicate(), Shard(0)}, [&](std::span<const Placement> pw) {
        const Tensor spread = distribute(targets, mesh, std::vector<Placement>(mesh.ndim()));
        expect_same(run({distribute(x, mesh, px), distribute(weight, mesh, pw), spread}, kLinearLoss), whole);
      });
    });
  });
}

// Each rank takes its own rows in chunks. Forward reduces two numbers, backward nothing: the gradient of x has x's
// layout, that of the weight is Partial.
TEST(LossRules, F135_CutRowsAreNeverGathered) {
  constexpr std::int64_t kRows = 2049;  // two chunks of the first rank's rows, one of the other's
  run_ranks(2, [&](const Group& group) {
    const Tensor x = values({kRows, 3}, "x"), weight = values({5, 3}, "weight");
    std::vector<std::int64_t> classes;
    for (std::int64_t i = 0; i < kRows; ++i) classes.push_back(i % 7 == 0 ? -100 : i % 5);
    const Tensor targets = Tensor::from<std::int64_t>(classes, {kRows});
    const Outcome whole = run({x, weight, targets}, kLinearLoss);
    const DeviceMesh mesh(group, "dp");
    Slot x_cut("x", true), w("weight", true);
    x_cut.set(distribute(x, mesh, Shard(0)));
    w.set(distribute(weight, mesh, Replicate()));
    const Tensor t = distribute(targets, mesh, Shard(0));
    const StrictCommunication strict;
    CommCounts before = group->host().counts();
    const Tensor loss = linear_cross_entropy(x_cut.value(), w.value(), t);
    CommCounts spent = group->host().counts();
    spent -= before;
    EXPECT_EQ(spent.all_reduce.calls, 1);
    EXPECT_EQ(spent.all_reduce.bytes, 2 * 4);
    before = group->host().counts();
    backward(loss);
    spent = group->host().counts();
    spent -= before;
    EXPECT_EQ(spent.all_reduce.calls + spent.all_gather.calls + spent.reduce_scatter.calls + spent.all_to_all.calls, 0);
    EXPECT_EQ(describe(x_cut.grad()), "f32[2049,3]{0: dp}");
    EXPECT_EQ(describe(w.grad()), "f32[5,3]{+dp}");
    expect_same({loss.detach(), {x_cut.grad(), w.grad()}}, whole);
    // A frozen weight costs no products.
    x_cut.clear_grad();
    w.clear_grad();
    w.set_requires_grad(false);
    backward(linear_cross_entropy(x_cut.value(), w.value(), t));
    EXPECT_FALSE(w.grad().defined());
    expect_near(full_tensor(x_cut.grad()), whole.gradients[0]);
  });
}

// Ranks with different numbers of rows record one program.
TEST(LossRules, F135_CutRowsAreReplayedAsTheyRan) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "dp");
    Slot eager("weight", true), captured("weight", true);
    for (Slot* slot : {&eager, &captured}) slot->set(distribute(values({5, 3}, "weight"), mesh, Replicate()));
    const auto run_step = [](Slot& w, const Tensor& x, const Tensor& t) {
      w.clear_grad();
      const Tensor loss = linear_cross_entropy(x, w.value(), t);
      backward(loss);
      return loss;
    };
    CompileOptions options;
    options.group = group;
    auto step = compile([&](const Tensor& x, const Tensor& t) { return run_step(captured, x, t); }, options);
    const Tensor targets = distribute(full({2049}, 3, DType::i64), mesh, Shard(0));
    for (int i = 0; i < 4; ++i) {
      const Tensor x = distribute(values({2049, 3}, std::to_string(i)), mesh, Shard(0));
      const Tensor expected = run_step(eager, x, targets).detach();
      EXPECT_TRUE(same_bits(step(x, targets).local(), expected.local())) << i;
      EXPECT_TRUE(same_bits(captured.grad().local(), eager.grad().local())) << i;
    }
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
  });
}

TEST(RandomRules, F143_DropoutDrawsTheSameMaskInEveryLayout) {
  on_groups([](const DeviceMesh& mesh, ProcessGroup&) {
    const Tensor x = values({5, 3, 7}, "x"), grad = values({5, 3, 7}, "grad");
    const auto drop = [](const std::vector<Tensor>& in) {
      return dropout(in[0], 0.4, 77, Tensor::scalar(3, DType::i64), 11);
    };
    const Outcome whole = run({x}, drop, grad);
    for_each_layout(mesh, {Replicate(), Shard(0), Shard(1), Shard(2)}, [&](std::span<const Placement> p) {
      const Outcome cut = run({distribute(x, mesh, p)}, drop, distribute(grad, mesh, p));
      EXPECT_TRUE(same_bits(full_tensor(cut.value), whole.value));
      EXPECT_TRUE(same_bits(full_tensor(cut.gradients[0]), whole.gradients[0]));
    });
  });
}

}  // namespace
}  // namespace sherd::testing
