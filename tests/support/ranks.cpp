#include "tests/support/ranks.h"

#include <exception>
#include <thread>
#include <vector>

#include "runtime/comm/board/thread_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"

namespace sherd::testing {

namespace {

bool is_from_peer(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) { return true; } catch (...) {
    return false;
  }
}

void run_rank(std::shared_ptr<ProcessGroup> group,
              const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body, std::exception_ptr& error) {
  RankScope scope;
  set_world_group(group);
  try {
    body(group);
  } catch (const std::exception& reason) {
    error = std::current_exception();
    group->abort(reason.what());
  } catch (...) {
    error = std::current_exception();
    group->abort("an exception of unknown type");
  }
}

}  // namespace

void run_ranks(int count, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body) {
  std::vector<std::shared_ptr<ProcessGroup>> groups = make_thread_groups(count);
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  // Each thread owns its handle: a rank that returns early leaves the group, and its peers raise instead of waiting.
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back(
        [&, rank, group = std::move(groups[rank])]() mutable { run_rank(std::move(group), body, errors[rank]); });
  for (std::thread& thread : threads) thread.join();

  for (const std::exception_ptr& error : errors)
    if (error && !is_from_peer(error)) std::rethrow_exception(error);
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace sherd::testing
