// A call with a cached plan allocates nothing on the heap: the plan is found without allocating, results come from
// pools.
#include <gtest/gtest.h>

#include "dtensor/propagate.h"
#include "dtensor/spec.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/counting_new.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

/// Heap allocations of the last of several calls.
template <class Fn>
std::int64_t allocations(const Fn& call) {
  for (int i = 0; i < 4; ++i) call();
  const std::int64_t before = t_heap.allocations;
  call();
  return t_heap.allocations - before;
}

Tensor spread(const DeviceMesh& mesh, const Shape& shape, Placement placement) {
  const Spec* spec = Spec::of(mesh, placement);
  return Tensor::distributed(shape, spec, ones(spec->local_shape(shape)));
}

TEST(HitPath, AllocatesNothing) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const DeviceMesh mesh(group);
    const Tensor a = spread(mesh, {6, 4}, Shard(0)), b = spread(mesh, {6, 4}, Shard(0));
    const Tensor whole = spread(mesh, {6, 4}, Replicate()), terms = spread(mesh, {6, 4}, Partial());
    const Tensor weight = spread(mesh, {8, 4}, Shard(0));
    const GradMode off(false);
    EXPECT_GT(allocations([] { ::operator delete(::operator new(8)); }), 0) << "the counter does not count";
    EXPECT_EQ(allocations([&] { add(a, b); }), 0);
    EXPECT_EQ(allocations([&] { mul(a, 3); }), 0);
    EXPECT_EQ(allocations([&] { mul(a, whole); }), 0) << "whole is cut on the way";
    EXPECT_EQ(allocations([&] { add(terms, terms); }), 0);
    EXPECT_EQ(allocations([&] { linear(whole, weight); }), 0);
    EXPECT_EQ(allocations([&] { relu(linear(whole, weight)); }), 0);
    const std::int64_t made = plan_counts().made;
    add(a, b);
    EXPECT_EQ(plan_counts().made, made);
  });
}

// The tape takes as much as for plain tensors, and no more.
TEST(HitPath, RecordedCallsTakeWhatPlainOnesTake) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const DeviceMesh mesh(group);
    Slot cut("cut", true), plain("plain", true);
    cut.set(spread(mesh, {6, 4}, Shard(0)));
    plain.set(ones({3, 4}));
    const Tensor x = cut.value(), y = plain.value();
    EXPECT_EQ(allocations([&] { silu(x * x); }), allocations([&] { silu(y * y); }));
  });
}

}  // namespace
}  // namespace sherd::testing
