// What work of queues takes, and what of that the rank has waited for. Oracles: work that is over before it is wanted,
// and work that is known to have been waited for.
#include "runtime/exec/work_times.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/op/core/tensor.h"
#include "tests/support/thread_state.h"

namespace sherd::testing {
namespace {

constexpr auto kBusy = std::chrono::milliseconds(2);

Tensor buffer() { return Tensor::empty({4}, DType::f32); }

Event submit(const Tensor& writes, std::string_view subject, std::function<void()> run) {
  const Loan loan{writes.storage(), true};
  return RankContext::current().queue("work").submit(
      {.name = "test", .subject = subject, .run = std::move(run), .loans = {&loan, 1}});
}

TEST(WorkTimes, WorkThatIsOverWhenItIsWantedIsNotExposed) {
  const RankScope scope;
  const Tensor x = buffer();
  const Event event = submit(x, "blocks.3", [] { stay_busy(kBusy); });
  while (!event.is_reached()) std::this_thread::yield();
  EXPECT_TRUE(work_times().empty()) << "nobody has waited for it";
  (void)x.raw();
  ASSERT_EQ(work_times().size(), 1u);
  const WorkTime time = work_times()[0];
  EXPECT_EQ(time.queue, "work");
  EXPECT_EQ(time.name, "test");
  EXPECT_EQ(time.subject, "blocks.3");
  EXPECT_EQ(time.calls, 1);
  EXPECT_GE(time.seconds, 0.002);
  EXPECT_EQ(time.exposed, 0);
}

TEST(WorkTimes, WorkThatIsWaitedForIsExposedAndKnowsItsSkew) {
  const RankScope scope;
  const RankContext& context = RankContext::current();
  const Tensor x = buffer(), y = buffer();
  const auto waiter = static_cast<pid_t>(::gettid());
  std::atomic<bool> has_begun = false;
  Skew skew;
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); };
  submit(y, "before", [] {});
  submit(x, "late", [&] {
    has_begun = true;
    await_sleep(waiter);
    skew.from = now();
    stay_busy(kBusy);
    skew.until = now();
    note_skew(skew);
  });
  while (!has_begun) std::this_thread::yield();  // so the queue's thread runs it
  const double before = context.waited_seconds;
  (void)x.raw();
  double exposed = 0;
  for (const WorkTime& w : work_times()) {
    exposed += w.exposed;
    EXPECT_EQ(w.calls, 1);
    if (w.subject == "before") EXPECT_EQ(w.exposed, 0);
    else EXPECT_NEAR(w.skew, static_cast<double>(skew.until - skew.from) * 1e-9, 1e-12);
  }
  EXPECT_GE(exposed, 0.002);
  EXPECT_LE(exposed, context.waited_seconds - before);
}

TEST(WorkTimes, AGhostHasNone) {
  const RankScope scope("ghost", {.ghost = true});
  const Tensor x = buffer();
  submit(x, "blocks.3", [] {});
  RankContext::current().drain_queues();
  EXPECT_TRUE(work_times().empty());
}

}  // namespace
}  // namespace sherd::testing
