// `sherd plan --search`. Oracle: all ways of a small space, each forecast in full.
#include "tools/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/expect_error.h"
#include "tests/support/source_path.h"
#include "tests/tools/program_here.h"
#include "tests/tools/program_test.h"
#include "tools/plan/presets.h"

namespace sherd::plan {

namespace {

using testing::expect_error;
using testing::expect_within;
using testing::sherd_here;

/// Nine blocks, which is more than ghosts of bounds have.
TrainConfig nine_blocks() {
  TrainConfig config;
  config.batch = 4;
  config.model.layers = 9;
  config.model.width = 1024;
  config.model.sequence = 512;
  config.model.vocabulary = 256;
  config.plan.param_dtype = DType::bf16;
  config.plan.device = Device::cuda(0);
  resolve(config);
  return config;
}

/// Four devices on two hosts.
PlannedFor on_four(const char* fabric) {
  Cluster cluster{.device = find_device("h100-sxm", "--device-model"),
                  .hosts = host_layout(4, 2, 2),
                  .in = find_fabric("nvlink4", "--fabric in"),
                  .out = find_fabric(fabric, "--fabric out")};
  return {.ranks = 4, .cluster = std::move(cluster), .base = nine_blocks()};
}

double seconds_of(const Option& option) { return option.simulated->seconds; }

TEST(Search, FindsWhatAllWaysHaveAmongThem) {
  PlannedFor planned = on_four("eth25x1");
  const SearchSpace space(nine_blocks(), planned.cluster->hosts);
  std::vector<Option> all;
  for (const Way& way : space.ways()) {
    Option option = option_of_many(space.config(way), planned);
    option.name = space.name(way);
    option.forecast.step = {};
    if (option.has_forecast()) all.push_back(std::move(option));
  }
  ASSERT_GT(all.size(), 150u);
  std::ranges::stable_sort(all, {}, seconds_of);
  for (const bool is_tight : {false, true}) {
    if (is_tight) planned.memory_limit = all[all.size() / 2].forecast.memory.bytes;
    std::vector<const Option*> expected;
    for (const Option& option : all)
      if (!is_tight || option.forecast.memory.bytes <= planned.memory_limit) expected.push_back(&option);
    ASSERT_GE(expected.size(), 10u);
    const Found found = search(space, planned);
    EXPECT_EQ(found.broken_bounds, 0u);
    EXPECT_EQ(found.ways, space.ways().size());
    EXPECT_EQ(found.not_searched, 0u);
    EXPECT_LT(found.tried, all.size() / 2) << "bounds leave out what is slower";
    std::size_t left_out = 0;
    for (const auto& [why, count] : found.left_out) left_out += count;
    EXPECT_EQ(found.tried + found.too_large + found.too_slow + left_out, found.ways);
    ASSERT_EQ(found.best.size(), 10u);
    for (std::size_t i = 0; i < 10; ++i)
      EXPECT_DOUBLE_EQ(seconds_of(found.best[i]), seconds_of(*expected[i])) << expected[i]->name;
    EXPECT_GE(found.untried_seconds, seconds_of(found.best.back()));
  }
}

TEST(Search, StopsAfterAsManyTriesAndSaysWhatIsLeft) {
  const PlannedFor planned = on_four("eth25x1");
  const SearchSpace space(nine_blocks(), planned.cluster->hosts);
  const Found few = search(space, planned, {.tries = 4});
  EXPECT_LE(few.tried, 4u);
  EXPECT_GT(few.not_searched, 0u);
  expect_within(fmt::format("{}", fmt::join(few.text(), "\n")), {"not searched, as --tries says", "at least"});
}

TEST(Search, SaysWhyThereIsNoWay) {
  PlannedFor planned = on_four("eth25x1");
  planned.memory_limit = 1000;  // less than the activations of any
  const SearchSpace space(nine_blocks(), planned.cluster->hosts);
  const Found found = search(space, planned);
  EXPECT_TRUE(found.best.empty());
  EXPECT_GT(found.least_bytes, 1000);
  expect_within(found.why_none(1000), {"No way fits into 1 KB", "Take more ranks"});
  expect_within(Found{.tried = 1, .not_searched = 2, .least_bytes = 4096}.why_none(1000), {"None of those tried fits"});
  expect_within(Found{.left_out = {{"no rate", 3}}}.why_none(1000), {"No way can be run: no rate"});
}

TEST(Search, ManyMicroBatchesGoOnAsTheFourthDoes) {
  PlannedFor planned = on_four("eth25x1");
  TrainConfig config = nine_blocks();
  config.plan.mesh = "dp=4";
  config.batch = 24;
  config.plan.micro_batches = 6;
  const Option exact = option_of(config, planned), extended = option_of_many(config, planned);
  EXPECT_NEAR(seconds_of(extended) / seconds_of(exact), 1, 1e-9);
  EXPECT_EQ(extended.forecast.memory.bytes, exact.forecast.memory.bytes);
  EXPECT_EQ(step_tokens(extended.config), step_tokens(config));
  ASSERT_EQ(extended.simulated->axes.size(), exact.simulated->axes.size());
  for (std::size_t i = 0; i < exact.simulated->axes.size(); ++i)
    EXPECT_NEAR(extended.simulated->axes[i].wire_bytes, exact.simulated->axes[i].wire_bytes, 1);
}

std::vector<std::string> search_words(std::vector<std::string> more = {}) {
  std::vector<std::string> words{"plan",
                                 testing::source_path("tools/configs/llama-7b.toml"),
                                 "--model.layers",
                                 "3",
                                 "--search",
                                 "--ranks",
                                 "8",
                                 "--batch",
                                 "8",
                                 "--hosts",
                                 "2",
                                 "--fabric",
                                 "in=nvlink4,out=ib400x1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(SearchCommand, NamesTheWayAndWhatWasLeftOut) {
  const auto end = sherd_here(search_words({"--device-model", "h100-sxm", "--tries", "8"}));
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_TRUE(end.out.starts_with("Take ")) << end.out;
  expect_within(end.out, {"Run it with --mesh ", "Searched", " ways: 8 forecast in full", "ghosts for bounds",
                          "not searched, as --tries says"});
  EXPECT_EQ(end.out, sherd_here(search_words({"--device-model", "h100-sxm", "--tries", "8"})).out);
}

TEST(SearchCommand, WrongInputIsNamed) {
  const auto is_refused = [](const std::vector<std::string>& words, std::initializer_list<std::string_view> parts) {
    const auto end = sherd_here(words);
    EXPECT_EQ(end.status, 2) << end.out;
    expect_within(end.err, parts);
  };
  is_refused(search_words(), {"--fabric"});
  is_refused(search_words({"--device-model", "h100-sxm", "--mesh", "dp=8"}), {"--search", "--mesh dp=8"});
  is_refused(search_words({"--device-model", "h100-sxm", "--explain", "full_shard"}), {"--explain", "--search"});
  is_refused(search_words({"--device-model", "h100-sxm", "--tries", "0"}), {"--tries", "0"});
  const PlannedFor planned = on_four("eth25x1");
  TrainConfig config = nine_blocks();
  config.batch = 3;
  EXPECT_EQ(SearchSpace(config, planned.cluster->hosts).sharding({}).tp, 4) << "one rank with data takes any batch";
}

}  // namespace

}  // namespace sherd::plan
