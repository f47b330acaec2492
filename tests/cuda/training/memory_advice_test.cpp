// A run on a GPU that does not fit its memory. Oracles as on the host (tests/tools/memory_advice_test.cpp): where a run
// without a limit first holds more, and the settings that are suggested, tried.
#include "tools/train/memory_advice.h"

#include <random>

#include "tests/cuda/training/training_test.h"
#include "tests/support/expect_error.h"
#include "tests/tools/out_of_memory.h"
#include "tools/train/predicted_peak.h"

namespace sherd::testing {

using namespace train;

namespace {

constexpr std::int64_t kWorkspace = 32 << 20;  // of cuBLASLt, in no prediction

std::int64_t most_bytes(const TrainConfig& config) { return predict_peak(config, 0, 1, kTinyVocabulary).bytes; }

TEST_F(TrainingOnCuda, RunsThatDoNotFitALimitSayWhereAndWhatWould) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    TrainConfig config = on_cuda(random() % 2 ? gpt_ : llama_);
    config.model.layers = 1 + static_cast<std::int64_t>(random() % 3);
    config.model.width = random() % 2 ? 32 : 16;
    config.model.hidden = 4 * config.model.width;
    config.plan.recompute = random() % 3 ? "none" : "selective";
    config.steps = 3;
    const std::int64_t most = most_bytes(config);
    config.memory_limit = most * static_cast<std::int64_t>(80 + random() % 15) / 100 + kWorkspace;
    SCOPED_TRACE(fmt::format("seed {}: {} of {} layers, width {}, recompute {}, limit {} of {}", seed,
                             config.model.style, config.model.layers, config.model.width, config.plan.recompute.text(),
                             config.memory_limit, most));
    expect_says_where_and_what_would(config, 1);
  }
}

// Without a limit it is the device that has no more. What would fit is found by what it had room for.
TEST_F(TrainingOnCuda, ADeviceThatIsFullSaysWhereAndWhatWould) {
  TrainConfig config = on_cuda(llama_);
  config.model.width = 128;
  config.model.hidden = 512;
  config.model.layers = 3;
  config.steps = 2;
  resolve(config);
  cuda::emulated::set_capacity(static_cast<std::size_t>(most_bytes(config) * 8 / 10 + kWorkspace + (1 << 20)));
  int rank = -1;
  const std::string text = failure_of(config, 1, rank);
  for (const char* part : {"out of memory on cuda:0", "are free", "asked for", "needs", "modules", "fits"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  EXPECT_NE(module_in(text), "") << text;
  const std::vector<std::string> flags = suggested(text);
  ASSERT_FALSE(flags.empty()) << text;
  // The device's own blocks are larger than what is asked for, so there need not be room for all that is suggested.
  EXPECT_TRUE(std::ranges::any_of(flags, [&](const std::string& each) {
    int none = -1;
    return failure_of(with_flags(config, each), 1, none).empty();
  })) << text;
  cuda::emulated::set_capacity(std::size_t{4} << 30);
}

TEST_F(TrainingOnCuda, ALimitThatNothingMeetsSaysTheLeastAndWhatHoldsIt) {
  TrainConfig config = on_cuda(llama_);
  config.memory_limit = 20'000;
  int rank = -1;
  const std::string text = failure_of(config, 1, rank);
  for (const char* part : {"no setting meets a limit of 20 KB", "the least is", "parameters"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

}  // namespace
}  // namespace sherd::testing
