// Every public function and method that takes a tensor, with one that is empty, released, of another device, mesh or
// rank's thread: eager, captured, and with a backward pass; on one rank, on threads and on processes. It gives a result
// or an Error; an empty tensor always gives an Error that says so, where it may not be left out. A fault ends the
// program.
#include "tests/calls/bench.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

void try_all(const std::shared_ptr<ProcessGroup>& group) {
  Bench bench(group);
  try_public_calls(bench);
  EXPECT_GT(bench.num_calls(), 1000);
}

TEST(PublicCalls, ATensorThatIsNotThereIsAnErrorOnOneRank) { run_ranks(1, try_all); }
TEST(PublicCalls, ATensorThatIsNotThereIsAnErrorOnThreads) { run_ranks(2, try_all); }
TEST(PublicCalls, ATensorThatIsNotThereIsAnErrorOnProcesses) { run_processes(2, try_all); }

}  // namespace
}  // namespace sherd::testing
