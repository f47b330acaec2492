#pragma once
// What long waits of ranks that are threads say, for those that start them and for tests.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/board/thread_group.h"

namespace sherd {

struct ThreadGroupOptions {
  /// Called with who is missing, in which call and since when, on a thread that waits; empty: waits are silent.
  std::function<void(const std::string& text)> say{};
  /// How long a wait is before it says so; then each time when it is twice as old.
  std::chrono::nanoseconds say_after = std::chrono::milliseconds(4500);
  /// Ranks that wait for each other are told so when they are found to in two looks, this apart; 0: none looks.
  std::chrono::nanoseconds look = std::chrono::seconds(2);
};

/// As make_thread_groups(size), whose waits are silent.
std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size, const ThreadGroupOptions& options);

}  // namespace sherd
