// Slots that hold distributed tensors: what may be written into them, and what a backward pass may start from. The
// layouts have one local shape, so nothing can be told apart by shape.
#include "runtime/autograd/slot.h"

#include <gtest/gtest.h>

#include "dtensor/api.h"
#include "runtime/autograd/autograd.h"
#include "tests/dtensor/layouts.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

TEST(DistributedSlot, TakesValuesThatLieAsItsOwn) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}}), other(group, {{"a", 2}, {"b", 2}});
    const Tensor w = mul(counting({4, 4}), -1);
    const auto at = [&](const DeviceMesh& on, Placement a, Placement b) { return laid_out(w, Spec::of(on, {a, b})); };
    for (Placement dp : {Shard(0), Replicate()}) {
      Slot slot("w");
      slot.set(laid_out(counting({4, 4}), Spec::of(mesh, {dp, Replicate()})));
      const Tensor start = full_tensor(slot.value());
      for (const Tensor& wrong : {at(mesh, Replicate(), Shard(0)), at(mesh, dp, Partial()), at(other, dp, Replicate())})
        expect_error([&] { slot.assign(wrong); },
                     {"\"w\"", describe(wrong), "lies otherwise than " + describe(slot.value()), "redistribute()"});
      EXPECT_TRUE(same_bits(full_tensor(slot.value()), start));
      slot.assign(at(mesh, dp, Replicate()));
      EXPECT_TRUE(same_bits(full_tensor(slot.value()), w));
      slot.assign(zeros(slot.value().local().shape()));  // this rank's local tensor
      EXPECT_TRUE(same_bits(full_tensor(slot.value()), zeros({4, 4})));
    }
    Slot plain("p");
    plain.set(counting({4, 4}));
    expect_error([&] { plain.assign(at(mesh, Replicate(), Replicate())); }, {"\"p\"", "f32[4,4]{}", "redistribute()"});
  });
}

TEST(DistributedSlot, BackwardStartsFromWhatLiesOnTheSameRanks) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "dp"), other(group, "tp");
    const Tensor w = counting({4, 4});
    Slot slot("w", /*requires_grad=*/true), plain("p", /*requires_grad=*/true);
    slot.set(laid_out(w, Spec::of(mesh, Shard(0))));
    plain.set(w);
    const auto start = [](const Slot& from, const Tensor& grad) { backward(from.value() * 2.0, {.grad = grad}); };
    const Tensor elsewhere = laid_out(w, Spec::of(other, Shard(0)));
    expect_error([&] { start(slot, w); }, {"cotangent f32[4,4] is a plain tensor", "f32[4,4]{0: dp}", "distribute()"});
    expect_error([&] { start(slot, elsewhere); }, {"cotangent f32[4,4]{0: tp}", "other ranks", "f32[4,4]{0: dp}"});
    expect_error([&] { start(plain, elsewhere); }, {"cotangent f32[4,4]{0: tp}", "other ranks", "root f32[4,4]"});
    EXPECT_FALSE(slot.grad().defined() || plain.grad().defined());
    for (Placement lies : {Shard(0), Shard(1), Replicate(), Partial()}) {
      start(slot, laid_out(w, Spec::of(mesh, lies)));
      EXPECT_TRUE(same_bits(full_tensor(slot.grad()), mul(w, 2))) << to_string(lies);
      slot.clear_grad();
    }
    // One number, as a loss is scaled.
    backward(sum(slot.value()), {.grad = Tensor::scalar(8)});
    EXPECT_TRUE(same_bits(full_tensor(slot.grad()), full({4, 4}, 8)));
  });
}

}  // namespace
}  // namespace sherd::testing
