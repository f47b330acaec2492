// Wrapped modules inside wrapped modules, each with parameters of its own: what is gathered when, and that guesses and
// lists change neither bits nor memory.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "tests/parallel/nets.h"
#include "tests/support/compile_once.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr std::int64_t kWidth = 7;

/// Blocks, then a linear layer of the stage's own, like the norm behind an encoder's layers.
struct Stage : nn::Layer<Stage> {
  nn::ModuleList<Block>& blocks;
  nn::Linear& last;
  Stage() : blocks(add<nn::ModuleList<Block>>("blocks")), last(add<nn::Linear>("last", kWidth, kWidth)) {
    for (int i = 0; i < 2; ++i) blocks.append(kWidth, kWidth);
  }
  Tensor forward(Tensor x) {
    for (Block* block : blocks.items()) x = (*block)(x);
    return last(x);
  }
};

struct Nested : nn::Layer<Nested> {
  Stage &encoder, &decoder;
  nn::Linear& head;
  Nested() : encoder(add<Stage>("encoder")), decoder(add<Stage>("decoder")), head(add<nn::Linear>("head", kWidth, 5)) {}
  Tensor forward(const Tensor& x) { return head(decoder(encoder(x))); }
};

void shard_nested(Nested& net, const Group& group, const nn::UnitPolicy& options = {}) {
  const DeviceMesh mesh(group);
  for (Stage* stage : {&net.encoder, &net.decoder}) shard(*stage, mesh, options, options);
  nn::fully_shard(net, mesh, {.prefetch = options.prefetch});
  net.materialize(nn::Seed{3});
}

// "e0" for the encoder's first block, "D" for the decoder's own parameters, "R" for the root's.
std::string short_name(const std::string& attrs) {
  const std::size_t stage = std::min(attrs.find("encoder"), attrs.find("decoder"));
  if (stage == std::string::npos) return "R";
  const char letter = attrs[stage];
  const std::size_t block = attrs.find("blocks.");
  if (block == std::string::npos) return {static_cast<char>(letter - 'a' + 'A')};
  return {letter, attrs[block + 7]};
}

std::string signed_events(const ir::Program& program) {
  std::string text;
  for (const ir::GraphNode& node : program.nodes) {
    const bool is_gather = node.op == &op::gather_start;
    if (!is_gather && node.op != &op::reduce_start) continue;
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", is_gather ? "+" : "-", short_name(node.attrs.print()));
  }
  return text;
}

// pytorch #108190: in nested modules backward prefetched in the wrong order, so its first module waited for a gather
// that came last. The next group in backward is the one whose forward ended before, whatever contains it.
TEST(FullyShard, F48_EventOrderOfNestedModules) {
  run_ranks(2, [](const Group& group) {
    for (const bool prefetches : {true, false}) {
      Nested net;
      shard_nested(net, group, {.prefetch = prefetches});
      auto step = compile_once([&](const Tensor& x) {
        const Tensor loss = sum(net(x));
        backward(loss);
        for (nn::Parameter* p : net.parameters()) p->clear_grad();
        return loss;
      });
      for (int i = 0; i < 2; ++i) step(batch_of(2, kWidth, 0, "x"));
      const std::string before = "+R +E +e0 +e1 +D +d0 +d1 ";
      const std::string after = prefetches ? "+D -R +d1 -D +d0 -d1 +E -d0 +e1 -E +e0 -e1 -e0"
                                           : "-R +D -D +d1 -d1 +d0 -d0 +E -E +e1 -e1 +e0 -e0";
      EXPECT_EQ(signed_events(step.graph()->program), before + after);
    }
  });
}

struct NestedVariant {
  const char* name;
  bool reshards = true, prefetches = true, has_lists = false;
  int max_reductions = 1;
};

// Every module lists the two that come next, in forward and in backward; a stage comes before its blocks in both.
void apply_lists(Nested& net) {
  std::vector<nn::Module*> order;
  for (Stage* stage : {&net.encoder, &net.decoder}) {
    order.push_back(stage);
    for (Block* block : stage->blocks.items()) order.push_back(block);
  }
  const std::vector<std::size_t> left{1, 2, 0, 4, 5, 3};  // in the order in which forward ends
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::vector<nn::UnitHandle> next, previous;
    for (std::size_t d : {i + 1, i + 2})
      if (d < order.size()) next.push_back(nn::unit_of(*order[d]));
    for (std::size_t d : {i - 1, i - 2})
      if (d < i) previous.push_back(nn::unit_of(*order[left[d]]));
    nn::unit_of(*order[i]).set_forward_prefetch(next);
    nn::unit_of(*order[left[i]]).set_backward_prefetch(previous);
  }
}

std::vector<float> train(const Group& group, const NestedVariant& variant) {
  Nested net;
  shard_nested(net, group,
               {.reshard_after_forward = nn::ReshardAfterForward(variant.reshards), .prefetch = variant.prefetches});
  if (variant.has_lists) apply_lists(net);
  nn::units(net).set_max_reductions(variant.max_reductions);
  nn::AdamW optimizer(net.parameters(), {.lr = 0.05});
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Tensor x = batch_of(12, kWidth, step, "x"), y = batch_of(12, 5, step, "y");
    backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
    EXPECT_EQ(held(MemoryCategory::unsharded), 0) << variant.name;
    optimizer.step_and_clear();
    EXPECT_EQ(held(MemoryCategory::communication), 0) << variant.name;
  }
  std::vector<float> weights;
  for (const nn::Parameter* p : net.parameters())
    for (const float value : whole(p->value()).to_vector<float>()) weights.push_back(value);
  return weights;
}

// Prefetch of block i - 1 and reduction of block i on one communicator hang where ranks start them in different orders.
// They have lanes of their own here, and on each all ranks call in the order of the program; the deadline is for a
// test that would wait for ever.
void expect_same_bits_of_variants(const Group& group) {
  group->set_deadline(std::chrono::seconds(60));
  const NestedVariant variants[] = {{"on demand", true, false},
                                    {"implicit"},
                                    {"kept", false},
                                    {"lists of two", true, true, true},
                                    {"lists, three reductions in flight", true, true, true, 3}};
  const std::vector<float> expected = train(group, variants[0]);
  for (const NestedVariant& variant : variants) EXPECT_EQ(train(group, variant), expected) << variant.name;
  const CommCounts gathers = lane_of(*group, kGatherQueue).counts(),
                   reductions = lane_of(*group, kReduceQueue).counts();
  EXPECT_EQ(gathers.reduce_scatter.calls, 0);
  EXPECT_EQ(reductions.all_gather.calls, 0);
  if (group->size() > 1) {
    EXPECT_GT(gathers.all_gather.calls, 0);
    EXPECT_GT(reductions.reduce_scatter.calls, 0);
  }
}

TEST(FullyShard, F60_NestedPrefetchNeverChangesABit) {
  for (const int ranks : {1, 2, 3}) run_ranks(ranks, expect_same_bits_of_variants);
  run_processes(2, expect_same_bits_of_variants);
}

TEST(FullyShard, F60_NestedModulesTrainLikeOneRank) {
  run_ranks(3, [](const Group& group) {
    Nested net, reference;
    shard_nested(net, group);
    reference.materialize(nn::Seed{3});
    expect_trains_alike(on_slices(net, *group, kWidth, 5), on_batches(reference, kWidth, 5), {.gradient_limit = 1e-5});
  });
}

}  // namespace
}  // namespace sherd::testing
