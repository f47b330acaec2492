#pragma once
// One side of a comparison: a program that prints one JSON object when it is ready and answers each line of its input
// by another. It stays in memory between answers and sleeps, so that two sides can take turns on the same cores.
#include <chrono>
#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/launch/spawn.h"

namespace sherd::bench {

struct SideCommand {
  std::vector<std::string> words;        ///< program, looked up on PATH, and its arguments
  std::vector<std::string> environment;  ///< "NAME=value": added to what the benchmark passes on
  friend auto operator<=>(const SideCommand&, const SideCommand&) = default;
};

class Side {
 public:
  /// Starts the program and returns when it is ready. Under `sherd run` rank 0 speaks for all. Throws Error naming the
  /// command when it cannot be started, ends, prints anything but an object, or takes longer than `patience` for one.
  explicit Side(SideCommand command, std::chrono::milliseconds patience = std::chrono::seconds(300));
  /// Closes the program's input, which is its end; one that stays is stopped.
  ~Side();
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  /// What it printed first.
  const nlohmann::json& greeting() const { return greeting_; }
  /// Sends one line and returns the object it prints. Throws like the constructor.
  nlohmann::json ask(std::string_view request);

 private:
  nlohmann::json read_object();
  std::string read_line();
  [[noreturn]] void fail_ended();
  std::string last_words() const;
  int stop(std::chrono::milliseconds goodbye);

  SideCommand command_;
  std::chrono::milliseconds patience_;
  Descriptor in_, out_, err_;
  pid_t pid_ = -1;
  bool has_failed_ = false;  ///< it printed something else, or nothing
  std::string unread_, errors_;
  nlohmann::json greeting_;
};

/// Environment of every side: ours, without what presets a library's kernels or threads behind the benchmark's back.
std::vector<std::string> clean_environment(const std::vector<std::string>& added);

}  // namespace sherd::bench
