// What a rank holds under each strategy: a row of formulas of N elements, s shards and o replicas. Oracles: the
// formulas, and ranks that are threads, processes and ghosts, which agree to the byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "nn/models/model_config.h"
#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/job/world.h"
#include "tests/parallel/strategy_cases.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using enum nn::ShardedOver;

/// Bytes of the categories that formulas tell, at one moment.
struct Held {
  std::int64_t parameters = 0, unsharded = 0, gradients = 0, optimizer = 0;
  friend bool operator==(const Held&, const Held&) = default;
};
Held held_now() {
  return {held(MemoryCategory::parameters), held(MemoryCategory::unsharded), held(MemoryCategory::gradients),
          held(MemoryCategory::optimizer)};
}

struct StepBytes {
  Held after_forward{}, after_backward{};
  CategoryBytes after_update{}, peak{}, at_peak{};
  friend bool operator==(const StepBytes&, const StepBytes&) = default;
};

/// Elements of a model, and bytes of its units when they are gathered.
struct ModelSizes {
  std::int64_t elements = 0, all = 0, root = 0, neighbours = 0, largest = 0;
  friend bool operator==(const ModelSizes&, const ModelSizes&) = default;
};

ModelSizes sizes_of(nn::Module& model) {
  ModelSizes sizes{.elements = model.num_parameters()};
  std::int64_t before = 0;
  for (const nn::UnitHandle& unit : nn::units(model)) {
    const std::int64_t bytes = unit.gathered_bytes();
    sizes.all += bytes;
    sizes.largest = std::max(sizes.largest, bytes);
    if (unit == nn::unit_of(model)) {
      sizes.root = bytes;
      continue;
    }
    sizes.neighbours = std::max(sizes.neighbours, before + bytes);
    before = bytes;
  }
  return sizes;
}

/// What a rank has seen of its training: three steps, of which the last is settled.
struct TrainedSizes {
  ModelSizes sizes;
  std::vector<StepBytes> steps{};
  friend bool operator==(const TrainedSizes&, const TrainedSizes&) = default;
};

template <class Model, class Loss>
TrainedSizes train(Model& model, const StrategyCase& c, const Group& group, const Loss& loss) {
  shard(model, c.mesh(group), c.policy(), c.policy());
  model.materialize(nn::Seed{5});
  nn::AdamW optimizer(model.parameters());
  Accounting& account = RankContext::current().allocator().accounting();
  TrainedSizes seen{.sizes = sizes_of(model)};
  for (int step = 0; step < 3; ++step) {
    account.reset_peaks();
    StepBytes& bytes = seen.steps.emplace_back();
    const Tensor value = loss();
    bytes.after_forward = held_now();
    backward(value);
    RankContext::current().drain_queues();
    bytes.after_backward = held_now();
    optimizer.step();
    optimizer.clear_gradients();
    bytes.after_update = account.current();
    bytes.peak = account.peak();
    bytes.at_peak = account.at_peak();
  }
  return seen;
}

const std::vector<std::int64_t> kDivided{64, 96, 128, 96, 64, 48};  // four shards divide all rows

TrainedSizes train_net(const Group& group, const StrategyCase& c) {
  Net net(kDivided);
  return train(net, c, group, [&] { return sum(net(batch_of(2, kDivided[0], 0, "x"))); });
}

/// `body(group)` on a ghost of each rank; results by rank.
template <class Body>
auto on_ghosts(const StrategyCase& c, const Body& body) {
  std::vector<decltype(body(Group()))> results;
  for (int rank = 0; rank < c.ranks(); ++rank) {
    const RankScope scope(fmt::format("rank {}", rank), {.ghost = true});
    set_world_group(make_ghost_group(rank, c.ranks()));
    results.push_back(body(world_group()));
  }
  return results;
}

std::int64_t bytes_of(const CategoryBytes& bytes, MemoryCategory category) {
  return bytes[static_cast<std::size_t>(category)];
}

/// Padding to cache lines is all that comes on top.
void expect_within(std::int64_t bytes, std::int64_t formula, const char* what) {
  EXPECT_GE(bytes, formula) << what;
  EXPECT_LE(static_cast<double>(bytes), 1.01 * static_cast<double>(formula)) << what;
}

void expect_within(const Held& seen, const Held& formulas, const char* when) {
  SCOPED_TRACE(when);
  expect_within(seen.parameters, formulas.parameters, "parameters");
  expect_within(seen.unsharded, formulas.unsharded, "unsharded");
  expect_within(seen.gradients, formulas.gradients, "gradients");
  expect_within(seen.optimizer, formulas.optimizer, "optimizer");
}

// The root's full parameters stay from forward to backward under any strategy: backward needs them first.
void expect_formulas(const StrategyCase& c, const TrainedSizes& seen) {
  const StrategyRow& row = *c.row;
  const ModelSizes& sizes = seen.sizes;
  const std::int64_t n = sizes.elements, whole = c.gathers() ? c.full_bytes() * n : 0;
  const std::int64_t parameters = 4 * c.part(row.parameters, n), gradients = 4 * c.part(row.gradients, n),
                     optimizer = 8 * c.part(row.optimizer, n);
  for (std::size_t step = 1; step < seen.steps.size(); ++step) {
    const StepBytes& bytes = seen.steps[step];
    const std::int64_t kept = row.stays == Stays::never ? sizes.root : whole;
    expect_within(bytes.after_forward, {parameters, kept, 0, optimizer}, "after forward");
    expect_within(bytes.after_backward,
                  {parameters, row.stays == Stays::until_update ? whole : 0, gradients, optimizer}, "after backward");
    expect_within(bytes_of(bytes.after_update, MemoryCategory::parameters), parameters, "parameters after the update");
    expect_within(bytes_of(bytes.after_update, MemoryCategory::optimizer), optimizer, "optimizer after the update");
    for (const MemoryCategory none_left :
         {MemoryCategory::unsharded, MemoryCategory::gradients, MemoryCategory::communication})
      EXPECT_EQ(bytes_of(bytes.after_update, none_left), 0) << name(none_left);

    EXPECT_EQ(bytes_of(bytes.peak, MemoryCategory::unsharded), !c.gathers() ? 0
                                                               : row.stays == Stays::never
                                                                   ? sizes.root + sizes.neighbours
                                                                   : sizes.all);
    // Full gradients of one unit are being made, and those of a root that is used first and last; one's, accounted as
    // communication, are in reduction.
    EXPECT_LE(static_cast<double>(bytes_of(bytes.peak, MemoryCategory::gradients)),
              1.01 * static_cast<double>(gradients + sizes.root + sizes.largest));
    // Where replicas divide the shards, those of a unit are apart until they are reduced, and the next unit's are made.
    const std::int64_t apart = c.divides_shards() ? 2 * c.part(shards, 4 * sizes.largest / c.full_bytes()) : 0;
    const std::int64_t most = row.parameters == none ? 0 : sizes.largest;
    EXPECT_GE(bytes_of(bytes.peak, MemoryCategory::communication), most);
    EXPECT_LE(static_cast<double>(bytes_of(bytes.peak, MemoryCategory::communication)),
              static_cast<double>(most) + 1.01 * static_cast<double>(apart));
  }
}

void expect_same(const TrainedSizes& seen, const TrainedSizes& expected) {
  EXPECT_EQ(seen.sizes, expected.sizes);
  ASSERT_EQ(seen.steps.size(), expected.steps.size());
  for (std::size_t i = 0; i < seen.steps.size(); ++i) {
    const StepBytes &a = seen.steps[i], &e = expected.steps[i];
    EXPECT_TRUE(a == e) << "step " << i << "; between steps " << describe(a.after_update) << ", expected "
                        << describe(e.after_update) << "; at the peak " << describe(a.at_peak) << ", expected "
                        << describe(e.at_peak);
  }
}

TEST(Strategies, F39_F40_F41_BytesAreThoseOfTheFormulasOnEveryRun) {
  for (const StrategyCase& c : strategy_cases()) {
    const std::vector<TrainedSizes> ghosts = on_ghosts(c, [&](const Group& group) { return train_net(group, c); });
    for (int run = 0; run < 2; ++run)
      run_ranks(c.ranks(), [&](const Group& group) {
        SCOPED_TRACE(c.text());
        const TrainedSizes seen = train_net(group, c);
        expect_formulas(c, seen);
        expect_same(seen, ghosts[static_cast<std::size_t>(group->rank())]);
      });
  }
}

TEST(Strategies, F39_F40_F41_BytesAreThoseOfTheFormulasWithProcesses) {
  for (const StrategyCase& c : strategy_cases()) {
    if (c.ranks() > 2 && c.replicas == 1) continue;
    const std::vector<TrainedSizes> ghosts = on_ghosts(c, [&](const Group& group) { return train_net(group, c); });
    run_processes(c.ranks(), [&](const Group& group) {
      SCOPED_TRACE(c.text());
      const TrainedSizes seen = train_net(group, c);
      expect_formulas(c, seen);
      expect_same(seen, ghosts[static_cast<std::size_t>(group->rank())]);
    });
  }
}

// Llama 2 of 6.74e9 parameters on 16 ranks, of which 8 are shards where there are replicas: most held at once of
// parameters, of what stays gathered, of gradients and of optimizer state, in 1e9 bytes.
TEST(Strategies, F41_SevenBillionParametersOn16Ranks) {
  const nn::Llama::Config llama{
      .vocabulary = 32000, .tokens = 8, .layers = 32, .heads = 32, .kv_heads = 32, .width = 4096, .hidden = 11008};
  for (std::size_t i = 0; i < 2 * std::size(kStrategyRows); ++i) {
    const StrategyRow& row = kStrategyRows[i / 2];
    const bool has_replicas = nn::strategy(row.name).needs_replicas, is_bf16 = i % 2 == 1;
    const StrategyCase c{
        .row = &row, .replicas = has_replicas ? 2 : 1, .shards = has_replicas ? 8 : 16, .bf16 = is_bf16};
    SCOPED_TRACE(c.text());
    const RankScope scope("rank 13", {.ghost = true});
    set_world_group(make_ghost_group(13, c.ranks()));
    const auto model = nn::make_language_model(llama);
    const Tensor ids = Tensor::from<std::int32_t>(std::vector<std::int32_t>(8, 1), {1, 8});
    const TrainedSizes seen = train(*model, c, world_group(), [&] { return (*model)(ids, ids); });
    expect_formulas(c, seen);
    const StepBytes& last = seen.steps.back();
    const Held& most = last.after_backward;
    const std::int64_t stays = row.stays == Stays::never ? 0 : last.after_forward.unsharded;
    const auto sum = static_cast<double>(most.parameters + stays + most.gradients + most.optimizer);
    const double expected = is_bf16 ? row.seven_billion_bf16 : row.seven_billion_f32;
    EXPECT_NEAR(sum / 1e9, expected, 0.01 * expected);
  }
}

/// Frozen layers with adapters, wide enough that padding is nothing.
struct Lora : nn::Layer<Lora> {
  nn::ModuleList<Adapted>& blocks;
  nn::Linear& head;
  explicit Lora(std::int64_t width)
      : blocks(add<nn::ModuleList<Adapted>>("blocks")), head(add<nn::Linear>("head", width, 8)) {
    for (int i = 0; i < 3; ++i) blocks.append(width, width);
  }
  Tensor forward(Tensor x) {
    for (Adapted* block : blocks.items()) x = (*block)(x);
    return head(x);
  }
  void freeze() {
    for (nn::Parameter* p : head.parameters()) p->set_requires_grad(false);
    for (Adapted* block : blocks.items())
      for (nn::Parameter* p : block->base.parameters()) p->set_requires_grad(false);
  }
};

TEST(Strategies, F51_GradientsAndStateAreThoseOfWhatTrains) {
  constexpr std::int64_t kWidth = 1024;
  for (const StrategyCase& c : strategy_cases())
    run_ranks(c.ranks(), [&](const Group& group) {
      SCOPED_TRACE(c.text());
      Lora net(kWidth);
      shard(net, c.mesh(group), c.policy(), c.policy());
      net.materialize(nn::Seed{5});
      net.freeze();
      nn::AdamW optimizer(net.parameters());
      std::int64_t own = 0, full_of_one = 0;  // elements
      for (const nn::Parameter* p : net.parameters())
        if (p->requires_grad()) own += p->sharded_value().local().numel();
      for (const nn::Parameter* p : net.blocks.items()[0]->parameters())
        if (p->requires_grad()) full_of_one += p->numel();
      Accounting& account = RankContext::current().allocator().accounting();
      for (int step = 0; step < 2; ++step) {
        account.reset_peaks();
        backward(sum(net(batch_of(2, kWidth, 0, "x"))));
        RankContext::current().drain_queues();
        expect_within(held(MemoryCategory::gradients), 4 * own, "gradients");
        EXPECT_LE(static_cast<double>(account.peak(MemoryCategory::gradients)),
                  1.01 * static_cast<double>(4 * own + c.full_bytes() * full_of_one));
        optimizer.step();
        optimizer.clear_gradients();
        expect_within(held(MemoryCategory::optimizer), 8 * own, "optimizer");
      }
    });
}

}  // namespace
}  // namespace sherd::testing
