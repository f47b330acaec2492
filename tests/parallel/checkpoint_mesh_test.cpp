// State of models that are sharded along several axes: names, values, files. Bitwise.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "dtensor/transition/redistribute.h"
#include "nn/checkpoint/training_state.h"
#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Values = std::map<std::string, std::vector<float>>;

struct CheckpointTraining {
  Grid3 grid;
  DeviceMesh root;
  ResidualNet net{5, 7};
  std::unique_ptr<nn::AdamW> optimizer;
  Group group;

  CheckpointTraining(const Group& g, const Grid3& on, std::uint64_t seed) : grid(on), root(on.mesh(g)), group(g) {
    shard_2d(net, root, grid, true);
    net.materialize(nn::Seed{seed});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.01});
  }
  void step(std::uint64_t index) {
    const Tensor x = batch3(12, 3, index, "x"), y = batch3(12, 2, index, "y");
    backward(mean_square(net(rows_of(x, root)), rows_of(y, root)));
    optimizer->step_and_clear();
  }
  std::vector<nn::StateEntry> state() { return nn::training_state(net, optimizer.get()); }
  void save(const std::string& dir) { nn::save_checkpoint(dir, ckpt::Manifest{}, state(), *group); }
  void load(const std::string& dir) { nn::load_checkpoint(ckpt::CheckpointReader(dir), state()); }
};

Values values_of(CheckpointTraining& training) {
  Values values;
  for (const nn::StateEntry& entry : training.state())
    values[entry.kind + "/" + entry.name] = whole(entry.slot->value()).to_vector<float>();
  return values;
}

// Saved on `from`, loaded and saved again on each of `others`, loaded again and trained on as if nothing had been.
void expect_round_trips(const Grid3& from, std::initializer_list<Grid3> others) {
  const TempDir dir, back;
  Values saved;
  std::mutex mutex;
  run_ranks(from.ranks(), [&](const Group& group) {
    CheckpointTraining training(group, from, 1);
    for (std::uint64_t i = 0; i < 2; ++i) training.step(i);
    training.save(dir.path());
    Values own = values_of(training);
    const std::lock_guard lock(mutex);
    if (!saved.empty()) { EXPECT_EQ(saved, own); }
    saved = std::move(own);
  });
  for (const Grid3& to : others) {
    run_ranks(to.ranks(), [&](const Group& group) {
      CheckpointTraining training(group, to, 2);
      training.load(dir.path());
      EXPECT_EQ(values_of(training), saved);
      training.save(back.path());
    });
    run_ranks(from.ranks(), [&](const Group& group) {
      CheckpointTraining training(group, from, 3), same(group, from, 4);
      training.load(back.path());
      same.load(dir.path());
      EXPECT_EQ(values_of(training), saved);
      for (std::uint64_t i = 2; i < 4; ++i) training.step(i), same.step(i);
      EXPECT_EQ(values_of(training), values_of(same));
    });
  }
}

TEST(FullyShard, F102_F156_F160_CheckpointsOfAnyMeshLoadOnAnyOther) {
  expect_round_trips({1, 2, 2}, {{1, 1, 1}, {1, 4, 1}, {1, 1, 2}});
  expect_round_trips({2, 1, 2}, {{1, 2, 3}});
}

TEST(FullyShard, F156_F161_ReplicasAreWrittenOnce) {
  const TempDir dir;
  run_ranks(8, [&](const Group& group) { CheckpointTraining(group, {2, 2, 2}, 1).save(dir.path()); });
  std::map<std::string, std::vector<std::string>> files;
  std::map<std::string, std::int64_t> elements;
  std::vector<std::int64_t> first_rows;  // of one weight's pieces
  for (const ckpt::PieceEntry& piece : ckpt::read_manifest(dir.path()).pieces) {
    if (piece.kind != "param") continue;
    files[piece.name].push_back(piece.file);
    elements[piece.name] += numel(piece.box);
    if (piece.name == "blocks.0.up.weight") first_rows.push_back(piece.box.offset[0]);
  }
  const auto file = [](int rank) { return fmt::format("rank-{:05}.safetensors", rank); };
  using Files = std::vector<std::string>;
  EXPECT_EQ(files.at("blocks.0.up.weight"), (Files{file(0), file(1), file(2), file(3)}));
  EXPECT_EQ(first_rows, (std::vector<std::int64_t>{0, 4, 2, 6})) << "tp cuts first";
  EXPECT_EQ(files.at("blocks.0.gain.weight"), (Files{file(0), file(2)}));
  EXPECT_EQ(elements.at("blocks.0.up.weight"), 35);
  EXPECT_EQ(elements.at("blocks.0.down.weight"), 35);
  EXPECT_EQ(elements.at("blocks.0.gain.weight"), 5);
}

// How often pieces hold each element of a parameter that two axes cut, evenly or not: once.
TEST(FullyShard, F124_PiecesOfACheckpointCoverEveryElementOnce) {
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{1, 3, 2}, Grid3{2, 2, 2}})
    for (const std::int64_t width : {3, 5, 16, 17}) {
      const TempDir dir;
      run_ranks(grid.ranks(), [&](const Group& group) {
        const DeviceMesh root = grid.mesh(group);
        ResidualNet net(width, width);
        shard_2d(net, root, grid, true);
        net.materialize();
        nn::save_checkpoint(dir.path(), ckpt::Manifest{}, nn::training_state(net), *group);
      });
      std::map<std::string, Tensor> held;
      for (const ckpt::PieceEntry& piece : ckpt::read_manifest(dir.path()).pieces) {
        Tensor part = held.try_emplace(piece.name, zeros(piece.shape)).first->second;
        for (int d = 0; d < piece.shape.size(); ++d) part = narrow(part, d, piece.box.offset[d], piece.box.shape[d]);
        copy_into(part, ones(piece.box.shape), /*accumulate=*/true);
      }
      for (const auto& [name, count] : held) EXPECT_TRUE(same_bits(count, ones(count.shape()))) << name << " " << width;
      EXPECT_EQ(held.size(), ResidualNet(width, width).parameters().size());
    }
}

TEST(FullyShard, F101_StateHasPlainNamesAndIsTheShards) {
  run_ranks(4, [](const Group& group) {
    CheckpointTraining training(group, {1, 2, 2}, 1);
    const ResidualNet plain(5, 7);
    const auto names = plain.named_parameters();
    const auto forward = training.net(rows_of(batch3(4, 3, 0, "x"), training.root));
    EXPECT_EQ(describe(training.net.head.weight.value()), "f32[2,5]{}") << "the root is gathered";
    const std::vector<nn::StateEntry> state = nn::training_state(training.net);
    ASSERT_EQ(state.size(), names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(state[i].name, names[i].first);
      EXPECT_EQ(state[i].slot, state[i].parameter);
    }
    EXPECT_EQ(describe(training.net.head.weight.value()), "f32[2,5]{0: dp}") << "resharded first";
    backward(sum(forward));  // gathers again
  });
}

TEST(FullyShard, F104_StateStaysCurrent) {
  run_ranks(4, [](const Group& group) {
    CheckpointTraining training(group, {1, 2, 2}, 1);
    const std::vector<nn::StateEntry> state = nn::training_state(training.net);
    const Values before = values_of(training);
    training.step(0);
    for (const nn::StateEntry& entry : state) {
      const std::vector<float> now = whole(entry.slot->value()).to_vector<float>();
      EXPECT_EQ(now, whole(training.net.parameter(entry.name).value()).to_vector<float>());
      EXPECT_NE(now, before.at("param/" + entry.name)) << entry.name;
    }
  });
}

// Full values that one rank has become everybody's shards.
TEST(FullyShard, F103_FullValuesOfOneRankReachEveryShard) {
  run_ranks(4, [](const Group& group) {
    CheckpointTraining training(group, {1, 2, 2}, 1);
    for (nn::Parameter* p : training.net.parameters()) {
      const Tensor value = random_normal(p->shape(), random_key(9, p->name(), "value"));
      const Tensor given = group->rank() == 0 ? value : full(p->shape(), -7.0);
      p->assign(distribute(given, &Spec::from(p->value())));
      EXPECT_TRUE(same_bits(p->value().local(), part_of(value, p->value()))) << p->name();
      EXPECT_TRUE(same_bits(whole(p->value()), value)) << p->name();
    }
  });
}

}  // namespace
}  // namespace sherd::testing
