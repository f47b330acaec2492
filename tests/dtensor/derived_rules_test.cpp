// Sharding that follows from the op table: pointwise rows, the algebra of Partial, products. The oracle is the same op
// on one rank's full tensors.
#include <gtest/gtest.h>

#include <limits>

#include "dtensor/api.h"
#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

Tensor values(const Shape& shape, std::string_view what) { return random_normal(shape, random_key(5, what, "test")); }

// A Partial tensor whose local values on the ranks reduce to `value`.
Tensor as_terms(const Tensor& value, const DeviceMesh& mesh, ReduceKind kind) {
  const int ranks = mesh.size(), rank = mesh.coordinate();
  Tensor term = value;
  if (kind == ReduceKind::sum && ranks > 1) term = rank == 0 ? mul(value, 0.25) : mul(value, 0.75 / (ranks - 1));
  if (kind == ReduceKind::max) term = rank == ranks - 1 ? value : add(value, -1.0 - rank);
  if (kind == ReduceKind::min) term = rank == ranks - 1 ? value : add(value, 1.0 + rank);
  if (kind == ReduceKind::avg)
    term = ranks == 1 ? value : rank == 0 ? mul(value, 0.5 * ranks) : mul(value, 0.5 * ranks / (ranks - 1));
  return from_local(term, mesh, {Partial(kind)});
}

void expect_near(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-5 + 1e-5 * std::abs(y[i])) << i;
}

TEST(DerivedRules, F127_PointwiseFollowsItsOperands) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor a = values({5, 3}, "a"), b = values({5, 3}, "b"), row = values({3}, "row"),
                   one = values({5, 1}, "one");
      for (int d : {0, 1}) {
        const Tensor sa = distribute(a, mesh, Shard(d)), sb = distribute(b, mesh, Shard(d));
        {
          const StrictCommunication strict;
          const Tensor sum = sa + sb;
          EXPECT_EQ(Spec::from(sum).placement(0), Shard(d));
          EXPECT_TRUE(same_bits(full_tensor(sum), a + b));
          EXPECT_TRUE(same_bits(full_tensor(silu(sa)), silu(a)));
          // Operands that are broadcast along the sharded dim are replicated, or sharded along their other dims.
          EXPECT_TRUE(same_bits(full_tensor(mul(sa, distribute(row, mesh, Replicate()))), mul(a, row)));
          EXPECT_TRUE(same_bits(full_tensor(mul(sa, distribute(one, mesh, Replicate()))), mul(a, one)));
        }
        const Tensor other = distribute(b, mesh, Shard(1 - d));
        const CommCounts before = group->host().counts();
        const Tensor moved = sa + other;
        EXPECT_EQ(group->host().counts().all_to_all.calls - before.all_to_all.calls, group->size() > 1 ? 1 : 0);
        EXPECT_EQ(group->host().counts().all_gather.calls, before.all_gather.calls);
        EXPECT_TRUE(same_bits(full_tensor(moved), a + b));
      }
    });
}

// 32 numbers are gathered; to reshard the other operand would move 2048.
TEST(DerivedRules, F127_TheCheaperOperandMoves) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = values({64, 32}, "a"), row = values({32}, "row");
    const Tensor rows = distribute(a, mesh, Shard(0)), cut = distribute(row, mesh, Shard(0));
    for (const bool is_first : {true, false}) {
      const CommCounter counter;
      const Tensor sum = is_first ? cut + rows : rows + cut;
      EXPECT_EQ(counter.total(), (CommCounter::Item{1, 32 * 4})) << counter.describe();
      EXPECT_EQ(counter.of(comm::CommOp::all_gather).calls, 1);
      EXPECT_EQ(describe(sum), "f32[64,32]{0: dp}");
      EXPECT_TRUE(same_bits(full_tensor(sum), a + row));
    }
  });
}

TEST(DerivedRules, F128_PartialPassesWhatIsLinearOrMonotone) {
  for (int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor a = values({4, 3}, "a"), b = values({4, 3}, "b");
      const Tensor whole = distribute(b, mesh, Replicate());
      const Tensor pa = as_terms(a, mesh, ReduceKind::sum), pb = as_terms(b, mesh, ReduceKind::sum);
      const Tensor top = as_terms(a, mesh, ReduceKind::max), low = as_terms(a, mesh, ReduceKind::min);
      {
        const StrictCommunication strict;
        EXPECT_EQ(describe(pa + pb), "f32[4,3]{+dp}");
        expect_near(full_tensor(pa + pb), a + b);
        expect_near(full_tensor(mul(pa, whole)), mul(a, b));
        expect_near(full_tensor(div(pa, whole)), div(a, b));
        expect_near(full_tensor(mul(pa, 3)), mul(a, 3));
        expect_near(full_tensor(neg(pa)), neg(a));
        EXPECT_EQ(describe(neg(top)), "f32[4,3]{min dp}");
        expect_near(full_tensor(neg(top)), neg(a));
        expect_near(full_tensor(maximum(top, whole)), maximum(a, b));
        expect_near(full_tensor(exp(low)), exp(a));
        expect_near(full_tensor(top + whole), a + b);
        expect_near(full_tensor(whole - top), b - a);
        expect_near(full_tensor(add(as_terms(a, mesh, ReduceKind::avg), 2)), add(a, 2));
      }
      // Rows that no reduction may follow get their inputs reduced first, once.
      const CommCounts before = group->host().counts();
      const Tensor relued = relu(pa), shifted = add(pa, 1), summed = pa + whole;
      EXPECT_EQ(group->host().counts().all_reduce.calls - before.all_reduce.calls, 3);
      expect_near(full_tensor(relued), relu(a));
      expect_near(full_tensor(shifted), add(a, 1));
      expect_near(full_tensor(summed), a + b);
    });
}

TEST(DerivedRules, F130_ProductsNeedNoCommunicationWhereMathematicsNeedsNone) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor a = values({5, 7}, "a"), b = values({7, 4}, "b"), bias = values({4}, "bias");
      const Tensor product = matmul(a, b);
      const StrictCommunication strict;
      const auto at = [&](const Tensor& t, Placement p) { return distribute(t, mesh, p); };
      const auto expect_product = [&](Placement pa, Placement pb, Placement out) {
        const Tensor c = matmul(at(a, pa), at(b, pb));
        EXPECT_EQ(Spec::from(c).placement(0), out) << to_string(pa) << to_string(pb);
        expect_near(full_tensor(c), product);
      };
      expect_product(Shard(0), Replicate(), Shard(0));
      expect_product(Replicate(), Shard(1), Shard(1));
      expect_product(Shard(1), Shard(0), Partial());
      // The bias is added once, although the product is Partial.
      const Tensor weight = transpose(b, 0, 1);
      const Tensor y = linear(at(a, Shard(1)), at(weight, Shard(1)), at(bias, Replicate()));
      EXPECT_EQ(Spec::from(y).placement(0), Partial());
      expect_near(full_tensor(y), linear(a, weight, bias));
      const Tensor z = linear(at(a, Replicate()), at(weight, Shard(0)), at(bias, Shard(0)));
      EXPECT_EQ(Spec::from(z).placement(0), Shard(1));
      expect_near(full_tensor(z), linear(a, weight, bias));
    });
}

TEST(DerivedRules, F130_AnInfiniteBiasStaysInfinite) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      const Tensor bias = Tensor::from<float>({kInfinity, -kInfinity, 3}, {3});
      const StrictCommunication strict;
      const Tensor y = linear(distribute(ones({2, 6}), mesh, Shard(1)), distribute(ones({3, 6}), mesh, Shard(1)),
                              distribute(bias, mesh, Replicate()));
      EXPECT_EQ(full_tensor(y).to_vector<float>(),
                (std::vector<float>{kInfinity, -kInfinity, 9, kInfinity, -kInfinity, 9}));
    });
}

TEST(DerivedRules, F131_BatchedProducts) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = values({3, 4, 5}, "a"), b = values({3, 5, 2}, "b"), shared = values({5, 2}, "b");
    const StrictCommunication strict;
    const auto at = [&](const Tensor& t, Placement p) { return distribute(t, mesh, p); };
    const auto expect = [&](const Tensor& x, Placement px, const Tensor& y, Placement py, Placement out) {
      const Tensor product = matmul(at(x, px), at(y, py));
      EXPECT_EQ(Spec::from(product).placement(0), out) << to_string(px) << to_string(py);
      expect_near(full_tensor(product), matmul(x, y));
    };
    expect(a, Shard(0), b, Shard(0), Shard(0));
    expect(a, Shard(1), b, Replicate(), Shard(1));
    expect(a, Replicate(), b, Shard(2), Shard(2));
    expect(a, Shard(2), b, Shard(1), Partial());
    expect(a, Shard(0), shared, Replicate(), Shard(0));
    // Attention's scores and values: [B, H, T, D] x [B, H, D, S].
    const Tensor q = values({2, 3, 5, 4}, "q"), k = values({2, 3, 4, 6}, "k");
    for (int d : {0, 1}) expect(q, Shard(d), k, Shard(d), Shard(d));
    expect(q, Shard(2), k, Replicate(), Shard(2));
    expect(q, Replicate(), k, Shard(3), Shard(3));
    expect(q, Shard(3), k, Shard(2), Partial());
  });
}

// Along one axis a maximum, along the other sums: the maximum of sums cannot be taken before the sums are.
TEST(DerivedRules, TermsOfTwoKindsAreReducedInOrder) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const Tensor sums[] = {values({3}, "a"), values({3}, "b")};
    const Tensor term = mul(sums[mesh.coordinate(0)], mesh.coordinate(1) == 0 ? 0.25 : 0.75);
    const Tensor x = from_local(term, mesh, {Partial(ReduceKind::max), Partial()});
    EXPECT_EQ(describe(x), "f32[3]{max dp; +tp}");
    const Tensor largest = maximum(sums[0], sums[1]), other = values({3}, "c");
    expect_near(full_tensor(silu(x)), silu(largest));
    expect_near(full_tensor(x + distribute(other, mesh, {Replicate(), Replicate()})), largest + other);
    expect_near(full_tensor(neg(x)), neg(largest));
  });
}

TEST(DerivedRules, FlagsPassAsExtrema) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor here = Tensor::from<bool>({mesh.coordinate() == 0, false}, {2});
    const Tensor any = from_local(here, mesh, {Partial(ReduceKind::max)});
    const Tensor flags = distribute(Tensor::from<bool>({false, true}, {2}), mesh, Replicate());
    const Tensor other = distribute(values({2}, "other"), mesh, Replicate());
    const StrictCommunication strict;
    EXPECT_EQ(full_tensor(logical_not(any)).to_vector<int>(), (std::vector<int>{0, 1}));
    EXPECT_EQ(full_tensor(logical_or(any, flags)).to_vector<int>(), (std::vector<int>{1, 1}));
    EXPECT_EQ(full_tensor(logical_and(any, flags)).to_vector<int>(), (std::vector<int>{0, 0}));
    const Tensor top = as_terms(values({2}, "a"), mesh, ReduceKind::max);
    expect_near(full_tensor(where(flags, top, other)), where(flags.local(), values({2}, "a"), other.local()));
    expect_near(full_tensor(minimum(top, other)), minimum(values({2}, "a"), other.local()));
  });
}

TEST(DerivedRules, AGradientOfZerosLiesAsItsInput) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    Slot y("y", true);
    y.set(distribute(values({5, 2}, "x"), mesh, Shard(0)));
    const Tensor one = pow(y.value(), 0);
    backward(one, {.grad = one.detach()});
    EXPECT_EQ(describe(y.grad()), "f32[5,2]{0: dp}");
    EXPECT_EQ(full_tensor(y.grad()).to_vector<float>(), std::vector<float>(10, 0));
  });
}

// Forward and backward of a two-layer network, with the weights sharded in every way: gradients equal one rank's.
TEST(DerivedRules, GradientsOfACutNetworkEqualOneRanks) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor x = values({6, 5}, "x"), w1 = values({7, 5}, "w1"), w2 = values({4, 7}, "w2");
      const auto run = [&](auto&& place) {
        Slot first("w1", true), second("w2", true), input("x", true);
        first.set(place(w1, 1)), second.set(place(w2, 2)), input.set(place(x, 0));
        const Tensor y = linear(gelu(linear(input.value(), first.value())), second.value());
        backward(y, {.grad = place(values({6, 4}, "dy"), 3)});
        return std::vector<Tensor>{y.detach(), input.grad(), first.grad(), second.grad()};
      };
      const std::vector<Tensor> expected = run([](const Tensor& t, int) { return t; });
      const Placement choices[] = {Replicate(), Shard(0), Shard(1)};
      for (const Placement& px : choices)
        for (const Placement& p1 : choices)
          for (const Placement& p2 : choices) {
            const std::vector<Tensor> got = run([&](const Tensor& t, int which) {
              return distribute(t, mesh, which == 0 ? px : which == 1 ? p1 : which == 2 ? p2 : Replicate());
            });
            for (std::size_t i = 0; i < got.size(); ++i) expect_near(full_tensor(got[i]), expected[i]);
          }
    });
}

// Numbers other than 0 and 1 are no truth values, and integers wrap: their extrema are reduced first.
TEST(DerivedRules, ExtremaPassOnlyWhereOrderIsKept) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const bool first = group->rank() == 0;
    const Tensor below_zero =
        from_local(Tensor::from<float>({first ? -1.0f : 0.0f}, {1}), mesh, {Partial(ReduceKind::max)});
    EXPECT_EQ(full_tensor(logical_not(below_zero)).to_vector<double>(), std::vector<double>{1});
    const Tensor bytes =
        from_local(Tensor::from<std::uint8_t>({std::uint8_t(first ? 0 : 1)}, {1}), mesh, {Partial(ReduceKind::max)});
    EXPECT_EQ(full_tensor(neg(bytes)).to_vector<double>(),
              neg(Tensor::from<std::uint8_t>({1}, {1})).to_vector<double>());
    const Tensor large =
        from_local(Tensor::from<std::int64_t>({first ? (std::int64_t{1} << 40) + 1 : -(std::int64_t{1} << 40)}, {1}),
                   mesh, {Partial()});
    EXPECT_EQ(full_tensor(div(large, Tensor::scalar(1))).to_vector<double>(), std::vector<double>{1});
  });
}

}  // namespace
}  // namespace sherd::testing
