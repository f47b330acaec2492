// What is bound of NCCL against symbols.txt, which tools/nccl_symbols.py made of NVIDIA's wheels.
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/cuda/nccl/nccl_api.h"
#include "tests/support/source_path.h"

namespace sherd::cuda::nccl {
namespace {

using Row = std::vector<std::string>;

// symbols.txt: a row's first word -> the others, one per release.
std::map<std::string, Row> symbol_table() {
  std::ifstream file(sherd::testing::source_path("tests/cuda/nccl/symbols.txt"));
  std::map<std::string, Row> table;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, word;
    words >> name;
    while (words >> word) table[name].push_back(word);
  }
  return table;
}

// 22809 of "2.28.9".
int code_of(const std::string& text) {
  int major = 0, minor = 0, patch = 0;
  EXPECT_EQ(std::sscanf(text.c_str(), "%d.%d.%d", &major, &minor, &patch), 3) << text;
  return major * 10000 + minor * 100 + patch;
}

NcclApi unbound() { return NcclApi(Library("libsherd_absent.so.7")); }

TEST(NcclSymbols, EveryReleaseHasWhatIsRequired) {
  const auto table = symbol_table();
  ASSERT_EQ(code_of(table.at("version").front()), kOldestVersion);
  NcclApi api = unbound();
  for (const Binding& binding : required_functions(api)) {
    ASSERT_TRUE(table.contains(binding.name)) << binding.name;
    EXPECT_EQ(table.at(binding.name), Row(table.at("version").size(), "x")) << binding.name;
  }
}

TEST(NcclSymbols, OptionalOnesBeginWhereTheTableSays) {
  const auto table = symbol_table();
  const Row& versions = table.at("version");
  NcclApi api = unbound();
  for (const OptionalBinding& optional : optional_functions(api))
    for (std::size_t i = 0; i < versions.size(); ++i)
      EXPECT_EQ(table.at(optional.binding.name)[i], code_of(versions[i]) >= optional.since ? "x" : "-")
          << optional.binding.name << " in " << versions[i];
}

TEST(NcclSymbols, ConfigHasTheSizeOfTheRunningReleaseOrOurs) {
  const auto table = symbol_table();
  const Row &versions = table.at("version"), &bytes = table.at("config_bytes");
  for (std::size_t i = 0; i < versions.size(); ++i) {
    const int running = code_of(versions[i]);
    const Config config = config_for(running);
    EXPECT_EQ(config.size, running <= kKnownVersion ? std::stoul(bytes[i]) : sizeof(Config)) << versions[i];
    EXPECT_EQ(config.version, static_cast<unsigned>(std::min(running, kKnownVersion))) << versions[i];
  }
}

}  // namespace
}  // namespace sherd::cuda::nccl
