// `sherd ckpt`, as a user sees it, on saves of real runs.
#include <filesystem>
#include <regex>

#include <nlohmann/json.hpp>

#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

class Ckpt : public ProgramTest {
 protected:
  void SetUp() override {
    const ProgramEnd end = train(2, {"--save", folder_, "--save-every", "1"});
    ASSERT_EQ(end.status, 0) << end.err;
  }
  static ProgramEnd ckpt(const Words& words) {
    Words all{"ckpt"};
    all.insert(all.end(), words.begin(), words.end());
    return sherd(all);
  }
  std::string step(int number) const { return fmt::format("{}/step-{:06}", folder_, number); }
  void flip_last_bit(const std::string& file) const {
    std::string bytes = dir_.read(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    dir_.write(file, bytes);
  }
  const std::string folder_ = dir_ / "checkpoint";
};

TEST_F(Ckpt, LsAndShowTellWhatIsThere) {
  const ProgramEnd ls = ckpt({"ls", folder_});
  EXPECT_EQ(ls.status, 0) << ls.err;
  expect_within(ls.out, {step(5), step(4), step(3), "ranks"});
  const auto saves = nlohmann::json::parse(ckpt({"ls", folder_, "--json", "true"}).out);
  ASSERT_EQ(saves.size(), 3u);
  EXPECT_EQ(saves[0]["step"], 5);
  EXPECT_EQ(saves[0]["ranks"], 2);
  EXPECT_GT(saves[0]["bytes"], 0);
  const ProgramEnd show = ckpt({"show", step(4)});
  EXPECT_EQ(show.status, 0) << show.err;
  expect_within(show.out, {"save      " + step(4) + ", ", " old\n", "step 4 of 5\n", "ranks     2, mesh dp over all",
                           "strategy full_shard\n", "plan      the defaults\n",
                           "model     gpt2: 2 layers, 2 heads, width 16, hidden 64, sequence 12",
                           "text      chars (29 tokens) of " + data_, "batch 12, seed 7, lr 0.01 to 0.001 (warmup 2"});
}

// The page sums up what --json lists.
TEST_F(Ckpt, ThePageOfShowSumsUpItsJson) {
  const std::string page = ckpt({"show", folder_}).out;
  const auto content = nlohmann::json::parse(ckpt({"show", folder_, "--json"}).out);
  EXPECT_EQ(content["step"], 5);
  EXPECT_EQ(content["ranks"], 2);
  EXPECT_EQ(content["folder"], step(5));
  EXPECT_NE(content["config"].get<std::string>().find("layers = 2"), std::string::npos);
  EXPECT_TRUE(content["state"].contains("data_content"));
  EXPECT_EQ(content["tensors"][0]["kind"], "optim");
  std::int64_t tensors = 0, elements = 0, queries = 0;
  for (const auto& tensor : content["tensors"]) {
    if (tensor["kind"] != "param") continue;
    std::int64_t size = 1;
    for (const std::int64_t n : tensor["shape"]) size *= n;
    ++tensors;
    elements += size;
    if (tensor["name"].get<std::string>().ends_with(".attn.wq.weight")) queries += tensor["bytes"].get<std::int64_t>();
  }
  EXPECT_EQ(queries, 2 * 16 * 16 * 4);
  const auto has_line = [&](const std::string& pattern) {
    EXPECT_TRUE(std::regex_search(page, std::regex(pattern))) << pattern << " is not in\n" << page;
  };
  has_line(fmt::format("; {} parameters\n", elements));
  has_line(fmt::format("\nparam +{} +{} +[0-9.]+ KB  f32\n", tensors, elements));
  has_line("\noptim.m +");
  has_line("\nblocks\\.\\*\\.attn\\.wq\\.weight +f32\\[16,16\\] +2 +2.05 KB\n");
  has_line("files +2, [0-9.]+ KB of ");
}

TEST_F(Ckpt, VerifyNamesWhatIsDamaged) {
  EXPECT_EQ(ckpt({"verify", folder_}).status, 0);
  flip_last_bit("checkpoint/step-000004/rank-00001.safetensors");
  ProgramEnd end = ckpt({"verify", folder_});
  EXPECT_EQ(end.status, 1);
  expect_within(end.out, {step(5) + ": good", step(4) + ": damaged: ", "rank-00001.safetensors\": block 0, bytes 0 to",
                          "param \"blocks.0.attn.", "has checksum", step(3) + ": good"});
  fs::remove(fs::path(step(3)) / "rank-00000.safetensors");
  end = ckpt({"ls", folder_});
  EXPECT_EQ(end.status, 1);
  expect_within(end.out, {"damaged: ", "rank-00000.safetensors"});
  EXPECT_EQ(nlohmann::json::parse(ckpt({"ls", folder_, "--json", "true"}).out)[2].contains("damage"), true);
}

TEST_F(Ckpt, DiffComparesTensorByTensor) {
  const ProgramEnd same = ckpt({"diff", step(5), step(5)});
  EXPECT_EQ(same.status, 0) << same.err;
  const ProgramEnd end = ckpt({"diff", step(4), step(5)});
  EXPECT_EQ(end.status, 1);
  expect_within(end.out, {"param blocks.0.attn", "elements differ, by ", "steps 4 and 5"});
  const auto list = nlohmann::json::parse(ckpt({"diff", step(5), step(5), "--json", "true"}).out);
  for (const auto& tensor : list) EXPECT_EQ(tensor["equal"], true);
}

TEST_F(Ckpt, ConvertGoesBothWays) {
  const std::string away = dir_ / "huggingface", back = dir_ / "back";
  const ProgramEnd to = ckpt({"convert", folder_, away});
  ASSERT_EQ(to.status, 0) << to.err;
  const ProgramEnd from = ckpt({"convert", away, back});
  ASSERT_EQ(from.status, 0) << from.err;
  for (const auto& tensor : nlohmann::json::parse(ckpt({"diff", folder_, back, "--json", "true"}).out))
    EXPECT_TRUE(tensor["kind"] != "param" || tensor["equal"] == true) << tensor;
  EXPECT_EQ(ckpt({"convert", away, back}).status, 1) << "never over other saves";
}

TEST_F(Ckpt, WrongCallsAreNamed) {
  expect_within(ckpt({"lss", folder_}).err, {"unknown action \"lss\"", "did you mean ls?"});
  expect_within(ckpt({}).err, {"the action is missing"});
  expect_within(ckpt({"diff", folder_}).err, {"diff DIR DIR"});
  const ProgramEnd none = ckpt({"ls", dir_ / "nothing"});
  EXPECT_EQ(none.status, 1);
  expect_within(none.err, {"no checkpoint", "nothing"});
}

}  // namespace
}  // namespace sherd::testing
