// The edges that order fully_shard's queues on the CPU: all there, and each one missed when it is taken away.
#include "runtime/exec/hazards.h"

#include <gtest/gtest.h>

#include <atomic>

#include "compile/compile.h"
#include "nn/models/gpt.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr std::string_view kGather = "gather", kReduce = "reduce";
const std::vector<std::int64_t> kSizes{6, 10, 7, 9, 5};

struct Trained {
  Net net{kSizes};
  std::unique_ptr<nn::AdamW> optimizer;
  explicit Trained(const Group& group, const nn::FullyShardOptions& options = {}) {
    shard(net, DeviceMesh(group), options);
    net.materialize(nn::Seed{3});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamWOptions{.lr = 0.01});
  }
  void backward_of_a_batch(std::uint64_t index) {
    backward(mean_square(net(batch_of(4, 6, index, "x")), batch_of(4, 5, index, "y")));
  }
};

void train_steps(Trained& t) {
  for (std::uint64_t step = 0; step < 3; ++step) {
    t.backward_of_a_batch(2 * step);
    t.backward_of_a_batch(2 * step + 1);
    nn::clip_grad_norm(*t.optimizer, 1.0);
    t.optimizer->step_and_clear();
  }
}

TEST(FullyShardHazards, NoneInTraining) {
  for (int ranks : {2, 3, 4})
    for (bool reshard : {true, false})
      run_ranks(ranks, [&](const Group& group) {
        HazardChecker checker;
        {
          Trained t(group, {.reshard_after_forward = nn::ReshardAfterForward(reshard)});
          train_steps(t);
          GradMode off(false);
          t.net(batch_of(4, 6, 0, "x"));
        }
        EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
        EXPECT_GT(checker.num_checked(), 500);
      });
}

TEST(FullyShardHazards, NoneInATransformerWithATiedHead) {
  run_ranks(2, [](const Group& group) {
    HazardChecker checker;
    nn::Gpt model({.vocabulary = 17, .tokens = 8, .layers = 3, .heads = 2, .width = 16});
    const DeviceMesh mesh(group);
    for (nn::Module* block : model.blocks()) nn::fully_shard(*block, mesh);
    nn::fully_shard(model, mesh);
    model.materialize(nn::Seed{3});
    nn::AdamW optimizer(model.parameters(), {.lr = 0.01});
    const Tensor tokens = Tensor::from<std::int64_t>({1, 2, 3, 4, 5, 6, 7, 8}, {1, 8});
    for (int step = 0; step < 3; ++step) {
      backward(model(tokens, tokens));
      nn::clip_grad_norm(optimizer, 1.0);
      optimizer.step_and_clear();
    }
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
  });
}

TEST(FullyShardHazards, NoneInReplays) {
  run_ranks(2, [](const Group& group) {
    HazardChecker checker;
    Trained t(group);
    auto step = compile([&](const Tensor& x, const Tensor& y) {
      const Tensor loss = mean_square(t.net(x), y);
      backward(loss);
      const Tensor norm = nn::clip_grad_norm(*t.optimizer, 0.5);
      t.optimizer->step_and_clear();
      return loss + norm;
    });
    for (std::uint64_t i = 0; i < 6; ++i) step(batch_of(4, 6, i, "x"), batch_of(4, 5, i, "y")).item<float>();
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
  });
}

// Programs that rely on one edge in particular.
void writes_shards_that_a_gather_reads(Trained& t) {
  Block& block = *t.net.blocks.items()[0];
  const Tensor shard = block.linear_layer.weight.value().local().detach();
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

// The orders between streams that PyTorch's FSDP2 keeps by events, those that exist here. A step runs on each rank
// until its check throws, or a peer's did; freed memory is only noted.
struct Row {
  std::string_view edge;
  std::vector<RemovedEdge> removed;
  void (*program)(Trained&);
  std::string_view work, after;
};

const Row kRows[] = {
    {"compute -> gather: it sees the optimizer's writes",
     {{QueueEdge::submit, kGather}},
     train_steps,
     "gather unshard",
     "after \"the rank's thread"},
    {"gather -> compute",
     {{QueueEdge::touch, kGather, true}},
     train_steps,
     "the rank's thread",
     "after \"gather unshard"},
    {"gather -> release of its buffer",
     {{QueueEdge::release, kGather, true}},
     frees_before_the_gather_ends,
     "the rank's thread",
     "after \"gather unshard"},
    {"compute -> reduction", {{QueueEdge::submit, kReduce}}, train_steps, "reduce reduce", "after \"the rank's thread"},
    {"reduction -> reuse of its input",
     {{QueueEdge::hold, kReduce}, {QueueEdge::release, kReduce, false}},
     train_steps,
     "the rank's thread",
     "after \"reduce reduce"},
    {"reduction -> optimizer",
     {{QueueEdge::touch, kReduce, true}},
     train_steps,
     "the rank's thread",
     "after \"reduce reduce"},
    {"reduction -> the next micro-batch's",
     {{QueueEdge::order, kReduce}},
     accumulates_with_many_reductions_in_flight,
     "reduce reduce",
     "after \"reduce reduce"},
    {"reading gather -> optimizer",
     {{QueueEdge::touch, kGather, false}},
     writes_shards_that_a_gather_reads,
     "the rank's thread",
     "after \"gather unshard"},
    {"reduction -> gather of the gradients",
     {{QueueEdge::depend, kReduce}},
     gathers_gradients_after_backward,
     "collective all_gather",
     "after \"reduce reduce"},
};

TEST(FullyShardHazards, EveryRemovedEdgeIsFound) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.edge);
    std::atomic<int> found = 0;
    try {
      run_ranks(2, [&](const Group& group) {
        HazardChecker checker;
        for (const RemovedEdge& edge : row.removed) checker.remove(edge);
        const auto look = [&] {
          for (const std::string& text : checker.found()) {
            if (text.find(row.work) != std::string::npos && text.find(row.after) != std::string::npos) ++found;
          }
        };
        try {
          Trained t(group);
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

// One of the two ways to keep the input of a reduction is enough.
TEST(FullyShardHazards, FreeingAnInputThatNobodyHoldsWaits) {
  run_ranks(2, [](const Group& group) {
    HazardChecker checker;
    checker.remove({QueueEdge::hold, kReduce});
    Trained t(group);
    train_steps(t);
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
  });
}

}  // namespace
}  // namespace sherd::testing
