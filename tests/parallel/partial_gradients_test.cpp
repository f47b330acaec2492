// Terms of gradients that wait for the end of backward and are summed over an axis in one launch.
#include "nn/parallel/partial_gradients.h"

#include <gtest/gtest.h>

#include <memory>

#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/op/rows/ops.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// What a gradient of a replicated parameter is where ranks hold parts of the data.
struct TermSink final : GradSink {
  std::shared_ptr<nn::PartialGradients> terms;
  const Spec* layout;
  explicit TermSink(const DeviceMesh& mesh) : terms(nn::PartialGradients::of(mesh)), layout(Spec::replicate(mesh)) {}
  Destination destination(Slot&) override { return {}; }
  void wrote(Slot&) override {}
  void accept(Slot& slot, Tensor gradient) override {
    const Shape shape = gradient.shape();
    terms->add(slot, std::move(gradient), shape, layout);
  }
  void finish(Slot&) override {}
  void abandon(Slot&, std::string_view) noexcept override { terms->discard(); }
};

struct Weights {
  TermSink sink;
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<int> hook_calls;

  Weights(const DeviceMesh& mesh, const std::vector<DType>& dtypes) : sink(mesh), hook_calls(dtypes.size(), 0) {
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      Slot& slot = *slots.emplace_back(std::make_unique<Slot>(fmt::format("w{}", i), /*requires_grad=*/true));
      slot.set(ones({static_cast<std::int64_t>(i) + 2, 3}, dtypes[i]));
      slot.set_sink(&sink);
      slot.on_grad_accumulated([this, i](Slot& s) {
        ++hook_calls[i];
        EXPECT_TRUE(s.grad().is_distributed());
      });
    }
  }
  ~Weights() {
    for (const auto& slot : slots) slot->set_sink(nullptr);
  }
  // Gradient of weight i on rank r: (i + 1) (r + 1), and twice that for weight 0, which is used twice.
  Tensor loss(int rank) {
    Tensor total;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const double factor = static_cast<double>((i + 1) * static_cast<std::size_t>(rank + 1));
      Tensor term = cast(sum(mul(slots[i]->value(), factor)), DType::f32);
      if (i == 0) term = term + cast(sum(mul(slots[i]->value(), factor)), DType::f32);
      total = total.defined() ? total + term : term;
    }
    return total;
  }
};

TEST(PartialGradients, AllTermsOfAPassAreSummedInOneLaunch) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group, "tp");
      Weights w(mesh, {DType::f32, DType::f32, DType::f32});
      const int n = group->size(), over_ranks = n * (n + 1) / 2;
      const CommCounts before = settled_counts(*group);
      for (int pass = 1; pass <= 2; ++pass) {  // passes add up
        backward(w.loss(group->rank()));
        for (std::size_t i = 0; i < w.slots.size(); ++i) {
          const Tensor& grad = w.slots[i]->grad();
          EXPECT_EQ(grad.layout(), Spec::replicate(mesh));
          const double expected = (i == 0 ? 2.0 : 1.0) * static_cast<double>(i + 1) * over_ranks * pass;
          EXPECT_TRUE(same_bits(grad.local(), full(w.slots[i]->value().shape(), expected))) << i;
          EXPECT_EQ(w.hook_calls[i], pass);
        }
      }
      const CommCounts after = settled_counts(*group);
      EXPECT_EQ(after.all_reduce.calls - before.all_reduce.calls, n == 1 ? 0 : 2);
      EXPECT_EQ(after.all_reduce.bytes - before.all_reduce.bytes, n == 1 ? 0 : 2 * (2 + 3 + 4) * 3 * 4);
    });
}

TEST(PartialGradients, EachTypeHasItsLaunch) {
  run_ranks(2, [](const Group& group) {
    Weights w(DeviceMesh(group, "tp"), {DType::f32, DType::bf16, DType::f32});
    const CommCounts before = settled_counts(*group);
    backward(w.loss(group->rank()));
    EXPECT_EQ(settled_counts(*group).all_reduce.calls - before.all_reduce.calls, 2);
    EXPECT_TRUE(same_bits(w.slots[1]->grad().local(), full({3, 3}, 6, DType::bf16)));
    EXPECT_TRUE(same_bits(w.slots[2]->grad().local(), full({4, 3}, 9)));
  });
}

TEST(PartialGradients, TermsThatComeAtTheEndOfThePassAreInTheSameLaunch) {
  run_ranks(2, [](const Group& group) {
    Weights w(DeviceMesh(group, "tp"), {DType::f32, DType::f32});
    // Made first, so reached last: by then the sum is queued for the end.
    const Tensor early = mul(w.slots[0]->value(), 2);
    const Tensor loss = w.loss(group->rank()) + sum(early);
    register_grad_hook(early, [&](const Tensor&) {
      at_end_of_backward([&] { w.sink.accept(*w.slots[1], full({3, 3}, 100)); });
      return Tensor();
    });
    const CommCounts before = settled_counts(*group);
    backward(loss);
    EXPECT_EQ(settled_counts(*group).all_reduce.calls - before.all_reduce.calls, 1);
    EXPECT_TRUE(same_bits(w.slots[1]->grad().local(), full({3, 3}, 206)));
  });
}

TEST(PartialGradients, APassThatFailsLeavesNothingBehind) {
  run_ranks(2, [](const Group& group) {
    Weights w(DeviceMesh(group, "tp"), {DType::f32, DType::f32});
    // The hook is on the maker that was recorded first, so that it runs after weight 1 has brought its term.
    const Tensor early = mul(w.slots[0]->value(), 2);
    const Tensor loss = sum(early) + sum(w.slots[1]->value());
    register_grad_hook(early, [](const Tensor&) -> Tensor { fail("out of luck"); });
    expect_error([&] { backward(loss); }, {"out of luck"});
    EXPECT_FALSE(w.sink.terms->has(*w.slots[1]));
    EXPECT_FALSE(w.slots[1]->grad().defined());
    backward(w.loss(group->rank()));
    EXPECT_TRUE(same_bits(w.slots[1]->grad().local(), full({3, 3}, 6)));
  });
}

TEST(PartialGradients, HoldersOfOneMeshShareOne) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp"), other(group, "dp");
    const auto a = nn::PartialGradients::of(mesh);
    EXPECT_EQ(a, nn::PartialGradients::of(mesh));
    EXPECT_NE(a, nn::PartialGradients::of(other));
    Slot slot("w", true);
    expect_error([&] { a->add(slot, ones({1}), {1}, Spec::replicate(mesh)); }, {"\"w\"", "outside of a backward pass"});
  });
}

}  // namespace
}  // namespace sherd::testing
