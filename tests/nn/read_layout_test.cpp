// Columns that no piece of a save ends in: ranks read rows of them, each byte once, and exchange them.
#include "nn/checkpoint/load/read_layout.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "nn/checkpoint/load/newest_good.h"
#include "nn/checkpoint/local_box.h"
#include "nn/checkpoint/training_state.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/numbered.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace ckpt;

using Group = std::shared_ptr<ProcessGroup>;
const Shape kShape{4001, 2064};  // 31.5 MiB

/// One matrix in a layout of a mesh, as all the state there is.
class CutMatrix {
 public:
  CutMatrix(const Group& group, std::vector<DeviceMesh::Axis> axes, const std::vector<Placement>& placements)
      : group_(group), mesh_(group, std::move(axes)), spec_(Spec::of(mesh_, placements)) {
    Tensor local = Tensor::empty(spec_->local_shape(kShape), DType::f32);
    fill_into(local, -1);
    slot_.set(Tensor::distributed(kShape, spec_, std::move(local)));
  }
  void save(const std::string& dir, std::int64_t step = 0) {
    fill_numbered("w", kShape, box(), slot_.value().local());
    Manifest manifest;
    manifest.step = step;
    nn::save_checkpoint(dir, std::move(manifest), state(), *group_);
  }
  std::int64_t load(const std::string& dir) {
    const CheckpointReader reader(dir);
    nn::load_checkpoint(reader, state());
    EXPECT_EQ(count_wrong("w", kShape, box(), slot_.value().local()), 0);
    return reader.bytes_read();
  }
  std::vector<nn::StateEntry> state() { return {{"w", "param", &slot_}}; }
  Box box() const { return local_box(slot_.value()); }
  std::int64_t bytes() const { return slot_.value().local().bytes(); }
  const Tensor& value() const { return slot_.value(); }

 private:
  Group group_;
  DeviceMesh mesh_;
  const Spec* spec_;
  Slot slot_{"w"};
};

void save_rows(const std::string& dir, int ranks, std::int64_t step = 0) {
  run_ranks(ranks, [&](const Group& group) { CutMatrix(group, {{"dp", ranks}}, {Shard(0)}).save(dir, step); });
}
void save_columns(const std::string& dir, int ranks) {
  run_ranks(ranks, [&](const Group& group) { CutMatrix(group, {{"tp", ranks}}, {Shard(1)}).save(dir); });
}

TEST(ReadLayout, ColumnsOfWhatWasSavedAsRowsAreReadOnceAndExchanged) {
  for (const int writers : {1, 3}) {
    const TempDir dir;
    save_rows(dir.path(), writers);
    for (const int readers : {2, 3, 4})
      run_ranks(readers, [&](const Group& group) {
        CutMatrix matrix(group, {{"tp", readers}}, {Shard(1)});
        const CommCounter counter;
        EXPECT_LE(matrix.load(dir.path()), matrix.bytes() + 4 * kBlockBytes) << "of a row's ends in two files at most";
        EXPECT_EQ(counter.of(comm::CommOp::all_to_all).calls, 1) << counter.describe();
        EXPECT_EQ(counter.total().calls, 1) << counter.describe();
      });
  }
}

// Rows stay with the ranks of dp that hold them: the exchange is among those of tp.
TEST(ReadLayout, OverTwoAxesTheRanksOfOneExchange) {
  const TempDir dir;
  save_rows(dir.path(), 3);
  run_ranks(4, [&](const Group& group) {
    CutMatrix matrix(group, {{"dp", 2}, {"tp", 2}}, {Shard(0), Shard(1)});
    const CommCounter counter;
    EXPECT_LE(matrix.load(dir.path()), matrix.bytes() + 4 * kBlockBytes);
    ASSERT_EQ(counter.entries().size(), 1U) << counter.describe();
    EXPECT_EQ(counter.entries()[0].ranks, 2);
  });
  run_ranks(4, [&](const Group& group) {
    CutMatrix matrix(group, {{"replicate", 2}, {"tp", 2}}, {Replicate(), Shard(1)});
    EXPECT_LE(matrix.load(dir.path()), matrix.bytes() + 4 * kBlockBytes);
  });
}

TEST(ReadLayout, PiecesThatFitIntoShardsAreReadWithoutExchange) {
  const TempDir dir;
  save_columns(dir.path(), 4);
  for (const int readers : {1, 2, 4})
    run_ranks(readers, [&](const Group& group) {
      CutMatrix matrix(group, {{"tp", readers}}, {Shard(1)});
      const CommCounter counter;
      EXPECT_LE(matrix.load(dir.path()), matrix.bytes() + 4 * kBlockBytes);
      EXPECT_EQ(counter.total().calls, 0) << counter.describe();
    });
  run_ranks(3, [&](const Group& group) {
    CutMatrix rows(group, {{"dp", 3}}, {Shard(0)}), columns(group, {{"tp", 3}}, {Shard(1)});
    const CommCounter counter;
    rows.load(dir.path());
    EXPECT_EQ(counter.total().calls, 0) << "rows are contiguous in any piece";
    columns.load(dir.path());
    EXPECT_EQ(counter.total().calls, 1) << "2 of 3 shards end inside of a piece";
  });
}

TEST(ReadLayout, WhatWouldBeReadInOneBlockIsNotExchanged) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    const auto layout = [&](const Shape& shape) {
      const Spec* spec = Spec::of(mesh, Shard(1));
      const Tensor value = Tensor::distributed(shape, spec, Tensor::empty(spec->local_shape(shape), DType::f32));
      PieceEntry piece;
      piece.shape = shape;
      piece.box = whole_box(shape);
      return read_layout(value, shape, {&piece});
    };
    EXPECT_EQ(layout({512, 512}), nullptr) << "1 MiB";
    EXPECT_EQ(layout({513, 512}), Spec::of(mesh, Shard(0)));
    EXPECT_EQ(layout({1, 1 << 20}), nullptr) << "one row cannot be divided";
  });
}

void flip_byte(const std::string& path, std::int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

// A rank that finds damage has peers that wait for its rows: it sends something, and all go on with the save before.
TEST(ReadLayout, DamageThatOneRankReadsSendsAllToTheSaveBefore) {
  const TempDir dir;
  save_rows(dir.path(), 1, 1);
  save_rows(dir.path(), 1, 2);
  flip_byte(dir / "step-000002/rank-00000.safetensors", 20 * kBlockBytes);
  run_ranks(4, [&](const Group& group) {
    group->set_deadline(std::chrono::seconds(20));
    CutMatrix matrix(group, {{"tp", 4}}, {Shard(1)});
    std::string said;
    const auto reader = use_newest_good(
        dir.path(), *group, [&](const CheckpointReader& save) { nn::load_checkpoint(save, matrix.state()); },
        [&](const std::string& text) { said = text; });
    EXPECT_EQ(reader->manifest().step, 1);
    EXPECT_EQ(count_wrong("w", kShape, matrix.box(), matrix.value().local()), 0);
    if (group->rank() == 0) { EXPECT_NE(said.find("rank 2 along tp: "), std::string::npos) << said; }
  });
}

// Without an agreement around it: who was given rows that were not read says so too, and keeps nothing as good.
TEST(ReadLayout, WhatOneRankCannotReadFailsOnAllAndLeavesNoWholeState) {
  const TempDir dir;
  save_rows(dir.path(), 1);
  flip_byte(dir / "step-000000/rank-00000.safetensors", 20 * kBlockBytes);
  run_ranks(4, [&](const Group& group) {
    group->set_deadline(std::chrono::seconds(20));
    CutMatrix matrix(group, {{"replicate", 2}, {"tp", 2}}, {Replicate(), Shard(1)});
    const CheckpointReader reader(dir.path());
    EXPECT_THROW(nn::load_checkpoint(reader, matrix.state()), DamagedSave);
    const bool has_read_it = group->rank() % 2 == 1;
    const std::string torn = matrix.state()[0].slot->torn();
    EXPECT_EQ(torn.find("a load has failed (rank 1 along tp: ") == 0, !has_read_it) << torn;
    EXPECT_NE(torn.find("rank-00000.safetensors"), torn.npos) << torn;
    expect_error([&] { matrix.save(dir / "other"); }, {"torn and not saved: a load has failed ("});
  });
}

// A rank without memory for its rows has nothing to send: its peers hear why, and nobody waits.
TEST(ReadLayout, ARankWithoutMemoryForItsRowsEndsTheLoadOfAll) {
  const TempDir dir;
  save_rows(dir.path(), 1);
  run_ranks(2, [&](const Group& group) {
    group->set_deadline(std::chrono::seconds(20));
    CutMatrix matrix(group, {{"tp", 2}}, {Shard(1)});
    const CheckpointReader reader(dir.path());
    Allocator& memory = RankContext::current().allocator(Device::cpu());
    if (group->rank() == 1) memory.set_limit(memory.accounting().total() + (1 << 20));
    try {
      nn::load_checkpoint(reader, matrix.state());
      ADD_FAILURE() << "loaded";
    } catch (const OutOfMemory&) { EXPECT_EQ(group->rank(), 1); } catch (const CommError& error) {
      EXPECT_EQ(group->rank(), 0);
      EXPECT_NE(error.message().find("limit"), std::string::npos) << error.message();
    }
    memory.set_limit(0);
  });
}

// One rank cannot open a save that its peers can open: none of them begins an exchange.
TEST(ReadLayout, ASaveThatOneRankCannotOpenIsUsedByNone) {
  const TempDir dir;
  save_rows(dir.path(), 2, 1);
  save_rows(dir.path(), 2, 2);
  auto opened = std::make_unique<CheckpointReader>(dir.path());  // rank 0's, before a file goes
  std::filesystem::remove(dir / "step-000002/rank-00001.safetensors");
  run_ranks(2, [&](const Group& group) {
    group->set_deadline(std::chrono::seconds(20));
    CutMatrix matrix(group, {{"tp", 2}}, {Shard(1)});
    const auto reader = use_newest_good(
        dir.path(), *group, [&](const CheckpointReader& save) { nn::load_checkpoint(save, matrix.state()); },
        [](const std::string&) {}, group->rank() == 0 ? std::move(opened) : nullptr);
    EXPECT_EQ(reader->manifest().step, 1);
    EXPECT_EQ(count_wrong("w", kShape, matrix.box(), matrix.value().local()), 0);
  });
}

}  // namespace
}  // namespace sherd::testing
