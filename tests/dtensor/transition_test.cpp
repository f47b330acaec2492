// Transitions: every pair of layouts against the shards that loops narrow, what is planned, and what it costs.
#include "dtensor/transition/transition.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dtensor/transition/redistribute.h"
#include "tests/dtensor/layouts.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Kind = TransitionStep::Kind;

const std::vector<Placement> kPlain{Replicate(), Shard(0), Shard(1), Partial()};

// A layout may be asked for if no axis has to become Partial.
bool is_reachable(const Spec& from, const Spec& to) {
  for (int a = 0; a < from.num_axes(); ++a)
    if (to.placement(a).is_partial() && from.placement(a) != to.placement(a)) return false;
  return true;
}

std::string text(const Spec& from, const Spec& to, const Shape& shape) {
  return fmt::format("{} to {} of {}", from.describe(), to.describe(), shape);
}

void expect_all_pairs_right(const DeviceMesh& mesh, const std::vector<Placement>& choices,
                            const std::vector<Shape>& shapes) {
  const std::vector<const Spec*> specs = all_layouts(mesh, choices);
  for (const Shape& shape : shapes) {
    const Tensor whole = counting(shape);
    for (const Spec* from : specs) {
      const Tensor x = laid_out(whole, from);
      for (const Spec* to : specs) {
        if (!is_reachable(*from, *to)) {
          EXPECT_TRUE(std::isinf(transition_seconds(from, to, shape, DType::f32))) << text(*from, *to, shape);
          continue;
        }
        const Transition& plan = plan_transition(from, to, shape, DType::f32);
        const Tensor local = run_transition(x.local(), shape, plan);
        ASSERT_TRUE(same_bits(local, part_of(whole, *to)))
            << text(*from, *to, shape) << ": " << plan.describe() << " on rank " << mesh.root().ranks()[0];
      }
    }
  }
}

std::vector<Kind> kinds(const Transition& plan) {
  std::vector<Kind> result;
  for (const TransitionStep& s : plan.steps) result.push_back(s.kind);
  return result;
}

std::vector<Kind> kinds(const Spec* from, const Spec* to, const Shape& shape = {8, 8}) {
  return kinds(plan_transition(from, to, shape, DType::f32));
}

int num_collectives(const Spec* from, const Spec* to, const Shape& shape = {8, 8}) {
  int count = 0;
  for (Kind k : kinds(from, to, shape)) count += k != Kind::slice;
  return count;
}

// The textbook plan: undo all sharding that is in the way, innermost first, then reduce, then shard.
double greedy_seconds(const Spec* from, const Spec* to, const Shape& shape) {
  double seconds = 0;
  const Spec* at = from;
  const auto go = [&](const Spec* next) {
    seconds += transition_seconds(at, next, shape, DType::f32);
    at = next;
  };
  for (int d = 0; d < shape.size(); ++d) {
    std::vector<int> have(at->axes_of(d).begin(), at->axes_of(d).end());
    const std::span<const int> want = to->axes_of(d);
    std::size_t same = 0;
    while (same < have.size() && same < want.size() && have[same] == want[same]) ++same;
    for (std::size_t i = have.size(); i-- > same;) go(at->with(have[i], Replicate()));
  }
  for (int a = 0; a < at->num_axes(); ++a)
    if (at->placement(a).is_partial() && !to->placement(a).is_partial()) go(at->with(a, Replicate()));
  for (int d = 0; d < shape.size(); ++d)
    for (int a : to->axes_of(d))
      if (!at->placement(a).is_shard()) go(at->with(a, Shard(d)));
  EXPECT_EQ(at, to);
  return seconds;
}

TEST(Transition, F114_OneAxisPairsTakeTheCollectiveOfTheTable) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Spec *s0 = Spec::of(mesh, Shard(0)), *s1 = Spec::of(mesh, Shard(1)), *r = Spec::of(mesh, Replicate()),
               *p = Spec::of(mesh, Partial());
    using Kinds = std::vector<Kind>;
    EXPECT_EQ(kinds(s0, r), Kinds{Kind::all_gather});
    EXPECT_EQ(kinds(s1, r), Kinds{Kind::all_gather});
    EXPECT_EQ(kinds(s0, s1), Kinds{Kind::all_to_all});
    EXPECT_EQ(kinds(r, s1), Kinds{Kind::slice});
    EXPECT_EQ(kinds(p, r), Kinds{Kind::all_reduce});
    EXPECT_EQ(kinds(p, s1), Kinds{Kind::reduce_scatter});
    for (const Spec* same : {s0, s1, r, p}) EXPECT_EQ(kinds(same, same), Kinds{});
    EXPECT_TRUE(plan_transition(r, s0, {8, 8}, DType::f32).is_free());
    EXPECT_FALSE(plan_transition(s0, r, {8, 8}, DType::f32).is_free());
    EXPECT_EQ(plan_transition(s0, r, {8, 8}, DType::f32).bytes, 256);
    EXPECT_EQ(plan_transition(s0, r, {8, 8}, DType::f32).describe(), "all_gather(dp, dim 0) -> {}");
    EXPECT_EQ(plan_transition(r, r, {8, 8}, DType::f32).describe(), "nothing");
  });
}

TEST(Transition, F114_AllPairsOnOneAxis) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      expect_all_pairs_right(DeviceMesh(group), kPlain, {{5, 3}, {0, 4}, {8, 8}, {1, 7}, {3, 1}, {4, 2}});
    });
}

TEST(Transition, F123_PartialValuesOfEveryKind) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      for (ReduceKind kind : {ReduceKind::avg, ReduceKind::max, ReduceKind::min, ReduceKind::product})
        expect_all_pairs_right(DeviceMesh(group), {Replicate(), Shard(0), Shard(1), Partial(kind)}, {{5, 3}, {1, 4}});
    });
}

TEST(Transition, F116_NothingBecomesPartial) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Spec* p = Spec::of(mesh, Partial());
    const auto plan = [](const Spec* from, const Spec* to) { plan_transition(from, to, {4, 4}, DType::f32); };
    expect_error([&] { plan(Spec::of(mesh, Replicate()), p); }, {"\"dp\"", "R would become P", "by ops only"});
    expect_error([&] { plan(Spec::of(mesh, Shard(0)), p); }, {"{0: dp}", "{+dp}", "S0 would become P"});
    expect_error([&] { plan(p, Spec::of(mesh, Partial(ReduceKind::max))); }, {"P would become Pmax"});
    expect_error([&] { plan(Spec::of(mesh, Shard(2)), p); }, {"{2: dp}", "dim 2", "[4,4]"});
    const DeviceMesh other(group, "tp");
    expect_error([&] { plan(Spec::of(mesh, Shard(0)), Spec::of(other, Shard(0))); }, {"mesh(dp=2)", "mesh(tp=2)"});
    EXPECT_TRUE(std::isinf(transition_seconds(p, Spec::of(other, Shard(0)), {4}, DType::f32)));
  });
}

TEST(Transition, PricesFollowTheAxis) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "slow");
    const Spec *s0 = Spec::of(mesh, Shard(0)), *r = Spec::of(mesh, Replicate());
    const double before = transition_seconds(s0, r, {1024}, DType::f32);
    set_axis_price("slow", {.call_seconds = 1, .peer_seconds = 0.25, .bytes_per_second = 4096});
    EXPECT_LT(before, 1e-3);
    EXPECT_DOUBLE_EQ(transition_seconds(s0, r, {1024}, DType::f32), 1 + 0.25 + 0.5);
    EXPECT_DOUBLE_EQ(transition_seconds(Spec::of(mesh, Partial()), r, {1024}, DType::f32), 1 + 2 * (0.25 + 0.5));
    expect_error([] { set_axis_price("slow", {.bytes_per_second = 0}); }, {"slow", "0 bytes/s"});
  });
}

// ---- several axes ----

DeviceMesh two_axes(const Group& group, int dp, int tp) { return DeviceMesh(group, {{"dp", dp}, {"tp", tp}}); }

TEST(Transition, F119_AllPairsOnTwoByTwo) {
  run_ranks(4, [](const Group& group) {
    expect_all_pairs_right(two_axes(group, 2, 2), kPlain,
                           {{5, 3}, {8, 8}, {7, 5}, {3, 1}, {0, 3}, {1, 8}, {5, 7}, {8, 3}});
  });
}

TEST(Transition, F119_AllPairsOnTwoByThree) {
  run_ranks(
      6, [](const Group& group) { expect_all_pairs_right(two_axes(group, 2, 3), kPlain, {{5, 3}, {7, 8}, {1, 0}}); });
}

TEST(Transition, F119_AllPairsOnThreeByTwoOfOddCubes) {
  run_ranks(6, [](const Group& group) {
    expect_all_pairs_right(two_axes(group, 3, 2), {Replicate(), Shard(0), Shard(2), Partial()}, {{7, 2, 5}});
  });
}

TEST(Transition, F119_AveragesAndMaximaOnTwoAxes) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = two_axes(group, 2, 2);
    for (ReduceKind kind : {ReduceKind::avg, ReduceKind::max})
      expect_all_pairs_right(mesh, {Replicate(), Shard(0), Partial(kind)}, {{5, 3}, {8, 2}});
  });
}

TEST(Transition, F119_NeverCostsMoreThanTheTextbook) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = two_axes(group, 2, 2);
    const std::vector<const Spec*> specs = all_layouts(mesh, kPlain);
    for (const Shape& shape : {Shape{5, 3}, Shape{8, 8}, Shape{4096, 4096}, Shape{16, 1 << 14}})
      for (const Spec* from : specs)
        for (const Spec* to : specs) {
          if (!is_reachable(*from, *to)) continue;
          EXPECT_LE(transition_seconds(from, to, shape, DType::f32), greedy_seconds(from, to, shape) * (1 + 1e-9))
              << text(*from, *to, shape);
        }
  });
}

TEST(Transition, F118_CountsOnTwoAxes) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = two_axes(group, 2, 2);
    const auto spec = [&](Placement a, Placement b) { return Spec::of(mesh, {a, b}); };
    EXPECT_EQ(num_collectives(spec(Shard(0), Shard(1)), spec(Shard(0), Shard(0))), 1);
    EXPECT_EQ(num_collectives(spec(Shard(0), Shard(1)), spec(Shard(1), Shard(0))), 2);
    EXPECT_EQ(num_collectives(spec(Partial(), Partial()), spec(Replicate(), Replicate())), 1);
    EXPECT_EQ(num_collectives(spec(Partial(), Partial()), spec(Shard(0), Shard(0))), 1);
    EXPECT_EQ(num_collectives(spec(Shard(0), Shard(0)), spec(Replicate(), Replicate())), 1);
    EXPECT_EQ(num_collectives(spec(Shard(0), Shard(0)), spec(Shard(1), Shard(1))), 1) << "joined; two without a group";
    // With uneven rows, nested shards differ from one split by four: an axis at a time. For tp sharding first there is
    // no group.
    EXPECT_EQ(num_collectives(spec(Shard(0), Shard(0)), spec(Replicate(), Replicate()), {5, 3}), 2);
    EXPECT_EQ(num_collectives(spec(Partial(), Partial()), spec(Shard(0), Shard(0)), {4097, 64}), 2);
    EXPECT_EQ(num_collectives(spec(Shard(0), Shard(0)), spec(Shard(1), Shard(1)), {5, 3}), 2);
    const Spec* tp_first = Spec::of(mesh, {Shard(0), Shard(0)}, {1, 0});
    EXPECT_EQ(num_collectives(tp_first, spec(Replicate(), Replicate())), 2);
  });
}

// Greedy plans (PyTorch's, by default) gather here, where all-to-alls suffice. Detours over dims that neither layout
// shards move a fraction of the bytes, which pays if there are many.
TEST(Transition, AllToAllsReplaceGathers) {
  run_ranks(16, [](const Group& group) {
    const DeviceMesh mesh = two_axes(group, 4, 4);
    const Spec* from = Spec::of(mesh, {Shard(0), Shard(0)});
    const Spec* to = Spec::of(mesh, {Shard(0), Shard(1)});
    EXPECT_EQ(kinds(from, to, {4096, 4096}), std::vector<Kind>{Kind::all_to_all});
    EXPECT_EQ(kinds(from, Spec::of(mesh, {Shard(1), Shard(2)}), {64, 64, 64}), std::vector<Kind>(2, Kind::all_to_all));
    const Spec* swapped = Spec::of(mesh, {Shard(0), Shard(0)}, {1, 0});
    EXPECT_EQ(kinds(from, swapped, {1 << 12, 1 << 10, 8}), std::vector<Kind>(3, Kind::all_to_all));  // both, tp, dp
    EXPECT_EQ(num_collectives(from, swapped, {16}), 1) << "small and of one dim: one gather, then cuts";
  });
}

TEST(Transition, AxesThatBothLayoutsReplicateAreLeftAlone) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = two_axes(group, 2, 2);
    for (const Placement& still : {Replicate(), Partial()})
      for (const Shape& shape : {Shape{8, 8}, Shape{4096, 4096}}) {
        const Transition& plan = plan_transition(Spec::of(mesh, {still, Partial()}),
                                                 Spec::of(mesh, {still, Replicate()}), shape, DType::f32);
        ASSERT_EQ(plan.steps.size(), 1u) << plan.describe();
        EXPECT_EQ(plan.steps[0].kind, Kind::all_reduce);
        EXPECT_EQ(plan.steps[0].axes.size(), 1u);
        EXPECT_EQ(plan.steps[0].axes[0], 1);
      }
  });
}

TEST(Transition, F117_AxesOfOneRankNeverCommunicate) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, {{"one", 1}, {"tp", 2}, {"uno", 1}});
    const std::vector<const Spec*> specs = all_layouts(mesh, kPlain);
    for (const Spec* from : specs)
      for (const Spec* to : specs) {
        if (!is_reachable(*from, *to)) continue;
        const Transition& plan = plan_transition(from, to, {6, 4}, DType::f32);
        for (const TransitionStep& s : plan.steps)
          for (int axis : s.axes) EXPECT_EQ(axis, 1) << plan.describe();
        EXPECT_EQ(plan.is_free(), from->placement(1) == to->placement(1) || from->placement(1).is_replicate());
      }
    expect_all_pairs_right(mesh, {Replicate(), Shard(0), Partial()}, {{5, 3}});
  });
}

// A sum of maxima is no maximum of sums: the later axis reduces first.
TEST(Transition, KindsThatDoNotCommuteReduceInTheirOrder) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = two_axes(group, 2, 2);
    const Tensor term =
        Tensor::from<float>({std::vector<float>{1, 2, 4, 3}[static_cast<std::size_t>(group->rank())]}, {1});
    const auto whole = [&](Placement dp, Placement tp) {
      const Spec* from = Spec::of(mesh, {dp, tp});
      return run_transition(term, {1}, plan_transition(from, Spec::replicate(mesh), {1}, DType::f32)).item<float>();
    };
    EXPECT_EQ(whole(Partial(), Partial(ReduceKind::max)), 2 + 4);
    EXPECT_EQ(whole(Partial(ReduceKind::max), Partial()), 4 + 3);
    EXPECT_EQ(whole(Partial(), Partial(ReduceKind::avg)), 1.5f + 3.5f);
    const Spec* from = Spec::of(mesh, {Partial(ReduceKind::max), Partial()});
    expect_error([&] { plan_transition(from, Spec::of(mesh, {Replicate(), Partial()}), {1}, DType::f32); },
                 {"later axes reduce first"});
  });
}

TEST(Transition, F119_AllPairsOnThreeAxes) {
  run_ranks(8, [](const Group& group) {
    const DeviceMesh mesh(group, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
    expect_all_pairs_right(mesh, {Replicate(), Shard(0), Partial()}, {{5, 3}, {8, 2}});
  });
}

// Axes that were flattened have a group, those in between do not take part.
TEST(Transition, FlattenedAxesAreJoined) {
  run_ranks(8, [](const Group& group) {
    const DeviceMesh mesh(group, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
    const Spec* from = Spec::of(mesh, {Partial(), Replicate(), Partial()});
    const Spec* to = Spec::replicate(mesh);
    EXPECT_EQ(num_collectives(from, to, {4}), 2);
    mesh.flatten({"pp", "tp"});
    const Transition& plan = plan_transition(from, to, {12}, DType::f32);
    EXPECT_EQ(plan.describe(), "all_reduce(pp+tp) -> {}");
    const Tensor whole = counting({12});
    EXPECT_TRUE(same_bits(run_transition(part_of(whole, *from), {12}, plan), whole));
  });
}

// pytorch #194457: [Shard(0), Shard(0)] of 5 x 3 on 2 x 2 was gathered by one flattened axis, whose chunks are
// different: rows were lost, silently.
TEST(Transition, NestedUnevenShardsGatherInOrder) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = two_axes(group, 2, 2);
    const Tensor whole = counting({5, 3});
    for (std::initializer_list<int> order : {std::initializer_list<int>{0, 1}, {1, 0}}) {
      const Spec* from = Spec::of(mesh, {Shard(0), Shard(0)}, order);
      const Transition& plan = plan_transition(from, Spec::replicate(mesh), {5, 3}, DType::f32);
      EXPECT_TRUE(same_bits(run_transition(part_of(whole, *from), {5, 3}, plan), whole)) << from->describe();
    }
  });
  // Where some axes of a mesh are flattened, and for every size.
  run_ranks(8, [](const Group& group) {
    const DeviceMesh mesh(group, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
    mesh.flatten({"dp", "tp"});
    for (std::int64_t n = 0; n <= 9; ++n)
      for (Placement pp : {Replicate(), Shard(0), Partial()}) {
        const Tensor whole = counting({n, 3});
        const Spec* from = Spec::of(mesh, {pp, Shard(0), Shard(0)});
        const Transition& plan = plan_transition(from, Spec::replicate(mesh), {n, 3}, DType::f32);
        EXPECT_TRUE(same_bits(run_transition(part_of(whole, *from), {n, 3}, plan), whole))
            << from->describe() << " of " << n << " rows: " << plan.describe();
      }
  });
}

}  // namespace
}  // namespace sherd::testing
