// `sherd sample` as a program, on the checkpoint of a tiny run. The oracle is the model inside the test.
#include <algorithm>

#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

class SampleProgram : public ProgramTest {
 protected:
  // Two ranks wrote it; one reads it.
  void SetUp() override {
    TrainConfig config = tiny_config(data_);
    config.steps = 30;
    config.save = dir_ / "checkpoint";
    train_tiny(config, 2);
  }
  ProgramEnd sample(const Words& words) const {
    Words command{"sample", dir_ / "checkpoint"};
    command.insert(command.end(), words.begin(), words.end());
    return sherd(command);
  }
  /// The most likely continuation, by the trainer's own model.
  std::string greedy(const std::string& prompt, int count) const {
    std::string text = prompt;
    TrainConfig config = tiny_config(data_);
    config.steps = 30;
    config.resume = dir_ / "checkpoint";
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Trainer trainer(config, group);
      GradMode off(false);
      trainer.model().train(false);
      const Vocabulary& vocabulary = trainer.data().vocabulary();
      std::vector<std::int32_t> tokens = vocabulary.encode(prompt);
      for (int i = 0; i < count; ++i) {
        const auto length = std::min<std::size_t>(tokens.size(), static_cast<std::size_t>(config.model.sequence));
        const std::span<const std::int32_t> window = std::span<const std::int32_t>(tokens).last(length);
        const Tensor logits = trainer.model()(Tensor::from(window, {1, static_cast<std::int64_t>(length)}), Tensor());
        const auto values = logits.to_vector<float>();
        const auto row = values.end() - vocabulary.size();
        tokens.push_back(static_cast<std::int32_t>(std::max_element(row, values.end()) - row));
      }
      if (group->rank() == 0) text = vocabulary.decode(tokens);
    });
    return text;
  }
};

TEST_F(SampleProgram, TemperatureZeroTakesTheMostLikelyToken) {
  const std::string expected = greedy("the quick", 30) + "\n";  // longer than the model's 12 positions
  for (const char* seed : {"1", "2"}) {
    const ProgramEnd end = sample({"--prompt", "the quick", "--tokens", "30", "--temperature", "0", "--seed", seed});
    EXPECT_EQ(end.status, 0) << end.err;
    EXPECT_EQ(end.out, expected);
  }
}

TEST_F(SampleProgram, TheSeedDecidesTheText) {
  const auto text = [&](const char* seed) {
    const ProgramEnd end = sample({"--tokens", "40", "--seed", seed, "--temperature", "1"});
    EXPECT_EQ(end.status, 0) << end.err;
    return end.out;
  };
  const std::string first = text("3");
  EXPECT_EQ(first.size(), 40 + 1u) << "one-byte characters and a line end";
  EXPECT_EQ(text("3"), first);
  EXPECT_NE(text("4"), first);
}

TEST_F(SampleProgram, RefusalsNameWhatIsWrong) {
  const auto refused = [](int status, const ProgramEnd& end, std::initializer_list<std::string_view> parts) {
    EXPECT_EQ(end.status, status) << end.err;
    expect_within(end.err, parts);
  };
  refused(kFailed, sample({"--prompt", "the Quick"}), {"'Q'"});
  refused(kUsage, sample({"--tokens", "-1"}), {"--tokens", "-1"});
  refused(kUsage, sample({"--temperature", "-0.5"}), {"--temperature", "-0.5"});
  refused(kUsage, sample({"--token", "3"}), {"--token", "tokens"});
  refused(kUsage, sherd({"sample"}), {"one checkpoint folder"});
  refused(kFailed, sherd({"sample", dir_ / "nothing"}), {"nothing", "manifest.json"});
  EXPECT_EQ(sherd({"sample", "--help"}).status, 0);
}

}  // namespace
}  // namespace sherd::testing
