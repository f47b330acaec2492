// full_state_dict: everything on rank 0, from any mesh and into any mesh. Oracle: full_tensor() of each slot, which
// goes another way (collectives of the mesh), and tensors that rank 0 alone has drawn.
#include "nn/checkpoint/full/full_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using nn::FullState;

// 1-D, HSDP, TP x dp, all three; sizes that nothing divides, so that shards are uneven or empty.
constexpr Grid3 kStateGrids[] = {{1, 1, 1}, {1, 4, 1}, {2, 2, 1}, {1, 1, 3}, {1, 2, 2}, {2, 1, 2}};

struct StateTraining {
  DeviceMesh root;
  ResidualNet net{5, 7};
  std::unique_ptr<nn::AdamW> optimizer;
  Group group;

  StateTraining(const Group& g, const Grid3& grid, std::uint64_t seed) : root(grid.mesh(g)), group(g) {
    shard_2d(net, root, grid, true);
    net.materialize(nn::Seed{seed});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.01});
  }
  Tensor forward(std::uint64_t index) {
    return mean_square(net(rows_of(batch3(12, 3, index, "x"), root)), rows_of(batch3(12, 2, index, "y"), root));
  }
  void step(std::uint64_t index, bool without_head = false) {
    backward(forward(index));
    if (without_head) net.head.weight.clear_grad();
    optimizer->step_and_clear();
  }
  FullState get(const nn::FullStateOptions& options = {}) {
    return nn::full_state_dict(net, *group, optimizer.get(), options);
  }
  void set(const FullState& full, const nn::FullStateOptions& options = {}) {
    nn::load_full_state_dict(net, *group, full, optimizer.get(), options);
  }
};

std::string key_of(const nn::StateEntry& entry) {
  return entry.kind == "param" ? entry.name : entry.kind + "/" + entry.name;
}

// What every rank finds by gathering each slot over its mesh.
FullState gathered(StateTraining& training) {
  FullState full;
  for (const nn::StateEntry& entry : nn::training_state(training.net, training.optimizer.get()))
    if (!nn::is_usual(entry)) full[key_of(entry)] = contiguous(whole(entry.slot->value()));
  return full;
}

void expect_same_state(const FullState& actual, const FullState& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    EXPECT_TRUE(same_bits(actual.at(name), value)) << name;
  }
}

TEST(FullState, F165_RankZeroHasAllAndTheOthersNothing) {
  for (const Grid3& grid : kStateGrids)
    run_ranks(grid.ranks(), [&](const Group& group) {
      StateTraining training(group, grid, 1);
      training.step(0);
      training.step(1, /*without_head=*/true);  // its count of steps is its own now
      const FullState expected = gathered(training);
      const Tensor loss = training.forward(2);  // the units are gathered
      for (const std::int64_t chunk_bytes : {1, 12, 1 << 20}) {
        const FullState full = training.get({.chunk_bytes = chunk_bytes});
        if (group->rank() == 0) expect_same_state(full, expected);
        else EXPECT_TRUE(full.empty());
      }
      EXPECT_TRUE(expected.contains("optim.step/head.weight"));
      EXPECT_TRUE(expected.contains("optim.m/blocks.1.up.weight"));
      backward(loss);
    });
}

TEST(FullState, F103_TensorsOfRankZeroReachEveryShard) {
  for (const Grid3& grid : kStateGrids)
    for (const std::int64_t chunk_bytes : {3, 64, 1 << 20})
      run_ranks(grid.ranks(), [&](const Group& group) {
        StateTraining training(group, grid, 1);
        const auto drawn = [](const nn::Parameter& p) {
          return random_normal(p.shape(), random_key(9, p.name(), "value"));
        };
        FullState full;
        if (group->rank() == 0)
          for (const auto& [name, p] : training.net.named_parameters()) full[name] = drawn(*p);
        nn::load_full_state_dict(training.net, *group, full, nullptr, {.chunk_bytes = chunk_bytes});
        for (const nn::Parameter* p : training.net.parameters())
          EXPECT_TRUE(same_bits(p->value().local(), part_of(drawn(*p), p->value()))) << p->name();
      });
}

// What a model gives makes another one the same, the optimizer's state included: both train on alike.
TEST(FullState, F208_RoundTripsOnEveryMesh) {
  for (const Grid3& grid : kStateGrids)
    run_ranks(grid.ranks(), [&](const Group& group) {
      StateTraining first(group, grid, 1), second(group, grid, 2);
      first.step(0);
      first.step(1, /*without_head=*/true);
      second.step(7);
      const Tensor held = second.forward(3);  // gathers the old values, which are dropped
      second.set(first.get());
      expect_same_state(gathered(second), gathered(first));
      for (const std::uint64_t index : {2, 3}) first.step(index), second.step(index);
      expect_same_state(gathered(second), gathered(first));
    });
}

TEST(FullState, F208_FromOneMeshIntoAnother) {
  std::map<std::string, std::vector<float>> values;
  const Grid3 from{1, 2, 2};
  run_ranks(from.ranks(), [&](const Group& group) {
    StateTraining training(group, from, 1);
    training.step(0);
    for (const auto& [name, tensor] : training.get()) values[name] = tensor.to_vector<float>();  // on rank 0 only
  });
  for (const Grid3& to : kStateGrids)
    run_ranks(to.ranks(), [&](const Group& group) {
      StateTraining training(group, to, 2);
      FullState full;
      const FullState own = gathered(training);
      if (group->rank() == 0)
        for (const auto& [name, value] : values) full[name] = Tensor::from<float>(value, own.at(name).shape());
      training.set(full);
      for (const auto& [name, tensor] : gathered(training))
        EXPECT_EQ(tensor.to_vector<float>(), values.at(name)) << name;
    });
}

TEST(FullState, F208_WithProcesses) {
  run_processes(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    StateTraining first(group, grid, 1), second(group, grid, 2);
    first.step(0);
    const FullState expected = gathered(first), full = first.get({.chunk_bytes = 16});
    if (group->rank() == 0) expect_same_state(full, expected);
    else EXPECT_TRUE(full.empty());
    second.set(full, {.chunk_bytes = 16});
    expect_same_state(gathered(second), expected);
  });
}

// Bytes of this rank above those it holds, at most, while `run` runs.
template <class Run>
std::int64_t transient_bytes(Run&& run) {
  Accounting& memory = RankContext::current().allocator().accounting();
  memory.reset_peaks();
  const std::int64_t before = memory.total();
  run();
  return memory.total_peak() - before;
}

// The largest tensor has 64 x 64 elements; no rank but 0 ever holds one.
TEST(FullState, F208_NobodyHoldsMoreThanItsShardsAndOneTensor) {
  constexpr std::int64_t kChunk = 512, kLargest = 64 * 64 * 4;
  for (const Grid3& grid : {Grid3{1, 4, 1}, Grid3{2, 2, 1}, Grid3{1, 2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh root = grid.mesh(group);
      ResidualNet net(64, 64);
      shard_2d(net, root, grid, false);
      net.materialize(nn::Seed{1});
      nn::AdamW optimizer(net.parameters(), {});
      const std::vector<nn::StateEntry> state = nn::training_state(net, &optimizer);
      std::int64_t visited = 0;
      const std::int64_t getting = transient_bytes([&] {
        nn::visit_full_state(state, *group, [&](const std::string&, const Tensor& full) { visited += full.bytes(); },
                             {.chunk_bytes = kChunk});
      });
      const bool is_first = group->rank() == 0;
      EXPECT_EQ(visited, is_first ? 4 * (3 * net.num_parameters() + 1) : 0);
      EXPECT_LE(getting, is_first ? kLargest + kChunk : 0);
      FullState metas;
      if (is_first)
        for (const nn::StateEntry& entry : state) {
          if (nn::is_usual(entry)) continue;
          const Tensor& value = nn::state_tensor(entry);
          metas[key_of(entry)] = Tensor::empty(value.shape(), value.dtype(), Device::meta());
        }
      const auto half = [&](const std::string& name) { return full(metas.at(name).shape(), 0.5); };
      const std::int64_t setting =
          transient_bytes([&] { nn::load_full_state(state, *group, metas, half, {.chunk_bytes = kChunk}); });
      EXPECT_LE(setting, is_first ? kLargest : kChunk);
      EXPECT_EQ(net.blocks.items()[0]->up.weight.value().local().to_vector<float>()[0], 0.5f);
    });
}

// Every rank says all that is wrong, and nothing is loaded.
TEST(FullState, F208_WhatDoesNotFitIsNamedOnEveryRank) {
  for (const Grid3& grid : {Grid3{1, 1, 1}, Grid3{1, 3, 1}, Grid3{2, 2, 1}, Grid3{1, 2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      StateTraining training(group, grid, 1);
      training.step(0);
      const FullState before = gathered(training);
      const auto refused = [&](const auto& change, std::initializer_list<std::string_view> words) {
        FullState full;
        for (const auto& [name, value] : before) full[name] = zeros(value.shape());
        change(full);
        if (group->rank() != 0) full.clear();
        expect_error([&] { training.set(full); }, words);
        expect_same_state(gathered(training), before);
      };
      refused([](FullState& full) { full.erase("head.weight"), full.erase("optim.m/in.bias"); },
              {"does not fit", "it lacks", "\"head.weight\"", "\"optim.m/in.bias\""});
      refused([](FullState& full) { full["blocks.9.up.weight"] = zeros({2}); },
              {"the state has no", "\"blocks.9.up.weight\""});
      refused([](FullState& full) { full["head.weight"] = zeros({5, 2}); },
              {"\"head.weight\" is f32[5,2] and has to be f32[2,5]"});
      refused([](FullState& full) { full["head.weight"] = zeros({2, 5}, DType::bf16); },
              {"\"head.weight\" is bf16[2,5] and has to be f32[2,5]"});
      refused([](FullState& full) { full.clear(); }, {"it lacks", "\"in.weight\"", "more"});
      const std::string last = "optim.v/head.bias";  // all others would be written before it
      refused([&](FullState& full) { full[last] = Tensor::empty({2}, DType::f32, Device::meta()); },
              {"\"optim.v/head.bias\" is f32[2]", "plain tensor with values"});
      refused([&](FullState& full) { full[last] = Tensor(); },
              {"\"optim.v/head.bias\" is undefined", "plain tensor with values"});
      const DeviceMesh alone(make_single_group());
      refused([&](FullState& full) { full[last] = distribute(full.at(last), alone, Replicate()); },
              {"\"optim.v/head.bias\" is f32[2]{}", "plain tensor with values"});
      expect_error([&] { training.set(before, {.chunk_bytes = 0}); }, {"chunk_bytes is 0"});
      expect_error([&] { training.get({.chunk_bytes = 0}); }, {"chunk_bytes is 0"});
    });
}

TEST(FullState, F208_NotStrictLoadsWhatFits) {
  run_ranks(4, [](const Group& group) {
    StateTraining training(group, {1, 2, 2}, 1);
    training.step(0);
    FullState expected = gathered(training), some;
    if (group->rank() == 0) some = {{"head.weight", full({2, 5}, 3)}, {"no.such", zeros({2})}};
    training.set(some, {.strict = false});
    expected["head.weight"] = full({2, 5}, 3);
    expect_same_state(gathered(training), expected);
    if (group->rank() == 0) some["head.weight"] = zeros({3});
    expect_error([&] { training.set(some, {.strict = false}); }, {"\"head.weight\"", "f32[3]", "f32[2,5]"});
  });
}

TEST(FullState, F208_WhatAUserThrowsEndsItOnEveryRank) {
  run_ranks(4, [](const Group& group) {
    StateTraining training(group, {1, 2, 2}, 1);
    const std::vector<nn::StateEntry> state = nn::training_state(training.net);
    int seen = 0;
    const auto visit = [&](const std::string& name, const Tensor&) { check(++seen < 3, "no room for \"{}\"", name); };
    expect_error([&] { nn::visit_full_state(state, *group, visit); }, {"no room for \"blocks.0.gain.weight\""});
    EXPECT_EQ(seen, group->rank() == 0 ? 3 : 0);
    FullState metas;
    for (const auto& [name, p] : training.net.named_parameters())
      metas[name] = Tensor::empty(p->shape(), DType::f32, Device::meta());
    const auto gone = [](const std::string& name) -> Tensor { fail("\"{}\" went away", name); };
    expect_error([&] { nn::load_full_state(state, *group, metas, gone); }, {"\"in.weight\" went away"});
    const auto other = [](const std::string&) { return zeros({1}); };
    expect_error([&] { nn::load_full_state(state, *group, metas, other); },
                 {"\"in.weight\" is f32[1], offered was f32[5,3]"});
    metas["in.weight"] = Tensor();
    expect_error([&] { nn::load_full_state(state, *group, metas, other); }, {"\"in.weight\" is undefined"});
    group->host().barrier();  // nobody is left in a transfer
  });
}

// Part of the state is of rank 0's tensors and part is as it was: that is no state to go on from.
TEST(FullState, ALoadThatIsLeftHasTornWhatItWrote) {
  for (const Grid3& grid : {Grid3{1, 1, 1}, Grid3{1, 3, 1}, Grid3{2, 2, 1}, Grid3{1, 2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      StateTraining training(group, grid, 1);
      training.step(0);
      const FullState before = gathered(training);
      int given = 0;
      const auto value = [&](const std::string& name) {
        check(++given < 6, "\"{}\" went away", name);
        return zeros(before.at(name).shape());
      };
      expect_error(
          [&] {
            nn::load_full_state(nn::training_state(training.net, training.optimizer.get()), *group, before, value);
          },
          {"went away"});
      backward(training.forward(1));
      expect_error([&] { training.optimizer->step(); }, {"refused", "torn", "a load has failed", "went away"});
      training.optimizer->clear_gradients();
      expect_error([&] { training.get(); }, {"torn", "not saved", "went away"});
      training.set(group->rank() == 0 ? before : FullState());
      EXPECT_EQ(training.optimizer->torn(), "");
      expect_same_state(gathered(training), before);
      training.step(1);
    });
}

// Parameters of equal shape in another order on one rank: their moments would change places there.
TEST(FullState, RanksWithOtherStatesAreToldWhichBeforeAnythingIsWritten) {
  run_ranks(3, [](const Group& group) {
    StateTraining training(group, {1, 3, 1}, 1);
    training.step(0);
    const FullState before = gathered(training), given = group->rank() == 0 ? before : FullState();
    std::vector<nn::Parameter*> parameters = training.net.parameters();
    if (group->rank() == 1) std::ranges::reverse(parameters);
    nn::AdamW other(parameters);
    expect_error([&] { nn::load_full_state_dict(training.net, *group, given, &other); },
                 {"rank 1's state has \"optim.m/", "where rank 0's has \"optim.m/in.weight\"", "same order"});
    nn::Optimizer* const of_some = group->rank() == 2 ? training.optimizer.get() : nullptr;
    expect_error([&] { nn::load_full_state_dict(training.net, *group, given, of_some, {.strict = false}); },
                 {"rank 2's state has \"optim.m/in.weight\" where rank 0's has no further tensor"});
    expect_same_state(gathered(training), before);
    EXPECT_EQ(training.optimizer->torn(), "");
  });
}

TEST(FullState, WithoutValuesThereIsNone) {
  run_ranks(2, [](const Group& group) {
    ResidualNet net(5, 7);
    nn::fully_shard(net, DeviceMesh(group));
    expect_error([&] { nn::full_state_dict(net, *group); }, {"\"in.weight\" has no values", "materialize()"});
    expect_error([&] { nn::load_full_state_dict(net, *group, {}); }, {"\"in.weight\" has no values", "materialize()"});
  });
}

}  // namespace
}  // namespace sherd::testing
