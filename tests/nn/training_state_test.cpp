// Saving and loading a sharded model with its optimizer: bitwise, on any number of ranks, and all or nothing.
#include "nn/checkpoint/training_state.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "nn/checkpoint/full/carried_state.h"
#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/host_group.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace ckpt;

namespace fs = std::filesystem;
using Group = std::shared_ptr<ProcessGroup>;
const std::vector<std::int64_t> kSizes{6, 10, 7, 3};  // 3 rows leave the fourth rank's shard empty
constexpr std::int64_t kBatch = 12;

// A sharded model with AdamW; `buffered` adds a buffer, which is never sharded.
struct Training {
  struct Root : nn::Layer<Root> {
    Net& net;
    nn::Buffer& seen;
    Root() : net(add<Net>("net", kSizes)), seen(add_buffer("seen", zeros({2}))) {}
    Tensor forward(const Tensor& x) { return net(x); }
  };
  Root model;
  std::unique_ptr<nn::AdamW> optimizer;
  Group group;

  explicit Training(const Group& g, std::uint64_t seed, bool sharded = true) : group(g) {
    if (sharded) {
      const DeviceMesh mesh(group);
      for (Block* block : model.net.blocks.items()) nn::fully_shard(*block, mesh);
      nn::fully_shard(model, mesh);
    }
    model.materialize({seed});
    optimizer = std::make_unique<nn::AdamW>(model.parameters(), nn::AdamW::Options{.lr = 0.01, .weight_decay = 0.1});
  }
  double step(std::uint64_t index) {
    const Tensor x = slice_of(batch_of(kBatch, 6, index, "x"), *group),
                 y = slice_of(batch_of(kBatch, 3, index, "y"), *group);
    const Tensor loss = mean_square(model(x), y);
    backward(loss);
    optimizer->step_and_clear();
    model.seen.assign(full({2}, static_cast<double>(index)));
    return loss.item<double>();
  }
  std::vector<nn::StateEntry> state() { return nn::training_state(model, optimizer.get()); }
  void save(const std::string& dir, std::int64_t at) {
    Manifest manifest;
    manifest.step = at;
    nn::save_checkpoint(dir, manifest, state(), *group);
  }
  void load(const std::string& dir) {
    together(*group, [&] { nn::load_checkpoint(CheckpointReader(dir), state()); });
  }
};

using Values = std::map<std::string, std::vector<float>>;

// Everything in the state, unsharded, as host values. Collective.
Values values_of(Training& training) {
  Values values;
  for (const nn::StateEntry& entry : training.state())
    values[entry.kind + "/" + entry.name] = whole(entry.slot->value()).to_vector<float>();
  return values;
}

TEST(TrainingState, F164_NamesParametersBuffersAndOptimizer) {
  run_ranks(1, [](const Group& group) {
    Training training(group, 1);
    std::set<std::string> names;
    for (const nn::StateEntry& entry : training.state()) names.insert(entry.kind + "/" + entry.name);
    // Weight and bias of three linears, each with m, v and a count; the buffer; the step.
    EXPECT_EQ(names.size(), 4 * 6 + 2u);
    for (const char* name : {"param/net.blocks.0.linear.weight", "param/net.head.bias", "optim.m/net.head.weight",
                             "optim.v/net.head.weight", "buffer/seen", "optim/step"})
      EXPECT_TRUE(names.contains(name)) << name;
    EXPECT_EQ(nn::training_state(training.model).size(), 6 + 1u) << "without an optimizer";
  });
}

TEST(TrainingState, F169_RoundTripIsBitwiseAndSoAreTheNextSteps) {
  for (int ranks : {1, 2, 3, 4}) {
    const TempDir dir;
    run_ranks(ranks, [&](const Group& group) {
      Training first(group, 1), second(group, 2);
      for (std::uint64_t i = 0; i < 3; ++i) first.step(i);
      first.save(dir.path(), 3);
      EXPECT_NE(values_of(second), values_of(first));
      second.load(dir.path());
      const Values saved = values_of(first);
      EXPECT_EQ(values_of(second), saved);
      EXPECT_EQ(saved.at("optim/step"), std::vector<float>{3});
      EXPECT_EQ(saved.at("buffer/seen"), (std::vector<float>{2, 2}));
      for (std::uint64_t i = 3; i < 6; ++i) EXPECT_EQ(first.step(i), second.step(i)) << "step " << i;
      EXPECT_EQ(values_of(second), values_of(first));
      EXPECT_NE(values_of(first), saved);
    });
  }
}

TEST(TrainingState, F101_WhatIsGatheredIsReshardedBeforeItIsSavedOrLoaded) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Training first(group, 1), second(group, 2);
    const auto from = first.state(), to = second.state();
    const Tensor x = batch_of(kBatch, 6, 0, "x");
    first.model(x);  // the root stays gathered
    nn::save_checkpoint(dir.path(), {}, from, *group);
    second.model(x);
    together(*group, [&] { nn::load_checkpoint(CheckpointReader(dir.path()), to); });
    EXPECT_EQ(values_of(second), values_of(first));
  });
}

// The first two steps train half of the parameters. A checkpoint without counts of their own is one from before them.
TEST(TrainingState, F164_CountsOfParametersThatMissedStepsComeBack) {
  for (const bool with_counts : {true, false}) {
    const TempDir dir;
    run_ranks(2, [&](const Group& group) {
      const auto train_all = [](Training& training, bool on) {
        for (Block* block : training.model.net.blocks.items())
          for (nn::Parameter* p : block->parameters()) p->set_requires_grad(on);
      };
      Training first(group, 1), second(group, 2);
      for (std::uint64_t step = 0; step < 4; ++step) {
        train_all(first, step >= 2);
        first.step(step);
      }
      std::vector<nn::StateEntry> state = first.state();
      if (!with_counts) std::erase_if(state, [](const nn::StateEntry& entry) { return entry.usually != nullptr; });
      nn::save_checkpoint(dir.path(), {}, state, *group);
      const CheckpointReader reader(dir.path());
      EXPECT_EQ(reader.contains("optim.step", "net.blocks.0.linear.weight"), with_counts);
      EXPECT_FALSE(reader.contains("optim.step", "net.head.weight")) << "has missed no step";
      second.load(dir.path());
      for (const nn::OptimizerState& count : second.optimizer->counts()) {
        const bool was_frozen = count.parameter.starts_with("net.blocks");
        EXPECT_EQ(count.slot->value().item<float>(), with_counts && was_frozen ? 2 : 4) << count.parameter;
        const bool shares = count.slot->value().storage() == second.optimizer->step_slot().value().storage();
        EXPECT_EQ(shares, !with_counts || !was_frozen) << count.parameter;
      }
      if (!with_counts) return;
      for (std::uint64_t step = 4; step < 6; ++step) EXPECT_EQ(first.step(step), second.step(step));
      EXPECT_EQ(values_of(first), values_of(second));
    });
  }
}

// A ghost takes what decides its memory, and says what does not fit; it has no values to compare or to write.
TEST(TrainingState, GhostRanksLoadByShapeAndSaveNothing) {
  const TempDir dir, empty;
  run_ranks(3, [&](const Group& group) {
    Training training(group, 1);
    for (const bool trains_blocks : {false, true}) {
      for (Block* block : training.model.net.blocks.items())
        for (nn::Parameter* p : block->parameters()) p->set_requires_grad(trains_blocks);
      training.step(trains_blocks);
    }
    training.save(dir.path(), 2);
  });
  for (int r = 0; r < 3; ++r) {
    const RankScope rank("", {.ghost = true});
    Training training(make_ghost_group(r, 3), 2);
    const std::string found =
        open_newest_good(dir.path(), *training.group, Verify::bytes, [](const std::string&) {})->dir();
    EXPECT_EQ(fs::path(found).filename(), "step-000002");
    training.load(found);
    for (const nn::OptimizerState& count : training.optimizer->counts()) {
      const bool shares = count.slot->value().storage() == training.optimizer->step_slot().value().storage();
      EXPECT_EQ(shares, !count.parameter.starts_with("net.blocks")) << count.parameter << " has missed a step";
    }
    for (const nn::Parameter* p : training.model.parameters()) EXPECT_TRUE(p->initialised()) << p->name();
    expect_error([&] { training.save(empty.path(), 3); }, {"save_checkpoint", empty.path(), "this rank is a ghost"});
    EXPECT_TRUE(fs::is_empty(empty.path()));
    Slot slot("x");
    slot.set(zeros({10, 5}));
    expect_error(
        [&] { nn::load_checkpoint(CheckpointReader(found), {{"net.blocks.0.linear.weight", "param", &slot}}); },
        {"f32[10,6]", "f32[10,5]"});
    expect_error([&] { nn::load_checkpoint(CheckpointReader(found), {{"net.other", "param", &slot}}); }, {"net.other"});
  }
}

// As many bytes of another dtype are other values.
TEST(TrainingState, WhatIsCarriedOnKeepsItsDType) {
  Slot slot("x");
  const std::vector<nn::StateEntry> state{{"x", "buffer", &slot}};
  slot.set(full({4}, 3.0));
  const CarriedState carried = CarriedState::take(state);
  slot.set(zeros({4}));
  carried.give(state);
  EXPECT_EQ(slot.value().to_vector<float>(), std::vector<float>(4, 3));
  slot.set(zeros({4}, DType::i32));
  expect_error([&] { carried.give(state); }, {"\"x\" (buffer) was carried on as 16 bytes of f32, here it is i32[4]"});
  slot.set(zeros({8}));
  expect_error([&] { carried.give(state); }, {"was carried on as 16 bytes of f32, here it is f32[8]"});
}

TEST(TrainingState, TensorsWithoutElementsComeBack) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    const DeviceMesh mesh(group);
    Slot plain("plain"), cut("cut");
    plain.set(zeros({0, 4}));
    cut.set(Tensor::distributed({0, 4}, Spec::of(mesh, Shard(0)), zeros({0, 4})));
    const std::vector<nn::StateEntry> state{{"plain", "buffer", &plain}, {"cut", "buffer", &cut}};
    nn::save_checkpoint(dir.path(), {}, state, *group);
    together(*group, [&] { nn::load_checkpoint(CheckpointReader(dir.path()), state); });
  });
}

TEST(TrainingState, TensorsThatAreNotDenseComeBack) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    const Tensor numbers = batch_of(60, 50, 1, "numbers");
    Slot turned("turned"), columns("columns"), repeated("repeated");
    turned.set(transpose(numbers, 0, 1));
    columns.set(narrow(numbers, 1, 7, 30));
    repeated.set(expand(narrow(numbers, 0, 3, 1), {60, 50}));
    const std::vector<nn::StateEntry> state{
        {"turned", "buffer", &turned}, {"columns", "buffer", &columns}, {"repeated", "buffer", &repeated}};
    const std::vector<std::vector<float>> expected{
        turned.value().to_vector<float>(), columns.value().to_vector<float>(), repeated.value().to_vector<float>()};
    nn::save_checkpoint(dir.path(), {}, state, *group);
    for (const nn::StateEntry& entry : state) entry.slot->set(zeros(entry.slot->value().shape()));
    together(*group, [&] { nn::load_checkpoint(CheckpointReader(dir.path()), state); });
    for (std::size_t i = 0; i < state.size(); ++i)
      EXPECT_EQ(state[i].slot->value().to_vector<float>(), expected[i]) << state[i].name;
  });
}

TEST(TrainingState, F102_F160_F164_AnyNumberOfRanksReadsWhatAnyOtherWrote) {
  for (int writers : {1, 3, 4}) {
    const TempDir dir;
    Values saved;
    std::mutex mutex;
    run_ranks(writers, [&](const Group& group) {
      Training training(group, 1);
      for (std::uint64_t i = 0; i < 2; ++i) training.step(i);
      training.save(dir.path(), 2);
      Values own = values_of(training);
      const std::lock_guard lock(mutex);
      saved = std::move(own);
    });
    for (int readers : {1, 2, 4})
      for (bool sharded : {true, false})
        run_ranks(readers, [&](const Group& group) {
          Training training(group, 2, sharded);
          training.load(dir.path());
          EXPECT_EQ(values_of(training), saved) << writers << " writers, " << readers << " readers";
        });
  }
}

TEST(TrainingState, F161_ShardsAreWrittenByTheirOwnersPlainTensorsByRankZero) {
  const TempDir dir;
  run_ranks(4, [&](const Group& group) { Training(group, 1).save(dir.path(), 1); });
  std::map<std::string, std::set<std::string>> files;
  for (const PieceEntry& piece : read_manifest(dir.path()).pieces) {
    EXPECT_TRUE(files[piece.kind + "/" + piece.name].insert(piece.file).second) << piece.name << " twice in a file";
    EXPECT_GT(numel(piece.box), 0);
  }
  using Files = std::set<std::string>;
  const auto file = [](int rank) { return fmt::format("rank-{:05}.safetensors", rank); };
  EXPECT_EQ(files.at("optim/step"), Files{file(0)});
  EXPECT_EQ(files.at("buffer/seen"), Files{file(0)});
  EXPECT_EQ(files.at("param/net.blocks.0.linear.weight"), (Files{file(0), file(1), file(2), file(3)}));
  EXPECT_EQ(files.at("optim.m/net.head.weight"), (Files{file(0), file(1), file(2)})) << "3 rows on 4 ranks";
}

TEST(TrainingState, F161_ReplicatedTensorsAreWrittenOnce) {
  const TempDir dir;
  run_ranks(3, [&](const Group& group) {
    const DeviceMesh mesh(group);
    Slot slot("copy");
    slot.set(distribute(batch_of(5, 2, 0, "copy"), mesh, Replicate()));
    const std::vector<nn::StateEntry> state{{"copy", "param", &slot}};
    Manifest manifest;
    nn::save_checkpoint(dir.path(), manifest, state, *group);
    EXPECT_EQ(read_manifest(dir.path()).pieces.size(), 1u);
    const auto saved = slot.value().local().to_vector<float>();
    fill_into(slot.value().local(), 0);
    nn::load_checkpoint(CheckpointReader(dir.path()), state);
    EXPECT_EQ(slot.value().local().to_vector<float>(), saved);
  });
}

// Saved in one layout of one mesh, loaded in another of another; every element is written once.
TEST(TrainingState, F160_F161_AnyLayoutReadsWhatAnyOtherWrote) {
  struct Layout {
    std::vector<DeviceMesh::Axis> axes;
    std::vector<Placement> placements;
    std::vector<int> order;
  };
  const std::vector<Layout> layouts = {
      {{{"dp", 1}}, {Replicate()}, {}},
      {{{"dp", 3}}, {Shard(1)}, {}},
      {{{"dp", 2}, {"tp", 2}}, {Shard(0), Shard(0)}, {1, 0}},
      {{{"dp", 2}, {"tp", 2}}, {Shard(0), Shard(1)}, {}},
      {{{"dp", 2}, {"tp", 3}}, {Replicate(), Shard(1)}, {}},
      {{{"replicate", 2}, {"dp", 2}, {"tp", 2}}, {Replicate(), Shard(0), Shard(0)}, {2, 1}},
  };
  const Shape shape{5, 7};
  const auto run = [&](const Layout& layout, const std::function<void(ProcessGroup&, Slot&, const Tensor&)>& body) {
    int ranks = 1;
    for (const auto& axis : layout.axes) ranks *= axis.size;
    run_ranks(ranks, [&](const Group& group) {
      const DeviceMesh mesh(group, layout.axes);
      const Spec* spec = Spec::of(mesh, layout.placements, layout.order);
      const Tensor whole = batch_of(5, 7, 0, "w");
      Slot slot("w");
      const Tensor local = Tensor::empty(spec->local_shape(shape), DType::f32);
      fill_into(local, 0);
      slot.set(Tensor::distributed(shape, spec, local));
      body(*group, slot, contiguous(part_of(whole, slot.value())));
    });
  };
  for (const Layout& from : layouts) {
    const TempDir dir;
    run(from, [&](ProcessGroup& group, Slot& slot, const Tensor& part) {
      copy_into(slot.value().local(), part);
      nn::save_checkpoint(dir.path(), Manifest{}, {{"w", "param", &slot}}, group);
    });
    std::int64_t elements = 0;
    for (const PieceEntry& piece : read_manifest(dir.path()).pieces) elements += numel(piece.box);
    EXPECT_EQ(elements, 35);
    for (const Layout& to : layouts)
      run(to, [&](ProcessGroup&, Slot& slot, const Tensor& part) {
        nn::load_checkpoint(CheckpointReader(dir.path()), {{"w", "param", &slot}});
        EXPECT_TRUE(same_bits(slot.value().local(), part));
      });
  }
}

TEST(TrainingState, F168_PartialTensorsAreRefusedByName) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    const DeviceMesh mesh(group);
    Slot slot("terms");
    slot.set(Tensor::distributed({4}, Spec::of(mesh, Partial()), zeros({4})));
    const std::vector<nn::StateEntry> state{{"terms", "param", &slot}};
    expect_error([&] { nn::save_checkpoint(dir.path(), Manifest{}, state, *group); }, {"f32[4]{+dp}", "Partial"});
  });
}

// What a failed save must leave: the complete checkpoint before it.
void expect_still_good(const std::string& dir, const Values& saved) {
  run_ranks(2, [&](const Group& group) {
    CheckpointReader(dir).verify();
    Training training(group, 9);
    training.load(dir);
    EXPECT_EQ(values_of(training), saved);
  });
}

// Saves step 1, then lets `fail_save` see a save of step 2 fail on two ranks.
Values save_then_fail(const std::string& dir, const std::function<void(Training&)>& fail_save) {
  Values saved;
  run_ranks(2, [&](const Group& group) {
    Training training(group, 1);
    training.step(0);
    training.save(dir, 1);
    Values values = values_of(training);
    if (group->rank() == 0) saved = std::move(values);
    training.step(1);
    fail_save(training);
    training.step(2);  // the group still works
  });
  return saved;
}

TEST(TrainingState, ARankThatCannotWriteFailsTheSaveOnEveryRank) {
  const TempDir dir;
  const Values saved = save_then_fail(dir.path(), [&](Training& t) {
    const bool own = t.group->rank() == 1;
    // A folder in the place of rank 1's file: no user can open a file there.
    if (own) fs::create_directories(dir / "step-000002/rank-00001.safetensors.partial");
    t.group->host().barrier();
    expect_error([&] { t.save(dir.path(), 2); }, {own ? "" : "rank 1: ", "step-000002/rank-00001.safetensors"});
  });
  expect_still_good(dir.path(), saved);
}

TEST(TrainingState, F162_AFullDiskKeepsThePreviousCheckpoint) {
  const TempDir dir;
  const Values saved = save_then_fail(dir.path(), [&](Training& t) {
    t.group->host().barrier();
    std::optional<FileSizeLimit> limit;
    if (t.group->rank() == 0) limit.emplace(64);  // of the whole process: both ranks' files are too large
    t.group->host().barrier();
    expect_error([&] { t.save(dir.path(), 2); }, {"step-000002/rank-0000", "File too large"});
    t.group->host().barrier();
  });
  expect_still_good(dir.path(), saved);
}

TEST(TrainingState, AManifestThatCannotBeWrittenFailsOnEveryRank) {
  const TempDir dir;
  fs::create_directories(dir / "step-000001/manifest.json.partial");
  run_ranks(3, [&](const Group& group) {
    Training training(group, 1);
    expect_error([&] { training.save(dir.path(), 1); }, {group->rank() == 0 ? "" : "rank 0: ", "manifest.json"});
  });
}

TEST(TrainingState, AFolderBelowAFileIsNamed) {
  const TempDir dir;
  dir.write("file", "");
  run_ranks(2, [&](const Group& group) {
    Training training(group, 1);
    expect_error([&] { training.save(dir / "file/checkpoint", 1); }, {"file/checkpoint"});
  });
}

TEST(TrainingState, F163_WhatDoesNotFitIsNamed) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Training training(group, 1);
    training.save(dir.path(), 1);
    const CheckpointReader reader(dir.path());
    Slot slot("x");
    slot.set(zeros({10, 6}));
    const auto load = [&](const std::string& name, const std::string& kind) {
      nn::load_checkpoint(reader, {{name, kind, &slot}});
    };
    expect_error([&] { load("net.blocks.7.linear.weight", "param"); }, {"param \"net.blocks.7.linear.weight\""});
    expect_error([&] { load("net.blocks.0.linear.weight", "optim.k"); }, {"optim.k"});
    load("net.blocks.0.linear.weight", "param");
    slot.set(zeros({10, 5}));
    expect_error([&] { load("net.blocks.0.linear.weight", "param"); }, {"f32[10,6]", "f32[10,5]"});
    slot.set(zeros({10, 6}, DType::f64));
    expect_error([&] { load("net.blocks.0.linear.weight", "param"); }, {"f32[10,6]", "f64[10,6]"});
    slot.set(Tensor::empty({10, 6}, DType::f32, Device::meta()));
    expect_error([&] { load("net.blocks.0.linear.weight", "param"); }, {"no memory", "materialize()"});
    // A shape that does not fit is an error also on a rank that has no rows of it.
    Slot two("two");
    two.set(distribute(zeros({1, 6}), DeviceMesh(group), Shard(0)));
    expect_error([&] { nn::load_checkpoint(reader, {{"net.blocks.0.linear.weight", "param", &two}}); },
                 {"f32[10,6]", "f32[1,6]"});
  });
}

}  // namespace
}  // namespace sherd::testing
