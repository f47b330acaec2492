// A captured step on a device: one recording, started in one call per step. The oracle is the same step run op by op on
// the device, whose bits must be the same, and on the host.
#include "compile/run/device_replay.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "compile/capture/capture.h"
#include "compile/compile.h"
#include "compile/passes/pass.h"
#include "nn/optim/sgd.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/os/settings.h"
#include "tests/compile/tiny_net.h"
#include "tests/cuda/cuda_test.h"
#include "tests/parallel/nets.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

using DeviceReplayTest = cuda::CudaTest;
using Mode = CompiledStep::Mode;

bool same_values(const Tensor& a, const Tensor& b) {
  return same_bits(to(a.local(), Device::cpu()), to(b.local(), Device::cpu()));
}

void expect_same_slots(const TinyNet& a, const TinyNet& b) {
  for (std::size_t i = 0; i < a.params.size(); ++i) {
    EXPECT_TRUE(same_values(a.params[i]->value(), b.params[i]->value())) << a.params[i]->name();
    EXPECT_TRUE(same_values(a.m[i]->value(), b.m[i]->value())) << a.m[i]->name();
    EXPECT_TRUE(same_values(a.v[i]->value(), b.v[i]->value())) << a.v[i]->name();
  }
  EXPECT_EQ(a.step.value().item<float>(), b.step.value().item<float>());
}

TEST_F(DeviceReplayTest, F181_TenTrainingStepsAreBitwiseTheEagerOnes) {
  TinyNet eager(kCuda), captured(kCuda), host;
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return captured.train(x, y); });
  for (int i = 0; i < 10; ++i) {
    eager.begin(i);
    captured.begin(i);
    host.begin(i);
    const Tensor x = to(TinyNet::x(i), kCuda), y = to(TinyNet::y(i), kCuda);
    const Tensor expected = eager.train(x, y), got = step(x, y);
    EXPECT_TRUE(same_values(got, expected)) << "step " << i;
    EXPECT_NEAR(got.item<float>(), host.train(TinyNet::x(i), TinyNet::y(i)).item<float>(), 1e-4);
    EXPECT_EQ(step.mode(), i == 0 ? Mode::eager : i == 1 ? Mode::record : Mode::replay) << step.why();
    if (i > 1) { EXPECT_NE(step.why().find("replayed by cuda:0 in one call"), std::string::npos) << step.why(); }
    expect_same_slots(captured, eager);
  }
}

TEST_F(DeviceReplayTest, ResultsStayWhenTheNextStepRuns) {
  auto step = compile_once([](const Tensor& x) { return x * x + x; });
  std::vector<Tensor> results;
  for (int i = 0; i < 6; ++i) results.push_back(step(full({5}, i, DType::f32, kCuda)));
  EXPECT_NE(step.why().find("in one call"), std::string::npos) << step.why();
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(results[static_cast<std::size_t>(i)].to_vector<float>(),
              std::vector<float>(5, static_cast<float>(i * i + i)));
}

TEST_F(DeviceReplayTest, ATensorThatSomebodyHoldsIsNotWrittenOver) {
  Slot counter("counter");
  counter.set(full({}, 0, DType::f32, kCuda));
  auto step = compile_once([&](const Tensor& x) {
    const GradMode off(false);
    counter.set(counter.value() + 1.0);
    return x + counter.value();
  });
  const Tensor x = full({2}, 10, DType::f32, kCuda);
  for (int i = 0; i < 3; ++i) step(x);
  const Tensor held = counter.value();
  EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{14, 14}));
  EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{15, 15}));
  EXPECT_EQ(held.item<float>(), 3.0f);
  EXPECT_EQ(counter.value().item<float>(), 5.0f);
}

TEST_F(DeviceReplayTest, GradientsLeftInSlotsAreThoseOfTheStep) {
  Slot w("w", true);
  w.set(full({3}, 2, DType::f32, kCuda));
  auto step = compile_once([&](const Tensor& x) {
    w.clear_grad();
    Tensor loss = sum(w.value() * x);
    backward(loss);
    return loss.detach();
  });
  for (int i = 0; i < 6; ++i) {
    step(full({3}, i, DType::f32, kCuda));
    ASSERT_TRUE(w.grad().defined());
    EXPECT_EQ(w.grad().to_vector<float>(), std::vector<float>(3, static_cast<float>(i))) << step.why();
  }
}

TEST_F(DeviceReplayTest, TornStateRefusesTheStep) {
  Net net(kTwoBlocks);
  net.materialize(nn::Seed{3}, kCuda);
  nn::Sgd optimizer(net.parameters(), {.lr = 0.1});
  auto step = compile_once([&](const Tensor& x) {
    const Tensor loss = sum(square(net(x)));
    backward(loss);
    optimizer.step_and_clear();
    return loss.detach();
  });
  const Tensor x = to(batch_of(4, 6, 0, "x"), kCuda);
  for (int i = 0; i < 3; ++i) step(x);
  ASSERT_NE(step.why().find("in one call"), std::string::npos) << step.why();
  nn::Parameter& weight = net.head.weight;
  const Tensor before = to(weight.value().detach(), Device::cpu());
  weight.mark_torn("a test");
  expect_error([&] { step(x); }, {"\"head.weight\" is torn: a test", "load a checkpoint"});
  EXPECT_TRUE(same_values(weight.value(), before));
  weight.assign(to(before, kCuda));
  step(x);
  EXPECT_FALSE(same_values(weight.value(), before));
}

// Sums that wait for a later pass are read by its reduction as one buffer.
TEST_F(DeviceReplayTest, GradientsOfAUnitThatWaitAreLeftInOneBuffer) {
  for (const DType full : {DType::f32, DType::bf16}) {
    const DeviceMesh mesh(make_single_group());
    const nn::UnitPolicy policy{.mp_policy = {.param_dtype = full, .reduce_dtype = DType::f32}};
    Net eager(kTwoBlocks), captured(kTwoBlocks);
    for (Net* net : {&eager, &captured}) {
      shard(*net, mesh, policy, policy);
      net->materialize(nn::Seed{3}, kCuda);
    }
    auto pass = compile_once([&](const Tensor& x) {
      const Tensor loss = sum(square(captured(x)));
      backward(loss);
      return loss.detach();
    });
    for (int update = 0; update < 5; ++update) {
      for (Net* net : {&eager, &captured}) nn::units(*net).set_requires_gradient_sync(false);
      for (std::uint64_t micro = 0; micro < 3; ++micro) {
        const Tensor x = to(batch_of(4, 6, micro, "x"), kCuda);
        backward(sum(square(eager(x))));
        pass(x);
      }
      for (Net* net : {&eager, &captured}) {
        nn::units(*net).set_requires_gradient_sync(true);
        nn::finalize_backward(*net).wait();
      }
      const auto mine = captured.parameters(), theirs = eager.parameters();
      for (std::size_t i = 0; i < mine.size(); ++i) {
        EXPECT_TRUE(same_values(mine[i]->grad(), theirs[i]->grad())) << mine[i]->name() << " of update " << update;
        mine[i]->clear_grad();
        theirs[i]->clear_grad();
      }
    }
    EXPECT_NE(pass.why().find("in one call"), std::string::npos) << pass.why();
  }
}

// ---- memory that units keep ----

/// A net in training whose parameters are gathered in bf16, hence in memory of their own.
struct InBf16 {
  Net net{kTwoBlocks};
  std::unique_ptr<nn::Sgd> optimizer;
  explicit InBf16(const DeviceMesh& mesh) {
    const nn::UnitPolicy policy{.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}};
    shard(net, mesh, policy, policy);
    net.materialize(nn::Seed{3}, kCuda);
    optimizer = std::make_unique<nn::Sgd>(net.parameters(), nn::Sgd::Options{.lr = 0.01});
  }
  Tensor step(const Tensor& x) {
    const Tensor loss = sum(square(net(x)));
    backward(loss);
    optimizer->step_and_clear();
    return loss.detach();
  }
};

/// A step beside the eager one; the device's recording of it is made when it first runs.
struct KeptMemory {
  DeviceMesh mesh{make_single_group()};
  InBf16 eager{mesh}, captured{mesh};
  const Tensor x = to(batch_of(4, 6, 0, "x"), kCuda);
  ir::Graph graph = record();
  Interpreter interpreter{graph};
  std::unique_ptr<DeviceReplay> replay;

  ir::Graph record() {
    for (int i = 0; i < 3; ++i) (void)eager.step(x);
    for (int i = 0; i < 2; ++i) (void)captured.step(x);
    Recorder recorder(std::span<const Tensor>(&x, 1));
    const std::vector<Tensor> results{captured.step(x)};
    ir::Graph recorded = recorder.finish(results);
    run_passes(recorded.program, ir::standard_passes());
    return recorded;
  }
  void keep(bool on) { nn::units(captured.net).set_keep_unsharded_storage(on); }
  void expect_step(int recordings) {
    ASSERT_TRUE(replay->fits_units());
    const Tensor expected = eager.step(x), got = replay->run(std::span<const Tensor>(&x, 1))[0];
    EXPECT_TRUE(same_values(got, expected));
    EXPECT_EQ(replay->num_recordings(), recordings);
  }
  /// Gathers, and says where the parameters of a unit were.
  std::pair<const std::byte*, std::int64_t> place_of(const nn::UnitHandle& unit) {
    unit.unshard();
    const Tensor gathered = unit.parameters()[0]->value().local();
    const std::pair place(static_cast<const std::byte*>(gathered.storage()->address()), gathered.storage()->bytes());
    unit.reshard();
    return place;
  }
};

/// Fresh tensors of ones, of as many bytes, until one lies where these do.
std::vector<Tensor> ones_over(const std::byte* address, std::int64_t bytes) {
  const std::size_t most = requested_device_memory() == "separate" ? 1 : 10'000;  // there each is mapped alone
  std::vector<Tensor> all;
  const auto lies_there = [&](const Tensor& t) {
    return t.storage()->address() < address + bytes && address < t.storage()->address() + t.storage()->bytes();
  };
  while (all.size() < most && (all.empty() || !lies_there(all.back())))
    all.push_back(full({bytes / 4}, 1, DType::f32, kCuda));
  EXPECT_TRUE(most == 1 || lies_there(all.back()));
  return all;
}

TEST_F(DeviceReplayTest, F187_MemoryThatIsNoLongerKeptIsNotWritten) {
  KeptMemory run;
  ASSERT_EQ(device_obstacle(run.graph), "");
  run.keep(true);
  const nn::UnitHandle unit = nn::unit_of(*run.captured.net.blocks.items()[1]);
  const auto [address, bytes] = run.place_of(unit);
  run.replay = std::make_unique<DeviceReplay>(run.graph, run.interpreter);
  for (int i = 0; i < 3; ++i) run.expect_step(1);
  EXPECT_EQ(run.place_of(unit).first, address) << "the recording has the memory that is kept";
  run.expect_step(1);

  run.keep(false);
  const std::vector<Tensor> others = ones_over(address, bytes);
  for (int i = 0; i < 3; ++i) run.expect_step(2);
  const Tensor expected = full({bytes / 4}, 1);
  for (const Tensor& other : others) ASSERT_TRUE(same_values(other, expected));

  // Now the recording has memory of its own, whatever is kept beside it.
  run.keep(true);
  run.expect_step(2);
  EXPECT_NE(run.place_of(unit).first, nullptr);
  run.expect_step(2);
  run.keep(false);
  run.expect_step(2);
  for (const Tensor& other : others) ASSERT_TRUE(same_values(other, expected));
}

// It is not the recording's, though the recording is the first that gathers.
TEST_F(DeviceReplayTest, F187_MemoryThatIsKeptFromARecordingOnOutlastsIt) {
  KeptMemory run;
  run.keep(true);
  run.replay = std::make_unique<DeviceReplay>(run.graph, run.interpreter);
  for (int i = 0; i < 2; ++i) run.expect_step(1);
  const nn::UnitHandle unit = nn::unit_of(*run.captured.net.blocks.items()[1]);
  const auto [address, bytes] = run.place_of(unit);
  run.keep(false);
  run.keep(true);
  const std::vector<Tensor> others = ones_over(address, bytes);
  for (int i = 0; i < 2; ++i) run.expect_step(2);
  const std::byte* const kept = run.place_of(unit).first;
  run.replay.reset();
  run.replay = std::make_unique<DeviceReplay>(run.graph, run.interpreter);
  for (int i = 0; i < 2; ++i) run.expect_step(1);
  EXPECT_EQ(run.place_of(unit).first, kept) << "still there when its first recording is gone";
  const Tensor expected = full({bytes / 4}, 1);
  for (const Tensor& other : others) ASSERT_TRUE(same_values(other, expected));
}

TEST_F(DeviceReplayTest, AValueOfTheHostIsNamedAndTheStepStillRuns) {
  Slot scale("scale");
  scale.set(Tensor::scalar(2));
  auto step = compile_once([&](const Tensor& x) { return x * scale.value(); });
  const Tensor x = full({2}, 3, DType::f32, kCuda);
  for (int i = 0; i < 3; ++i) step(x);
  EXPECT_NE(step.why().find("slot \"scale\" is on cpu"), std::string::npos) << step.why();
  scale.assign(Tensor::scalar(5));
  EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{15, 15}));
}

TEST_F(DeviceReplayTest, OtherShapesAreOtherRecordings) {
  auto step = compile_once([](const Tensor& x) { return x + x; });
  for (int round = 0; round < 4; ++round)
    for (const std::int64_t size : {3, 4})
      EXPECT_EQ(step(full({size}, round, DType::f32, kCuda)).to_vector<float>(),
                std::vector<float>(static_cast<std::size_t>(size), 2.0f * static_cast<float>(round)));
  EXPECT_EQ(step.num_graphs(), 2u);
}

// What a recording keeps can be had by whoever else asks; then it is recorded again.
TEST_F(DeviceReplayTest, MemoryOfARecordingGoesBeforeAnAllocationIsRefused) {
  constexpr std::int64_t kElements = 1 << 16;
  auto step = compile_once([](const Tensor& x) { return sum(exp(x * x) + x); });
  const Tensor x = full({kElements}, 0.5, DType::f32, kCuda);
  for (int i = 0; i < 3; ++i) step(x);
  ASSERT_NE(step.why().find("in one call"), std::string::npos) << step.why();
  const float expected = step(x).item<float>();

  Allocator& memory = RankContext::current().device(kCuda).allocator();
  const std::int64_t used = memory.accounting().total();
  memory.set_limit(used + 1024);
  for (int i = 0; i < 2; ++i) {
    const Tensor other = full({kElements}, 1, DType::f32, kCuda);
    EXPECT_LT(memory.accounting().total(), used + 1024);
  }
  EXPECT_THROW(full({8 * kElements}, 1, DType::f32, kCuda), OutOfMemory);
  EXPECT_EQ(step(x).item<float>(), expected);
  EXPECT_NE(step.why().find("in one call"), std::string::npos) << step.why();
  memory.set_limit(0);
}

TEST_F(DeviceReplayTest, WithoutDeviceGraphsTheInterpreterRuns) {
  auto step = compile_once([](const Tensor& x) { return x + x; }, {.device_graphs = false});
  const Tensor x = full({3}, 1, DType::f32, kCuda);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{2, 2, 2}));
  EXPECT_EQ(step.why(), "replayed");
}

}  // namespace
}  // namespace sherd::testing
