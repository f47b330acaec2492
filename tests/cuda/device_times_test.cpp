// When work of a device's queues ran and how long the device's compute waited for it. Oracles: work that is over before
// it is wanted, and work that the host holds back for a known time while compute waits.
#include "runtime/exec/device_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <future>

#include "runtime/exec/device_queue.h"
#include "runtime/exec/trace.h"
#include "runtime/exec/work_times.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/thread_state.h"

namespace sherd::testing {
namespace {

using TimesOfQueues = cuda::CudaTest;

constexpr auto kHeldBackFor = std::chrono::milliseconds(3);
constexpr std::int64_t kTimedFloats = 1000,
                       kClockSlack = 1'000'000;  // ns: how far the clocks of host and device may be apart

RankContext& rank_of_times() { return RankContext::current(); }

// Writes `to` by the queue "gather", behind what the host's queue "disk" holds back until `open` is set.
Event submit_behind(std::future<void> open, const Tensor& to, const std::shared_ptr<std::byte>& from,
                    DeviceQueue::Counts counts = {}) {
  auto& queue = static_cast<DeviceQueue&>(rank_of_times().queue("gather", kCuda));
  if (open.valid())
    queue.wait(rank_of_times().queue("disk").submit({.name = "hold", .run = [open = open.share()] { open.wait(); }}));
  const Loan loan{to.storage(), true};
  return queue.submit(
      {.name = "unshard",
       .subject = "blocks.3",
       .bytes = kTimedFloats * 4,
       .run = [&queue, from,
               at = to.storage()->address()] { queue.stream().to_device(at, from.get(), kTimedFloats * 4); },
       .loans = {&loan, 1}},
      std::move(counts));
}

std::shared_ptr<std::byte> zeros_on_host() {
  std::shared_ptr<std::byte> memory = rank_of_times().device(kCuda).pinned(kTimedFloats * 4);
  std::memset(memory.get(), 0, kTimedFloats * 4);
  return memory;
}

WorkTime time_of_unit() {
  for (const WorkTime& w : work_times())
    if (w.subject == "blocks.3") return w;
  return {};
}

TEST_F(TimesOfQueues, WorkThatIsOverWhenItIsWantedIsNotExposed) {
  const Tensor x = full({kTimedFloats}, 1.0, DType::f32, kCuda);
  const Event event = submit_behind({}, x, zeros_on_host());
  EXPECT_EQ(time_of_unit().calls, 1) << "as soon as it is submitted";
  while (!event.is_reached()) std::this_thread::yield();
  EXPECT_EQ(add(x, 1.0).to_vector<float>()[0], 1);
  const WorkTime time = time_of_unit();
  EXPECT_EQ(time.queue, "gather");
  EXPECT_EQ(time.name, "unshard");
  EXPECT_EQ(time.calls, 1);
  EXPECT_GT(time.seconds, 0);
  EXPECT_EQ(time.exposed, 0);
  EXPECT_EQ(rank_of_times().waited_seconds, 0);
}

TEST_F(TimesOfQueues, WorkThatComputeWaitsForIsExposedAndSeenInTraces) {
  const Tensor x = full({kTimedFloats}, 1.0, DType::f32, kCuda);
  Trace trace;
  const Trace::Recording recording(trace);
  std::promise<void> open;
  const auto shared = std::make_shared<SharedWork>();
  const std::int64_t before = Trace::now();
  submit_behind(open.get_future(), x, zeros_on_host(), {.shared = shared});
  const Event come = rank_of_times().queue(kComputeQueue, kCuda).record();
  const Tensor y = add(x, 1.0);  // waits
  while (!come.is_reached()) std::this_thread::yield();
  const std::int64_t held = Trace::now();
  stay_busy(kHeldBackFor);
  open.set_value();
  EXPECT_EQ(y.to_vector<float>()[0], 1);
  const std::int64_t after = Trace::now();
  EXPECT_EQ(time_of_unit().exposed, 0) << "no rank has said when it came";
  EXPECT_EQ(rank_of_times().waited_seconds, 0);
  EXPECT_EQ(rank_of_times().state<WorkTimes>().shared_seconds(), 0) << "it counts with its wait";

  shared->set_skew({held, held + 2'000'000});
  const WorkTime time = time_of_unit();
  EXPECT_GE(time.exposed, 0.003 - 1e-9 * kClockSlack);
  EXPECT_LE(time.exposed, 1e-9 * static_cast<double>(after - before + kClockSlack));
  EXPECT_EQ(rank_of_times().waited_seconds, time.exposed);
  EXPECT_LE(time.seconds, time.exposed) << "it began when the host let it";
  EXPECT_EQ(rank_of_times().state<WorkTimes>().shared_seconds(), time.exposed) << "no less than what was waited for it";
  EXPECT_NEAR(time.skew, 0.002, 1e-9 * kClockSlack);
  EXPECT_EQ(waited_skew_seconds(), time.skew);
  EXPECT_EQ(time_of_unit().skew, time.skew) << "counted once";

  const auto span_of = [&](SpanKind kind, std::string_view track) {
    return std::ranges::find_if(trace.spans(),
                                [&](const Span& s) { return s.kind == kind && trace.tracks()[s.track] == track; });
  };
  const Span* const work = span_of(SpanKind::work, "gather (cuda:0)");
  const Span* const wait = span_of(SpanKind::wait, "compute (cuda:0)");
  ASSERT_NE(work, trace.spans().end());
  ASSERT_NE(wait, trace.spans().end());
  EXPECT_EQ(work->name, "unshard");
  EXPECT_EQ(*work->detail, "blocks.3");
  EXPECT_EQ(work->bytes, kTimedFloats * 4);
  EXPECT_NE(work->flow, 0u);
  EXPECT_GE(work->start, held - kClockSlack);
  EXPECT_LE(work->start, work->end);
  EXPECT_LE(work->end, after + kClockSlack);
  EXPECT_EQ(*wait->detail, "gather unshard blocks.3");
  EXPECT_EQ(wait->end, work->end);
  EXPECT_NEAR(static_cast<double>(wait->end - wait->start) * 1e-9, time.exposed, 1e-12);
}

// Two waits one after the other, of which the second comes when the first has ended.
TEST_F(TimesOfQueues, WaitsAreCountedOnce) {
  const std::int64_t before = Trace::now();
  std::promise<void> open;
  const Tensor x = full({kTimedFloats}, 1.0, DType::f32, kCuda), y = full({kTimedFloats}, 1.0, DType::f32, kCuda);
  submit_behind(open.get_future(), x, zeros_on_host());
  submit_behind({}, y, zeros_on_host());
  const Tensor sum = add(y, 1.0), other = add(x, sum);  // waits for both, then for neither
  open.set_value();
  EXPECT_EQ(other.to_vector<float>()[0], 1);
  const WorkTime time = time_of_unit();
  EXPECT_EQ(time.calls, 2);
  EXPECT_LE(time.exposed, 1e-9 * static_cast<double>(Trace::now() - before));
  EXPECT_EQ(rank_of_times().waited_seconds, time.exposed);
}

TEST_F(TimesOfQueues, APartOfACallAddsItsTimeAlone) {
  const Tensor x = full({kTimedFloats}, 1.0, DType::f32, kCuda);
  submit_behind({}, x, zeros_on_host(), {.calls = 0});
  EXPECT_EQ(add(x, 1.0).to_vector<float>()[0], 1);
  EXPECT_EQ(time_of_unit().calls, 0);
  EXPECT_GT(time_of_unit().seconds, 0);
}

}  // namespace
}  // namespace sherd::testing
