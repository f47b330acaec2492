#pragma once
// A Store of threads of one process.
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include <fmt/format.h>

#include "runtime/comm/store/store.h"
#include "runtime/tensor/error.h"

namespace sherd::testing {

class ThreadStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_[std::string(key)] = value;
    changed_.notify_all();
  }
  std::string get(std::string_view key, std::chrono::milliseconds deadline) override {
    std::unique_lock lock(mutex_);
    const auto is_there = [&] { return values_.contains(std::string(key)); };
    if (is_lost_) throw CommError("the store is gone");
    if (!changed_.wait_for(lock, deadline, is_there)) throw KeyNotSet(fmt::format("no {}", key));
    return values_.at(std::string(key));
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    const std::lock_guard lock(mutex_);
    std::string& value = values_[std::string(key)];
    value = fmt::format("{}", (value.empty() ? 0 : std::stoll(value)) + amount);
    changed_.notify_all();
    return std::stoll(value);
  }

  /// Nothing can be read any more, as from a launcher that is stopped or has ended.
  void lose() {
    const std::lock_guard lock(mutex_);
    is_lost_ = true;
  }

 private:
  bool is_lost_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace sherd::testing
