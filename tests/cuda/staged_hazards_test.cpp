// The edges of the fully_shard schedule on devices, as tests/parallel/hazards_test.cpp has them for the host: each is
// missed by the hazard check when it is taken away, on two ranks over a staged group.
//
//   E1  compute -> gather        it sees the optimizer's writes         E5  compute -> reduction
//   E2  gather -> compute        who reads parameters                   E6  reduction -> reuse of its input
//   E3  gather -> release        of its buffer                          E7  reduction -> optimizer
//   E4  reading gather -> optimizer                                     E8  reduction -> the next micro-batch's
//                                                                       E9  reduction -> gather of the gradients
#include <gtest/gtest.h>

#include <atomic>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/staged_group.h"
#include "runtime/exec/hazards.h"
#include "tests/cuda/cuda_test.h"
#include "tests/parallel/nets.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using StagedHazards = cuda::CudaTest;
using Group = std::shared_ptr<ProcessGroup>;
constexpr std::string_view kGather = "gather", kReduce = "reduce";
const Device kCuda = Device::cuda(0);

struct Trained {
  Net net{std::vector<std::int64_t>{6, 10, 7, 5}};
  std::unique_ptr<nn::AdamW> optimizer;
  explicit Trained(const Group& group) {
    shard(net, DeviceMesh(group, "dp"));
    net.materialize(nn::Seed{3}, kCuda);
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamWOptions{.lr = 0.01});
  }
  void backward_of_a_batch(std::uint64_t index) {
    const Tensor x = to(batch_of(4, 6, index, "x"), kCuda), y = to(batch_of(4, 5, index, "y"), kCuda);
    backward(mean_square(net(x), y));
  }
};

void train_steps(Trained& t) {
  for (std::uint64_t step = 0; step < 2; ++step) {
    t.backward_of_a_batch(2 * step);
    t.backward_of_a_batch(2 * step + 1);
    nn::clip_grad_norm(*t.optimizer, 1.0);
    t.optimizer->step_and_clear();
  }
}
void writes_shards_that_a_gather_reads(Trained& t) {
  Block& block = *t.net.blocks.items()[0];
  const Tensor shard = block.linear_layer.weight.sharded_value().local().detach();
  nn::unshard(block);
  fill_into(shard, 0);
}
void accumulates_with_many_reductions_in_flight(Trained& t) {
  nn::set_reduce_scatter_max_input_buffers(t.net, 100);
  t.backward_of_a_batch(0);
  t.backward_of_a_batch(1);
}
void frees_before_the_gather_ends(Trained& t) {
  nn::unshard(t.net);
  nn::reshard(t.net);
}
void gathers_gradients_after_backward(Trained& t) {
  t.backward_of_a_batch(0);
  for (const nn::Parameter* p : t.net.parameters()) full_tensor(p->grad());
}

struct Row {
  std::string_view edge;
  std::vector<RemovedEdge> removed;
  void (*program)(Trained&);
  std::string_view work, after;
};

constexpr std::string_view kCompute = "the rank's thread";
const Row kRows[] = {
    {"E1", {{QueueEdge::submit, kGather}}, train_steps, "gather unshard", "after \"the rank's thread"},
    {"E2", {{QueueEdge::touch, kGather, true}}, train_steps, kCompute, "after \"gather unshard"},
    {"E3", {{QueueEdge::release, kGather, true}}, frees_before_the_gather_ends, kCompute, "after \"gather unshard"},
    {"E4", {{QueueEdge::touch, kGather, false}}, writes_shards_that_a_gather_reads, kCompute, "after \"gather unshard"},
    {"E5", {{QueueEdge::submit, kReduce}}, train_steps, "reduce reduce", "after \"the rank's thread"},
    {"E6",
     {{QueueEdge::hold, kReduce}, {QueueEdge::release, kReduce, false}},
     train_steps,
     kCompute,
     "after \"reduce reduce"},
    {"E7", {{QueueEdge::touch, kReduce, true}}, train_steps, kCompute, "after \"reduce reduce"},
    {"E8",
     {{QueueEdge::order, kReduce}},
     accumulates_with_many_reductions_in_flight,
     "reduce reduce",
     "after \"reduce reduce"},
    {"E9",
     {{QueueEdge::depend, kReduce}},
     gathers_gradients_after_backward,
     "collective all_gather",
     "after \"reduce reduce"},
};

TEST_F(StagedHazards, EveryRemovedEdgeIsFoundAndNamesBufferAndQueues) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.edge);
    std::atomic<int> found = 0;
    try {
      run_ranks(2, [&](const Group& host) {
        HazardChecker checker;
        for (const RemovedEdge& edge : row.removed) checker.remove(edge);
        const auto look = [&] {
          for (const std::string& text : checker.found())
            if (text.find(row.work) != std::string::npos && text.find(row.after) != std::string::npos &&
                text.find("storage ") != std::string::npos)
              ++found;
        };
        try {
          Trained t(make_staged_group(host));
          row.program(t);
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

}  // namespace
}  // namespace sherd::testing
