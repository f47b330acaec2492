#pragma once
// Small models, their batches, and the two sides of a parity test (parity.h): the model under fully_shard on each
// rank's rows, and the same one whole on all rows. Both run in the same rank context, so initial bits must agree.
#include <functional>
#include <memory>
#include <vector>

#include "dtensor/api.h"
#include "nn/layers/linear.h"
#include "nn/module_list.h"
#include "nn/optim/optimizer.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/parallel/parity.h"

namespace sherd::testing {

/// relu(x W^T + b): one block of the test network.
struct Block : nn::Layer<Block> {
  nn::Linear& linear_layer;
  Block(std::int64_t in, std::int64_t out) : linear_layer(add<nn::Linear>("linear", in, out)) {}
  Tensor forward(const Tensor& x) { return relu(linear_layer(x)); }
};

/// Blocks, then a linear head that the root owns. sizes = {in, hidden..., out}.
struct Net : nn::Layer<Net> {
  nn::ModuleList<Block>& blocks;
  nn::Linear& head;
  explicit Net(const std::vector<std::int64_t>& sizes)
      : blocks(add<nn::ModuleList<Block>>("blocks")),
        head(add<nn::Linear>("head", sizes[sizes.size() - 2], sizes.back())) {
    for (std::size_t i = 0; i + 2 < sizes.size(); ++i) blocks.append(sizes[i], sizes[i + 1]);
  }
  Tensor forward(Tensor x) {
    for (Block* block : blocks.items()) x = (*block)(x);
    return head(x);
  }
};

/// Sizes of nets, two blocks if not said otherwise.
inline const std::vector<std::int64_t> kUneven{5, 7, 3, 2};      ///< on 4 ranks some shards are empty
inline const std::vector<std::int64_t> kEven{64, 96, 128, 48};   ///< 4 ranks divide all rows
inline const std::vector<std::int64_t> kTwoBlocks{6, 10, 7, 5};  ///< 70, 77 and, in the head, 40 parameters
inline const std::vector<std::int64_t> kThreeBlocks{6, 10, 7, 9, 5};

/// relu(W x + up(down(x))): a linear beside an adapter of rank 2. Backward meets the adapter's weights before W.
struct Adapted : nn::Layer<Adapted> {
  nn::Linear &base, &down, &up;
  Adapted(std::int64_t in, std::int64_t out)
      : base(add<nn::Linear>("base", in, out)),
        down(add<nn::Linear>("down", in, 2)),
        up(add<nn::Linear>("up", 2, out)) {}
  Tensor forward(const Tensor& x) {
    const Tensor y = base(x);
    return relu(y + up(down(x)));
  }
};

/// fully_shard on every block, then on the root; groups = blocks + 1.
template <class Model>
void shard(Model& model, const DeviceMesh& mesh, const nn::UnitPolicy& blocks = {}, const nn::UnitPolicy& root = {}) {
  if constexpr (requires { model.blocks.items(); }) {
    for (nn::Module* block : model.blocks.items()) nn::fully_shard(*block, mesh, blocks);
  } else {
    for (nn::Module* block : model.blocks()) nn::fully_shard(*block, mesh, blocks);
  }
  nn::fully_shard(model, mesh, root);
}

/// Counts once all that was issued has run: a collective on a queue is counted when it ends.
inline CommCounts settled_counts(ProcessGroup& group) {
  RankContext::current().drain_queues();
  return group.host().counts();
}
inline CommCounts counts_since(const CommCounts& before, ProcessGroup& group) {
  CommCounts counts = settled_counts(group);
  return counts -= before;
}

/// Bytes of this rank, now.
inline std::int64_t held(MemoryCategory category) {
  return RankContext::current().allocator().accounting().current(category);
}

inline Tensor mean_square(const Tensor& a, const Tensor& b) { return mean(square(a - b)); }

/// Deterministic inputs of a global batch at one step.
inline Tensor batch_of(std::int64_t rows, std::int64_t width, std::uint64_t step, std::string_view what) {
  return random_normal({rows, width}, random_key(7, what, "test", step));
}
/// This rank's rows of a global batch; rows must divide by the ranks.
inline Tensor slice_of(const Tensor& global, const ProcessGroup& group) {
  const std::int64_t rows = global.size(0) / group.size();
  return narrow(global, 0, group.rank() * rows, rows);
}

/// The mean square of a model from rows of width `in` to `out`, on this rank's rows of each step's batch of 12.
template <class Model>
Side on_slices(Model& model, ProcessGroup& group, std::int64_t in, std::int64_t out) {
  return {model,
          [&model, &group, in, out](std::uint64_t step) {
            return mean_square(model(slice_of(batch_of(12, in, step, "x"), group)),
                               slice_of(batch_of(12, out, step, "y"), group));
          },
          &group};
}
/// The same on all rows.
template <class Model>
Side on_batches(Model& model, std::int64_t in, std::int64_t out) {
  return {model, [&model, in, out](std::uint64_t step) {
            return mean_square(model(batch_of(12, in, step, "x")), batch_of(12, out, step, "y"));
          }};
}

/// What this rank holds of a tensor that lies like `like`, cut out of the whole. Local.
inline Tensor part_of(Tensor whole, const Tensor& like) {
  if (whole.shape() != like.shape()) whole = view(contiguous(whole), like.shape());  // nn::shard_merged
  const Spec& spec = Spec::from(like);
  for (int d = 0; d < like.ndim(); ++d) {
    const Spec::Range range = spec.local_range(d, like.size(d));
    whole = narrow(whole, d, range.begin, range.size());
  }
  return whole;
}
/// A parameter's whole value, whatever its layout. Collective when it is sharded.
inline Tensor whole(const Tensor& value) { return value.is_distributed() ? full_tensor(value) : value.detach(); }

}  // namespace sherd::testing
