// Views, joins and moves of tensors in every layout against one rank's.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "runtime/op/rows/ops.h"
#include "tests/dtensor/one_rank.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

std::vector<Placement> any_of(int ndim) {
  std::vector<Placement> choices{Replicate(), Partial()};
  for (int d = 0; d < ndim; ++d) choices.push_back(Shard(d));
  return choices;
}

void expect_anywhere(const Shape& shape, const Function& f) {
  expect_in_every_layout(f, normal(shape), any_of(shape.size()));
}
void expect_view(const Shape& from, const Shape& to) {
  expect_anywhere(from, [&](const std::vector<Tensor>& in) { return reshape(in[0], to); });
}

TEST(ViewRules, F137_AnyShapeFromAnyLayout) {
  expect_view({4, 6}, {24});           // flatten
  expect_view({24}, {4, 6});           // unflatten
  expect_view({5, 4, 3}, {5, 12});     // an uneven dim stays
  expect_view({4, 6, 5}, {2, 12, 5});  // two groups merge and split
  expect_view({6, 4}, {3, 8});         // 6 into 3
  expect_view({3, 1, 4}, {3, 4});      // squeeze
  expect_view({3, 4}, {1, 3, 1, 4});   // unsqueeze
  expect_view({1, 6}, {6, 1});         //
  expect_view({1, 4, 1}, {1, 1, 4});   //
  expect_view({0, 4}, {0, 2, 2});      // without elements
  expect_view({3, 0}, {0, 5});         //
  expect_view({1}, {});                // 0-d
}

TEST(ViewRules, F137_WhatStaysCut) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const auto expect = [&](const Shape& from, const Shape& to, Placement in, Placement out) {
      expect_free(
          mesh, [&](const std::vector<Tensor>& t) { return reshape(t[0], to); }, {draw(normal(from), DType::f32, 12)},
          {in}, out);
    };
    expect({6, 4}, {24}, Shard(0), Shard(0));
    expect({24}, {6, 4}, Shard(0), Shard(0));
    expect({5, 4, 3}, {5, 12}, Shard(0), Shard(0));  // uneven
    expect({2, 6, 4}, {2, 24}, Shard(1), Shard(1));
    expect({2, 12}, {2, 3, 4}, Shard(1), Shard(1));
    expect({5, 2, 6}, {10, 6}, Shard(2), Shard(1));
    expect({7, 1, 2}, {7, 2}, Shard(0), Shard(0));
    for (ReduceKind kind : {ReduceKind::sum, ReduceKind::avg, ReduceKind::max, ReduceKind::min, ReduceKind::product})
      expect({2, 6}, {3, 4}, Partial(kind), Partial(kind));
    // Shards that do not divide, and sharding of dims behind the first of a group, would have to move.
    const auto must_move = [&](const Shape& from, const Shape& to, Placement in) {
      const StrictCommunication strict;
      const Tensor x = laid_out(draw(normal(from), DType::f32, 13), Spec::of(mesh, in));
      EXPECT_THROW(reshape(x, to), Error);
    };
    must_move({5, 4}, {20}, Shard(0));
    must_move({4, 6}, {24}, Shard(1));
    must_move({12}, {4, 3}, Shard(0));
  });
}

// Heads come out of a projection and go back into one without a copy; a local tensor may be a view that is not dense.
TEST(ViewRules, F137_PartsThatAreViewsThemselves) {
  const Arg x = normal({4, 3, 6});
  expect_in_every_layout([](const std::vector<Tensor>& in) { return reshape(transpose(in[0], 0, 1), {12, 6}); }, x,
                         any_of(3));
  expect_in_every_layout(
      [](const std::vector<Tensor>& in) {
        const Tensor heads = permute(reshape(in[0], {4, 3, 2, 3}), {0, 2, 1, 3});
        return reshape(permute(heads, {0, 2, 1, 3}), {4, 3, 6});
      },
      x, any_of(3));
}

// On every rank the strides of rows follow the global tensor's: a shard of one row, or of none, must not look dense
// where others do not.
TEST(ViewRules, RanksAgreeOnWhatIsDense) {
  for (const int ranks : {2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      for (const Shape& shape : {Shape{3, 3}, {3, 1}, {1, 3}, {2, 3}, {5, 2, 3}, {4, 1, 2}})
        for (int cut = 0; cut < shape.size(); ++cut) {
          std::vector<int> order(static_cast<std::size_t>(shape.size()));
          std::iota(order.begin(), order.end(), 0);
          do {
            const Tensor whole = permute(zeros(shape), order);
            const Tensor x = permute(distribute(zeros(shape), mesh, Shard(cut), kOwnData), order);
            EXPECT_EQ(x.is_contiguous(), whole.is_contiguous()) << describe(x);
            for (int d = 0; d < shape.size(); ++d)
              EXPECT_TRUE(x.size(d) == 1 || x.strides()[d] == whole.strides()[d]) << describe(x) << " dim " << d;
          } while (std::ranges::next_permutation(order).found);
        }
    });
}

TEST(ViewRules, F137_PermuteAndExpand) {
  expect_anywhere({3, 5, 2}, [](const std::vector<Tensor>& in) { return permute(in[0], {2, 0, 1}); });
  expect_anywhere({3, 5}, [](const std::vector<Tensor>& in) { return expand(in[0], {4, 3, 5}); });
  expect_anywhere({5, 1}, [](const std::vector<Tensor>& in) { return expand(in[0], {2, 5, 3}); });
  expect_anywhere({1, 5}, [](const std::vector<Tensor>& in) { return expand(in[0], {1, 5}) * 2; });
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = draw(normal({5, 1}), DType::f32, 15);
    const auto repeat = [](const std::vector<Tensor>& in) { return expand(in[0], {2, 5, 3}); };
    expect_free(mesh, repeat, {x}, {Shard(0)}, Shard(1));
    expect_free(mesh, repeat, {x}, {Partial(ReduceKind::max)}, Partial(ReduceKind::max));
    expect_free(mesh, [](const std::vector<Tensor>& in) { return transpose(in[0], 0, 1); }, {x}, {Shard(0)}, Shard(1));
  });
}

TEST(ViewRules, F139_SlicesOfAnyDim) {
  for (int dim : {0, 1})
    for (const auto& [start, length] : {std::pair<int, int>{0, 4}, {1, 2}, {3, 1}, {2, 0}}) {
      if (dim == 1 && start + length > 3) continue;
      expect_anywhere(
          {4, 3}, [&, s = start, n = length](const std::vector<Tensor>& in) { return narrow(in[0], dim, s, n) * 3; });
    }
  expect_anywhere({4, 3}, [](const std::vector<Tensor>& in) { return select(in[0], 0, 2); });
  expect_anywhere({5, 6}, [](const std::vector<Tensor>& in) {
    const std::vector<Tensor> parts = split(in[0], 1, {1, 3, 2});
    return cat({parts[2], parts[0], parts[1]}, 1);
  });
  expect_anywhere({5, 3}, [](const std::vector<Tensor>& in) {
    const std::vector<Tensor> parts = chunk(in[0], 0, 2);
    return cat({parts[1], parts[0]}, 0);
  });
}

TEST(ViewRules, F139_JoinedTensorsOfAnyTwoLayouts) {
  on_meshes([](const DeviceMesh& mesh) {
    const Tensor a = draw(normal({3, 4}), DType::f32, 16), b = draw(normal({3, 4}), DType::f32, 17);
    for (int dim : {0, 1})
      for (const Spec* of_a : all_layouts(mesh, any_of(2)))
        for (const Spec* of_b : all_layouts(mesh, {Replicate(), Shard(0), Partial()})) {
          expect_as_on_one_rank([&](const std::vector<Tensor>& in) { return cat({in[0], in[1]}, dim); }, {a, b},
                                {of_a, of_b});
          if (dim == 0)
            expect_as_on_one_rank([&](const std::vector<Tensor>& in) { return stack({in[0], in[1]}, 1); }, {a, b},
                                  {of_a, of_b});
        }
  });
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = draw(normal({3, 4}), DType::f32, 16), b = draw(normal({3, 4}), DType::f32, 17);
    const auto joined = [](const std::vector<Tensor>& in) { return cat({in[0], in[1]}, 1); };
    expect_free(mesh, joined, {a, b}, {Shard(0), Shard(0)}, Shard(0));
    expect_free(mesh, joined, {a, b}, {Partial(ReduceKind::min), Partial(ReduceKind::min)}, Partial(ReduceKind::min));
  });
}

TEST(ViewRules, CopiesStayWhereTheyAre) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = draw(normal({4, 5}), DType::f32, 18);
    const auto copied = [](const std::vector<Tensor>& in) { return call(op::copy, {}, in[0]); };
    for (Placement p : {Shard(0), Shard(1), Replicate(), Partial(), Partial(ReduceKind::product)})
      expect_free(mesh, copied, {x}, {p}, p);
    const Tensor cut = laid_out(x, Spec::of(mesh, Shard(1)));
    const Tensor moved = to(transpose(cut, 0, 1), Device::meta());
    EXPECT_EQ(describe(moved), "f32[5,4]{0: dp}");
    EXPECT_TRUE(moved.local().is_meta());
  });
}

}  // namespace
}  // namespace sherd::testing
