// What is said of a peak and of the memory of each module. Oracles: the accounts, the sizes of the layers, and the
// layouts of the units.
#include "tools/train/explained_peak.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/tools/tiny_run.h"

namespace sherd::testing {

using namespace train;

namespace {

std::int64_t held(const CategoryBytes& bytes, MemoryCategory category) {
  return bytes[static_cast<std::size_t>(category)];
}

class ExplainedPeakTest : public ::testing::Test {
 protected:
  TempDir dir_;
  std::string data_ = dir_.write("text.txt", tiny_text());
  TrainConfig gpt_ = tiny_config(data_), llama_ = tiny_llama(data_);
};

TEST_F(ExplainedPeakTest, ThePictureIsThatOfTheAccounts) {
  for (TrainConfig config : {gpt_, llama_})
    for (const char* recompute : {"none", "full"})
      for (const bool compile : {false, true}) {
        config.plan.recompute = recompute;
        config.plan.compiled = compile;
        const ExplainedPeak explained = explain_peak(config, 1, 2, kTinyVocabulary);
        EXPECT_EQ(explained.peak.total, explained.predicted.bytes);
        EXPECT_EQ(describe(explained.peak.bytes), describe(explained.predicted.at_peak));
        std::int64_t blocks = 0;
        for (const MemoryLog::Block& block : explained.peak.blocks) blocks += block.bytes;
        EXPECT_EQ(blocks, explained.peak.total) << "all that is held was made under the log";
        EXPECT_FALSE(explained.peak.moment.op.empty());
        EXPECT_FALSE(explained.refusal);
      }
}

TEST_F(ExplainedPeakTest, NamesWhatIsHeld) {
  const std::string text = print_picture(explain_peak(llama_, 0, 2, kTinyVocabulary).peak, 100);
  for (const char* part : {"tok.weight", "blocks.1 full", "blocks.0.", ".m", "module ", "op ", "step "})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

TEST_F(ExplainedPeakTest, ARefusalIsWhereTheRunWouldFail) {
  llama_.memory_limit = predict_peak(llama_, 0, 1, kTinyVocabulary).bytes - 1;
  const ExplainedPeak explained = explain_peak(llama_, 0, 1, kTinyVocabulary);
  ASSERT_TRUE(explained.refusal);
  EXPECT_EQ(explained.refusal->held.total + explained.refusal->bytes, explained.predicted.bytes);
  EXPECT_EQ(describe(explained.refusal->held.moment), describe(explained.peak.moment));
}

/// Width 16, two heads of 8, one for keys and values, hidden 20: elements of each module of a block.
const std::map<std::string, std::int64_t> kLlamaElements{
    {"tok", 29 * 16},
    {"blocks.0.attn.wq", 16 * 16},
    {"blocks.0.attn.wk", 8 * 16},
    {"blocks.0.attn.wv", 8 * 16},
    {"blocks.0.attn.wo", 16 * 16},
    {"blocks.1.attn.wk", 8 * 16},
    {"norm", 16},
};

TEST_F(ExplainedPeakTest, ModulesHoldWhatTheirLayersSay) {
  for (const int ranks : {1, 2}) {
    const ExplainedPeak explained = explain_peak(llama_, 0, ranks, kTinyVocabulary);
    std::map<std::string, ModuleMemory> rows;
    ModuleMemory sum;
    for (const ModuleMemory& row : explained.modules) {
      rows[row.path] = row;
      sum.parameters.here += row.parameters.here;
      sum.gradients.here += row.gradients.here;
      sum.optimizer += row.optimizer;
    }
    for (const auto& [path, elements] : kLlamaElements) {
      SCOPED_TRACE(path);
      ASSERT_TRUE(rows.contains(path));
      const std::int64_t here = path == "tok" && ranks == 2 ? 15 * 16 : elements / ranks;  // 29 rows
      EXPECT_EQ(rows[path].parameters.here, 4 * here);
      EXPECT_EQ(rows[path].gradients.here, 4 * here);
      EXPECT_EQ(rows[path].optimizer, 8 * here);
      EXPECT_EQ(rows[path].parameters.gathered, ranks == 1 ? 0 : 4 * elements);
      EXPECT_EQ(rows[path].gradients.gathered, ranks == 1 ? 0 : 4 * elements);
    }
    const std::int64_t padding = 64 * 4;  // of the buffers of units, to cache lines
    EXPECT_NEAR(static_cast<double>(sum.parameters.here),
                static_cast<double>(held(explained.predicted.held, MemoryCategory::parameters)), padding);
    EXPECT_NEAR(static_cast<double>(sum.optimizer),
                static_cast<double>(held(explained.predicted.held, MemoryCategory::optimizer)), padding);
  }
}

TEST_F(ExplainedPeakTest, RecomputedBlocksSaveTheirInputOnly) {
  const auto saved_in_block = [&](const char* recompute) {
    llama_.plan.recompute = recompute;
    std::int64_t bytes = 0;
    for (const ModuleMemory& row : explain_peak(llama_, 0, 1, kTinyVocabulary).modules)
      if (row.path.starts_with("blocks.0")) bytes += row.saved;
    return bytes;
  };
  const std::int64_t full = saved_in_block("full"), selective = saved_in_block("selective"),
                     none = saved_in_block("none");
  // The block's output is the next one's input: f32 [12, 12, 16].
  EXPECT_EQ(full, 4 * 12 * 12 * 16);
  EXPECT_LT(full, selective);
  EXPECT_LT(selective, none);
}

TEST_F(ExplainedPeakTest, EqualBlocksAreOneLine) {
  llama_.model.layers = 4;
  const std::string table = print_module_memory(explain_peak(llama_, 0, 2, kTinyVocabulary).modules);
  for (const char* part : {"module", "saved activations", "(model)", "each", "wq"})
    EXPECT_NE(table.find(part), std::string::npos) << part << " is not in\n" << table;
  const std::size_t first = table.find("wq");
  EXPECT_EQ(table.find("wq", first + 1), std::string::npos) << table;
}

}  // namespace
}  // namespace sherd::testing
