// What the tape keeps, outside of memory. Oracles: the same pass with all in memory, bit for bit; and its bytes by the
// sizes of the tensors.
#include "runtime/autograd/offload_saved.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/segment.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/exec/hazards.h"
#include "runtime/exec/trace.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/near.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

constexpr std::int64_t kRows = 64, kColumns = 32, kUnit = kRows * kColumns * 4;  // 8 KiB
constexpr int kLinks = 12, kMoved = kLinks - 1;

/// x -> sin -> sin ...: each saves what it takes, of kUnit bytes, the first one a parameter.
Tensor chain(const Tensor& x) {
  Tensor y = x;
  for (int i = 0; i < kLinks; ++i) y = sin(y);
  return y;
}

class OffloadSavedTest : public ::testing::Test {
 protected:
  void SetUp() override { account().set_poison(true); }
  void TearDown() override {
    RankContext::current().drain_queues();
    account().set_poison(false);
  }
  static Allocator& account() { return RankContext::current().allocator(); }
  static std::int64_t activations() { return account().accounting().current(MemoryCategory::activations); }
  OffloadSavedOptions options(std::int64_t units) const {
    return {.folder = dir_.path(), .bytes_in_flight = units * kUnit, .least_bytes = 4096};
  }

  /// A parameter.
  static void set(Slot& slot, double value) {
    slot.set(Tensor::empty({kRows, kColumns}, DType::f32, Device::cpu(), MemoryCategory::parameters));
    copy_into(slot.value().detach(), full({kRows, kColumns}, value));
  }

  struct Pass {
    Tensor gradient{};
    std::int64_t kept = 0, peak = 0;  // bytes of activations: between the passes, and at most
    int copies = 0, fetches = 0;
    int evictions() const { return copies - fetches; }
  };
  /// Forward by `f` within a scope, then backward.
  static Pass run(const std::function<Tensor(const Tensor&)>& f, SavedPolicy* policy) {
    Pass result;
    Slot x("x", true);
    set(x, 0.5);
    account().accounting().reset_peaks();
    const std::int64_t before = activations();
    Trace trace(10'000);
    {
      const Trace::Recording recording(trace);
      std::optional<SavedPolicy::Scope> scope;
      if (policy) scope.emplace(*policy);
      Tensor y = f(x.value());
      scope.reset();
      Tensor loss = sum(y);
      y = Tensor();
      result.kept = activations() - before;
      backward(loss);
    }
    for (const Span& span : trace.spans()) {
      if (span.kind != SpanKind::op) continue;
      result.copies += span.name == op::copy_start.name;
      result.fetches += span.name == op::buffer.name;  // evictions need none
    }
    result.peak = account().accounting().peak(MemoryCategory::activations) - before;
    result.gradient = x.grad();
    return result;
  }

  const RankScope rank_;
  const TempDir dir_;
};

TEST_F(OffloadSavedTest, GradientsHaveTheBitsOfMemoryAndMemoryHoldsWhatIsInFlight) {
  const Pass held = run(chain, nullptr);
  EXPECT_EQ(held.kept, kMoved * kUnit + 4) << "and the loss";
  for (const std::int64_t units : {2, 4, 8}) {
    OffloadSaved saved(options(units));
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE(fmt::format("{} units in flight, step {}", units, step));
      const Pass pass = run(chain, &saved);
      EXPECT_TRUE(same_bits(pass.gradient, held.gradient));
      EXPECT_EQ(held.kept - pass.kept, (kMoved - units) * kUnit);
      EXPECT_EQ(pass.evictions(), kMoved - units / 2);
      EXPECT_EQ(pass.fetches, pass.evictions());
      EXPECT_LE(pass.peak, (units + 3) * kUnit + 4) << "a gradient, its successor and what is read beside them";
      EXPECT_EQ(saved.home_bytes(), (kMoved - units / 2) * kUnit) << "homes are used again";
    }
    RankContext::current().drain_queues();
  }
}

TEST_F(OffloadSavedTest, EnoughRoomMovesNothing) {
  OffloadSaved saved(options(2 * kMoved));
  const Pass pass = run(chain, &saved);
  EXPECT_EQ(pass.evictions(), 0);
  EXPECT_EQ(saved.home_bytes(), 0);
}

// Two of the 4 units in flight are of what was saved last; backward reads these while the ones before come.
TEST_F(OffloadSavedTest, FetchesComeAheadOfTheirUse) {
  OffloadSaved saved(options(4));
  Slot x("x", true);
  set(x, 0.5);
  Tensor loss;
  {
    const SavedPolicy::Scope scope(saved);
    loss = sum(chain(x.value()));
  }
  Trace trace(10'000);
  {
    const Trace::Recording recording(trace);
    backward(loss);
  }
  int fetched = 0, used = 0;
  for (const Span& span : trace.spans()) {
    if (span.kind != SpanKind::op) continue;
    fetched += span.name == op::copy_start.name;
    if (span.name != op::cos.name) continue;  // the vjp of sin
    ++used;
    EXPECT_EQ(fetched, std::min(kMoved - 2, used)) << "when link " << kLinks - used << " has its turn";
  }
  EXPECT_EQ(used, kLinks);
}

TEST_F(OffloadSavedTest, WhatSeveralCallsSaveOfAStorageMovesOnce) {
  const auto f = [](const Tensor& x) {
    Tensor y = sin(x);
    Tensor z = mul(narrow(y, 0, 0, 32), narrow(y, 0, 32, 32));  // views of one storage
    z = add(mul(z, z), sum(transpose(y, 0, 1)));
    return add(z, narrow(chain(x), 0, 0, 32));
  };
  const Pass held = run(f, nullptr);
  OffloadSaved saved(options(2));
  const Pass pass = run(f, &saved);
  EXPECT_TRUE(same_bits(pass.gradient, held.gradient));
  EXPECT_EQ(pass.fetches, pass.evictions());
}

TEST_F(OffloadSavedTest, ParametersSmallOnesAndMemoryOfOthersStay) {
  Slot w("w", true);
  set(w, 0.25);
  std::vector<float> memory(kRows * kColumns, 2);
  const Tensor mapped =
      Tensor::make_dense(Storage::borrow(memory.data(), kUnit, {}), {kRows, kColumns}, DType::f32, Device::cpu());
  OffloadSaved saved(options(2));
  const auto f = [&](const Tensor& x) {
    const Tensor view = narrow(w.value(), 0, 0, 16);
    Tensor small = narrow(x, 0, 0, 16);       // of a large one
    small = mul(mul(sin(small), view), 2.0);  // 2 KiB
    return add(sum(mul(mapped, w.value())), sum(mul(small, small)));
  };
  EXPECT_EQ(run(f, &saved).evictions(), 0);
}

TEST_F(OffloadSavedTest, ASegmentKeepsItsInputAndThatLeaves) {
  struct Nothing final : SegmentPolicy {
    Saves saves(const Op&) const override { return Saves::nothing; }
  } nothing;
  const auto f = [&](const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 6; ++i) {
      const SegmentScope scope(nothing);
      y = chain(y);
    }
    return y;
  };
  const Pass held = run(f, nullptr);
  OffloadSaved saved(options(2));
  const Pass pass = run(f, &saved);
  EXPECT_TRUE(same_bits(pass.gradient, held.gradient));
  EXPECT_EQ(pass.evictions(), 5 - 1) << "the first one takes the parameter";
  EXPECT_EQ(held.kept - pass.kept, (5 - 2) * kUnit);
}

TEST_F(OffloadSavedTest, TapesThatNobodyRunsAndThoseThatRunTwice) {
  OffloadSaved saved(options(2));
  const std::int64_t before = activations();
  Slot x("x", true);
  set(x, 0.5);
  const auto forward = [&] {
    const SavedPolicy::Scope scope(saved);
    return sum(chain(x.value()));
  };
  forward();
  RankContext::current().drain_queues();
  EXPECT_EQ(activations(), before) << "a tape that nobody runs";
  EXPECT_EQ(saved.home_bytes(), (kMoved - 1) * kUnit);
  const Tensor first = forward(), second = forward();  // two at a time, the older one first
  const std::int64_t homes = saved.home_bytes();
  EXPECT_EQ(homes, (2 * kMoved - 1) * kUnit) << "what the first saved last has left for the second";
  backward(first);
  const Tensor gradient = add(x.grad(), 0.0);
  backward(second, {.retain_graph = true});
  EXPECT_TRUE(same_bits(x.grad(), mul(gradient, 2.0)));
  backward(second);
  EXPECT_NEAR(x.grad().to_vector<float>()[0], 3 * gradient.to_vector<float>()[0], 1e-5);
  forward();
  EXPECT_EQ(saved.home_bytes(), homes);
}

TEST_F(OffloadSavedTest, ATapeOutlivesThePolicy) {
  const Pass held = run(chain, nullptr);
  auto saved = std::make_unique<OffloadSaved>(options(2));
  Slot x("x", true);
  set(x, 0.5);
  Tensor loss;
  {
    const SavedPolicy::Scope scope(*saved);
    loss = sum(chain(x.value()));
  }
  saved.reset();
  backward(loss);
  EXPECT_TRUE(same_bits(x.grad(), held.gradient));
}

TEST_F(OffloadSavedTest, NoAccessIsUnordered) {
  OffloadSaved saved(options(4));
  const HazardChecker checker;
  for (int step = 0; step < 3; ++step) run(chain, &saved);
}

// In memory, as ever, a write is an Error; of what has left a copy was saved.
TEST_F(OffloadSavedTest, AWriteInBetweenIsAnErrorOrChangesNothing) {
  OffloadSaved saved(options(2));
  Slot x("x", true);
  set(x, 0.5);
  Tensor y, loss;
  {
    const SavedPolicy::Scope scope(saved);
    y = mul(x.value(), 3.0);
    loss = sum(sin(y));
  }
  copy_into(y.detach(), zeros({kRows, kColumns}));
  expect_error([&] { backward(loss); }, {"was saved for backward and has been written since"});
}

// Written while it was among the youngest, which would leave next: its turn to leave does not make the new values good.
TEST_F(OffloadSavedTest, WhatIsWrittenBeforeItLeavesIsAnErrorToo) {
  OffloadSaved saved(options(2));
  Slot x("x", true);
  set(x, 0.5);
  Tensor loss;
  {
    const SavedPolicy::Scope scope(saved);
    Tensor y = mul(x.value(), 3.0);
    Tensor z = sin(y);
    copy_into(y.detach(), zeros({kRows, kColumns}));
    for (int i = 0; i < 3; ++i) z = sin(z);
    loss = sum(z);
  }
  EXPECT_GT(saved.home_bytes(), 0) << "others have left";
  expect_error([&] { backward(loss); }, {"was saved for backward and has been written since"});
}

TEST_F(OffloadSavedTest, AWriteThatFailsIsTheErrorOfBackwardAndTheNextPassIsWhole) {
  const Pass held = run(chain, nullptr);
  OffloadSaved saved(options(2));
  run(chain, &saved);
  {
    const FileSizeLimit limit(64);
    expect_error([&] { run(chain, &saved); }, {"cannot write", dir_.path()});
    RankContext::current().drain_queues();
  }
  EXPECT_TRUE(same_bits(run(chain, &saved).gradient, held.gradient));
}

TEST_F(OffloadSavedTest, GhostsHoldWhatRanksHold) {
  OffloadSaved saved(options(4));
  Pass real = run(chain, &saved), ghost;
  {
    const RankScope scope("a ghost", {.ghost = true});
    OffloadSaved there(options(4));
    ghost = run(chain, &there);
    RankContext::current().drain_queues();
  }
  EXPECT_EQ(ghost.kept, real.kept);
  EXPECT_EQ(ghost.peak, real.peak);
}

TEST_F(OffloadSavedTest, RefusalsNameWhatIsWrong) {
  expect_error([&] { OffloadSaved({.folder = dir_ / "missing"}); }, {"is not a folder", "missing"});
  expect_error([&] { OffloadSaved({.folder = dir_.path(), .bytes_in_flight = 100, .least_bytes = 64}); },
               {"100 bytes of activations in flight", "give at least 128"});
  OffloadSaved nowhere({.least_bytes = 4096});
  expect_error([&] { run(chain, &nowhere); }, {"goes to a file: name a folder"});
}

}  // namespace
}  // namespace sherd::testing
