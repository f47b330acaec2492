#pragma once
// A net whose rows no number of ranks divides, on grids of replicas and shards: its batches, its training under a
// policy and its parity with one rank on the whole batch.
#include <memory>
#include <vector>

#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"

namespace sherd::testing {

/// Units of a Net of two blocks: they and the root.
inline constexpr std::int64_t kUnits = 3;

/// Sizes of the axes of a mesh that replicates over one and shards over the other.
struct Grid {
  int replicas, shards;
  int ranks() const { return replicas * shards; }
  DeviceMesh mesh(const std::shared_ptr<ProcessGroup>& group) const {
    return DeviceMesh(group, {{"replicate", replicas}, {"dp", shards}});
  }
};
inline constexpr Grid kReplicaGrids[] = {{2, 2}, {1, 3}, {3, 1}, {2, 1}, {2, 3}};

inline nn::UnitPolicy in_bf16(nn::UnitPolicy policy) {
  policy.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
  return policy;
}

/// This rank's rows of a step's batch for a Net of kUneven.
inline Tensor own_rows(const std::shared_ptr<ProcessGroup>& group, std::uint64_t step) {
  return slice_of(batch_of(12, 5, step, "x"), *group);
}

/// A net in training, the root under the policy of the blocks.
struct PolicyTraining {
  Net net;
  std::unique_ptr<nn::AdamW> optimizer;
  PolicyTraining(const DeviceMesh& mesh, const nn::UnitPolicy& policy, const std::vector<std::int64_t>& sizes = kUneven,
                 std::uint64_t seed = 5)
      : net(sizes) {
    shard(net, mesh, policy, policy);
    net.materialize(nn::Seed{seed});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05});
  }
  /// Two micro-batches; with `waits` the first waits for the second's reduction.
  Tensor accumulate(const Tensor& x, bool waits = false) {
    Tensor loss;
    for (const double factor : {1.0, 0.5}) {
      if (waits) nn::units(net).set_requires_gradient_sync(factor < 1);
      loss = sum(square(net(mul(x, factor))));
      backward(loss);
    }
    return loss.detach();
  }
  /// Their update. Targets are not looked at.
  Tensor step(const Tensor& x, const Tensor&, bool waits = false) {
    const Tensor loss = accumulate(x, waits);
    optimizer->step_and_clear();
    return loss;
  }
};

/// Under the policy, or that without prefetch, the net trains like one rank on the whole batch. Collective.
inline void expect_parity(const std::shared_ptr<ProcessGroup>& group, const DeviceMesh& mesh, nn::UnitPolicy policy,
                          bool prefetch = true) {
  Net net(kUneven), reference(kUneven);
  if (!prefetch) policy.prefetch = false;
  shard(net, mesh, policy, policy);
  net.materialize(nn::Seed{11});
  reference.materialize(nn::Seed{11});
  expect_trains_alike(on_slices(net, *group, 5, 2), on_batches(reference, 5, 2), {.steps = 6, .max_norm = 0.1});
}

}  // namespace sherd::testing
