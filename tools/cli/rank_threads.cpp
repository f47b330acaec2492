#include "tools/cli/rank_threads.h"

#include <exception>
#include <thread>
#include <vector>

#include "runtime/comm/board/thread_group_options.h"
#include "runtime/comm/job/rank.h"
#include "runtime/comm/job/shared_picks.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr consequence;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const CommError&) {
      if (!consequence) consequence = error;
    }
  }
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace

void run_rank_threads(int ranks, const std::function<void(const std::shared_ptr<ProcessGroup>& group)>& body) {
  auto groups = make_thread_groups(ranks, {.say = say_on_stderr});
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  const Picks::Share share = share_among_threads();
  for (const std::size_t r : indices(groups))
    threads.emplace_back([&body, &errors, &share, r, group = std::move(groups[r])] {
      const RankScope scope;
      picks_of_rank().share_by(share);
      set_world_group(group);
      try {
        body(group);
      } catch (const std::exception& error) {
        group->abort(error.what());  // peers stop waiting at once and quote the reason
        errors[r] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  rethrow_first(errors);
}

}  // namespace sherd
