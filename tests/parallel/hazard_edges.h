#pragma once
// The edges that order fully_shard's queues, as a table: for each a program that relies on it, and what the hazard
// check must name when the edge is taken away. On the host and on devices alike (nn/parallel/README.md).
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/hazards.h"
#include "tests/parallel/nets.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

/// A small net under fully_shard over `group` on `device`, and its optimizer.
struct HazardTraining {
  Net net{std::vector<std::int64_t>{6, 10, 7, 9, 5}};
  std::unique_ptr<nn::AdamW> optimizer;
  Device device;

  explicit HazardTraining(const std::shared_ptr<ProcessGroup>& group, Device on = Device::cpu(),
                          const nn::FullyShardOptions& options = {}, int replicas = 1)
      : device(on) {
    shard(net, replicas == 1 ? DeviceMesh(group, "dp") : DeviceMesh(group, {{"replicate", replicas}, {"dp", 2}}),
          options);
    net.materialize(nn::Seed{3}, device);
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamWOptions{.lr = 0.01});
  }
  void backward_of_a_batch(std::uint64_t index) {
    const Tensor x = to(batch_of(4, 6, index, "x"), device), y = to(batch_of(4, 5, index, "y"), device);
    backward(mean_square(net(x), y));
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

inline void gathers_gradients_after_backward(HazardTraining& t) {
  t.backward_of_a_batch(0);
  for (const nn::Parameter* p : t.net.parameters()) full_tensor(p->grad());
}

struct HazardEdge {
  std::string_view name;
  std::vector<RemovedEdge> removed;
  void (*program)(HazardTraining&);
  std::string_view work, after;  ///< in the message
  int replicas = 1;              ///< of two shards
};

inline std::vector<HazardEdge> hazard_edges() {
  constexpr std::string_view kGather = "gather", kReduce = "reduce", kCompute = "the rank's thread";
  constexpr std::string_view kAfterCompute = "after \"the rank's thread", kAfterGather = "after \"gather unshard",
                             kAfterReduction = "after \"reduce reduce";
  const auto frees_before_the_gather_ends = [](HazardTraining& t) {
    nn::unshard(t.net);
    nn::reshard(t.net);
  };
  const auto writes_shards_that_a_gather_reads = [](HazardTraining& t) {
    Block& block = *t.net.blocks.items()[0];
    const Tensor shard = block.linear_layer.weight.sharded_value().local().detach();
    nn::unshard(block);
    fill_into(shard, 0);
  };
  const auto accumulates_with_many_reductions_in_flight = [](HazardTraining& t) {
    nn::set_reduce_scatter_max_input_buffers(t.net, 100);
    t.backward_of_a_batch(0);
    t.backward_of_a_batch(1);
  };
  return {
      {"E1 compute -> gather", {{QueueEdge::submit, kGather}}, train_steps, "gather unshard", kAfterCompute},
      {"E2 gather -> compute", {{QueueEdge::touch, kGather, true}}, train_steps, kCompute, kAfterGather},
      {"E3 gather -> release of its buffer",
       {{QueueEdge::release, kGather, true}},
       frees_before_the_gather_ends,
       kCompute,
       kAfterGather},
      {"E4 reading gather -> optimizer",
       {{QueueEdge::touch, kGather, false}},
       writes_shards_that_a_gather_reads,
       kCompute,
       kAfterGather},
      {"E5 compute -> reduction", {{QueueEdge::submit, kReduce}}, train_steps, "reduce reduce", kAfterCompute},
      {"E6 reduction -> reuse of its input",
       {{QueueEdge::hold, kReduce}, {QueueEdge::release, kReduce, false}},
       train_steps,
       kCompute,
       kAfterReduction},
      {"E7 reduction -> optimizer", {{QueueEdge::touch, kReduce, true}}, train_steps, kCompute, kAfterReduction},
      {"E8 reduction -> the next micro-batch's",
       {{QueueEdge::order, kReduce}},
       accumulates_with_many_reductions_in_flight,
       "reduce reduce",
       kAfterReduction},
      {"E9 reduction -> gather of the gradients",
       {{QueueEdge::depend, kReduce}},
       gathers_gradients_after_backward,
       "collective all_gather",
       kAfterReduction},
      {"E10 reduction -> sum over replicas",
       {{QueueEdge::depend, kReduce}},
       train_steps,
       "replicate replica_sum",
       kAfterReduction,
       2},
  };
}

/// Takes each edge away on two ranks, or two times two, over what `group_of` makes of a group of the host: the check
/// must find it, and name the buffer and both works. A step runs on each rank until its check throws, or a peer's did;
/// freed memory is only noted.
inline void expect_every_removed_edge_is_found(
    const std::function<Device(int rank)>& device_of,
    const std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup>)>& group_of) {
  for (const HazardEdge& edge : hazard_edges()) {
    SCOPED_TRACE(edge.name);
    std::atomic<int> found = 0;
    try {
      run_ranks(2 * edge.replicas, [&](const std::shared_ptr<ProcessGroup>& host) {
        HazardChecker checker;
        for (const RemovedEdge& removed : edge.removed) checker.remove(removed);
        const auto look = [&] {
          for (const std::string& text : checker.found())
            if (text.find(edge.work) != std::string::npos && text.find(edge.after) != std::string::npos &&
                text.find("storage ") != std::string::npos)
              ++found;
        };
        try {
          HazardTraining t(group_of(host), device_of(host->rank()), {}, edge.replicas);
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
