// Loss scaling on one rank and in a checkpoint. Oracles: scales written out by hand, by the rule of PyTorch's
// GradScaler; the same training without a scaler, without the steps that are skipped: the same bits.
#include "nn/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include "nn/checkpoint/training_state.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::nn {
namespace {

using testing::expect_error;
using testing::run_ranks;
using testing::same_bits;
using Group = std::shared_ptr<ProcessGroup>;
using Vector = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::unique_ptr<Parameter> parameter(const std::string& name, const Vector& values) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  auto p = std::make_unique<Parameter>(name, shape, Init::zeros(), DType::f32);
  p->set(Tensor::from<float>(std::vector<float>(values.begin(), values.end()), shape));
  return p;
}

void give_gradient(Parameter& p, const Vector& values) {
  p.set_grad(Tensor::from<float>(std::vector<float>(values.begin(), values.end()), p.shape()));
}

/// The scale after each step of `script`, where x is a step whose gradient is not finite.
Vector scales_of(const std::string& script, const LossScaler::Options& options) {
  auto p = parameter("w", {1});
  Sgd optimizer({p.get()}, {.lr = 0.1});
  LossScaler scaler(options);
  Vector scales;
  for (const char step : script) {
    give_gradient(*p, {step == 'x' ? kInfinity : 1});
    scaler.unscale(optimizer);
    optimizer.step_and_clear();
    scaler.update();
    scales.push_back(scaler.current_scale().item<double>());
  }
  EXPECT_EQ(scaler.skipped_steps().item<double>(), std::count(script.begin(), script.end(), 'x'));
  return scales;
}

TEST(LossScaler, TheScaleFollowsTheScript) {
  EXPECT_EQ(scales_of("..xx.xx....", {.init_scale = 4, .growth_interval = 2}),
            (Vector{4, 8, 4, 2, 2, 1, 1, 1, 2, 2, 4}));
  EXPECT_EQ(scales_of("...x..x...", {.init_scale = 65536, .growth_interval = 3}),
            (Vector{65536, 65536, 131072, 65536, 65536, 65536, 32768, 32768, 32768, 65536}));
  EXPECT_EQ(scales_of(".x.x", {.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.125, .growth_interval = 1}),
            (Vector{32, 4, 16, 2}));
  EXPECT_EQ(scales_of("xx.", {.init_scale = 1, .growth_interval = 1, .min_scale = 0.375}), (Vector{0.5, 0.375, 0.75}));
  EXPECT_EQ(scales_of("..x.", LossScaler::Options::fixed(1000)), Vector(4, 1000));
  // A scale that would overflow stays.
  const double top = std::ldexp(1, 127);
  EXPECT_EQ(scales_of("..x..", {.init_scale = top, .growth_interval = 1}), (Vector{top, top, top / 2, top, top}));
}

TEST(LossScaler, TheDefaultsAreThoseOfPyTorch) {
  const LossScaler scaler;
  EXPECT_EQ(scaler.current_scale().item<double>(), 65536);
  EXPECT_EQ(scaler.options().growth_interval, 2000);
  EXPECT_EQ(scales_of(std::string(1999, '.'), {}).back(), 65536);
  EXPECT_EQ(scales_of(std::string(2000, '.'), {}).back(), 131072);
}

struct Trained {
  std::unique_ptr<Parameter> a = parameter("a", {1, -2, 3}), late = parameter("late", {0.5, 4});
  std::unique_ptr<Optimizer> optimizer;

  explicit Trained(bool adam) {
    if (adam) optimizer = std::make_unique<AdamW>(std::vector{a.get(), late.get()}, AdamW::Options{.lr = 0.1});
    else optimizer = std::make_unique<Sgd>(std::vector{a.get(), late.get()}, Sgd::Options{.lr = 0.1, .momentum = 0.9});
  }
  void give(int step, double scale, double bad = 0) {
    const double s = step;
    give_gradient(*a, {scale * (0.3 + s), scale * (-1 + s) + bad, scale * 0.01});
    if (step >= 2) give_gradient(*late, {scale * 2, scale * (0.1 - s)});  // a count of its own
  }
  /// All that a step may change.
  std::vector<Tensor> everything() {
    std::vector<Tensor> all{a->value().detach(), late->value().detach(), optimizer->step_slot().value()};
    for (const OptimizerState& s : optimizer->state()) all.push_back(s.slot->value());
    for (const OptimizerState& s : optimizer->counts()) all.push_back(s.slot->value());
    for (Tensor& t : all) t = add(t, 0);
    return all;
  }
};

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << what << ", tensor " << i;
}

TEST(LossScaler, ASkippedStepChangesNothingAndOthersAreThoseWithoutAScaler) {
  for (const bool adam : {true, false})
    for (const double max_norm : {kInfinity, 0.5}) {
      Trained scaled(adam), plain(adam);
      LossScaler scaler({.init_scale = 1024, .growth_interval = 2});
      for (int step = 0; step < 6; ++step) {
        for (const double bad : {std::nan(""), kInfinity, -kInfinity}) {
          if (step % 2 == 0) continue;
          const std::vector<Tensor> before = scaled.everything();
          scaled.give(step, scaler.current_scale().item<double>(), bad);
          EXPECT_FALSE(std::isfinite(scaler.unscale(*scaled.optimizer, max_norm).item<double>()));
          scaled.optimizer->step_and_clear();
          scaler.update();
          expect_same(scaled.everything(), before, fmt::format("skipped in step {}", step));
        }
        scaled.give(step, scaler.current_scale().item<double>());
        plain.give(step, 1);
        const Tensor norm = scaler.unscale(*scaled.optimizer, max_norm);
        EXPECT_TRUE(same_bits(norm, clip_grad_norm(*plain.optimizer, max_norm)));
        scaled.optimizer->step_and_clear();
        plain.optimizer->step_and_clear();
        scaler.update();
        expect_same(scaled.everything(), plain.everything(), fmt::format("step {}", step));
      }
      EXPECT_EQ(scaled.optimizer->step_slot().value().item<double>(), 6);
      EXPECT_EQ(scaler.skipped_steps().item<double>(), 9);
    }
}

TEST(LossScaler, EachOptimizerSkipsForItselfAndOneIsEnoughToBackOff) {
  auto good = parameter("good", {1}), bad = parameter("bad", {1});
  Sgd first({good.get()}, {.lr = 1}), second({bad.get()}, {.lr = 1});
  for (const bool bad_first : {false, true}) {
    LossScaler scaler({.init_scale = 8});
    give_gradient(*good, {8});
    give_gradient(*bad, {kInfinity});
    const double before = good->value().item<double>();
    for (Optimizer* optimizer :
         bad_first ? std::vector<Optimizer*>{&second, &first} : std::vector<Optimizer*>{&first, &second})
      scaler.unscale(*optimizer);
    first.step_and_clear();
    second.step_and_clear();
    scaler.update();
    EXPECT_EQ(good->value().item<double>(), before - 1);
    EXPECT_EQ(bad->value().item<double>(), 1);
    EXPECT_EQ(scaler.current_scale().item<double>(), 4);
    scaler.update();  // nothing bad since
    EXPECT_EQ(scaler.current_scale().item<double>(), 4);
  }
}

TEST(LossScaler, TheScaledLossIsAtLeastF32) {
  LossScaler scaler({.init_scale = 65536});
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    Slot x("x", true);
    x.set(full({}, 3, dtype));
    const Tensor scaled = scaler.scale(mul(x.value(), 0.5));
    EXPECT_EQ(scaled.dtype(), dtype == DType::f64 ? DType::f64 : DType::f32);
    EXPECT_EQ(scaled.item<double>(), 1.5 * 65536);
    backward(scaled);
    EXPECT_EQ(x.grad().item<double>(), dtype == DType::f16 ? kInfinity : 0.5 * 65536) << name(dtype);
  }
  expect_error([&] { scaler.scale(full({}, 3, DType::i64)); }, {"the loss is i64", "floating-point"});
}

TEST(LossScaler, OptionsOutOfRangeAreNamed) {
  expect_error([] { LossScaler({.init_scale = 0}); }, {"init_scale", "got 0"});
  expect_error([] { LossScaler({.init_scale = kInfinity}); }, {"init_scale", "inf"});
  for (const double tiny : {1e-300, 1e-40}) {
    const std::string got = fmt::format("got {}", tiny);
    expect_error([&] { LossScaler({.init_scale = tiny, .min_scale = 0}); }, {"init_scale", "1.1754944e-38", got});
    expect_error([&] { LossScaler({.min_scale = tiny}); }, {"min_scale", "1.1754944e-38", got});
  }
  expect_error([] { LossScaler({.growth_factor = 0.5}); }, {"growth_factor", "0.5"});
  expect_error([] { LossScaler({.backoff_factor = 0}); }, {"backoff_factor", "got 0"});
  expect_error([] { LossScaler({.backoff_factor = 2}); }, {"backoff_factor", "got 2"});
  expect_error([] { LossScaler({.growth_interval = 0}); }, {"growth_interval", "got 0"});
  expect_error([] { LossScaler({.init_scale = 2, .min_scale = 4}); }, {"min_scale", "init_scale = 2", "got 4"});
  auto p = parameter("w", {1});
  Sgd optimizer({p.get()}, {.lr = 1});
  LossScaler scaler;
  expect_error([&] { scaler.unscale(optimizer, 0); }, {"max_norm", "got 0"});
}

/// Sharded, with AdamW and a scaler; steps 2 and 5 overflow on the last rank.
struct Training {
  testing::Net net{{6, 10, 7, 3}};
  std::unique_ptr<AdamW> optimizer;
  LossScaler scaler{{.init_scale = 256, .growth_interval = 3}};
  Group group;

  Training(const Group& g, std::uint64_t seed) : group(g) {
    testing::shard(net, DeviceMesh(group));
    net.materialize({seed});
    optimizer = std::make_unique<AdamW>(net.parameters(), AdamW::Options{.lr = 0.01});
  }
  std::vector<double> step(std::uint64_t index) {
    Tensor x = testing::slice_of(testing::batch_of(12, 6, index, "x"), *group);
    if (index % 3 == 2 && group->rank() == group->size() - 1) x = mul(x, 1e30);
    const Tensor loss = testing::mean_square(net(x), testing::slice_of(testing::batch_of(12, 3, index, "y"), *group));
    backward(scaler.scale(loss));
    const double norm = scaler.unscale(*optimizer, 1).item<double>();
    optimizer->step_and_clear();
    scaler.update();
    return {norm, scaler.current_scale().item<double>(), scaler.skipped_steps().item<double>()};
  }
};

TEST(LossScaler, ACheckpointBringsItBack) {
  for (const int ranks : {1, 2, 3}) {
    const testing::TempDir dir;
    run_ranks(ranks, [&](const Group& group) {
      Training first(group, 1), second(group, 2);
      for (std::uint64_t i = 0; i < 4; ++i) first.step(i);  // one good step of three, one skipped
      save_checkpoint(dir.path(), {}, training_state(first.net, first.optimizer.get(), &first.scaler), *group);
      const ckpt::CheckpointReader reader(dir.path());
      for (const char* name : {"scale", "good_steps", "skipped_steps"})
        EXPECT_TRUE(reader.contains("loss_scaler", name)) << name;
      together(*group,
               [&] { load_checkpoint(reader, training_state(second.net, second.optimizer.get(), &second.scaler)); });
      for (std::uint64_t i = 4; i < 12; ++i) {
        const std::vector<double> expected = first.step(i), actual = second.step(i);
        EXPECT_EQ(std::isfinite(expected[0]), i % 3 != 2) << i;
        if (i % 3 != 2) { EXPECT_EQ(actual, expected) << i; }
        EXPECT_EQ(actual[1], expected[1]) << i;
        EXPECT_EQ(actual[2], expected[2]) << i;
      }
      const auto a = first.net.parameters(), b = second.net.parameters();
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(same_bits(a[i]->value().local(), b[i]->value().local())) << a[i]->name();
    });
  }
}

TEST(LossScaler, IsNotAmongTheLivingWhereverItEnds) {
  Parameter p("p", {2}, {}, DType::f32);
  const std::size_t scalers = LossScaler::living().size(), optimizers = Optimizer::living().size();
  auto scaler = std::make_unique<LossScaler>();
  auto optimizer = std::make_unique<AdamW>(std::vector<Parameter*>{&p});
  EXPECT_EQ(LossScaler::living().back(), scaler.get());
  EXPECT_EQ(Optimizer::living().back(), optimizer.get());
  std::thread([&] {
    scaler.reset();
    optimizer.reset();
  }).join();
  EXPECT_EQ(LossScaler::living().size(), scalers);
  EXPECT_EQ(Optimizer::living().size(), optimizers);
}

}  // namespace
}  // namespace sherd::nn
