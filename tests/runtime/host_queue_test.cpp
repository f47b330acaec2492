// Queues: order, waiting by touching, borrowed memory, failures, ends. Work is held back by promises, never by time.
#include "runtime/exec/host_queue.h"
#include "runtime/exec/copy_queues.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <numeric>

#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/thread_state.h"

namespace sherd::testing {
namespace {

constexpr std::string_view kOne = "gather", kOther = "reduce";

Queue& queue(std::string_view name = kOne) { return RankContext::current().queue(name); }

Tensor buffer(std::int64_t elements = 4) { return zeros({elements}); }

float* address(const Tensor& t) { return reinterpret_cast<float*>(t.storage()->address()) + t.offset(); }

Event submit(Queue& to, std::vector<Loan> loans, std::function<void()> run, std::string_view subject = {}) {
  return to.submit({.name = "work", .subject = subject, .run = std::move(run), .loans = loans});
}

TEST(Queue, TouchingBytesWaitsForTheWorkThatWritesThem) {
  RankScope scope;
  Tensor x = buffer();
  Gate gate;
  submit(queue(), {{x.storage(), true}}, gate.then([p = address(x)] { p[3] = 7; }));
  gate.await_entered();
  EXPECT_TRUE(x.storage()->is_lent());
  auto opener = std::async(std::launch::async, [&] { gate.open(); });
  EXPECT_EQ(x.data<float>()[3], 7);
  EXPECT_FALSE(x.storage()->is_lent());
}

TEST(Queue, WaitsWithoutAnAddressEndTheSameLoans) {
  RankScope scope;
  const Tensor x = buffer();
  submit(queue(), {{x.storage(), true}}, [] {});
  submit(queue(kOther), {{x.storage(), false}}, [] {});
  x.storage()->wait_to_read();
  EXPECT_FALSE(x.storage()->is_lent_for_writing());
  EXPECT_TRUE(x.storage()->is_lent()) << "a reader does not wait for a reader";
  x.storage()->wait_to_write();
  EXPECT_FALSE(x.storage()->is_lent());
}

TEST(Queue, EveryWayToReadWaits) {
  RankScope scope;
  const auto written = [] {
    Tensor x = buffer();
    submit(queue(), {{x.storage(), true}}, [p = address(x)] { std::iota(p, p + 4, 1.F); });
    return x;
  };
  EXPECT_EQ(sum(written()).item<float>(), 10);                                // a kernel
  EXPECT_EQ(written().to_vector<float>(), (std::vector<float>{1, 2, 3, 4}));  // host copies
  EXPECT_EQ(narrow(written(), 0, 2, 1).item<float>(), 3);                     // a view's item
  EXPECT_NE(to_string(written()).find('4'), std::string::npos);               // printing
  Tensor target = buffer();
  copy_into(target, written(), true);
  EXPECT_EQ(target.to_vector<float>()[1], 2);  // a destination's input
  Tensor sum_target = written();
  copy_into(sum_target, full({4}, 1.0), true);
  EXPECT_EQ(sum_target.to_vector<float>()[1], 3);  // a destination that is added to
  Slot slot("w");
  slot.set(written());
  slot.assign(full({4}, 5.0));  // ordered after the work's write
  EXPECT_EQ(slot.value().to_vector<float>()[1], 5);
}

TEST(Queue, ViewsDoNotWaitAndBytesThatWorkReadsAreNotGivenAway) {
  RankScope scope;
  Tensor x = buffer();
  Gate gate;
  submit(queue(), {{x.storage(), true}}, gate.then([p = address(x)] { p[2] = 9; }));
  gate.await_entered();
  const Tensor view = narrow(x, 0, 2, 2);  // would never return if it waited
  EXPECT_TRUE(view.storage()->is_lent());
  gate.open();
  EXPECT_EQ(view.data<float>()[0], 9);

  Tensor y = full({4}, 6.0);
  const Storage* const bytes = y.storage().get();
  submit(queue(), {{y.storage(), false}}, [] {});
  const Tensor z = neg(std::move(y));
  EXPECT_NE(z.storage().get(), bytes);  // the queue holds it until this thread waits
}

TEST(Queue, WorkRunsOnceAndInOrderWhoeverRunsIt) {
  RankScope scope;
  std::vector<int> order;
  const Tensor x = buffer();
  for (int i = 0; i < 2000; ++i) {
    submit(queue(), {{x.storage(), true}}, [&order, i] { order.push_back(i); });
    if (i % 7 == 0 || i % 11 == 0) (void)x.raw();  // the rank's thread and the queue's race for the next item
  }
  (void)x.raw();
  std::vector<int> expected(2000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(Queue, WorkOnBytesOfAnotherQueueStartsAfterIt) {
  RankScope scope;
  const Tensor x = buffer(), y = buffer();
  Gate gate;
  submit(queue(kOne), {{x.storage(), true}}, gate.then([p = address(x)] { p[0] = 3; }));
  submit(queue(kOther), {{x.storage(), false}, {y.storage(), true}},
         [from = address(x), to = address(y)] { to[0] = from[0] + 1; });
  gate.open();
  EXPECT_EQ(y.data<float>()[0], 4);
}

// A checkpoint that is slow to read the parameters, as a save in the background does.
TEST(Queue, WorkThatReadsDelaysNoReaderAndEveryWriter) {
  RankScope scope;
  const Tensor w = full({4}, 2.0), m = buffer(), v = buffer(), grad = full({4}, 1.0), gathered = buffer();
  float saved = 0;
  Gate disk;
  submit(queue("disk"), {{w.storage(), false}}, disk.then([p = address(w), &saved] { saved = p[0]; }));
  disk.await_entered();
  // These calls would not return if they waited for it.
  submit(queue(kOne), {{w.storage(), false}, {gathered.storage(), true}},
         [from = address(w), to = address(gathered)] { std::copy_n(from, 4, to); });
  EXPECT_EQ(gathered.data<float>()[3], 2);
  EXPECT_EQ(power_sum(std::array{w}, 2).item<double>(), 16);
  EXPECT_TRUE(w.storage()->is_lent());
  auto opener = std::async(std::launch::async, [&disk, rank = ::gettid()] {
    await_sleep(rank);
    disk.open();
  });
  adamw_step(std::array{w}, std::array{m}, std::array{v}, std::array{grad}, full({}, 0.5), full({}, 1.0), full({}, 1.0),
             {.count = 1});
  opener.get();
  EXPECT_EQ(saved, 2) << "written while it was read";
  EXPECT_LT(w.data<float>()[0], 2);
  EXPECT_FALSE(w.storage()->is_lent());
}

TEST(Queue, DestinationsWaitForWhoReadsThem) {
  RankScope scope;
  const Tensor x = full({4}, 3.0);
  float seen = 0;
  Gate disk;
  submit(queue("disk"), {{x.storage(), false}}, disk.then([p = address(x), &seen] { seen = p[0]; }));
  disk.await_entered();
  auto opener = std::async(std::launch::async, [&disk, rank = ::gettid()] {
    await_sleep(rank);
    disk.open();
  });
  copy_into(x, add(x, full({4}, 1.0)));
  opener.get();
  EXPECT_EQ(seen, 3);
  EXPECT_EQ(x.data<float>()[0], 4);
}

// A thread that waits runs work that has not started, and inside of it waits for the work that this came after.
TEST(Queue, MemoryIsNotFreedInsideOfWorkThatAWaiterRuns) {
  RankScope scope;
  for (int repeat = 0; repeat < 500; ++repeat) {  // either thread may take the second item
    Tensor x = buffer();
    submit(queue("disk"), {{x.storage(), false}}, [] {});
    submit(queue(kOne), {{x.storage(), true}}, [] {});
    x = {};  // held by the first, lent to the second
    queue(kOne).drain();
  }
}

TEST(Queue, SkippedWorkIsOverAfterWhatItCameAfter) {
  RankScope scope;
  const Tensor x = buffer(), bad = buffer();
  bool has_written = false;
  Gate gate;
  submit(queue(kOne), {{x.storage(), true}}, gate.then([&] { has_written = true; }));
  gate.await_entered();
  submit(queue(kOther), {{bad.storage(), true}}, [] { fail("lost"); });
  const Event skipped = submit(queue(kOther), {{x.storage(), true}}, [] { FAIL() << "ran after a failure"; });
  auto opener = std::async(std::launch::async, [&gate, rank = ::gettid()] {
    await_sleep(rank);
    gate.open();
  });
  skipped.outlast();
  EXPECT_TRUE(has_written);
  opener.get();
  expect_error([&] { (void)bad.raw(); }, {"lost"});
}

// The items of a save: none may run after one has failed, even if the memory that it read is written meanwhile.
TEST(Queue, WritersDoNotForgiveWorkThatFailedToRead) {
  RankScope scope;
  const Tensor w = full({4}, 2.0);
  bool is_published = false;
  submit(queue("disk"), {{w.storage(), false}}, [] { fail("the disk is full"); });
  fill_into(w, 1);
  submit(queue("disk"), {}, [&] { is_published = true; });
  expect_error([&] { queue("disk").record().wait(); }, {"the disk is full"});
  EXPECT_FALSE(is_published);
}

TEST(Queue, WaitsForEventsOfOtherQueues) {
  RankScope scope;
  std::vector<std::string> order;  // by one queue after the other
  Gate first;
  submit(queue("disk"), {}, first.then([&] { order.push_back("disk"); }));
  const Event saved = queue("disk").record();
  queue(kOther).wait(saved);
  const Event reduced = submit(queue(kOther), {}, [&] { order.push_back("reduce"); });
  first.open();
  reduced.wait();
  EXPECT_EQ(order, (std::vector<std::string>{"disk", "reduce"}));
  EXPECT_TRUE(saved.is_reached());
  EXPECT_EQ(queue(kOther).index(), 1);
  EXPECT_EQ(&queue("disk"), &queue(std::string("di") + "sk"));
}

TEST(Queue, FinishedWorkHoldsItsMemoryUntilSomebodyWaits) {
  RankScope scope;
  const Accounting& memory = RankContext::current().allocator().accounting();
  Tensor result = buffer();
  const std::int64_t before = memory.total();
  {
    const Tensor input = buffer(1024);
    const Event event = submit(queue(), {{input.storage(), false}, {result.storage(), true}}, [] {});
    while (!event.is_reached()) std::this_thread::yield();
  }
  EXPECT_EQ(memory.total(), before + 4096);  // whenever the work ended
  (void)result.raw();
  EXPECT_EQ(memory.total(), before);
}

TEST(Queue, LimitOfItemsInFlightWaitsForTheOldest) {
  RankScope scope;
  for (std::size_t limit : {1, 2, 5}) {
    std::vector<Tensor> buffers;
    for (int i = 0; i < 12; ++i) {
      buffers.push_back(buffer());
      const Loan loan{buffers.back().storage(), true};
      queue().submit({.name = "work", .run = [] {}, .loans = {&loan, 1}, .max_in_flight = limit});
      EXPECT_EQ(dynamic_cast<HostQueue&>(queue()).num_in_flight(),
                std::min<std::size_t>(limit, static_cast<std::size_t>(i) + 1));
    }
    RankContext::current().drain_queues();
  }
}

// The writer fails between the submit and the first half, which would show peers what was never written.
TEST(Queue, WorkDoesNotBeginOnBytesWhoseWriterFailed) {
  RankScope scope;
  const Tensor x = buffer();
  Gate gate;
  const Event written = submit(queue("disk"), {{x.storage(), true}}, gate.then([] { fail("the disk is empty"); }));
  gate.await_entered();
  const auto second_half = [&] {  // runs inside of the next submit
    gate.open();
    while (!written.is_reached()) std::this_thread::yield();
  };
  queue().submit({.name = "first", .run = second_half, .begin = [] {}, .is_ready = [] { return true; }});
  bool has_begun = false, has_run = false;
  const Loan loan{x.storage(), false};
  const Event read = queue().submit({.name = "second",
                                     .run = [&] { has_run = true; },
                                     .loans = {&loan, 1},
                                     .begin = [&] { has_begun = true; },
                                     .is_ready = [] { return true; }});
  EXPECT_TRUE(written.is_reached());
  EXPECT_FALSE(has_begun);
  expect_error([&] { read.wait(); }, {"the disk is empty"});
  EXPECT_FALSE(has_run);
}

TEST(Queue, HalvesComeWithTheQuestionWhetherTheyAreReady) {
  RankScope scope;
  expect_error([] { queue().submit({.name = "half", .run = [] {}, .begin = [] {}}); },
               {"\"half\"", "only one of begin and is_ready"});
}

TEST(Queue, FreeingLentBytesWaits) {
  RankScope scope;
  Tensor x = buffer();
  float seen = 0;
  Gate gate;
  x.mutable_data<float>()[0] = 6;
  submit(queue(), {{x.storage(), false}}, gate.then([p = address(x), &seen] { seen = p[0]; }));
  gate.await_entered();
  auto opener = std::async(std::launch::async, [&] { gate.open(); });
  x.storage()->release_data();
  EXPECT_EQ(seen, 6);
}

TEST(Queue, ErrorsAreRaisedWhereTheResultIsTouched) {
  RankScope scope("rank 1 of 2");
  RankContext& context = RankContext::current();
  context.step = 12;
  context.module_path = context.intern("blocks.3");
  const Tensor bad = buffer(), skipped = buffer();
  bool has_run = false;
  Gate gate;
  submit(queue(), {{bad.storage(), true}}, gate.then([] { throw CommError("rank 0 has left"); }), "layer");
  submit(queue(), {{skipped.storage(), true}}, [&] { has_run = true; });
  context.module_path = nullptr;
  gate.open();
  for (int touch = 0; touch < 2; ++touch)  // its bytes stay wrong
    expect_error([&] { neg(bad); }, {"rank 0 has left", "gather work layer", "blocks.3", "rank 1 of 2", "step 12"});
  expect_error([&] { (void)skipped.raw(); }, {"rank 0 has left"});
  EXPECT_FALSE(has_run);
  EXPECT_THROW((void)bad.raw(), CommError);
  // The queue itself runs again.
  const Tensor good = buffer();
  submit(queue(), {{good.storage(), true}}, [p = address(good)] { p[0] = 1; });
  EXPECT_EQ(good.data<float>()[0], 1);
  expect_error([&] { submit(queue(), {{bad.storage(), true}}, [] {}); }, {"rank 0 has left"});
}

TEST(Queue, BytesThatFailedWorkOnlyReadAreAsTheyWere) {
  RankScope scope;
  const Tensor input = full({4}, 2.0), output = buffer();
  submit(queue(), {{input.storage(), false}, {output.storage(), true}}, [] { fail("half way"); });
  EXPECT_EQ(input.data<float>()[0], 2);
  submit(queue(kOther), {{input.storage(), false}}, [] {});
  expect_error([&] { (void)output.raw(); }, {"half way"});
}

TEST(Queue, DroppingAResultWaits) {
  RankScope scope;
  const Accounting& memory = RankContext::current().allocator().accounting();
  const std::int64_t before = memory.total();
  bool has_run = false;
  {
    const Tensor input = buffer(), output = buffer();
    submit(queue(), {{input.storage(), false}, {output.storage(), true}}, [&] { has_run = true; });
  }
  EXPECT_TRUE(has_run);
  EXPECT_EQ(memory.total(), before);
}

TEST(Queue, ErrorsReachWorkOfOtherQueues) {
  RankScope scope;
  const Tensor x = buffer(), y = buffer();
  Gate gate;
  submit(queue(kOne), {{x.storage(), true}}, gate.then([] { fail("no such peer"); }));
  submit(queue(kOther), {{x.storage(), false}, {y.storage(), true}}, [] { FAIL() << "ran on bytes that failed"; });
  gate.open();
  expect_error([&] { (void)y.raw(); }, {"no such peer", "gather work"});
}

// The bytes are read by other work before the rank's thread has asked for them.
TEST(Queue, ErrorsStayWithBytesThatAreHandedOn) {
  RankScope scope;
  for (const std::string_view next : {kOne, kOther}) {
    const Tensor x = buffer(), y = buffer(), z = buffer();
    Gate gate;
    submit(queue(kOne), {{x.storage(), true}}, gate.then([] { fail("no such peer"); }));
    submit(queue(next), {{x.storage(), false}, {y.storage(), true}}, [] { FAIL() << "ran on bytes that failed"; });
    submit(queue("collective"), {{x.storage(), false}, {z.storage(), true}},
           [] { FAIL() << "ran on bytes that failed"; });
    gate.open();
    for (const Tensor& bad : {x, x, y, z, x}) expect_error([&] { (void)bad.raw(); }, {"no such peer"});
  }
}

TEST(Queue, DroppedResultsDropTheirErrors) {
  RankScope scope;
  {
    const Tensor x = buffer();
    submit(queue(), {{x.storage(), true}}, [] { fail("nobody looks"); });
    queue().drain();
  }
  const Tensor y = buffer();
  submit(queue(), {{y.storage(), true}}, [p = address(y)] { p[0] = 2; });
  EXPECT_EQ(y.data<float>()[0], 2);
}

// A run of many steps, some of which fail, must not keep an error of each.
TEST(Queue, FailuresAreForgottenWithTheBytesThatKnowThem) {
  RankScope scope;
  const auto& host = static_cast<const HostQueue&>(queue());
  const auto fail_once = [](std::string_view reason) {
    const Tensor x = buffer();
    submit(queue(), {{x.storage(), true}}, [reason] { fail("no such peer: {}", reason); });
    expect_error([&] { (void)x.raw(); }, {reason});
  };
  for (int i = 0; i < 20; ++i) fail_once("first");
  EXPECT_LE(host.num_failures(), 1U);

  const Tensor kept = buffer();
  submit(queue(), {{kept.storage(), true}}, [] { fail("the one that is kept"); });
  expect_error([&] { (void)kept.raw(); }, {"the one that is kept"});
  for (int i = 0; i < 3; ++i) fail_once("later");
  EXPECT_GE(host.num_failures(), 3U);
  expect_error([&] { (void)kept.raw(); }, {"the one that is kept"});
}

TEST(Queue, OtherThreadsCannotSubmit) {
  RankScope scope;
  Queue& mine = queue();
  const Tensor x = buffer();
  std::async(std::launch::async, [&] {
    RankScope other;
    expect_error([&] { submit(mine, {}, [] {}); }, {"another rank"});
  }).get();
}

TEST(Queue, EndOfARankFinishesItsWork) {
  int runs = 0;
  Tensor survivor;
  {
    RankScope scope;
    survivor = buffer();
    for (int i = 0; i < 20; ++i)
      submit(queue(), {{survivor.storage(), true}},
             [&runs, p = address(survivor)] { p[0] = static_cast<float>(++runs); });
  }
  EXPECT_EQ(runs, 20);
  RankScope scope;
  EXPECT_EQ(survivor.data<float>()[0], 20);  // outlived its queue
}

TEST(Queue, RankThatEndsByAnExceptionAbortsItsWork) {
  std::promise<std::string> aborted;
  bool has_run = false;
  try {
    RankScope scope("rank 3 of 4");
    std::promise<void> entered;
    const auto wait_for_peers = [&] {
      entered.set_value();
      throw CommError(aborted.get_future().get());
    };
    const auto abort = [&](std::string_view reason) { aborted.set_value(std::string(reason)); };
    queue().submit({.name = "gather", .run = wait_for_peers, .loans = {}, .abort = abort});
    submit(queue(), {}, [&] { has_run = true; });
    entered.get_future().wait();
    fail("out of ideas");
  } catch (const Error& error) { EXPECT_EQ(error.message(), "out of ideas"); }
  EXPECT_FALSE(has_run);
}

TEST(Queue, WaitingTimeIsCountedOnce) {
  RankScope scope;
  const RankContext& context = RankContext::current();
  const Tensor x = buffer(), y = buffer();
  submit(queue(), {{x.storage(), true}}, [] {});
  queue().drain();
  const double before = context.waited_seconds;
  (void)x.raw();
  EXPECT_EQ(context.waited_seconds, before);  // it was there
  Gate gate;
  submit(queue(kOne), {{x.storage(), true}}, gate.then());
  gate.await_entered();
  submit(queue(kOther), {{x.storage(), false}, {y.storage(), true}}, [] {});
  const auto start = std::chrono::steady_clock::now();
  auto opener = std::async(std::launch::async, [&, waiter = ::gettid()] {
    await_sleep(waiter);
    gate.open();
  });
  (void)y.raw();  // waits for the reduction, inside of which it waits for the gather
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GT(context.waited_seconds, before);
  EXPECT_LE(context.waited_seconds - before, elapsed);
}

// Nobody else is waited for in these.
TEST(Queue, WaitsForCopiesAreNotCounted) {
  const RankScope scope;
  const Tensor x = buffer();
  for (const std::string_view name : kCopyQueues) {
    Gate gate;
    submit(queue(name), {{x.storage(), true}}, gate.then());
    gate.await_entered();
    auto opener = std::async(std::launch::async, [&, waiter = ::gettid()] {
      await_sleep(waiter);
      gate.open();
    });
    (void)x.raw();
  }
  EXPECT_EQ(RankContext::current().waited_seconds, 0);
}

std::int64_t nanoseconds_now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// An item that stands still for 2 ms for a rank that is late: `from` is when it was begun or, if later, when `waiter`
// was seen asleep.
class LateItem {
 public:
  explicit LateItem(pid_t waiter = 0) : waiter_(waiter) {}
  std::function<void()> run() {
    return [this] {
      skew.from = nanoseconds_now();
      has_begun = true;
      if (waiter_ != 0) await_sleep(waiter_);
      if (waits_from_then_on) skew.from = nanoseconds_now();
      stay_busy(std::chrono::milliseconds(2));
      skew.until = nanoseconds_now();
      note_skew(skew);
    };
  }
  void await_begun() const {
    while (!has_begun) std::this_thread::yield();
  }
  double seconds_since(std::int64_t from) const { return static_cast<double>(skew.until - from) * 1e-9; }

  Skew skew;
  bool waits_from_then_on = false;
  std::atomic<bool> has_begun = false;

 private:
  pid_t waiter_;
};

TEST(Queue, AWaitKnowsHowMuchOfItWasForALateRank) {
  RankScope scope;
  const RankContext& context = RankContext::current();
  const Tensor x = buffer();
  double skew = waited_skew_seconds(), waited = context.waited_seconds;
  const auto wait_for = [&](LateItem& item, bool until_done) {
    const Event event = submit(queue(), {{x.storage(), true}}, item.run());
    item.await_begun();  // so it is the queue's thread that runs it
    while (until_done && !event.is_reached()) std::this_thread::yield();
    const std::int64_t start = nanoseconds_now();
    (void)x.raw();
    return start;
  };
  const auto counted = [&] {
    EXPECT_LE(waited_skew_seconds() - skew, context.waited_seconds - waited);
    waited = context.waited_seconds;
    return waited_skew_seconds() - std::exchange(skew, waited_skew_seconds());
  };

  LateItem within(::gettid());
  within.waits_from_then_on = true;
  wait_for(within, false);
  EXPECT_NEAR(counted(), within.seconds_since(within.skew.from), 1e-12);

  LateItem before_and_within(::gettid());
  const std::int64_t start = wait_for(before_and_within, false);
  const double part = counted();
  EXPECT_GE(part, 0.002);
  EXPECT_LE(part, before_and_within.seconds_since(start));

  LateItem covered;
  wait_for(covered, true);
  EXPECT_EQ(counted(), 0) << "nobody waited";
}

TEST(Queue, ALateRankIsKnownThroughAnotherQueue) {
  RankScope scope;
  const Tensor x = buffer(), y = buffer();
  const double before = waited_skew_seconds();
  LateItem gather(::gettid());
  submit(queue(kOne), {{x.storage(), true}}, gather.run());
  gather.await_begun();
  submit(queue(kOther), {{x.storage(), false}, {y.storage(), true}}, [] {});
  const std::int64_t start = nanoseconds_now();
  (void)y.raw();  // waits for the reduction, inside of which it waits for the gather
  EXPECT_GT(waited_skew_seconds(), before);
  EXPECT_LE(waited_skew_seconds() - before, gather.seconds_since(start)) << "counted once";
}

}  // namespace
}  // namespace sherd::testing
