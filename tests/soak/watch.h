#pragma once
// What looks at a soak from outside: whether it goes on, and what memory it holds.
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/tensor/error.h"
#include "tests/soak/plan.h"

namespace sherd::testing {

/// Ends the process, saying where each of its ranks is, when none of them has moved for `limit`.
class Watchdog {
 public:
  Watchdog(std::string what, std::chrono::seconds limit)
      : what_(std::move(what)), limit_(limit), thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void at(int rank, std::string place) {
    const std::lock_guard lock(mutex_);
    places_[static_cast<std::size_t>(rank)] = std::move(place);
    ++moves_;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    for (std::uint64_t seen = moves_;; seen = moves_) {
      if (changed_.wait_for(lock, limit_, [this] { return is_over_; })) return;
      if (moves_ != seen) continue;
      fmt::print(stderr, "{}: hangs for {} s\n", what_, limit_.count());
      for (std::size_t rank = 0; rank < places_.size(); ++rank)
        if (!places_[rank].empty()) fmt::print(stderr, "  rank {}: {}\n", rank, places_[rank]);
      std::fflush(stderr);
      std::_Exit(1);
    }
  }

  const std::string what_;
  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::string, kRanks> places_;
  std::uint64_t moves_ = 0;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses the others
};

/// Resident memory of the process against steps.
class Resident {
 public:
  /// Samples the memory in use: pages that the allocator keeps are given back first.
  void sample(double step) {
    ::malloc_trim(0);
    std::int64_t size = 0, resident = 0;
    std::ifstream statm("/proc/self/statm");  // in pages
    statm >> size >> resident;
    samples_.emplace_back(step, static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) / 1024);
  }
  struct Slope {
    double kb_per_step = 0, steps = 0;
  };
  /// By least squares, over the second half: in the first one caches fill and the heap finds its size. Nothing of fewer
  /// than three samples.
  std::optional<Slope> slope() const {
    const auto first = samples_.begin() + static_cast<std::ptrdiff_t>(samples_.size() / 2);
    const auto count = static_cast<double>(samples_.end() - first);
    if (count < 3) return std::nullopt;
    double x = 0, y = 0, xx = 0, xy = 0;
    for (auto s = first; s != samples_.end(); ++s) {
      x += s->first / count;
      y += s->second / count;
    }
    for (auto s = first; s != samples_.end(); ++s) {
      xx += (s->first - x) * (s->first - x);
      xy += (s->first - x) * (s->second - y);
    }
    return Slope{xy / xx, samples_.back().first - first->first};
  }

 private:
  std::vector<std::pair<double, double>> samples_;
};

}  // namespace sherd::testing
