// A median over ranks in place of the mean of gradients, as a reduction of the user's own rows: what there is of a
// median without a row for it. One rank whose gradients are nonsense does not move it. Against sorted numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "runtime/op/unit/buffer_views.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// Median over an odd number of ranks: every rank sees all gradients, and keeps the middle ones of its rows.
nn::UnitReduce median_over(ProcessGroup& group) {
  return [&group](const UnitReduceAttrs& attrs, const Tensor& gradients, std::span<const Tensor> out) {
    const UnitLayout& unit = *attrs.unit;
    const std::int64_t ranks = group.size(), middle = ranks / 2;
    for (std::size_t m = 0; m < out.size(); ++m) {
      const ReducedPiece& p = attrs.pieces[m];
      const UnitPiece& piece = unit.piece(p.piece);
      const std::int64_t elements = numel(piece.shape);
      const Tensor own = view_at(gradients, {1, elements}, p.offset, piece.full_dtype);
      const Tensor sorted = topk(all_gather(own, group, ranks), middle + 1, 0).first;  // [middle + 1, elements]
      std::int64_t begin = 0;
      for (int shard = 0; shard < unit.shard; ++shard) begin += unit.count(piece, shard);
      const Tensor part = narrow(narrow(sorted, 0, middle, 1), 1, begin, unit.count_here(piece));
      copy_into(out[m], view(contiguous(part), out[m].shape()), p.add_to != AddTo::nothing);
    }
  };
}

/// A rank's loss: that of rank 1 is nonsense.
template <class Model>
Tensor loss_of_rank(Model& net, const Tensor& x, int rank, std::int64_t rows) {
  const Tensor loss = mean(square(net(narrow(x, 0, rank * rows, rows))));
  return rank == 1 ? mul(loss, -1e6) : loss;
}

/// Expects the gradients of `net` to be the medians of those that each rank's loss gives `reference`.
void expect_medians(nn::Module& net, nn::Module& reference, int ranks, const std::function<Tensor(int)>& loss_of) {
  const auto a = net.parameters(), e = reference.parameters();
  std::vector<std::vector<std::vector<float>>> all(a.size());  // by parameter and rank
  for (int rank = 0; rank < ranks; ++rank) {
    backward(loss_of(rank));
    for (std::size_t i = 0; i < e.size(); ++i) {
      all[i].push_back(e[i]->grad().to_vector<float>());
      e[i]->clear_grad();
    }
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::vector<float> medians;
    for (std::size_t at = 0; at < all[i][0].size(); ++at) {
      std::vector<float> values;
      for (const auto& of_rank : all[i]) values.push_back(of_rank[at]);
      std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
      medians.push_back(values[values.size() / 2]);
    }
    const Tensor expected = Tensor::from<float>(medians, a[i]->shape());
    EXPECT_TRUE(near(full_tensor(a[i]->grad()), expected, 1e-6)) << a[i]->name();
  }
}

TEST(FullyShard, F53_F133_AMedianOverRanksIsAReductionOfOnesOwnRows) {
  for (const int ranks : {3, 5})
    run_ranks(ranks, [](const Group& group) {
      Net net(kUneven), reference(kUneven);
      shard(net, DeviceMesh(group));
      for (const nn::UnitHandle& unit : nn::units(net)) unit.set_custom_reduce(median_over(*group));
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      const std::int64_t rows = 4;
      const Tensor x = batch_of(rows * group->size(), 5, 0, "x");
      backward(loss_of_rank(net, x, group->rank(), rows));
      expect_medians(net, reference, group->size(), [&](int rank) { return loss_of_rank(reference, x, rank, rows); });
    });
}

// Terms of a gain's gradient lie on the ranks that share the sequence. A median of terms is not that of gradients.
TEST(FullyShard, F53_F133_AMedianIsOfWholeGradientsUnderTensorParallelism) {
  run_ranks(6, [](const Group& group) {
    const Grid3 grid{1, 3, 2};
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 8), reference(5, 8);
    shard_2d(net, root, grid, true);
    for (const nn::UnitHandle& unit : nn::units(net)) unit.set_custom_reduce(median_over(root.group("dp")));
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    const std::int64_t rows = 4;
    const Tensor x = batch3(rows * grid.dp, 3, 0, "x");
    backward(loss_of_rank(net, x, root["dp"].coordinate(), rows));
    expect_medians(net, reference, grid.dp, [&](int rank) { return loss_of_rank(reference, x, rank, rows); });
  });
}

struct MedianTraining : PolicyTraining {
  MedianTraining(const Group& group) : PolicyTraining(DeviceMesh(group), {}) {
    for (const nn::UnitHandle& unit : nn::units(net)) unit.set_custom_reduce(median_over(*group));
  }
};

TEST(FullyShard, F77_F133_AMedianReplaysBitwise) {
  run_ranks(3, [](const Group& group) {
    MedianTraining eager(group), captured(group);
    expect_replays_bitwise(group, eager, captured, 5,
                           [&](std::uint64_t i) { return std::pair(own_rows(group, i), own_rows(group, i)); });
  });
}

}  // namespace
}  // namespace sherd::testing
