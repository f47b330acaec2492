// A captured step on a device: one recording, started in one call per step. The oracle is the same step run op by op on
// the device, whose bits must be the same, and on the host.
#include "compile/run/device_replay.h"

#include <gtest/gtest.h>

#include "compile/compile.h"
#include "tests/compile/tiny_net.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

using DeviceReplayTest = cuda::CudaTest;
using Mode = CompiledStep::Mode;

const Device kCuda = Device::cuda(0);

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
  auto step = compile([&](const Tensor& x, const Tensor& y) { return captured.train(x, y); });
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
  auto step = compile([](const Tensor& x) { return x * x + x; });
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
  auto step = compile([&](const Tensor& x) {
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
  auto step = compile([&](const Tensor& x) {
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

TEST_F(DeviceReplayTest, AValueOfTheHostIsNamedAndTheStepStillRuns) {
  Slot scale("scale");
  scale.set(Tensor::scalar(2));
  auto step = compile([&](const Tensor& x) { return x * scale.value(); });
  const Tensor x = full({2}, 3, DType::f32, kCuda);
  for (int i = 0; i < 3; ++i) step(x);
  EXPECT_NE(step.why().find("slot \"scale\" is on cpu"), std::string::npos) << step.why();
  scale.assign(Tensor::scalar(5));
  EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{15, 15}));
}

TEST_F(DeviceReplayTest, OtherShapesAreOtherRecordings) {
  auto step = compile([](const Tensor& x) { return x + x; });
  for (int round = 0; round < 4; ++round)
    for (const std::int64_t size : {3, 4})
      EXPECT_EQ(step(full({size}, round, DType::f32, kCuda)).to_vector<float>(),
                std::vector<float>(static_cast<std::size_t>(size), 2.0f * static_cast<float>(round)));
  EXPECT_EQ(step.num_graphs(), 2u);
}

TEST_F(DeviceReplayTest, WithoutDeviceGraphsTheInterpreterRuns) {
  auto step = compile([](const Tensor& x) { return x + x; }, {.device_graphs = false});
  const Tensor x = full({3}, 1, DType::f32, kCuda);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{2, 2, 2}));
  EXPECT_EQ(step.why(), "replayed");
}

}  // namespace
}  // namespace sherd::testing
