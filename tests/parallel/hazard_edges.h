#pragma once
// The edges that order fully_shard's queues, as a table: for each a program that relies on it, and what the hazard
// check must name when the edge is taken away. On the host and on devices alike (docs/internals/fully_shard.md).
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/hazards.h"
#include "tests/parallel/nets.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

/// How ranks and units lie.
struct HazardShape {
  int shards = 2, replicas = 1;
  nn::UnitPolicy blocks{};
};

/// A small net under fully_shard over `group` on `device`, and its optimizer. Buffers of the first and the third block
/// have one size.
struct HazardTraining {
  Net net{std::vector<std::int64_t>{6, 10, 7, 9, 5}};
  std::unique_ptr<nn::AdamW> optimizer;
  Device device;

  explicit HazardTraining(const std::shared_ptr<ProcessGroup>& group, Device on = Device::cpu(),
                          const HazardShape& shape = {})
      : device(on) {
    shard(net,
          shape.replicas == 1 ? DeviceMesh(group, "dp")
                              : DeviceMesh(group, {{"replicate", shape.replicas}, {"dp", shape.shards}}),
          shape.blocks);
    net.materialize(nn::Seed{3}, device);
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.01});
  }
  Block& block(std::size_t index) { return *net.blocks.items()[index]; }
  Tensor outputs_of_a_batch(std::uint64_t index) { return net(to(batch_of(4, 6, index, "x"), device)); }
  void backward_of_a_batch(std::uint64_t index) {
    backward(mean_square(outputs_of_a_batch(index), to(batch_of(4, 5, index, "y"), device)));
  }
};

inline void train_steps(HazardTraining& t) {
  for (std::uint64_t step = 0; step < 3; ++step) {
    t.backward_of_a_batch(2 * step);
    t.backward_of_a_batch(2 * step + 1);
    nn::clip_grad_norm(*t.optimizer, 1.0);
    t.optimizer->step_and_clear();
  }
}

inline void frees_before_the_gather_ends(HazardTraining& t) {
  nn::unit_of(t.net).unshard();
  nn::unit_of(t.net).reshard();
}

inline void writes_shards_that_a_gather_reads(HazardTraining& t) {
  const Tensor shard = t.block(0).linear_layer.weight.sharded_value().local().detach();
  nn::unit_of(t.block(0)).unshard();
  fill_into(shard, 0);
}

inline void accumulates_with_many_reductions_in_flight(HazardTraining& t) {
  nn::units(t.net).set_max_reductions(100);
  t.backward_of_a_batch(0);
  t.backward_of_a_batch(1);
}

inline void gathers_gradients_after_backward(HazardTraining& t) {
  t.backward_of_a_batch(0);
  for (const nn::Parameter* p : t.net.parameters()) full_tensor(p->grad());
}

// The third one was gathered before: ranks compare a unit the first time, and that orders the queue as well.
inline void gathers_the_first_block(HazardTraining& t) {
  nn::unit_of(t.block(2)).unshard();
  nn::unit_of(t.block(2)).reshard();
  nn::unit_of(t.block(0)).unshard();
}

// The allocator gives the third block what the first has had.
inline void gathers_another_block_into_its_memory(HazardTraining& t) {
  const GradMode off(false);
  (void)sum(t.block(0).linear_layer.weight.value());
  nn::unit_of(t.block(0)).reshard();
  nn::unit_of(t.block(2)).unshard();
}

inline void drops_slices_that_a_gather_reads(HazardTraining& t) {
  (void)t.outputs_of_a_batch(0);  // leaves slices to a backward
  nn::unit_of(t.block(0)).unshard();
  nn::unit_of(t.block(0)).reshard();
}

struct HazardEdge {
  std::string_view name;
  std::vector<RemovedEdge> removed;
  void (*program)(HazardTraining&);
  std::vector<std::string_view> says;         ///< in one message: a work, its buffer, after which other
  void (*before)(HazardTraining&) = nullptr;  ///< with the edge still there
  HazardShape shape{};
};

inline std::vector<HazardEdge> hazard_edges() {
  constexpr std::string_view kGather = "gather", kReduce = "reduce", kGathers = "\"gather unshard",
                             kReduces = "\"reduce reduce", kComputes = "\"the rank's thread", kFull = " full, ",
                             kAfterCompute = "after \"the rank's thread", kAfterGather = "after \"gather unshard",
                             kAfterReduction = "after \"reduce reduce";
  const HazardShape slices{.shards = 4, .blocks = {.reshard_after_forward = nn::ReshardAfterForward(2)}};
  return {
      {"E1 compute -> gather",
       {{QueueEdge::submit, kGather}},
       train_steps,
       {kGathers, "storage ", "of parameters", kAfterCompute}},
      {"E2 gather -> compute", {{QueueEdge::touch, kGather, true}}, train_steps, {kComputes, kFull, kAfterGather}},
      {"E3 gather -> release of its buffer",
       {{QueueEdge::release, kGather, true}},
       frees_before_the_gather_ends,
       {kComputes, kFull, kAfterGather}},
      {"E4 reading gather -> optimizer",
       {{QueueEdge::touch, kGather, false}},
       writes_shards_that_a_gather_reads,
       {kComputes, "storage ", "of parameters", kAfterGather}},
      {"E5 compute -> reduction",
       {{QueueEdge::submit, kReduce}},
       train_steps,
       {kReduces, "storage ", "of gradients", kAfterCompute}},
      {"E6 reduction -> reuse of its input",
       {{QueueEdge::hold, kReduce}, {QueueEdge::release, kReduce, false}},
       train_steps,
       {kComputes, "storage ", kAfterReduction}},
      {"E7 reduction -> optimizer",
       {{QueueEdge::touch, kReduce, true}},
       train_steps,
       {kComputes, "storage ", kAfterReduction}},
      {"E8 reduction -> the next micro-batch's",
       {{QueueEdge::order, kReduce}},
       accumulates_with_many_reductions_in_flight,
       {kReduces, "storage ", kAfterReduction}},
      {"E9 reduction -> gather of the gradients",
       {{QueueEdge::depend, kReduce}},
       gathers_gradients_after_backward,
       {"collective all_gather", "storage ", kAfterReduction}},
      {"E10 reduction -> sum over replicas",
       {{QueueEdge::depend, kReduce}},
       train_steps,
       {"replicate replica_sum", "storage ", kAfterReduction},
       nullptr,
       {.replicas = 2}},
      {"E11 compute -> a gather into memory that it has used",
       {{QueueEdge::reuse, kGather}},
       gathers_another_block_into_its_memory,
       {kGathers, "(blocks.2 full, ", kAfterCompute, "(blocks.0 full, ", "in the same memory"},
       gathers_the_first_block},
      {"E12 a gather that reads slices -> their release",
       {{QueueEdge::release, kGather, false}},
       drops_slices_that_a_gather_reads,
       {kComputes, "(blocks.0 slices, ", kAfterGather},
       nullptr,
       slices},
  };
}

inline bool says_all(std::string_view message, const std::vector<std::string_view>& parts) {
  return std::ranges::all_of(parts, [&](std::string_view part) { return message.find(part) != message.npos; });
}

/// Takes each edge away on as many ranks as it wants, over what `group_of` makes of a group of the host: the check must
/// find it, and name the buffer and both works. A step runs on each rank until its check throws, or a peer's did; freed
/// memory is only noted.
inline void expect_every_removed_edge_is_found(
    const std::function<Device(int rank)>& device_of,
    const std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup>)>& group_of) {
  for (const HazardEdge& edge : hazard_edges()) {
    SCOPED_TRACE(edge.name);
    std::atomic<int> found = 0;
    try {
      run_ranks(edge.shape.shards * edge.shape.replicas, [&](const std::shared_ptr<ProcessGroup>& host) {
        HazardChecker checker;
        const auto look = [&] {
          for (const std::string& text : checker.found()) found += says_all(text, edge.says) ? 1 : 0;
        };
        try {
          HazardTraining t(group_of(host), device_of(host->rank()), edge.shape);
          if (edge.before) edge.before(t);
          for (const RemovedEdge& removed : edge.removed) checker.remove(removed);
          edge.program(t);
        } catch (...) {
          look();
          throw;
        }
        look();
      });
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("hazard"), std::string::npos) << error.what();
    }
    EXPECT_GT(found, 0);
  }
}

}  // namespace sherd::testing
