#pragma once
// The built program `sherd` in a folder of its own, alone or as ranks.
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/program.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/exit_status.h"

namespace sherd::testing {

using namespace train;

inline void expect_within(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    EXPECT_TRUE(text.find(part) != std::string::npos) << "\"" << part << "\" is not in: " << text;
}

class ProgramTest : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  static ProgramEnd sherd(const Words& words, const Words& environment = {}) {
    Words command{SHERD_PROGRAM};
    command.insert(command.end(), words.begin(), words.end());
    return run_program(command, environment, kLimit);
  }
  /// `sherd train tiny.toml WORDS`, under `sherd run` if there are several ranks.
  ProgramEnd train(int ranks, const Words& words) const {
    Words command;
    if (ranks > 1) command = {"run", "-n", std::to_string(ranks), "--", SHERD_PROGRAM};
    command.insert(command.end(), {"train", config_file_});
    command.insert(command.end(), words.begin(), words.end());
    return sherd(command);
  }
  /// Every rank runs this shell script, in which $0 is the program and $1 the config.
  ProgramEnd train_by_script(int ranks, const std::string& script) const {
    return sherd({"run", "-n", std::to_string(ranks), "--", "/bin/sh", "-c", script, SHERD_PROGRAM, config_file_});
  }

  /// Far below the deadline of a collective: a run that ends by it would be killed first.
  static constexpr std::chrono::seconds kLimit{120};
  TempDir dir_;
  std::string data_ = dir_.write("text.txt", tiny_text());
  std::string config_file_ = dir_.write("tiny.toml", to_toml(tiny_config(data_)));
};

}  // namespace sherd::testing
