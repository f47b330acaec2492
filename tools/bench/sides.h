#pragma once
// The programs that are running now, by what they are and were started with: one that serves many figures is started
// once, which for a Python with torch and a CUDA context is most of what a short figure takes.
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tools/bench/side.h"

namespace sherd::bench {

/// A role and a command: "ours" and "peer 1" never share a program.
using SideKey = std::pair<std::string, SideCommand>;

class Sides {
 public:
  Sides() = default;
  Sides(const Sides&) = delete;
  Sides& operator=(const Sides&) = delete;

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

}  // namespace sherd::bench
