// Rows with indices in every layout of values and indices against one rank's.
#include <gtest/gtest.h>

#include "runtime/op/rows/ops.h"
#include "tests/dtensor/one_rank.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

const std::vector<Placement> kValues{Replicate(), Shard(0), Shard(1), Partial()};

TEST(GatherRules, F140_IndexSelectOfAnyLayout) {
  on_meshes([](const DeviceMesh& mesh) {
    const std::vector<Tensor> in{draw(normal({5, 4}), DType::f32, 1), draw(ids({3}, 4), DType::f32, 2)};
    for (int dim : {0, 1})
      for (const Spec* of_x : all_layouts(mesh, kValues))
        for (const Spec* of_index : all_layouts(mesh, {Replicate(), Shard(0)}))
          expect_as_on_one_rank([&](const std::vector<Tensor>& t) { return index_select(t[0], dim, t[1]); }, in,
                                {of_x, of_index});
  });
}

// The index as long as the values along the other dim, and shorter.
TEST(GatherRules, F140_GatherScatterAndScatterAddOfAnyLayout) {
  using Row = Tensor (*)(Tensor, int, Tensor, Tensor);
  const Row rows[] = {[](Tensor x, int dim, Tensor index, Tensor) { return gather(x, dim, index); }, scatter,
                      scatter_add};
  on_meshes([&](const DeviceMesh& mesh) {
    for (std::int64_t other : {4, 3}) {
      const std::vector<Tensor> in{draw(normal({4, 5}), DType::f32, 3), draw(ids({other, 3}, 5), DType::f32, 4),
                                   draw(normal({other, 3}), DType::f32, 5)};
      for (const Row row : rows)
        for (const Spec* of_x : all_layouts(mesh, kValues))
          for (const Spec* of_index : all_layouts(mesh, {Replicate(), Shard(0), Shard(1)}))
            expect_as_on_one_rank([&](const std::vector<Tensor>& t) { return row(t[0], 1, t[1], t[2]) * 1; },
                                  row == rows[0] ? std::vector<Tensor>{in[0], in[1], in[1]} : in,
                                  {of_x, of_index, of_index});
    }
  });
}

TEST(GatherRules, F140_TopKOfAnyLayout) {
  on_meshes([](const DeviceMesh& mesh) {
    const Tensor x = draw(distinct({4, 5}), DType::f32, 6);
    for (int dim : {0, 1})
      for (const Spec* layout : all_layouts(mesh, kValues)) {
        expect_as_on_one_rank([&](const std::vector<Tensor>& t) { return topk(t[0], 2, dim).first; }, {x}, {layout});
        if (layout->is_partial()) continue;
        EXPECT_TRUE(same_bits(full_tensor(topk(laid_out(x, layout), 2, dim).second), topk(x, 2, dim).second));
      }
  });
}

TEST(GatherRules, F133_VarianceOfAnyLayout) {
  for (const std::vector<int>& dims : {std::vector<int>{0}, {1}, {}})
    expect_in_every_layout([&](const std::vector<Tensor>& t) { return var(t[0], dims); }, normal({4, 5}), kValues);
}

// There is no row for a standard deviation: it is the root of a variance.
TEST(GatherRules, F133_StandardDeviationOfAnyLayout) {
  for (const std::vector<int>& dims : {std::vector<int>{0}, {1}, {}})
    expect_in_every_layout([&](const std::vector<Tensor>& t) { return sqrt(var(t[0], dims)); }, normal({4, 5}),
                           kValues);
}

TEST(GatherRules, F140_WhatStaysCut) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = draw(normal({4, 5}), DType::f32, 7), some = draw(ids({2}, 5), DType::f32, 8),
                 index = draw(ids({4, 3}, 5), DType::f32, 9), source = draw(normal({4, 3}), DType::f32, 10);
    const auto select = [](const std::vector<Tensor>& t) { return index_select(t[0], 1, t[1]); };
    const auto gathered = [](const std::vector<Tensor>& t) { return gather(t[0], 1, t[1]); };
    const auto added = [](const std::vector<Tensor>& t) { return scatter_add(t[0], 1, t[1], t[2]); };
    expect_free(mesh, select, {x, some}, {Shard(0), Replicate()}, Shard(0));
    expect_free(mesh, select, {x, some}, {Replicate(), Shard(0)}, Shard(1));
    expect_free(mesh, select, {x, some}, {Partial(ReduceKind::max), Replicate()}, Partial(ReduceKind::max));
    expect_free(mesh, gathered, {x, index}, {Shard(0), Shard(0)}, Shard(0));
    expect_free(mesh, gathered, {x, index}, {Replicate(), Shard(1)}, Shard(1));
    expect_free(mesh, added, {x, index, source}, {Shard(0), Shard(0), Shard(0)}, Shard(0));
    expect_free(mesh, added, {x, index, source}, {Partial(), Shard(1), Shard(1)}, Partial());
    expect_free(mesh, added, {x, index, source}, {Partial(), Replicate(), Partial()}, Partial());
    expect_free(mesh, [](const std::vector<Tensor>& t) { return topk(t[0], 2, 1).first; }, {x}, {Shard(0)}, Shard(0));
    expect_free(mesh, [](const std::vector<Tensor>& t) { return var(t[0], {1}); }, {x}, {Shard(0)}, Shard(0));
  });
}

}  // namespace
}  // namespace sherd::testing
