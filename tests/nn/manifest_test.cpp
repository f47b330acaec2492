// Checkpoints as files: what is saved comes back, what is damaged is refused, and a save that fails costs nothing.
#include "nn/checkpoint/format/manifest.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/checksum.h"
#include "nn/checkpoint/format/manifest_json.h"
#include "nn/checkpoint/format/saves.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace sherd {
namespace {

using namespace ckpt;

using nlohmann::json;
using testing::expect_error;
using testing::FileSizeLimit;
using testing::TempDir;
namespace fs = std::filesystem;

constexpr std::int64_t kRows = 5, kColumns = 3;

/// Two ranks save w [5, 3] as rows 0-2 and 3-4 with one state tensor each, and rank 0 saves the scalar s.
class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() : w_(kRows * kColumns), m_(w_.size()) {
    std::iota(w_.begin(), w_.end(), 1.0f);
    std::iota(m_.begin(), m_.end(), 100.0f);
  }

  Piece rows_of(const std::string& kind, const std::vector<float>& values, std::int64_t from, std::int64_t rows) const {
    const auto bytes = std::as_bytes(std::span(values));
    constexpr std::size_t row_bytes = kColumns * sizeof(float);
    return {"w",
            kind,
            DType::f32,
            {kRows, kColumns},
            rows_box({kRows, kColumns}, from, rows),
            bytes.subspan(static_cast<std::size_t>(from) * row_bytes, static_cast<std::size_t>(rows) * row_bytes)};
  }

  /// The files of a save that is still to be committed as `name_`.
  Manifest write_files(std::int64_t step) {
    name_ = new_save_name(dir_.path(), step);
    Manifest manifest;
    manifest.step = step;
    manifest.world_size = 2;
    manifest.run = "0123abcd";
    manifest.config = "steps = 10\n";
    manifest.plan = "mesh=\"dp=2\" compiled=true";
    manifest.vocabulary = "chars \n\u00e9";
    const Piece scalar{"s", "param", DType::f32, {}, {}, std::as_bytes(std::span(&scalar_, 1))};
    for (int rank = 0; rank < 2; ++rank) {
      const std::int64_t from = rank == 0 ? 0 : 3, rows = rank == 0 ? 3 : 2;
      std::vector pieces = {rows_of("param", w_, from, rows), rows_of("optim.m", m_, from, rows)};
      if (rank == 0) pieces.push_back(scalar);
      const RankFile file = write_rank_file(dir_.path(), name_, rank, pieces);
      Manifest received;
      rank_file_into(received, rank_file_to_json(file));  // as between ranks
      EXPECT_EQ(std::vector(received.pieces.begin(), received.pieces.end()), file.pieces);
      EXPECT_EQ(received.blocks.at(file.name), file.blocks);
      add(manifest, file);
    }
    return manifest;
  }

  void save(std::int64_t step) {
    const Manifest manifest = write_files(step);
    commit(dir_.path(), name_, manifest);
  }
  /// The file of the newest save, as a path below the folder.
  std::string manifest_file() const { return name_ + "/manifest.json"; }

  std::vector<float> load_rows(const std::string& kind, std::int64_t from, std::int64_t rows) const {
    std::vector<float> out(static_cast<std::size_t>(rows * kColumns));
    CheckpointReader(dir_.path())
        .read_box(kind, "w", DType::f32, {kRows, kColumns}, rows_box({kRows, kColumns}, from, rows),
                  std::as_writable_bytes(std::span(out)));
    return out;
  }

  std::string file_of_rank(int rank) const { return name_ + "/rank-0000" + std::to_string(rank) + ".safetensors"; }
  void flip_bit(const std::string& file, std::size_t at) {
    std::string bytes = dir_.read(file);
    bytes.at(at) = static_cast<char>(bytes[at] ^ 1);
    dir_.write(file, bytes);
  }

  TempDir dir_;
  std::string name_;
  std::vector<float> w_, m_;
  float scalar_ = 0.5f;
};

TEST_F(Checkpoint, F160_RowsComeBackFromAnySplit) {
  save(120);
  for (std::int64_t from = 0; from <= kRows; ++from)
    for (std::int64_t rows = 0; from + rows <= kRows; ++rows) {
      const auto begin = w_.begin() + from * kColumns;
      EXPECT_EQ(load_rows("param", from, rows), std::vector<float>(begin, begin + rows * kColumns));
    }
  EXPECT_EQ(load_rows("optim.m", 0, kRows), m_);
  float scalar = 0;
  CheckpointReader(dir_.path())
      .read_box("param", "s", DType::f32, {}, {}, std::as_writable_bytes(std::span(&scalar, 1)));
  EXPECT_EQ(scalar, 0.5f);
}

// Boxes of two and three dims, split in any way, against picking element by element.
TEST_F(Checkpoint, F160_AnyBoxComesBackFromAnyBoxes) {
  const Shape shape{5, 4, 3};
  std::vector<float> whole(60);
  std::iota(whole.begin(), whole.end(), 0.0f);
  const auto pick = [&](const Box& box) {
    std::vector<float> out;
    for (std::int64_t i = 0; i < box.shape[0]; ++i)
      for (std::int64_t j = 0; j < box.shape[1]; ++j)
        for (std::int64_t k = 0; k < box.shape[2]; ++k)
          out.push_back(
              whole[static_cast<std::size_t>(((box.offset[0] + i) * 4 + box.offset[1] + j) * 3 + box.offset[2] + k)]);
    return out;
  };
  const std::vector<Box> cuts = {{{0, 0, 0}, {2, 4, 3}},
                                 {{2, 0, 0}, {3, 2, 3}},
                                 {{2, 2, 0}, {3, 2, 1}},
                                 {{2, 2, 1}, {3, 2, 2}},
                                 {{5, 0, 0}, {0, 4, 3}}};
  Manifest manifest;
  name_ = new_save_name(dir_.path(), 1);
  for (std::size_t rank = 0; rank < cuts.size(); ++rank) {
    const std::vector<float> values = pick(cuts[rank]);
    const Piece piece{"w", "param", DType::f32, shape, cuts[rank], std::as_bytes(std::span(values))};
    add(manifest, write_rank_file(dir_.path(), name_, static_cast<int>(rank), std::span(&piece, 1)));
  }
  commit(dir_.path(), name_, manifest);
  EXPECT_EQ(read_manifest(dir_.path()).pieces, manifest.pieces);
  const CheckpointReader reader(dir_.path());
  for (std::int64_t begin = 0; begin < 5; ++begin)
    for (std::int64_t column = 0; column < 4; ++column)
      for (const Shape& extent : {Shape{5 - begin, 4 - column, 3}, Shape{1, 4 - column, 2}, Shape{5 - begin, 1, 1}}) {
        const Box box{{begin, column, 3 - extent[2]}, extent};
        std::vector<float> out(static_cast<std::size_t>(numel(box)));
        reader.read_box("param", "w", DType::f32, shape, box, std::as_writable_bytes(std::span(out)));
        EXPECT_EQ(out, pick(box)) << to_string(box);
      }
}

// What earlier programs wrote: printed with indents, and in version 1 pieces of rows. The checksum is the one that they
// compute from the parsed file, so each can read what the other wrote.
TEST_F(Checkpoint, FilesOfEarlierProgramsAreRead) {
  save(1);
  const Manifest saved = read_manifest(dir_.path());
  json file = json::parse(dir_.read(manifest_file()));
  EXPECT_EQ(file["checksum"], checksum_text(manifest_checksum(file["manifest"].dump(), 4)));
  dir_.write(manifest_file(), file.dump(1));
  EXPECT_EQ(read_manifest(dir_.path()).pieces, saved.pieces);

  // Until version 3 pieces had checksums, and their files were asked where they lie.
  file["version"] = 3;
  file["manifest"].erase("blocks");
  for (json& piece : file["manifest"]["pieces"]) {
    const std::string bytes = dir_.read(name_ + "/" + piece["file"].get<std::string>());
    piece["checksum"] = checksum_text(checksum(std::string_view(bytes).substr(piece["at"], piece["bytes"])));
    piece.erase("at");
  }
  file["checksum"] = checksum_text(checksum(file["manifest"].dump()));
  dir_.write(manifest_file(), file.dump(1));
  const std::deque<PieceEntry> pieces = read_manifest(dir_.path()).pieces;
  EXPECT_EQ(load_rows("param", 0, kRows), w_);
  EXPECT_EQ(load_rows("optim.m", 2, 2), std::vector<float>(m_.begin() + 2 * kColumns, m_.begin() + 4 * kColumns));
  EXPECT_TRUE(CheckpointReader(dir_.path()).find_damage().empty());
  const std::string second = file_of_rank(1);
  flip_bit(second, dir_.read(second).size() - 1);
  expect_error([&] { CheckpointReader(dir_.path()).verify(); }, {"rank-00001.safetensors", "\"w\"", "checksum"});
  expect_error([&] { load_rows("param", 0, kRows), load_rows("optim.m", 0, kRows); },
               {"\"w\"", "the file was changed"});
  flip_bit(second, dir_.read(second).size() - 1);

  // They kept one save, with the manifest beside its folder.
  fs::remove(dir_ / manifest_file());
  const auto write = [&](int version) {
    file["version"] = version;
    file["checksum"] = checksum_text(checksum(file["manifest"].dump()));
    dir_.write("manifest.json", file.dump(1));
    const Manifest read = read_manifest(dir_.path());
    EXPECT_EQ(read.pieces, pieces);
    EXPECT_EQ(read.files, "step-000001");
    EXPECT_EQ(load_rows("param", 0, kRows), w_);
    CheckpointReader(dir_.path()).verify();
  };
  file["manifest"].erase("run");
  file["manifest"]["save"] = "step-000001";
  write(2);
  for (json& piece : file["manifest"]["pieces"]) {
    piece["row_offset"] = piece["offset"].empty() ? json(0) : piece["offset"][0];
    piece["rows"] = piece["extent"].empty() ? json(1) : piece["extent"][0];
    piece.erase("offset");
    piece.erase("extent");
  }
  write(1);
}

// Until version 3 the headers of the files say a second time of what dtype and shape tensors are.
TEST_F(Checkpoint, FilesOfEarlierProgramsThatAreNotTheManifestsAreNamed) {
  save(1);
  json file = json::parse(dir_.read(manifest_file()));
  file["version"] = 3;
  file["manifest"].erase("blocks");
  for (json& piece : file["manifest"]["pieces"]) {
    piece["checksum"] = checksum_text(0);
    piece.erase("at");
  }
  const auto write = [&](json changed) {
    changed["checksum"] = checksum_text(checksum(changed["manifest"].dump()));
    dir_.write(manifest_file(), changed.dump(1));
  };
  write(file);
  EXPECT_NO_THROW(CheckpointReader{dir_.path()});
  json other = file;
  for (json& piece : other["manifest"]["pieces"]) piece["dtype"] = "i32";
  write(other);
  expect_error([&] { CheckpointReader{dir_.path()}; },
               {"rank-00000.safetensors", "tensor \"w\" is f32[3,3], the manifest says i32[3,3]"});
  other = file;
  for (json& piece : other["manifest"]["pieces"])
    if (piece["name"] == "s") piece["shape"] = piece["extent"] = {1}, piece["offset"] = {0};
  write(other);
  expect_error([&] { CheckpointReader{dir_.path()}; }, {"tensor \"s\" is f32[], the manifest says f32[1]"});
}

TEST_F(Checkpoint, EmptyPiecesAreOrdinary) {
  Manifest manifest = write_files(1);
  add(manifest, write_rank_file(dir_.path(), name_, 2,
                                std::vector{rows_of("param", w_, kRows, 0), rows_of("optim.m", m_, kRows, 0)}));
  manifest.world_size = 3;
  commit(dir_.path(), name_, manifest);
  EXPECT_EQ(load_rows("param", 0, kRows), w_);
}

TEST_F(Checkpoint, ManifestKeepsEveryBit) {
  Manifest manifest = write_files(7);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  manifest.state = {{"tokens", std::int64_t{1} << 62},
                    {"lr", 0.1 + 0.2},
                    {"one", 1.0},
                    {"best", kInfinity},
                    {"worst", -kInfinity},
                    {"nan", std::nan("")},
                    {"name", std::string("a\"\n\0b", 5)},
                    {"negative", -std::int64_t{1}}};
  commit(dir_.path(), name_, manifest);
  const Manifest read = read_manifest(dir_.path());
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.world_size, 2);
  EXPECT_EQ(read.config, manifest.config);
  EXPECT_EQ(read.plan, manifest.plan);
  EXPECT_EQ(read.vocabulary, manifest.vocabulary);
  EXPECT_EQ(read.pieces, manifest.pieces);
  EXPECT_EQ(read.state_value<std::int64_t>("tokens"), std::int64_t{1} << 62);
  EXPECT_EQ(read.state_value<std::int64_t>("negative"), -1);
  EXPECT_EQ(read.state_value<double>("lr"), 0.1 + 0.2);
  EXPECT_EQ(read.state_value<double>("one"), 1.0);
  EXPECT_EQ(read.state_value<double>("best"), kInfinity);
  EXPECT_EQ(read.state_value<double>("worst"), -kInfinity);
  EXPECT_TRUE(std::isnan(read.state_value<double>("nan")));
  EXPECT_EQ(read.state_value<std::string>("name"), std::string("a\"\n\0b", 5));
  expect_error([&] { read.state_value<double>("absent"); }, {"absent"});
  expect_error([&] { read.state_value<double>("tokens"); }, {"tokens", "type"});
}

TEST_F(Checkpoint, SavesLieBesideOneAnother) {
  save(1);
  const float first = std::exchange(w_[0], -1.0f);
  save(2);
  EXPECT_EQ(read_manifest(dir_.path()).step, 2);
  EXPECT_EQ(read_manifest(dir_.path()).run, "0123abcd");
  EXPECT_EQ(load_rows("param", 0, 1)[0], -1.0f);
  EXPECT_EQ(read_manifest(dir_ / "step-000001").step, 1);
  const CheckpointReader earlier(dir_ / "step-000001");
  earlier.verify();
  EXPECT_EQ(earlier.manifest().step, 1);
  std::vector<float> out(w_.size());
  earlier.read_box("param", "w", DType::f32, {kRows, kColumns}, whole_box({kRows, kColumns}),
                   std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out[0], first);
}

TEST_F(Checkpoint, F162_SavingTheSameStepAgainDoesNotTouchTheGoodOne) {
  save(3);
  w_[0] = -1;
  const Manifest second = write_files(3);
  EXPECT_EQ(load_rows("param", 0, 1)[0], 1.0f);
  commit(dir_.path(), name_, second);
  EXPECT_EQ(load_rows("param", 0, 1)[0], -1.0f) << "the later one of two saves of one step";
}

TEST_F(Checkpoint, F162_UncommittedSaveDoesNotCount) {
  save(1);
  w_[0] = -1;
  write_files(2);  // the process dies before commit()
  EXPECT_EQ(read_manifest(dir_.path()).step, 1);
  EXPECT_EQ(load_rows("param", 0, 1)[0], 1.0f);
}

TEST_F(Checkpoint, FullDiskWhileSavingKeepsTheGoodOne) {
  save(1);
  const std::vector<float> big(1 << 16);
  const Piece piece{"w", "param", DType::f32, {1 << 16}, whole_box({1 << 16}), std::as_bytes(std::span(big))};
  {
    const FileSizeLimit limit(50'000);
    expect_error([&] { write_rank_file(dir_.path(), "step-000002", 0, std::span(&piece, 1)); },
                 {"rank-00000.safetensors", "File too large", "50000 of"});
  }
  Manifest manifest = write_files(2);
  manifest.config = std::string(100'000, 'c');
  {
    const FileSizeLimit limit(50'000);
    expect_error([&] { commit(dir_.path(), name_, manifest); }, {"manifest.json", "File too large"});
  }
  EXPECT_FALSE(fs::exists(dir_ / (manifest_file() + ".partial")));
  EXPECT_EQ(read_manifest(dir_.path()).step, 1);
  EXPECT_EQ(load_rows("param", 0, kRows), w_);
}

TEST_F(Checkpoint, F162_MissingAndTruncatedFilesAreNamed) {
  expect_error([&] { CheckpointReader reader(dir_.path()); }, {"no checkpoint", "manifest.json"});
  save(1);
  const std::string file = file_of_rank(1), bytes = dir_.read(file);
  dir_.write(file, bytes.substr(0, bytes.size() - 4));
  expect_error([&] { CheckpointReader reader(dir_.path()); }, {"rank-00001.safetensors", "truncated"});
  fs::remove(dir_ / file);
  expect_error([&] { CheckpointReader reader(dir_.path()); }, {"rank-00001.safetensors", "No such file"});
}

TEST_F(Checkpoint, FlippedBitIsFoundAndNamed) {
  save(1);
  const std::string file = file_of_rank(1);
  flip_bit(file, dir_.read(file).size() - 1);
  expect_error([&] { CheckpointReader(dir_.path()).verify(); }, {"rank-00001.safetensors", "\"w\"", "checksum"});
  const auto load_both = [&] { load_rows("param", 0, kRows), load_rows("optim.m", 0, kRows); };
  expect_error(load_both, {"rank-00001.safetensors", "\"w\"", "checksum"});
  EXPECT_NO_THROW(load_rows("param", 0, 3)) << "rank 0's rows are whole";
}

TEST_F(Checkpoint, DamagedManifestIsRefusedWhereverItIsHit) {
  save(1);
  const std::string good = dir_.read(manifest_file());
  for (std::size_t at = 0; at < good.size(); at += 7) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    if (std::isspace(static_cast<unsigned char>(good[at])) != 0) continue;  // layout carries nothing
    dir_.write(manifest_file(), bad);
    EXPECT_THROW(read_manifest(dir_.path()), Error) << "byte " << at << " of " << good;
  }
  dir_.write(manifest_file(), good.substr(0, good.size() / 2));
  expect_error([&] { read_manifest(dir_.path()); }, {"manifest.json", "damaged"});
  dir_.write(manifest_file(), std::string(1'000'000, '['));
  expect_error([&] { read_manifest(dir_.path()); }, {"manifest.json", "not valid JSON"});
  dir_.write(manifest_file(), std::string(1'000'000, '[') + std::string(1'000'000, ']'));
  expect_error([&] { read_manifest(dir_.path()); }, {"manifest.json", "not a Sherd checkpoint"});
  dir_.write(manifest_file(), "[" + std::string(1'000'000, '0'));
  expect_error([&] { read_manifest(dir_.path()); }, {"not a Sherd checkpoint"});
  dir_.write(manifest_file(), "{}");
  expect_error([&] { read_manifest(dir_.path()); }, {"not a Sherd checkpoint"});
  dir_.write(manifest_file(), R"({"format": "sherd checkpoint", "version": 0})");
  expect_error([&] { read_manifest(dir_.path()); }, {"version is 0"});
}

// The next version's file is whole, whatever is in it; a flipped bit in the version's digit is damage.
TEST_F(Checkpoint, ANewerVersionIsToldFromADamagedOne) {
  save(1);
  const std::string inner = R"({"what":"a later program has put here"})";
  const auto write = [&](int version, std::uint64_t sum) {
    dir_.write(manifest_file(),
               fmt::format(R"({{"checksum":"{}","format":"sherd checkpoint","version":{},"manifest":{}}})",
                           checksum_text(sum), version, inner));
  };
  write(5, manifest_checksum(inner, 5));
  EXPECT_THROW(read_manifest(dir_.path()), NewerVersion);
  expect_error([&] { read_manifest(dir_.path()); },
               {"step-000001/manifest.json", "a newer Sherd wrote this save", "its version is 5", "1 to 4",
                "Read it with that Sherd", "an older save can be named"});
  write(5, manifest_checksum(inner, 4));
  expect_error([&] { read_manifest(dir_.path()); }, {"manifest.json", "damaged", "the file was changed"});
}

// Correct checksums, and contents that no program wrote.
TEST_F(Checkpoint, ContentsThatLieAreRefusedByName) {
  save(1);
  const json good = json::parse(dir_.read(manifest_file()));
  const auto expect_refused = [&](std::string inner, std::initializer_list<std::string_view> parts) {
    json file = good;
    file["checksum"] = checksum_text(manifest_checksum(inner, 4));
    file["manifest"] = "INNER";
    std::string text = file.dump();
    text.replace(text.find("\"INNER\""), 7, inner);
    dir_.write(manifest_file(), text);
    expect_error([&] { read_manifest(dir_.path()); }, {"manifest.json"});
    expect_error([&] { read_manifest(dir_.path()); }, parts);
  };
  const auto without = [&](const char* key) {
    json inner = good["manifest"];
    inner.erase(key);
    return inner.dump();
  };
  const auto with = [&](const char* path, const json& value) {
    json inner = good["manifest"];
    inner[json::json_pointer(path)] = value;
    return inner.dump();
  };
  for (const char* key : {"config", "pieces", "run", "state", "step", "vocabulary", "world_size"})
    expect_refused(without(key), {key});
  expect_refused(with("/pieces", "none"), {"\"pieces\" is not an array"});
  expect_refused(with("/state", json::array()), {"\"state\" is not an object"});
  expect_refused(with("/world_size", 0), {"\"world_size\" is 0"});
  expect_refused(with("/step", 1.5), {"\"step\" is 1.5"});
  expect_refused(with("/step", UINT64_MAX), {"\"step\" is 18446744073709551615"});
  expect_refused(with("/pieces/1/shape/0", -5), {"piece 1 of \"w\"", "\"shape\" holds -5"});
  expect_refused(with("/pieces/2/checksum", 7), {"piece 2 of \"s\"", "\"checksum\" is 7, not a string"});
  expect_refused(with("/pieces/2/at", "7"), {"piece 2 of \"s\"", "\"at\" is \"7\", not an integer"});
  expect_refused(with("/pieces/2/at", -1), {"param \"s\"", "byte -1"});
  expect_refused(with("/pieces/2/at", 1 << 30), {"param \"s\"", "byte 1073741824", "rank-00000.safetensors"});
  expect_refused(without("blocks"), {"no checksums of its file \"rank-00000.safetensors\""});
  expect_refused(with("/blocks/rank-00001.safetensors/sums", "0123"), {"rank-00001.safetensors", "1 blocks", "has 4"});
  expect_refused(with("/blocks/rank-00001.safetensors/bytes", -8), {"rank-00001.safetensors", "-8 bytes"});
  expect_refused(with("/blocks/rank-00001.safetensors/bytes", INT64_MAX), {"rank-00001.safetensors", "has 16"});
  expect_refused(with("/pieces/3", 7), {"piece 3: 7 is no object"});
  expect_refused(with("/pieces/3", {{"name", "v"}}), {"piece 3 of \"v\"", "no \"kind\""});
  expect_refused(with("/pieces/3/dtype", "f8"), {"piece 3 of \"w\"", "f8"});
  std::string twice = good["manifest"].dump();
  expect_refused(twice.insert(1, "\"step\":9,"), {"\"step\" stands twice"});
  expect_refused(R"({"pieces":[],"pieces":[]})", {"\"pieces\" stands twice"});
  expect_refused(R"({"pieces":[],"state":{"a":1,"a":1}})", {"\"a\" stands twice"});
  expect_refused("[]", {"\"manifest\" is not an object"});
}

TEST_F(Checkpoint, OtherNumberOfRanksIsNoBitwiseResume) {
  save(1);
  const CheckpointReader reader(dir_.path());
  EXPECT_NO_THROW(reader.require_world_size(2));
  expect_error([&] { reader.require_world_size(4); }, {"2 ranks", "has 4", "bitwise"});
}

TEST_F(Checkpoint, F163_MissingAndExtraKeysAreListed) {
  save(1);
  const CheckpointReader reader(dir_.path());
  EXPECT_NO_THROW(reader.require_exactly({{"param", "w"}, {"param", "s"}, {"optim.m", "w"}}));
  expect_error([&] { reader.require_exactly({{"param", "w"}, {"param", "v"}, {"param", "s"}}); },
               {"lacks param \"v\"", "no optim.m \"w\""});
  expect_error([&] { reader.describe("param", "v"); }, {"param \"v\""});
}

TEST_F(Checkpoint, F163_OtherShapeOrDTypeIsRefused) {
  save(1);
  const CheckpointReader reader(dir_.path());
  std::vector<float> out(15);
  const auto bytes = std::as_writable_bytes(std::span(out));
  expect_error([&] { reader.read_box("param", "w", DType::f32, {3, 5}, whole_box({3, 5}), bytes); },
               {"\"w\"", "[5,3]", "[3,5]"});
  expect_error([&] { reader.read_box("param", "w", DType::i32, {5, 3}, whole_box({5, 3}), bytes); },
               {"\"w\"", "f32", "i32"});
  expect_error([&] { reader.read_box("param", "w", DType::f32, {5, 3}, {{4, 0}, {2, 3}}, bytes); },
               {"[4:6, 0:3]", "[5,3]"});
}

TEST_F(Checkpoint, F163_PiecesMustCoverTheirTensor) {
  const Manifest good = write_files(1);
  const auto expect_refused = [&](auto&& damage, std::initializer_list<std::string_view> parts) {
    Manifest bad = good;
    damage(bad);
    expect_error([&] { commit(dir_.path(), name_, bad); }, parts);
    EXPECT_FALSE(fs::exists(dir_ / manifest_file()));
  };
  // Entries: w, m, s of rank 0, then w, m of rank 1.
  expect_refused([](Manifest& m) { m.pieces.erase(m.pieces.begin() + 3); },
                 {"param \"w\"", "none of its 1 pieces", "[3,0]"});
  expect_refused([](Manifest& m) { m.pieces.erase(m.pieces.begin()); },
                 {"param \"w\"", "none of its 1 pieces", "[0,0]"});
  expect_refused([](Manifest& m) { m.pieces.push_back(m.pieces[3]); },
                 {"param \"w\"", "2 pieces", "[3,0]", "[3:5, 0:3] of \"rank-00001.safetensors\" and"});
  expect_refused([](Manifest& m) { m.pieces[3].box.offset[0] = 4; }, {"[4:6, 0:3]", "[5,3]"});
  expect_refused([](Manifest& m) { m.pieces[3].box = {{2, 1}, {2, 3}}; }, {"[2:4, 1:4]", "[5,3]"});
  expect_refused([](Manifest& m) { m.pieces[3].shape = {6, 3}; }, {"[5,3]", "[6,3]"});
  expect_refused([](Manifest& m) { m.pieces[3].bytes = 4; }, {"24", "4"});
  expect_refused([](Manifest& m) { m.pieces[3].file = "../rank-00001.safetensors"; }, {"file name"});
  expect_refused([](Manifest& m) { m.files = ".."; }, {"folder name"});
}

TEST_F(Checkpoint, FileThatDoesNotMatchTheManifestIsRefused) {
  save(1);
  const float value = 0;
  const TensorBytes tensor{{"w", DType::f32, {1}}, std::as_bytes(std::span(&value, 1))};
  write_safetensors(dir_ / file_of_rank(1), std::span(&tensor, 1));
  expect_error([&] { CheckpointReader reader(dir_.path()); }, {"rank-00001.safetensors", "the manifest says"});
}

TEST_F(Checkpoint, RowsThatDoNotExistAreNotSaved) {
  const Piece piece = rows_of("param", w_, 3, 2);
  Piece beyond = piece;
  beyond.box.offset[0] = 4;
  expect_error([&] { write_rank_file(dir_.path(), "step-000001", 0, std::span(&beyond, 1)); }, {"\"w\"", "[4:6, 0:3]"});
}

TEST_F(Checkpoint, ListsFromOtherRanksAreParsedWithCare) {
  EXPECT_THROW(pieces_from_json("[{}]"), Error);
  EXPECT_THROW(pieces_from_json("["), Error);
  EXPECT_TRUE(pieces_from_json("[]").empty());
}

}  // namespace
}  // namespace sherd
