#pragma once
// One side of a comparison: a program that prints one JSON object when it is ready and answers each line of its input
// by another. It stays in memory between answers and sleeps, so that two sides can take turns on the same cores.
#include <chrono>
#include <compare>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
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

/// A role and a command: "ours" and "peer 1" never share a program.
using SideKey = std::pair<std::string, SideCommand>;

/// The programs that are running now, by what they are and were started with: one that serves many figures is started
/// once, which for a Python with torch and a CUDA context is most of what a short figure takes.
class Sides {
 public:
  /// The running program, started now if there is none. Throws like Side.
  Side& get(const SideKey& key, std::chrono::milliseconds patience);
  /// Ends one that failed: the next to want it gets a fresh one.
  void stop(const SideKey& key) { running_.erase(key); }
  /// Ends all others, so that memory and the device are free for this one.
  void stop_all_but(const SideKey& key);
  void stop_all() { running_.clear(); }

 private:
  std::map<SideKey, std::unique_ptr<Side>> running_;
};

/// Environment of every side: ours, without what presets a library's kernels or threads behind the benchmark's back.
std::vector<std::string> clean_environment(const std::vector<std::string>& added);

}  // namespace sherd::bench
