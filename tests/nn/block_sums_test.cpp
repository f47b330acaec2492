// Sums of a save's blocks: a reader checks what it reads and reads nothing else, and no flipped bit goes unnoticed.
#include "nn/checkpoint/format/block_sums.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include <gtest/gtest.h>

#include "nn/checkpoint/format/saves.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "nn/checkpoint/load/newest_good.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace ckpt;

namespace fs = std::filesystem;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::vector<float> numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random()) * 1e-9F;
  return values;
}

/// f32 [rows, columns].
struct Matrix {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  std::vector<float> values;
  Shape shape() const { return {rows, columns}; }
  std::span<const std::byte> bytes(std::int64_t row, std::int64_t count) const {
    return std::as_bytes(
        std::span(values).subspan(static_cast<std::size_t>(row * columns), static_cast<std::size_t>(count * columns)));
  }
};

Matrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns, std::uint32_t seed) {
  return {name, rows, columns, numbers(rows * columns, seed)};
}

/// Rows [first, last) of rank `rank` of `ranks`.
std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t rows, int rank, int ranks) {
  return {rows * rank / ranks, rows * (rank + 1) / ranks};
}

/// Each rank writes its rows of every matrix. The save's name.
std::string write_save(const std::string& dir, std::int64_t step, int ranks, const std::vector<Matrix>& matrices) {
  Manifest manifest;
  manifest.step = step;
  manifest.world_size = ranks;
  const std::string name = new_save_name(dir, step);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Piece> pieces;
    for (const Matrix& m : matrices) {
      const auto [first, last] = rows_of(m.rows, rank, ranks);
      pieces.push_back({m.name, "param", DType::f32, m.shape(), rows_box(m.shape(), first, last - first),
                        m.bytes(first, last - first)});
    }
    add(manifest, write_rank_file(dir, name, rank, pieces));
  }
  commit(dir, name, manifest);
  return name;
}

std::vector<float> read_rows(const CheckpointReader& reader, const Matrix& m, std::int64_t first, std::int64_t last) {
  std::vector<float> out(static_cast<std::size_t>((last - first) * m.columns));
  reader.read_box("param", m.name, DType::f32, m.shape(), rows_box(m.shape(), first, last - first),
                  std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(BlockSums, AFileIsSummedMiBByMiBHoweverItIsWritten) {
  const std::vector<float> values = numbers(3 * kMiB / 4 + 77, 1);
  const auto all = std::as_bytes(std::span(values));
  std::vector<std::uint64_t> expected;
  for (std::size_t at = 0; at < all.size(); at += kMiB)
    expected.push_back(checksum(all.subspan(at, std::min<std::size_t>(kMiB, all.size() - at))));
  for (const std::size_t part : {std::size_t{1000}, std::size_t{kMiB}, std::size_t{kMiB + 1}, all.size()}) {
    BlockHasher hasher;
    for (std::size_t at = 0; at < all.size(); at += part) hasher.add(all.subspan(at, std::min(part, all.size() - at)));
    EXPECT_EQ(hasher.sums(), (BlockSums{static_cast<std::int64_t>(all.size()), expected})) << part;
  }
  EXPECT_EQ(BlockHasher().sums(), BlockSums());
  BlockHasher whole;
  whole.add(all.first(2 * kMiB));
  EXPECT_EQ(whole.sums().sums, std::vector(expected.begin(), expected.begin() + 2)) << "no empty block behind";
  EXPECT_EQ(block_sums_from_text(3 * kMiB + 1, block_sums_text(expected)).sums, expected);
  expect_error([&] { block_sums_from_text(2 * kMiB, block_sums_text(expected)); }, {"2 blocks", "has 64"});
}

TEST(BlockSums, TheManifestHoldsTheSumsOfTheFilesOnDisk) {
  const TempDir dir;
  const std::string name = write_save(dir.path(), 1, 2, {matrix("a", 700, 1000, 1), matrix("b", 3, 5, 2)});
  const Manifest manifest = read_manifest(dir.path());
  ASSERT_EQ(manifest.blocks.size(), 2u);
  for (const auto& [file, blocks] : manifest.blocks) {
    const std::string bytes = dir.read(name + "/" + file);
    ASSERT_EQ(blocks.bytes, static_cast<std::int64_t>(bytes.size()));
    ASSERT_EQ(blocks.sums.size(), 2u);
    EXPECT_EQ(blocks.sums[0], checksum(std::string_view(bytes).substr(0, kMiB)));
    EXPECT_EQ(blocks.sums[1], checksum(std::string_view(bytes).substr(kMiB)));
  }
  for (const PieceEntry& piece : manifest.pieces) {
    const Matrix source = piece.name == "a" ? matrix("a", 700, 1000, 1) : matrix("b", 3, 5, 2);
    const auto expected = source.bytes(piece.box.offset[0], piece.box.shape[0]);
    const std::string bytes = dir.read(name + "/" + piece.file);
    EXPECT_EQ(bytes.substr(static_cast<std::size_t>(piece.at), static_cast<std::size_t>(piece.bytes)),
              std::string(reinterpret_cast<const char*>(expected.data()), expected.size()));
  }
}

// By any number of ranks of what any other wrote: its own bytes, and the rest of a block where a part of a piece begins
// and where it ends, which is less than 5 % of a large shard.
TEST(BlockSums, ARankReadsItsShardAndFivePercentAtMost) {
  const TempDir dir;
  const std::vector<Matrix> matrices = {matrix("a", 1024, 32768, 1), matrix("b", 1001, 10007, 2)};
  write_save(dir.path(), 1, 3, matrices);
  for (const int readers : {1, 2, 3, 4})
    for (int rank = 0; rank < readers; ++rank) {
      const CheckpointReader reader(dir.path());
      std::int64_t shard = 0;
      for (const Matrix& m : matrices) {
        const auto [first, last] = rows_of(m.rows, rank, readers);
        const std::vector<float> read = read_rows(reader, m, first, last);
        shard += static_cast<std::int64_t>(read.size() * sizeof(float));
        const auto expected = m.bytes(first, last - first);
        ASSERT_EQ(expected.size(), read.size() * sizeof(float));
        ASSERT_EQ(std::memcmp(read.data(), expected.data(), expected.size()), 0);
      }
      const auto ends = static_cast<std::int64_t>(2 * 2 * matrices.size());  // in two files at most
      EXPECT_LE(reader.bytes_read(), shard + ends * kMiB) << "rank " << rank << " of " << readers;
      if (shard > 80 * kMiB || readers == 3) {
        EXPECT_LE(reader.bytes_read(), shard + shard / 20) << "rank " << rank << " of " << readers;
      }
      EXPECT_GE(reader.bytes_read(), shard);
    }
}

// Many small tensors in one block are one read.
TEST(BlockSums, TensorsThatLieTogetherShareTheirBlocks) {
  const TempDir dir;
  std::vector<Matrix> matrices;
  for (int i = 0; i < 100; ++i) matrices.push_back(matrix(fmt::format("m{:03}", i), 50, 20, 1));
  write_save(dir.path(), 1, 1, matrices);
  const CheckpointReader reader(dir.path());
  for (const Matrix& m : matrices) read_rows(reader, m, 10, 30);
  EXPECT_EQ(reader.bytes_read(), read_manifest(dir.path()).blocks.begin()->second.bytes);
}

/// Flips one bit of a file for as long as it lives.
class FlippedBit {
 public:
  FlippedBit(std::string path, std::int64_t byte, int bit) : path_(std::move(path)), byte_(byte), bit_(bit) { flip(); }
  ~FlippedBit() { flip(); }
  FlippedBit(const FlippedBit&) = delete;
  FlippedBit& operator=(const FlippedBit&) = delete;

 private:
  void flip() const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(byte_);
    const char flipped = static_cast<char>(file.get() ^ (1 << bit_));
    file.seekp(byte_);
    file.put(flipped);
  }
  std::string path_;
  std::int64_t byte_;
  int bit_;
};

/// One rank's use of the newest good save: all of it is read.
std::int64_t step_that_loads(const std::string& dir, const std::vector<Matrix>& matrices) {
  const auto group = make_single_group();
  return use_newest_good(
             dir, *group,
             [&](const CheckpointReader& save) {
               for (const Matrix& m : matrices) read_rows(save, m, 0, m.rows);
             },
             [](const std::string&) {})
      ->manifest()
      .step;
}

// Anywhere in a save, its manifest and the headers included: the check of all finds each and names it, and a load goes
// to the save before.
TEST(BlockSums, AThousandFlippedBitsAreFoundNamedAndPassedOver) {
  constexpr std::uint32_t kSeed = 20261127;
  constexpr int kFlips = 1000, kRanks = 2;
  const TempDir dir;
  const std::vector<Matrix> matrices = {matrix("first", 300, 1000, 1), matrix("second", 300, 901, 2)};
  write_save(dir.path(), 1, kRanks, matrices);
  const std::string save = dir / write_save(dir.path(), 2, kRanks, matrices);
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(save)) files.push_back(entry.path().string());
  std::ranges::sort(files);
  ASSERT_EQ(files.size(), 3u);
  std::mt19937 random(kSeed);
  int found = 0, passed_over = 0, in_headers = 0;
  for (int flip = 0; flip < kFlips; ++flip) {
    const std::string& file = files[flip % 10 == 0 ? 0 : 1 + static_cast<std::size_t>(flip % 2)];
    const auto size = static_cast<std::int64_t>(fs::file_size(file));
    const std::int64_t byte = std::uniform_int_distribution<std::int64_t>(0, size - 1)(random);
    const int bit = std::uniform_int_distribution<int>(0, 7)(random);
    SCOPED_TRACE(fmt::format("seed {}, flip {}: bit {} of byte {} of {}", kSeed, flip, bit, byte, file));
    const FlippedBit flipped(file, byte, bit);
    const std::string name = fs::path(file).filename().string();
    const bool is_manifest = name == "manifest.json";
    try {
      const CheckpointReader reader(save);
      ASSERT_FALSE(is_manifest) << "a damaged manifest was read";
      const std::vector<std::string> damage = reader.find_damage();
      ASSERT_EQ(damage.size(), 1u);
      const PieceEntry* holder = nullptr;
      for (const PieceEntry& piece : reader.manifest().pieces)
        if (piece.file == name && byte >= piece.at && byte < piece.at + piece.bytes) holder = &piece;
      ASSERT_NE(damage[0].find(name), std::string::npos) << damage[0];
      ASSERT_NE(damage[0].find(fmt::format("block {},", byte / kMiB)), std::string::npos) << damage[0];
      ASSERT_NE(damage[0].find(holder ? "\"" + holder->name + "\"" : "the header"), std::string::npos) << damage[0];
      if (!holder) ++in_headers;
    } catch (const DamagedSave&) { FAIL() << "found too early"; } catch (const Error& error) {
      ASSERT_TRUE(is_manifest) << error.what();
      ASSERT_NE(std::string_view(error.what()).find("manifest.json"), std::string_view::npos) << error.what();
    }
    ++found;
    if (step_that_loads(dir.path(), matrices) == 1) ++passed_over;
  }
  EXPECT_EQ(found, kFlips);
  EXPECT_EQ(passed_over, kFlips) << in_headers << " are in headers";
  EXPECT_EQ(step_that_loads(dir.path(), matrices), 2) << "as it was";
}

TEST(BlockSums, DamageElsewhereIsNoObstacle) {
  const TempDir dir;
  const Matrix m = matrix("m", 2000, 1000, 1);
  const std::string save = write_save(dir.path(), 1, 1, {m});
  const std::string file = dir / (save + "/rank-00000.safetensors");
  const FlippedBit flipped(file, 3 * kMiB + 17, 3);
  const CheckpointReader reader(dir.path());
  const auto read = read_rows(reader, m, 0, 700);
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(read)), m.bytes(0, 700)));
  expect_error([&] { read_rows(reader, m, 700, 900); },
               {"rank-00000.safetensors", "block 3, bytes 3145728 to 4194304", "param \"m\"", "the file was changed"});
}

TEST(BlockSums, SharesOfTheCheckCoverAllOfIt) {
  const TempDir dir;
  const std::string save = write_save(dir.path(), 1, 2, {matrix("m", 1100, 1000, 1)});
  for (const int file : {0, 1})
    for (const std::int64_t byte : {std::int64_t{0}, kMiB, 2 * kMiB + 1}) {
      const FlippedBit flipped(dir / fmt::format("{}/rank-{:05}.safetensors", save, file), byte, 0);
      for (const int ranks : {1, 3, 5, 9}) {
        std::size_t found = 0;
        std::int64_t read = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const CheckpointReader reader(dir.path());
          found += reader.find_damage({rank, ranks}).size();
          read += reader.bytes_read();
        }
        EXPECT_EQ(found, 1u) << byte << " by " << ranks;
        std::int64_t all = 0;
        for (const auto& [name, blocks] : read_manifest(dir.path()).blocks) all += blocks.bytes;
        EXPECT_EQ(read, all);
      }
    }
}

// What one rank alone reads sends all of them to the save before; what is wrong with the use of a save does not.
TEST(NewestGood, RanksPassOverTogether) {
  const TempDir dir;
  const Matrix m = matrix("m", 600, 1000, 1);
  write_save(dir.path(), 1, 1, {m});
  const std::string save = write_save(dir.path(), 2, 1, {m});
  const FlippedBit flipped(dir / (save + "/rank-00000.safetensors"), 2 * kMiB, 0);
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    std::vector<std::string> said;
    const auto say = [&](const std::string& text) { said.push_back(text); };
    const auto [first, last] = rows_of(m.rows, group->rank(), 2);
    const auto use = [&, first = first, last = last](const CheckpointReader& s) { read_rows(s, m, first, last); };
    EXPECT_EQ(use_newest_good(dir.path(), *group, use, say)->manifest().step, 1);
    ASSERT_EQ(said.size(), group->rank() == 0 ? 1u : 0u);
    if (group->rank() == 0) { EXPECT_NE(said[0].find("rank 1: "), std::string::npos) << said[0]; }
    EXPECT_EQ(open_newest_good(dir.path(), *group, Verify::files, say)->manifest().step, 2);
    EXPECT_EQ(open_newest_good(dir.path(), *group, Verify::bytes, say)->manifest().step, 1);
    auto opened = open_newest_good(dir / "step-000001", *group, Verify::files, say);
    said.clear();
    EXPECT_EQ(use_newest_good(dir.path(), *group, use, say, std::move(opened))->manifest().step, 1);
    EXPECT_EQ(said.size(), 0u) << "whoever opened it has said why it is not the newest";
    expect_error([&] { use_newest_good(dir.path(), *group, [](const CheckpointReader&) { fail("no model"); }, say); },
                 {"no model"});
  });
}

TEST(NewestGood, WhatANewerProgramHasSavedIsNotPassedOver) {
  const TempDir dir;
  write_save(dir.path(), 1, 1, {matrix("m", 5, 5, 1)});
  const std::string file = write_save(dir.path(), 2, 1, {matrix("m", 5, 5, 1)}) + "/manifest.json";
  const std::string inner = "{}";
  Checksum sum;
  for (const std::string& text : {inner, std::string("version 9")}) sum.add(std::as_bytes(std::span(text)));
  dir.write(file, fmt::format(R"({{"checksum":"{}","format":"sherd checkpoint","version":9,"manifest":{}}})",
                              checksum_text(sum.value()), inner));
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    expect_error([&] { open_newest_good(dir.path(), *group, Verify::files, [](const std::string&) {}); },
                 {"step-000002/manifest.json", "a newer Sherd wrote this save", "1 to 4"});
  });
}

}  // namespace
}  // namespace sherd::testing
