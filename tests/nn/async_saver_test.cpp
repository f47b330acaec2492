// Saves beside training: the bits are those of a save that training waits for, whatever the steps meanwhile change, and
// a save that fails fails on all ranks at once and costs no other. The disk is held back by promises, never by time.
#include "nn/checkpoint/save/async_saver.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <map>
#include <thread>

#include "nn/checkpoint/load/checkpoint_reader.h"
#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/hazards.h"
#include "runtime/exec/work_times.h"
#include "runtime/op/copy/offload.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace ckpt;

namespace fs = std::filesystem;
using Group = std::shared_ptr<ProcessGroup>;
const std::vector<std::int64_t> kSizes{6, 40, 30, 3};
constexpr std::int64_t kBatch = 12;

/// A sharded model with AdamW.
struct Training {
  Net model{kSizes};
  std::unique_ptr<nn::AdamW> optimizer;
  Group group;

  explicit Training(const Group& g) : group(g) {
    const DeviceMesh mesh(group);
    for (Block* block : model.blocks.items()) nn::fully_shard(*block, mesh);
    nn::fully_shard(model, mesh);
    model.materialize({1});
    optimizer = std::make_unique<nn::AdamW>(model.parameters(), nn::AdamW::Options{.lr = 0.01});
  }
  double step(std::uint64_t index) {
    const Tensor x = slice_of(batch_of(kBatch, 6, index, "x"), *group),
                 y = slice_of(batch_of(kBatch, 3, index, "y"), *group);
    const Tensor loss = mean_square(model(x), y);
    backward(loss);
    optimizer->step_and_clear();
    return loss.item<double>();
  }
  std::vector<nn::StateEntry> state() { return nn::training_state(model, optimizer.get()); }
  static Manifest manifest(std::int64_t step) {
    Manifest manifest;
    manifest.step = step;
    return manifest;
  }
  void save(const std::string& dir, std::int64_t step) { nn::save_checkpoint(dir, manifest(step), state(), *group); }
  /// Bytes of what this rank saves.
  std::int64_t own_bytes() {
    std::int64_t bytes = 0;
    for (const nn::StateEntry& entry : state()) {
      const Tensor& value = nn::state_tensor(entry);
      if (!nn::is_usual(entry) && (value.is_distributed() || group->rank() == 0)) bytes += value.local().bytes();
    }
    return bytes;
  }
};

/// This rank's queue of saves does nothing before it is opened.
class HeldDisk {
 public:
  HeldDisk() {
    RankContext::current()
        .queue(nn::kSaveQueue)
        .submit({.name = "held", .run = [opened = opened_.get_future().share()] { opened.wait(); }});
  }
  ~HeldDisk() { open(); }
  HeldDisk(const HeldDisk&) = delete;
  HeldDisk& operator=(const HeldDisk&) = delete;
  void open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

std::map<std::string, std::string> files_of(const TempDir& dir, std::int64_t step) {
  std::map<std::string, std::string> files;
  const std::string save = fmt::format("step-{:06}", step);
  for (const auto& entry : fs::directory_iterator(dir / save))
    files[entry.path().filename().string()] = dir.read(save + "/" + entry.path().filename().string());
  return files;
}

std::vector<std::int64_t> steps_at(const TempDir& dir) {
  std::vector<std::int64_t> steps;
  for (const SavePlace& save : list_saves(dir.path())) steps.push_back(save.step);
  return steps;
}

// The disk begins when three more steps have changed all of the state.
TEST(AsyncSaver, F166_WhatStepsChangeIsCopiedFirst) {
  for (const int ranks : {1, 2, 3}) {
    const TempDir waited, beside;
    run_ranks(ranks, [&](const Group& group) {
      Training training(group), undisturbed(group);
      nn::AsyncSaver saver(*group);
      for (std::uint64_t i = 0; i < 2; ++i) EXPECT_EQ(training.step(i), undisturbed.step(i));
      training.save(waited.path(), 2);
      {
        HeldDisk disk;
        saver.start(beside.path(), Training::manifest(2), training.state());
        EXPECT_TRUE(saver.is_in_flight());
        for (std::uint64_t i = 2; i < 5; ++i) {
          EXPECT_EQ(training.step(i), undisturbed.step(i)) << "nobody waits for the disk, which is held";
          saver.poll();
        }
        EXPECT_TRUE(saver.is_in_flight());
        EXPECT_TRUE(list_saves(beside.path()).empty());
        EXPECT_EQ(saver.counts().copied_bytes, training.own_bytes()) << "once, whatever the number of steps";
      }
      saver.finish();
      EXPECT_FALSE(saver.is_in_flight());
      EXPECT_EQ(saver.counts().saves, 1);
      EXPECT_EQ(saver.counts().bytes, training.own_bytes());
    });
    EXPECT_EQ(files_of(beside, 2), files_of(waited, 2)) << ranks << " ranks, manifests included";
  }
}

TEST(AsyncSaver, WhatIsWrittenByThenIsNotCopied) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Training training(group);
    nn::AsyncSaver saver(*group);
    training.step(0);
    saver.start(dir.path(), Training::manifest(1), training.state());
    saver.finish();
    training.step(1);
    EXPECT_EQ(saver.counts().copied_bytes, 0);
    EXPECT_EQ(list_saves(dir.path()).size(), 1u);
  });
}

// Not held: steps and the disk meet anywhere.
TEST(AsyncSaver, F166_BitsAreThoseOfAWaitedForSaveWhereverStepsMeetTheDisk) {
  const TempDir waited, beside;
  constexpr std::int64_t kSteps = 30;
  run_ranks(2, [&](const Group& group) {
    const HazardChecker hazards;
    Training training(group);
    nn::AsyncSaver saver(*group);
    const Retention all{.keep = 100};
    for (std::int64_t i = 1; i <= kSteps; ++i) {
      training.step(static_cast<std::uint64_t>(i));
      nn::save_checkpoint(waited.path(), Training::manifest(i), training.state(), *group, all);
      if (i % 3 == 0) saver.start(beside.path(), Training::manifest(i), training.state(), all);
      saver.poll();
    }
    saver.finish();
    EXPECT_EQ(hazards.found(), std::vector<std::string>());
    EXPECT_GT(hazards.num_checked(), 0);
  });
  for (std::int64_t step = 3; step <= kSteps; step += 3)
    EXPECT_EQ(files_of(beside, step), files_of(waited, step)) << step;
  EXPECT_EQ(steps_at(beside).size(), static_cast<std::size_t>(kSteps / 3));
}

// Nothing but the copy orders a write after a reader that is not waited for.
TEST(AsyncSaver, ThePathThatCopiesIsTheOneThatTheHazardCheckKnows) {
  const TempDir dir;
  run_ranks(1, [&](const Group& group) {
    const HazardChecker hazards;
    Training training(group);
    nn::AsyncSaver saver(*group);
    training.step(0);
    HeldDisk disk;
    saver.start(dir.path(), Training::manifest(1), training.state());
    training.step(1);
    training.step(2);
    EXPECT_EQ(hazards.found(), std::vector<std::string>());
    disk.open();
    saver.finish();
  });
}

TEST(AsyncSaver, F166_AFailureIsThrownByAllRanksAtOneStepAndCostsNoOtherSave) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Training training(group);
    nn::AsyncSaver saver(*group);
    training.step(0);
    saver.start(dir.path(), Training::manifest(1), training.state());
    saver.finish();
    const std::string obstacle = dir / "step-000002/rank-00001.safetensors.partial";
    if (group->rank() == 1) fs::create_directories(obstacle);
    group->host().barrier();
    training.step(1);
    saver.start(dir.path(), Training::manifest(2), training.state());
    std::string failure;
    int step = 2;
    while (failure.empty()) {
      training.step(static_cast<std::uint64_t>(step));
      try {
        saver.poll();
        ++step;
      } catch (const Error& error) { failure = error.what(); }
    }
    for (const std::string_view part : {"step-000002", "has failed, those before it stay", "rank-00001.safetensors"})
      EXPECT_NE(failure.find(part), std::string::npos) << failure;
    EXPECT_EQ(failure.find("rank 1: ") != std::string::npos, group->rank() == 0) << failure;
    const std::vector<std::string> steps = gather_text(*group, std::to_string(step));
    EXPECT_EQ(steps[0], steps[1]);
    EXPECT_FALSE(saver.is_in_flight());
    EXPECT_EQ(list_saves(dir.path()).size(), 1u);
    CheckpointReader(dir.path()).verify();
    group->host().barrier();
    if (group->rank() == 1) fs::remove_all(obstacle);
    group->host().barrier();
    saver.start(dir.path(), Training::manifest(2), training.state());
    saver.finish();
    EXPECT_EQ(list_saves(dir.path()).front().step, 2);
  });
}

TEST(AsyncSaver, AFailureOfTheFirstSaveSaysThatThereIsNone) {
  for (const bool replaces : {false, true}) {  // the saves of another run, which are to go
    const TempDir dir;
    run_ranks(2, [&](const Group& group) {
      Training training(group);
      nn::AsyncSaver saver(*group);
      training.step(0);
      if (replaces) training.save(dir.path(), 5);
      if (group->rank() == 1) fs::create_directories(dir / "step-000001/rank-00001.safetensors.partial/x");
      group->host().barrier();
      saver.start(dir.path(), Training::manifest(1), training.state(), {.replace = replaces});
      expect_error([&] { saver.finish(); }, {"the save \"step-000001\" has failed, and there is none before it: ",
                                             "rank-00001.safetensors", "when that is mended, begin the run again"});
    });
  }
}

TEST(AsyncSaver, AFullDiskAndAManifestThatCannotBeWrittenAreNamed) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Training training(group);
    nn::AsyncSaver saver(*group);
    training.step(0);
    training.save(dir.path(), 1);
    std::optional<FileSizeLimit> limit;
    if (group->rank() == 0) limit.emplace(64);  // of the whole process
    group->host().barrier();
    saver.start(dir.path(), Training::manifest(2), training.state());
    expect_error([&] { saver.finish(); }, {"step-000002/rank-0000", "File too large"});
    group->host().barrier();
    limit.reset();
    if (group->rank() == 0) fs::create_directories(dir / "step-000003/manifest.json.partial");
    group->host().barrier();
    saver.start(dir.path(), Training::manifest(3), training.state());
    expect_error([&] { saver.finish(); }, {group->rank() == 0 ? "" : "rank 0: ", "step-000003/manifest.json"});
  });
  EXPECT_EQ(steps_at(dir), std::vector<std::int64_t>{1});
  CheckpointReader(dir.path()).verify();
}

TEST(AsyncSaver, F166_ASaveWaitsForTheOneBeforeIt) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Training training(group);
    nn::AsyncSaver saver(*group);
    training.step(0);
    for (const std::int64_t step : {1, 2, 3}) saver.start(dir.path(), Training::manifest(step), training.state());
    EXPECT_EQ(saver.counts().saves, 2);
    saver.finish();
    EXPECT_EQ(saver.counts().saves, 3);
  });
  EXPECT_EQ(steps_at(dir), (std::vector<std::int64_t>{3, 2, 1}));
}

// What is not dense is copied at the start, before what lies as it is: its copy needs no room for another.
// Times of a rank's work are kept by what it acts on for as long as the run lasts: not by the name of each save.
TEST(AsyncSaver, NothingIsKeptOfASaveThatIsOver) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Training training(group);
    nn::AsyncSaver saver(*group);
    std::size_t kept = 0;
    for (std::int64_t step = 1; step <= 4; ++step) {
      training.step(static_cast<std::uint64_t>(step));
      saver.start(dir.path(), Training::manifest(step), training.state(), {.keep = 2});
      saver.finish();
      if (step == 2) kept = work_times().size();
    }
    EXPECT_EQ(work_times().size(), kept);
  });
}

TEST(AsyncSaver, TensorsThatAreNotDenseStandBesideOthers) {
  const TempDir waited, beside;
  run_ranks(2, [&](const Group& group) {
    const GradMode off(false);
    Slot turned("a"), plain("b"), repeated("c");
    turned.set(transpose(batch_of(300, 200, 1, "numbers"), 0, 1));
    plain.set(batch_of(100, 30, 2, "numbers"));
    repeated.set(expand(narrow(batch_of(5, 50, 3, "numbers"), 0, 3, 1), {60, 50}));
    const std::vector<nn::StateEntry> state{
        {"a", "buffer", &turned}, {"b", "buffer", &plain}, {"c", "buffer", &repeated}};
    nn::save_checkpoint(waited.path(), Training::manifest(1), state, *group);
    nn::AsyncSaver saver(*group);
    {
      HeldDisk disk;
      saver.start(beside.path(), Training::manifest(1), state);
      for (const nn::StateEntry& entry : state)
        if (entry.slot != &repeated) fill_into(entry.slot->value(), 0);
    }
    saver.finish();
    EXPECT_EQ(saver.counts().copied_bytes, group->rank() == 0 ? 100 * 30 * 4 : 0);
  });
  EXPECT_EQ(files_of(beside, 1), files_of(waited, 1));
}

// Work before it in the queue may have failed: what did not run is no save.
TEST(AsyncSaver, WorkThatDidNotRunIsAFailure) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Training training(group);
    nn::AsyncSaver saver(*group);
    training.step(0);
    if (group->rank() == 1) {
      Queue& queue = RankContext::current().queue(nn::kSaveQueue);
      queue.submit({.name = "bad", .run = [] { fail("the disk is gone"); }});
    }
    saver.start(dir.path(), Training::manifest(1), training.state());
    expect_error([&] { saver.finish(); }, {"step-000001", "the disk is gone"});
    EXPECT_FALSE(saver.is_in_flight());
    group->host().barrier();
    for (const int rank : {0, 1})
      EXPECT_FALSE(fs::exists(dir / fmt::format("step-000001/rank-{:05}.safetensors", rank))) << "room for the next";
    saver.start(dir.path(), Training::manifest(1), training.state());
    saver.finish();
  });
  EXPECT_EQ(steps_at(dir), std::vector<std::int64_t>{1});
}

// As of a rank that an exception ends: half a save is none.
TEST(AsyncSaver, WithoutItsEndASaveIsNone) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Training training(group);
    training.save(dir.path(), 1);
    nn::AsyncSaver saver(*group);
    saver.start(dir.path(), Training::manifest(2), training.state());
  });
  EXPECT_EQ(steps_at(dir), std::vector<std::int64_t>{1});
}

TEST(AsyncSaver, MemoryForCopiesIsTakenAtTheStartAndRefusedByName) {
  run_ranks(2, [&](const Group& group) {
    Training training(group);
    training.step(0);
    const std::vector<nn::StateEntry> state = training.state();
    nn::AsyncSaver saver(*group);
    Allocator& memory = RankContext::current().allocator();
    const std::int64_t before = memory.accounting().current(MemoryCategory::communication);
    memory.set_limit(memory.accounting().total() + 1000);
    EXPECT_THROW(saver.reserve(state), OutOfMemory);
    expect_error([&] { saver.reserve(state); }, {"for copies of what a step changes", "save_async"});
    memory.set_limit(0);
    saver.reserve(state);
    const std::int64_t taken = memory.accounting().current(MemoryCategory::communication) - before;
    EXPECT_GE(taken, training.own_bytes());
    EXPECT_LE(taken, training.own_bytes() + 64 * static_cast<std::int64_t>(state.size()));
    saver.reserve(state);
    EXPECT_EQ(memory.accounting().current(MemoryCategory::communication) - before, taken) << "once";
  });
  const RankScope rank("", {.ghost = true});
  const Group group = make_ghost_group(0, 2);
  Training training(group);
  nn::AsyncSaver saver(*group);
  expect_error([&] { saver.start("nowhere", {}, training.state()); }, {"this rank is a ghost"});
}

// What lies in a file stays there: its writer waits until it is given out.
TEST(Snapshot, BytesOfAFileAreWaitedForAndNotCopied) {
  const RankScope scope;
  const TempDir dir;
  const GradMode off(false);
  OffloadStore store(Device::cpu(), dir.path());
  const Tensor home = store.allocate({300'000}, DType::f32), held = full({300'000}, 3);
  fill_into(home, 2);
  const std::vector<Snapshot::Value> values{{home}, {held}, {full({1000}, 4), true}};
  EXPECT_EQ(Snapshot::kept_bytes(values), 1'200'000) << "nothing for the file, and for what nobody else has";
  expect_error([&] { Snapshot small(values, Tensor::empty({1'199'999}, DType::u8)); }, {"1200000", "1199999"});
  Snapshot snapshot(values, Tensor::empty({1'200'000}, DType::u8));
  EXPECT_EQ(snapshot.loans().size(), 2u);
  std::promise<void> begin;
  std::vector<std::vector<float>> given(2);
  std::thread disk([&] {
    begin.get_future().wait();
    for (const std::size_t i : {0u, 1u})
      snapshot.give(i, [&](std::span<const std::byte> part) {
        const auto* const first = reinterpret_cast<const float*>(part.data());
        given[i].insert(given[i].end(), first, first + part.size() / sizeof(float));
      });
    snapshot.end();
  });
  EXPECT_TRUE(snapshot.let_go(*held.storage()));
  EXPECT_FALSE(snapshot.let_go(*home.storage())) << "its writer waits";
  EXPECT_EQ(snapshot.cost().copied_bytes, 1'200'000);
  fill_into(held, 7);
  begin.set_value();
  disk.join();
  EXPECT_TRUE(snapshot.let_go(*home.storage())) << "it is given out";
  EXPECT_EQ(snapshot.cost().copied_bytes, 1'200'000);
  EXPECT_EQ(given[0], std::vector<float>(300'000, 2));
  EXPECT_EQ(given[1], std::vector<float>(300'000, 3));
}

// The first blocks are given out, the rest is copied.
TEST(Snapshot, OnlyTheRestIsCopied) {
  const RankScope scope;
  const GradMode off(false);
  const Tensor values = full({1 << 20}, 5);
  Snapshot snapshot({{values}}, Tensor::empty({4 << 20}, DType::u8));
  std::promise<void> is_under_way, go_on;
  std::vector<float> given;
  std::thread disk([&] {
    bool first = true;
    snapshot.give(0, [&](std::span<const std::byte> part) {
      const auto* const numbers = reinterpret_cast<const float*>(part.data());
      given.insert(given.end(), numbers, numbers + part.size() / sizeof(float));
      if (!std::exchange(first, false)) return;
      is_under_way.set_value();
      go_on.get_future().wait();
    });
  });
  is_under_way.get_future().wait();
  EXPECT_TRUE(snapshot.let_go(*values.storage()));
  EXPECT_TRUE(snapshot.let_go(*values.storage()));
  fill_into(values, 9);
  go_on.set_value();
  disk.join();
  EXPECT_EQ(snapshot.cost().copied_bytes, 3 << 20) << "of 4 MiB, the first of which was on its way";
  EXPECT_EQ(given, std::vector<float>(1 << 20, 5));
}

}  // namespace
}  // namespace sherd::testing
