// What the tokens of a text mean to a model, from the first step to `sherd eval --data`: never another thing than it
// has learnt, unless it is asked for. Oracle of losses: the validation of a Trainer.
#include "tools/train/run_text.h"

#include <regex>

#include "runtime/comm/group/host_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/source_path.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {

using namespace train;

namespace {

using Group = std::shared_ptr<ProcessGroup>;

class RunText : public ProgramTest {
 protected:
  /// Every one of two ranks gets an Error that holds `parts`.
  static void refused(const TrainConfig& config, std::initializer_list<std::string_view> parts) {
    run_ranks(2, [&](const Group& group) {
      expect_error([&] { Trainer trainer(config, group); }, parts);
      group->host().barrier();  // nobody is left in another collective
    });
  }
  static std::string vocabulary_of(const TrainConfig& config) {
    std::string kind;
    run_ranks(1, [&](const Group& group) { kind = Trainer(config, group).config().vocabulary; });
    return kind;
  }
  /// A save of one step in `folder`.
  std::string save_of(TrainConfig config, const std::string& folder) const {
    config.steps = 1;
    config.save = dir_ / folder;
    train_tiny(config, 1);
    return config.save;
  }
  TrainConfig init_from(const std::string& folder, const std::string& vocabulary = "auto") const {
    TrainConfig config = tiny_config(data_);
    config.vocabulary = vocabulary;
    config.init_from = folder;
    config.model = Weights(folder).model();
    return config;
  }

  TrainConfig chars_ = tiny_config(data_);
  std::string gpt2_ = source_path("tests/golden/huggingface/gpt2");  // knows 67 tokens
};

TEST_F(RunText, FilesThatAreNoTextAreRefusedOnEveryRankUnlessBytesAreAskedFor) {
  dir_.write("mixed/a.txt", tiny_text());
  dir_.write("mixed/b/weights.safetensors", std::string("\x10\0\0\0\0\0\0\0{", 9) + tiny_text());
  for (const auto& [path, kind] : {std::pair(dir_.write("text.txt.gz", "\x1F\x8B\x08" + tiny_text()), "gzip"),
                                   std::pair(dir_ / "mixed", "weights.safetensors\" is safetensors")})
    for (const char* vocabulary : {"auto", "chars"}) {
      chars_.data = path;
      chars_.vocabulary = vocabulary;
      refused(chars_, {path, kind, "--vocabulary bytes"});
    }
  chars_.vocabulary = "bytes";
  EXPECT_EQ(train_tiny(chars_, 1).losses.size(), 5u);
}

TEST_F(RunText, AutoIsBytesOrWhatASaveKnows) {
  chars_.vocabulary = "auto";
  EXPECT_EQ(vocabulary_of(chars_), "bytes");
  const std::string bytes = save_of(chars_, "bytes"), characters = save_of(tiny_config(data_), "chars");
  EXPECT_EQ(vocabulary_of(init_from(bytes)), "bytes");
  EXPECT_EQ(vocabulary_of(init_from(characters)), "chars");
  TrainConfig resumed = tiny_config(data_);
  resumed.vocabulary = "auto";
  resumed.resume = characters;
  EXPECT_EQ(vocabulary_of(resumed), "chars");
}

TEST_F(RunText, ASaveWithAnotherVocabularyIsRefused) {
  const std::string bytes = save_of([&] { return chars_.vocabulary = "bytes", chars_; }(), "bytes");
  refused(init_from(bytes, "chars"), {"vocabulary = chars", bytes, "are for bytes", "leave the key out"});
  TrainConfig other = init_from(save_of(tiny_config(data_), "chars"));
  other.data = dir_.write("other.txt", tiny_text() + "#");
  refused(other, {"other.txt", "'#'", "not among the 29 characters that the model knows"});
}

TEST_F(RunText, IdsOfAModelThatDoesNotTellAreNotMadeUp) {
  refused(init_from(gpt2_), {"init_from = " + gpt2_, "67 tokens", "256 bytes", "--vocabulary"});
  // A save that was converted from such a model knows no more than that.
  const ProgramEnd end = sherd({"ckpt", "convert", gpt2_, dir_ / "converted"});
  ASSERT_EQ(end.status, 0) << end.err;
  refused(init_from(dir_ / "converted"), {"67 tokens", "256 bytes"});
  // As many tokens as bytes are taken for bytes.
  chars_.vocabulary = "bytes";
  ASSERT_EQ(sherd({"export", save_of(chars_, "bytes"), dir_ / "exported"}).status, 0);
  EXPECT_EQ(vocabulary_of(init_from(dir_ / "exported")), "bytes");
}

TEST_F(RunText, TheFirstLineSaysWhatIdsMeanThatWereAskedFor) {
  dir_.write("tiny.toml", fmt::format("data = \"{}\"\nsteps = 1\nbatch = 2\n", data_));
  const ProgramEnd refused = train(2, {"--init-from", gpt2_});
  EXPECT_EQ(refused.status, kUsage);
  expect_within(refused.err, {"67 tokens", "--vocabulary bytes"});
  const ProgramEnd end = train(1, {"--init-from", gpt2_, "--vocabulary", "chars"});
  EXPECT_EQ(end.status, kDone) << end.err;
  expect_within(end.err, {"; ids 0..28 are the text's characters by code point, the model knows 67\n"});
}

TEST(MeaningOfIds, IsSaidWhereTheModelHasTokensOfItsOwn) {
  const TrainConfig::Model fresh, tuned{.vocabulary = 49152};
  EXPECT_EQ(meaning_of_ids(fresh, Vocabulary::bytes()), "");
  EXPECT_EQ(meaning_of_ids(tuned, Vocabulary::bytes()), "ids 0..255 are the text's bytes, the model knows 49152");
}

// ---- sherd eval --data ----

class EvalText : public RunText {
 protected:
  ProgramEnd eval(int ranks, const Words& words) const {
    Words command;
    if (ranks > 1) command = {"run", "-n", std::to_string(ranks), "--", SHERD_PROGRAM};
    command.emplace_back("eval");
    command.insert(command.end(), words.begin(), words.end());
    return sherd(command);
  }
  /// What was printed: the loss, and what it is over.
  static std::pair<double, std::string> printed(const ProgramEnd& end) {
    EXPECT_EQ(end.status, kDone) << end.err;
    std::smatch match;
    const bool found = std::regex_match(end.out, match, std::regex(R"((?:\[0\] )?loss (\d+\.\d+)( over .*)\n)"));
    EXPECT_TRUE(found) << end.out;
    return found ? std::pair(std::stod(match[1]), match[2].str()) : std::pair(0.0, std::string());
  }
};

TEST_F(EvalText, IsTheLossOfAValidationOnAnyNumberOfRanks) {
  std::string long_text;
  for (int i = 0; i < 10; ++i) long_text += tiny_text();
  for (const char* vocabulary : {"chars", "bytes"}) {
    chars_.vocabulary = vocabulary;
    TrainConfig same = init_from(save_of(chars_, vocabulary));
    same.data = dir_.write("long.txt", long_text);
    same.eval_batches = 0;
    double expected = 0;
    std::int64_t begin = 0;
    run_ranks(1, [&](const Group& group) {
      Trainer trainer(same, group);
      expected = trainer.evaluate();
      begin = trainer.data().num_train();
    });
    // Its validation part: 400 windows and 2 characters, of which an evaluation makes two batches.
    const std::string part = dir_.write("part.txt", long_text.substr(static_cast<std::size_t>(begin)));
    const auto [loss, over] = printed(eval(1, {same.init_from, "--data", part}));
    EXPECT_NEAR(loss, expected, 1e-6) << vocabulary;
    EXPECT_EQ(over, " over 4800 of 4803 tokens, in windows of 12");
    EXPECT_EQ(printed(eval(3, {same.init_from, "--data", part})).first, loss);
  }
}

TEST_F(EvalText, AShortTextIsOneWindow) {
  const std::string save = save_of(chars_, "save");
  EXPECT_EQ(printed(eval(2, {save, "--data", dir_.write("short.txt", "the fox")})).second,
            " over 6 of 7 tokens, in windows of 6");
}

TEST_F(EvalText, WrongCallsAreNamed) {
  const std::string save = save_of(chars_, "save"), gz = dir_.write("t.gz", "\x1F\x8B\x08");
  struct Call {
    Words words;
    int status;
    Words parts;
  };
  const Call calls[] = {
      {{save}, kUsage, {"needs one of --tokens FILE", "--data TEXT"}},
      {{save, "--tokens", data_, "--data", data_}, kUsage, {"needs only one of --tokens FILE", "--data TEXT"}},
      {{save, "--data", data_, "--logits", "x"}, kUsage, {"--logits goes with --tokens"}},
      {{save, "--data", data_, "--vocabulary", "words"}, kUsage, {"\"words\"", "bytes and chars"}},
      {{save, "--tokens", data_}, kFailed, {"--tokens", data_ + "\" is not a safetensors file", "--data"}},
      {{save, "--data", gz}, kFailed, {"t.gz\" is gzip", "gunzip"}},
      {{save, "--data", data_, "--vocabulary", "bytes"}, kFailed, {"--vocabulary bytes", save, "chars"}},
      {{save, "--data", dir_.write("other.txt", "fox#")}, kFailed, {"other.txt", "'#'", "29 characters"}},
      {{save, "--data", dir_.write("one.txt", "f")}, kFailed, {"--data", "one.txt", "1 token"}},
      {{gpt2_, "--data", data_}, kFailed, {"--data", gpt2_, "Hugging Face", "--tokens"}},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(call.words, " ")));
    const ProgramEnd end = eval(1, call.words);
    EXPECT_EQ(end.status, call.status);
    for (const std::string& part : call.parts) expect_within(end.err, {part});
  }
}

}  // namespace
}  // namespace sherd::testing
