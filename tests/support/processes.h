#pragma once
// Ranks as processes: forked children of the test, with a store in a shared page. EXPECT and ASSERT work in the
// children: a failed one is printed there and fails the rank. Call it from a test that has no other threads.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/comm/store/store.h"
#include "tests/support/page_store.h"

namespace sherd::testing {

/// How a child ended: `status` is its exit status, 128 + the signal's number when killed; `message` what it threw.
struct RankEnd {
  int status = 0;
  std::string message;
};

/// Runs body(store, rank) in `count` children and waits for all. A child that takes longer than `limit` is killed; 0:
/// none is.
std::vector<RankEnd> fork_ranks(PageStore& store, int count, const std::function<void(Store& store, int rank)>& body,
                                std::chrono::seconds limit = std::chrono::minutes(1));
std::vector<RankEnd> fork_ranks(int count, const std::function<void(Store& store, int rank)>& body);

/// The same with a shm group; throws std::runtime_error with the failed ranks' messages unless all end well.
void run_processes(int count, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body);

}  // namespace sherd::testing
