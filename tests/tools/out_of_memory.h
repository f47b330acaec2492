#pragma once
// Runs that do not fit their memory: what they say, and by a watcher of the test's own where a run without a limit
// first holds more.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/memory/storage.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/flags.h"

namespace sherd::testing {

using namespace train;

/// Where a rank without a limit first holds more than one.
class FirstOver final : public AllocationWatcher {
 public:
  FirstOver(Allocator& allocator, std::int64_t limit) : allocator_(allocator), limit_(limit) {
    allocator_.set_watcher(this);
  }
  ~FirstOver() { allocator_.set_watcher(nullptr); }
  std::optional<MemoryCategory> category;
  std::string module;

 private:
  void taken(const void*, std::int64_t, MemoryCategory of) noexcept override {
    if (category || allocator_.accounting().total() <= limit_) return;
    category = of;
    if (const std::string* path = RankContext::current().module_path) module = *path;
  }
  void given_back(const void*, std::int64_t, MemoryCategory) noexcept override {}
  void retagged(const void*, std::int64_t, MemoryCategory, MemoryCategory) noexcept override {}
  void is_of(const void*, const StorageMemory&) noexcept override {}
  void refused(std::int64_t, MemoryCategory) noexcept override {}
  Allocator& allocator_;
  const std::int64_t limit_;
};

struct Place {
  std::optional<MemoryCategory> category;
  std::string module;
};

/// Allocator of the device that the run trains on.
inline Allocator& memory_of(const TrainConfig& config) { return RankContext::current().allocator(config.plan.device); }

inline std::vector<Place> places_over(TrainConfig config, int ranks) {
  const std::int64_t limit = std::exchange(config.memory_limit, 0);
  std::vector<Place> places(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const FirstOver over(memory_of(config), limit);
    Trainer trainer(config, group);
    trainer.run([](const StepMetrics&) {});
    places[static_cast<std::size_t>(group->rank())] = {over.category, over.module};
  });
  return places;
}

/// The error of the lowest rank that ran out of memory by itself.
inline std::string failure_of(const TrainConfig& config, int ranks, int& rank) {
  std::map<int, std::string> texts;
  std::mutex mutex;
  try {
    run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      try {
        Trainer trainer(config, group);
        trainer.run([](const StepMetrics&) {});
      } catch (const OutOfMemory& error) {
        const std::lock_guard lock(mutex);
        texts[group->rank()] = error.what();
        throw;
      }
    });
  } catch (const Error&) {}
  if (texts.empty()) return "";
  rank = texts.begin()->first;
  return texts.begin()->second;
}

/// The module that the error says it came from; empty: none.
inline std::string module_in(const std::string& text) {
  std::smatch found;
  return std::regex_search(text, found, std::regex(R"(\n *module +([^ \n]+))")) ? found[1].str() : "";
}

inline std::vector<std::string> suggested(const std::string& text) {
  std::vector<std::string> flags;
  const std::regex line(R"(\n    (--.*?) +[0-9.]+ [KMG]?B \(([0-9]+) bytes\))");
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it) flags.push_back((*it)[1]);
  return flags;
}

inline TrainConfig with_flags(TrainConfig config, const std::string& flags) {
  ConfigTable table = bind(config);
  std::vector<std::string> words;
  std::istringstream stream(flags);
  for (std::string word; stream >> word;) words.push_back(word);
  const std::vector<std::string_view> views(words.begin(), words.end());
  apply_flags(table, parse_command_line(table, views));
  return config;
}

/// The run, which does not fit config.memory_limit, says which module asked for which category, and trains under each
/// setting that it suggests.
inline void expect_says_where_and_what_would(const TrainConfig& config, int ranks) {
  int rank = -1;
  const std::vector<Place> places = places_over(config, ranks);
  const std::string text = failure_of(config, ranks, rank);
  ASSERT_GE(rank, 0) << "no rank ran out of memory";
  const Place& place = places[static_cast<std::size_t>(rank)];
  ASSERT_TRUE(place.category);
  EXPECT_TRUE(std::regex_search(text, std::regex(fmt::format("asked for {},", name(*place.category))))) << text;
  EXPECT_EQ(module_in(text), place.module) << text;
  const std::vector<std::string> flags = suggested(text);
  ASSERT_FALSE(flags.empty()) << text;
  for (const std::string& each : flags) EXPECT_NO_THROW(train_tiny(with_flags(config, each), ranks)) << each;
}

}  // namespace sherd::testing
