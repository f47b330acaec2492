#pragma once
// Text from outside the repository, for tests that want it: files of the folder in SHERD_TEST_DATA. Such a test
// starts with
//   const auto path = testing::test_data("tinyshakespeare.txt");
//   if (!path) GTEST_SKIP() << testing::no_test_data("tinyshakespeare.txt");
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace sherd::testing {

inline std::optional<std::string> test_data(const std::string& name) {
  const char* folder = std::getenv("SHERD_TEST_DATA");
  if (folder == nullptr) return std::nullopt;
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path.string();
}

inline std::string no_test_data(const std::string& name) {
  return "needs " + name + " in the folder that SHERD_TEST_DATA names";
}

}  // namespace sherd::testing
