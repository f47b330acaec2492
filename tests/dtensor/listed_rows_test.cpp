// Layouts that list the sizes of shards. Oracle: the listed rows, cut out of the whole tensor by hand.
#include <gtest/gtest.h>

#include <numeric>

#include "dtensor/api.h"
#include "dtensor/draw.h"
#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "tests/dtensor/layouts.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Rows = std::vector<std::int64_t>;

/// `rows` in `ranks` parts: one each as long as there are some, the rest is the last one's, or all the first one's.
Rows lopsided(std::int64_t rows, int ranks) {
  Rows list(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r + 1 < list.size(); ++r) rows -= list[r] = std::min<std::int64_t>(rows, 1);
  list.back() = rows;
  return list;
}
Rows all_on_first(std::int64_t rows, int ranks) {
  Rows list(static_cast<std::size_t>(ranks));
  list[0] = rows;
  return list;
}

Tensor listed_part(const Tensor& whole, int dim, const Rows& rows, int rank) {
  const std::int64_t begin = std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
  return contiguous(narrow(whole, dim, begin, rows[static_cast<std::size_t>(rank)]));
}

TEST(Spec, ListsTheSizesOfShards) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Spec* const even = Spec::of(mesh, Shard(0));
    const Spec* const spec = even->with_rows(0, Rows{1, 4, 0});
    EXPECT_NE(spec, even);
    EXPECT_EQ(spec, even->with_rows(0, Rows{1, 4, 0}));
    EXPECT_EQ(spec->placement(0), Shard(0));
    EXPECT_TRUE(spec->lists_rows());
    EXPECT_EQ(spec->describe(), "{0: dp(1,4,0)}");
    EXPECT_NE(spec->name(), even->name());
    constexpr std::int64_t kBegins[] = {0, 1, 5}, kSizes[] = {1, 4, 0};
    for (int r = 0; r < 3; ++r)
      EXPECT_EQ(spec->range_at(0, 5, std::span(&r, 1)), (Spec::Range{kBegins[r], kBegins[r] + kSizes[r]}));
    EXPECT_EQ(spec->local_shape({5, 2}), (Shape{kSizes[group->rank()], 2}));
    const Spec* const chunks = even->with_rows(0, Rows{2, 2, 1});
    EXPECT_NE(chunks, even) << "the list knows how many there are";
    EXPECT_EQ(chunks->simplified(), even);
    EXPECT_EQ(spec->simplified(), spec);
    EXPECT_EQ(spec->with_rows(0, Rows{3, 3, 3}), even);
    EXPECT_EQ(spec->with(0, Replicate()), Spec::replicate(mesh));
    EXPECT_NE(draw(*spec, {5, 2}).find("1:5"), std::string::npos) << draw(*spec, {5, 2});
    expect_error([&] { spec->local_shape({6, 2}); }, {"{0: dp(1,4,0)}", "lists 5 rows of dim 0", "6"});
    expect_error([&] { even->with_rows(0, Rows{5}); }, {"5 rows for dim 0", "3 shards"});
    expect_error([&] { even->with_rows(0, Rows{5, -1, 1}); }, {"5, -1, 1 rows", "not below 0"});
    expect_error([&] { even->with_rows(1, Rows{1, 1, 1}); }, {"dim 1", "1 shards"});
  });
}

TEST(Spec, ListsTheSizesOfNestedShards) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const Rows rows{0, 3, 2, 1};  // tp is the outer split
    const Spec* const spec = Spec::of(mesh, {Shard(0), Shard(0)}, {1, 0})->with_rows(0, rows);
    EXPECT_EQ(spec->describe(), "{0: tp,dp(0,3,2,1)}");
    const int shard = spec->coordinate(1) * 2 + spec->coordinate(0);
    EXPECT_EQ(spec->local_range(0, 6).size(), rows[static_cast<std::size_t>(shard)]);
    EXPECT_EQ(spec->with(0, Replicate())->describe(), "{0: tp}");
    const Spec* const apart = Spec::of(mesh, {Shard(0), Partial()})->with_rows(0, Rows{1, 5});
    EXPECT_EQ(apart->with(1, Replicate())->describe(), "{0: dp(1,5)}") << "dim 0 is as it was";
    EXPECT_EQ(gradient_spec(apart), apart->with(1, Replicate()));
  });
}

TEST(FromLocal, WantsTheListedRows) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Spec* const spec = Spec::of(mesh, Shard(0))->with_rows(0, Rows{1, 4});
    const Tensor whole = counting({5, 2});
    EXPECT_TRUE(same_bits(full_tensor(from_local(listed_part(whole, 0, {1, 4}, group->rank()), spec)), whole));
    const std::string own = group->rank() == 0 ? "gives this rank 1" : "gives this rank 4";
    expect_error([&] { from_local(counting({3, 2}), spec); }, {"from_local", "3 rows of dim 0", "{0: dp(1,4)}", own});
  });
}

// Sizes that the chunk rule would give are listed all the same: only the list says how many there are.
TEST(FromLocal, TakesTheSizeFromAListOfChunks) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Spec *const even = Spec::of(mesh, Shard(0)), *const listed = even->with_rows(0, Rows{3, 2});
    const Tensor whole = counting({5, 2});
    const Tensor x = from_local(listed_part(whole, 0, {3, 2}, group->rank()), listed);
    EXPECT_EQ(x.shape(), whole.shape());
    EXPECT_TRUE(same_bits(full_tensor(mean(x)), mean(whole)));
    EXPECT_TRUE(same_bits(full_tensor(x), whole));
    const StrictCommunication strict;
    EXPECT_TRUE(same_bits(redistribute(x, even).local(), x.local()));
    EXPECT_TRUE(same_bits(redistribute(distribute(whole, even), listed).local(), x.local()));
    EXPECT_TRUE(same_bits(add(x, distribute(whole, even)).local(), mul(x.local(), 2)));
  });
}

TEST(Redistribute, FromAndToListedShards) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const int n = group->size(), me = group->rank();
      const Tensor whole = counting({5, 7});
      for (int dim : {0, 1}) {
        const std::int64_t size = whole.size(dim);
        for (const Rows& rows : {lopsided(size, n), all_on_first(size, n)}) {
          const Spec* const listed = Spec::of(mesh, Shard(dim))->with_rows(dim, rows);
          const Tensor part = listed_part(whole, dim, rows, me);
          const Tensor x = distribute(whole, listed);
          EXPECT_TRUE(same_bits(x.local(), part));
          EXPECT_TRUE(same_bits(full_tensor(x), whole));
          EXPECT_TRUE(same_bits(from_local(part, listed).local(), part));
          EXPECT_EQ(from_local(part, listed).shape(), whole.shape()) << "the list says how many rows there are";
          for (const Placement& to : {Shard(0), Shard(1), Replicate()}) {
            const Spec* const other = Spec::of(mesh, to);
            EXPECT_TRUE(same_bits(redistribute(x, other).local(), part_of(whole, *other))) << to_string(to);
            EXPECT_TRUE(same_bits(redistribute(laid_out(whole, other), listed).local(), part)) << to_string(to);
          }
          EXPECT_TRUE(same_bits(redistribute(laid_out(whole, Spec::of(mesh, Partial())), listed).local(), part));
          const Spec* const moved =
              Spec::of(mesh, Shard(1 - dim))->with_rows(1 - dim, all_on_first(whole.size(1 - dim), n));
          EXPECT_TRUE(same_bits(redistribute(x, moved).local(),
                                listed_part(whole, 1 - dim, all_on_first(whole.size(1 - dim), n), me)));
        }
      }
    });
}

TEST(Redistribute, FromAndToListedShardsInsideOthers) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const Tensor whole = counting({6, 3});
    const Spec* const nested = Spec::of(mesh, {Shard(0), Shard(0)}, {1, 0})->with_rows(0, Rows{0, 3, 2, 1});
    const Spec* const crossed =
        Spec::of(mesh, {Shard(0), Shard(1)})->with_rows(0, Rows{5, 1})->with_rows(1, Rows{0, 3});
    for (const Spec* spec : {nested, crossed}) {
      const Tensor x = distribute(whole, spec);
      EXPECT_EQ(x.local().shape(), spec->local_shape(whole.shape()));
      EXPECT_TRUE(same_bits(full_tensor(x), whole)) << spec->describe();
      for (const Spec* to : all_layouts(mesh, {Shard(0), Shard(1), Replicate()})) {
        EXPECT_TRUE(same_bits(redistribute(x, to).local(), part_of(whole, *to))) << describe(x) << to->describe();
        EXPECT_TRUE(same_bits(redistribute(laid_out(whole, to), spec).local(), x.local())) << to->describe();
      }
    }
    EXPECT_TRUE(
        same_bits(redistribute(distribute(whole, nested), crossed).local(), distribute(whole, crossed).local()));
  });
}

TEST(Redistribute, GradientsOfListedShardsLieAsTheyDo) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Rows rows{0, 4, 1};
    const Spec* const listed = Spec::of(mesh, Shard(0))->with_rows(0, rows);
    const Tensor w = mul(counting({5, 2}), -0.5);
    Slot slot("x", /*requires_grad=*/true);
    slot.set(distribute(counting({5, 2}), listed));
    backward(sum(mul(to_local(redistribute(slot.value(), {Replicate()})), w)));
    EXPECT_EQ(slot.grad().layout(), listed);
    EXPECT_TRUE(same_bits(slot.grad().local(), listed_part(w, 0, rows, group->rank())));
  });
}

TEST(DistLayer, PointwiseRowsKeepListedShards) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Rows rows{1, 0, 4};
    const Spec* const listed = Spec::of(mesh, Shard(0))->with_rows(0, rows);
    const Tensor whole = counting({5, 2});
    const Tensor a = distribute(whole, listed), b = distribute(mul(whole, 3), listed);
    Tensor y;
    {
      const StrictCommunication strict;
      y = mul(add(a, b), 0.5);
      EXPECT_EQ(y.layout(), listed);
      EXPECT_EQ(cast(y, DType::f64).layout(), listed);
    }
    EXPECT_TRUE(same_bits(y.local(), listed_part(mul(whole, 2), 0, rows, group->rank())));
    // What is listed differently, or not pointwise, is gathered.
    const Tensor other = distribute(whole, Spec::of(mesh, Shard(0)));
    EXPECT_TRUE(same_bits(full_tensor(add(a, other)), mul(whole, 2)));
    EXPECT_TRUE(same_bits(full_tensor(sum(a)), sum(whole)));
    EXPECT_TRUE(near(full_tensor(matmul(a, transpose(a, 0, 1))), matmul(whole, transpose(whole, 0, 1))));
    const StrictCommunication strict;
    expect_error([&] { add(a, other); }, {"add", "would have to move"});
  });
}

}  // namespace
}  // namespace sherd::testing
