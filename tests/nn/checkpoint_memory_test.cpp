// Files decide how much is read of them, not how much memory that takes: at most three times what they have, entries
// included, and four times of manifests, whose text is shorter for what an entry holds. Sizes are such that work which
// grows with their square does not end before the test's time is over.
#include <filesystem>

#include <gtest/gtest.h>

#include "nn/checkpoint/format/manifest.h"
#include "nn/checkpoint/format/manifest_json.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "tests/support/counting_new.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace ckpt;

namespace fs = std::filesystem;

constexpr std::int64_t kPieces = 40'000, kTensors = 160'000;

void expect_at_most_three_times(std::int64_t file_bytes, std::int64_t heap_bytes) {
  EXPECT_LE(heap_bytes, 3 * file_bytes) << static_cast<double>(heap_bytes) / static_cast<double>(file_bytes)
                                        << " times";
}

PieceEntry piece(std::string name, const Shape& shape, Box box) {
  const std::int64_t bytes = byte_count(DType::f32, box.shape);
  return {std::move(name), "param", DType::f32, shape, std::move(box), "rank-00000.safetensors", 0, bytes};
}

/// Without pieces: they need not lie apart.
Manifest of_one_file() {
  Manifest manifest;
  manifest.blocks["rank-00000.safetensors"] = {kBlockBytes, {7}};
  return manifest;
}

/// As many tensors as pieces.
Manifest many_tensors() {
  Manifest manifest = of_one_file();
  for (std::int64_t i = 0; i < kPieces; ++i)
    manifest.pieces.push_back(
        piece(fmt::format("blocks.{}.experts.{}.w1.weight", i / 64, i % 64), {256, 1024}, whole_box({256, 1024})));
  return manifest;
}

/// One tensor, sharded along both dims.
Manifest one_tensor() {
  constexpr std::int64_t kSide = 200;
  Manifest manifest = of_one_file();
  for (std::int64_t i = 0; i < kPieces; ++i)
    manifest.pieces.push_back(piece("w", {kSide, kPieces / kSide * 16}, {{i % kSide, i / kSide * 16}, {1, 16}}));
  return manifest;
}

void expect_saved_and_read_cheaply(const Manifest& manifest) {
  const TempDir dir;
  const std::string save = "step-000001";
  fs::create_directories(dir / save);
  const std::int64_t saving = heap_peak([&] { commit(dir.path(), save, manifest); });
  Manifest read;
  const std::int64_t reading = heap_peak([&] { read = read_manifest(dir.path()); });
  const auto file_bytes = static_cast<std::int64_t>(fs::file_size(dir / (save + "/manifest.json")));
  expect_at_most_three_times(file_bytes, saving);
  expect_at_most_three_times(file_bytes, reading * 3 / 4);
  EXPECT_EQ(read.pieces, manifest.pieces);
}

TEST(CheckpointMemory, ManifestOfManyTensors) { expect_saved_and_read_cheaply(many_tensors()); }

TEST(CheckpointMemory, ManifestOfATensorInManyPieces) { expect_saved_and_read_cheaply(one_tensor()); }

TEST(CheckpointMemory, PiecesOfARankTakeThreeTimesTheirText) {
  const Manifest manifest = one_tensor();
  const std::vector<PieceEntry> pieces(manifest.pieces.begin(), manifest.pieces.end());
  std::string text;
  const std::int64_t writing = heap_peak([&] { text = pieces_to_json(pieces); });
  const std::int64_t reading = heap_peak([&] { EXPECT_EQ(pieces_from_json(text), manifest.pieces); });
  const auto text_bytes = static_cast<std::int64_t>(text.size());
  expect_at_most_three_times(text_bytes, writing);
  expect_at_most_three_times(text_bytes, reading);
}

TEST(CheckpointMemory, HeadersTakeThreeTimesTheirBytes) {
  const TempDir dir;
  const std::string path = dir / "many.safetensors";
  std::vector<TensorInfo> tensors;
  for (std::int64_t i = 0; i < kTensors; ++i) tensors.push_back({fmt::format("t{}", i), DType::u8, {1}});
  SafetensorsWriter writer(path, tensors);
  writer.write(std::vector<std::byte>(kTensors));
  writer.commit();
  const std::int64_t header_bytes = static_cast<std::int64_t>(fs::file_size(path)) - kTensors;
  expect_at_most_three_times(header_bytes, heap_peak([&] {
                               const auto file = SafetensorsFile::open(path);
                               EXPECT_EQ(file.at("t77777").offset - file.at("t0").offset, 77777);
                             }));
}

// Entries without an end must not be held either.
TEST(CheckpointMemory, HostileTextsTakeLittle) {
  const TempDir dir;
  const auto expect_refused = [&](const std::string& header) {
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
    const std::string path = dir.write("x.safetensors", length + header);
    const auto header_bytes = static_cast<std::int64_t>(header.size());
    expect_at_most_three_times(header_bytes, heap_peak([&] { EXPECT_THROW(SafetensorsFile::open(path), Error); }));
  };
  std::string zeros, notes, nested;
  for (int i = 0; i < 2'000'000; ++i) zeros += "0,";
  for (int i = 0; i < 1'000'000; ++i) notes += fmt::format("\"{}\":\"\",", i);
  for (int i = 0; i < 500'000; ++i) nested += "{\"a\":{}},";
  expect_refused(R"({"w":{"dtype":"U8","shape":[)" + zeros);
  expect_refused(R"({"w":[)" + nested);
  expect_refused(R"({"__metadata__":{)" + notes);
}

}  // namespace
}  // namespace sherd::testing
