// What the tokens of a text mean to a model, from the first step to `sherd eval --data`: never another thing than it
// has learnt, unless it is asked for. Oracle of losses: the validation of a Trainer.
#include "tools/train/run_text.h"

#include "runtime/comm/group/host_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/source_path.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {
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
  EXPECT_EQ(refused.status, kFailed);
  expect_within(refused.err, {"67 tokens", "--vocabulary bytes"});
  const ProgramEnd end = train(1, {"--init-from", gpt2_, "--vocabulary", "chars"});
  EXPECT_EQ(end.status, kDone) << end.err;
  expect_within(end.err, {"; ids 0..28 are the text's characters by code point, the model knows 67\n"});
}

TEST(MeaningOfIds, IsSaidWhereTheModelIsNotOfTheDataAlone) {
  const TrainConfig::Model fresh, tuned{.vocabulary = 49152};
  EXPECT_EQ(meaning_of_ids(fresh, Vocabulary::bytes()), "");
  EXPECT_EQ(meaning_of_ids(tuned, Vocabulary::bytes()), "ids 0..255 are the text's bytes, the model knows 49152");
}

}  // namespace
}  // namespace sherd::testing
