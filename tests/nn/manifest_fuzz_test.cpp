// Manifests that were altered and given a true checksum, as a hand or a bug would: each is refused, or is read as
// nlohmann::json reads its text. Nothing crashes, and nothing is read differently.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/checksum.h"
#include "nn/checkpoint/format/manifest_json.h"
#include "nn/checkpoint/format/saves.h"
#include "tests/support/temp_dir.h"

namespace sherd {
namespace {

using namespace ckpt;

using nlohmann::json;
using testing::TempDir;

Manifest sample() {
  Manifest manifest;
  manifest.step = 12;
  manifest.world_size = 2;
  manifest.run = "0123abcd";
  manifest.config = "steps = 10\n[model]\nlayers = 2\n";
  manifest.vocabulary = "chars \n\u00e9";
  manifest.state = {{"loss", 2.5}, {"seed", std::int64_t{7}}, {"tag", std::string("a\"b")}, {"bad", 0.1}};
  for (const char* kind : {"param", "optim.m"})
    for (const int rank : {0, 1})
      for (int part = 0; part <= rank; ++part)  // the second rank's rows are two boxes
        manifest.pieces.push_back({.name = "blocks.0.w",
                                   .kind = kind,
                                   .dtype = DType::f32,
                                   .shape = {4, 3},
                                   .box = {{2 * rank + part, 0}, {2 - rank, 3}},
                                   .file = "rank-0000" + std::to_string(rank) + ".safetensors",
                                   .at = 100 + 12 * part,
                                   .bytes = 24 - 12 * rank,
                                   .part = part});
  for (const int rank : {0, 1})
    manifest.blocks["rank-0000" + std::to_string(rank) + ".safetensors"] = {kBlockBytes + 9, {0x1234, 0x5678}};
  return manifest;
}

/// A few edits of the text: bytes changed, taken away, put in from elsewhere in it, and numbers replaced.
std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  constexpr std::string_view kSigns = "{}[]\",:0123456789-+.eE \\ntfu\x01\x7f\xc3";
  for (std::size_t edits = 1 + below(3); edits > 0 && text.size() > 8; --edits) {
    const std::size_t at = below(text.size()), length = 1 + below(std::min<std::size_t>(24, text.size() - at));
    switch (below(5)) {
      case 0: text[at] = kSigns[below(kSigns.size())]; break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(below(text.size()), length)); break;
      case 3: text.insert(at, 1, kSigns[below(kSigns.size())]); break;
      default: {
        const std::size_t digit = text.find_first_of("0123456789", at);
        constexpr std::string_view kNumbers[] = {"0", "-1", "9223372036854775807", "18446744073709551616", "1e3", "3"};
        if (digit != std::string::npos) text.replace(digit, 1, kNumbers[below(std::size(kNumbers))]);
      }
    }
  }
  return text;
}

json as_json(const StateValue& value) {
  return std::visit([](const auto& v) { return json(v); }, value);
}

void expect_same(const Manifest& read, const json& text) {
  EXPECT_EQ(read.step, text["step"]);
  EXPECT_EQ(read.world_size, text["world_size"]);
  if (!text.contains("save")) { EXPECT_EQ(read.run, text["run"]); }
  EXPECT_EQ(read.config, text["config"]);
  EXPECT_EQ(read.vocabulary, text["vocabulary"]);
  ASSERT_EQ(read.state.size(), text["state"].size());
  for (const auto& [key, value] : read.state) {
    if (text["state"][key].is_object()) continue;  // not finite
    EXPECT_EQ(as_json(value), text["state"][key]) << key;
  }
  for (const auto& [file, sums] : read.blocks) {
    EXPECT_EQ(sums.bytes, text["blocks"][file]["bytes"]) << file;
    EXPECT_EQ(block_sums_text(sums.sums), text["blocks"][file]["sums"]) << file;
  }
  ASSERT_EQ(read.pieces.size(), text["pieces"].size());
  for (std::size_t i = 0; i < read.pieces.size(); ++i) {
    const PieceEntry& piece = read.pieces[i];
    const json& entry = text["pieces"][i];
    const auto dims = [](const Dims& list) { return std::vector<std::int64_t>(list.begin(), list.end()); };
    EXPECT_EQ(piece.name, entry["name"]);
    EXPECT_EQ(piece.kind, entry["kind"]);
    EXPECT_EQ(name(piece.dtype), entry["dtype"]);
    EXPECT_EQ(json(dims(piece.shape)), entry["shape"]);
    if (!entry.contains("rows")) {
      EXPECT_EQ(json(dims(piece.box.offset)), entry["offset"]);
      EXPECT_EQ(json(dims(piece.box.shape)), entry["extent"]);
    }
    EXPECT_EQ(piece.file, entry["file"]);
    if (piece.checksum) {
      EXPECT_EQ(*piece.checksum, checksum_from_text(entry["checksum"].get<std::string>()));
    } else {
      EXPECT_EQ(piece.at, entry["at"]);
    }
    EXPECT_EQ(piece.bytes, entry["bytes"]);
    EXPECT_EQ(json(piece.part), entry.value("part", json(0)));
  }
}

TEST(ManifestFuzz, AlteredTextsAreRefusedOrReadAsTheyStand) {
  constexpr int kTrials = 400;
  constexpr std::uint32_t kSeed = 20261123;
  std::mt19937 random(kSeed);
  const TempDir dir;
  const std::string name = new_save_name(dir.path(), 12), file = name + "/manifest.json";
  dir.write(name + "/rank-00000.safetensors", "");
  commit(dir.path(), name, sample());
  const std::string good = json::parse(dir.read(file))["manifest"].dump();
  int accepted = 0;
  for (int trial = 0; trial < kTrials && !::testing::Test::HasFailure(); ++trial) {
    const std::string inner = mutated(good, random);
    dir.write(file, fmt::format(R"({{"checksum":"{}","format":"sherd checkpoint","version":4,"manifest":{}}})",
                                checksum_text(manifest_checksum(inner, 4)), inner));
    SCOPED_TRACE(fmt::format("seed {}, trial {}: {}", kSeed, trial, inner));
    try {
      const Manifest read = read_manifest(dir.path());
      const json text = json::parse(inner, nullptr, false);
      ASSERT_FALSE(text.is_discarded()) << "this is no JSON";
      expect_same(read, text);
      ++accepted;
    } catch (const Error& error) { EXPECT_NE(std::string_view(error.what()).find("manifest.json"), std::string::npos); }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, kTrials / 2);
}

}  // namespace
}  // namespace sherd
