// A model whose parameters, gradients and state are twice what a run may hold: by the accounts, and by what the process
// takes from the system. Oracle: the kernel's own record of the most that a process has held.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include "tests/tools/program_test.h"
#include "tools/train/ghost_training.h"

namespace sherd::testing {

using namespace train;

namespace {

class OffloadMemory : public ProgramTest {
 protected:
  // Bytes of the child that has held most so far.
  static std::int64_t most_of_children() {
    rusage usage{};
    ::getrusage(RUSAGE_CHILDREN, &usage);
    return 1024 * usage.ru_maxrss;
  }
};

TEST_F(OffloadMemory, F95_AModelOfTwiceTheLimitTrainsWithinIt) {
  TrainConfig config = tiny_config(data_);
  config.model.layers = 24;
  config.model.width = 256;
  config.model.heads = config.model.kv_heads = 4;
  config.model.sequence = 8;
  config.batch = 1;
  config.steps = 4;
  config.plan.offload = "all:" + dir_.path();
  resolve(config);
  std::int64_t parameters = 0;
  predict_peak(config, 0, 1, kTinyVocabulary,
               {.observe = [&](TrainStep& step, int) { parameters = step.model().num_parameters(); }});
  const std::int64_t limit = 16 * parameters / 2;
  config.memory_limit = limit;
  EXPECT_LE(predict_peak(config, 0, 1, kTinyVocabulary).bytes, limit);
  const ProgramEnd small = train(1, {"--offload", "all:" + dir_.path(), "--batch", "1", "--steps", "4"});
  ASSERT_EQ(small.status, 0) << small.err;
  const std::int64_t before = most_of_children();
  config_file_ = dir_.write("large.toml", to_toml(config));
  const ProgramEnd large = train(1, {"--save", dir_ / "saves"});
  ASSERT_EQ(large.status, 0) << large.err;
  const std::int64_t grown = most_of_children() - before;
  EXPECT_LE(grown, limit + limit / 20) << "limit " << limit << ", parameters " << parameters;
  RecordProperty("grown", std::to_string(grown));
  const ProgramEnd resumed = train(1, {"--resume", dir_ / "saves", "--steps", "6"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_LE(most_of_children() - before, limit + limit / 20) << "after a resume";
  const ProgramEnd held = train(1, {"--offload", "none"});
  EXPECT_EQ(held.status, 1) << "the model is too small to show anything";
}

}  // namespace
}  // namespace sherd::testing
