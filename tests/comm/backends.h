#pragma once
// The same test body on ranks that are threads and on ranks that are processes.
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/comm/group/host_group.h"
#include "runtime/tensor/error.h"

namespace sherd::testing {

using RankBody = std::function<void(HostGroup& group)>;

struct Backend {
  std::string name;
  int max_ranks = 4;
  /// Runs the body on `count` ranks; element r is what rank r threw, empty if nothing. A rank that throws aborts
  /// the group first.
  std::function<std::vector<std::string>(int count, const RankBody& body)> run;
};

/// threads; processes; processes whose windows are so small that most calls take many rounds.
std::vector<Backend> all_backends();

/// The fixture of tests that run on each of them.
class OnAllBackends : public ::testing::TestWithParam<Backend> {
 protected:
  /// All ranks must end well.
  void run(int ranks, const RankBody& body) const {
    for (const std::string& message : GetParam().run(ranks, body)) EXPECT_EQ(message, "") << ranks << " ranks";
  }
};

/// What the CommError says that the call raises.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const CommError& error) { return error.what(); }
  return "no CommError";
}

/// A one-way flag that ranks of either kind see, for order without sleeping. Make it before the ranks.
class SharedFlag {
 public:
  SharedFlag();
  ~SharedFlag();
  SharedFlag(const SharedFlag&) = delete;
  SharedFlag& operator=(const SharedFlag&) = delete;
  void set();
  bool is_set() const;
  void wait() const;

 private:
  std::atomic<std::uint32_t>* word_;
};

}  // namespace sherd::testing
