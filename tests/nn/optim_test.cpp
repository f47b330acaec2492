// Optimizers against their update rules written out in double, and what they do with parameters that have no gradient,
// no values or the wrong state. (Five steps of PyTorch are in golden_optimizer_test.cpp.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "dtensor/api.h"
#include "dtensor/spec.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/offloaded_state.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/op_trap.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::nn {
namespace {

using testing::expect_error;
using testing::near;
using testing::run_ranks;
using testing::same_bits;
using Vector = std::vector<double>;

std::unique_ptr<Parameter> parameter(const std::string& name, const Vector& values, const Shape& shape) {
  auto p = std::make_unique<Parameter>(name, shape, Init::zeros(), DType::f32);
  p->set(Tensor::from<float>(std::vector<float>(values.begin(), values.end()), shape));
  return p;
}

void give_grad(Parameter& p, const Vector& values) {
  p.set_grad(Tensor::from<float>(std::vector<float>(values.begin(), values.end()), p.shape()));
}

void expect_values(const Tensor& actual, const Vector& expected, const std::string& what) {
  const auto values = actual.to_vector<double>();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], 1e-6 * (1 + std::abs(expected[i]))) << what << ", element " << i;
}

// Loshchilov and Hutter, algorithm 2, for one element.
struct AdamElement {
  double p, m = 0, v = 0;
  void step(double g, int t, double lr, const AdamW::Options& o, double decay) {
    p -= lr * decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(o.beta1, t)), v_hat = v / (1 - std::pow(o.beta2, t));
    p -= lr * m_hat / (std::sqrt(v_hat) + o.eps);
  }
};

const Vector kGradients[] = {{0.5, -1, 2, 0}, {-0.25, -1, 0, 1e-3}, {1, 1, -2, 0.125}};

TEST(AdamW, FollowsThePaperWithAChangingRate) {
  const AdamW::Options options{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.2};
  const Vector start = {1, -2, 3, 0.5};
  auto p = parameter("w", start, {2, 2});
  AdamW optimizer({p.get()}, options);
  std::vector<AdamElement> oracle;
  for (double x : start) oracle.push_back({x});
  const double rates[] = {0.1, 0.05, 0.2};
  for (int t = 1; t <= 3; ++t) {
    const Vector& g = kGradients[t - 1];
    give_grad(*p, g);
    optimizer.set_lr(rates[t - 1]);
    optimizer.step_and_clear();
    EXPECT_FALSE(p->grad().defined());
    Vector expected;
    for (std::size_t i = 0; i < oracle.size(); ++i) {
      oracle[i].step(g[i], t, rates[t - 1], options, options.weight_decay);
      expected.push_back(oracle[i].p);
    }
    expect_values(p->value(), expected, fmt::format("step {}", t));
  }
  EXPECT_EQ(optimizer.step_slot().value().item<double>(), 3);
}

// PyTorch corrects the bias by the number of a parameter's own updates.
TEST(AdamW, CountsTheUpdatesOfEachParameter) {
  const AdamW::Options options{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.2};
  const std::vector<std::string> steps_of = {"111111111", "001111111", "110011011",
                                             "000011110", "001101011", "000000000"};
  for (const bool asked_before : {false, true}) {
    std::vector<std::unique_ptr<Parameter>> owned;
    std::vector<Parameter*> parameters;
    for (std::size_t i = 0; i < steps_of.size(); ++i) {
      owned.push_back(parameter(fmt::format("p{}", i), {1.0 + static_cast<double>(i)}, {1}));
      parameters.push_back(owned.back().get());
    }
    AdamW optimizer(parameters, options);
    if (asked_before) { EXPECT_EQ(optimizer.counts().size(), 6u); }
    std::vector<AdamElement> oracle;
    for (std::size_t i = 0; i < parameters.size(); ++i) oracle.push_back({1.0 + static_cast<double>(i)});
    std::vector<int> updates(parameters.size(), 0);
    for (std::size_t t = 0; t < steps_of[0].size(); ++t) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (steps_of[i][t] == '0') continue;
        const double g = kGradients[t % 3][i % 4] + 0.5;
        give_grad(*parameters[i], {g});
        oracle[i].step(g, ++updates[i], options.lr, options, options.weight_decay);
      }
      optimizer.step_and_clear();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        expect_values(parameters[i]->value(), {oracle[i].p}, fmt::format("step {}, parameter {}", t, i));
    }
    const std::vector<OptimizerState> counts = optimizer.counts();
    ASSERT_EQ(counts.size(), parameters.size());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      EXPECT_EQ(counts[i].parameter, parameters[i]->name());
      EXPECT_EQ(counts[i].slot->value().item<double>(), updates[i]) << i;
    }
    EXPECT_EQ(optimizer.step_slot().value().item<double>(), 9);
  }
}

// Otherwise each would cost a row of its own.
TEST(AdamW, ParametersOfTheSameStepsShareOneCount) {
  auto a = parameter("a", {1}, {1}), b = parameter("b", {1}, {1}), late = parameter("late", {1}, {1}),
       later = parameter("later", {1}, {1});
  AdamW optimizer({a.get(), b.get(), late.get(), later.get()});
  for (int step = 0; step < 4; ++step) {
    for (Parameter* p : {a.get(), b.get()}) give_grad(*p, {1});
    for (Parameter* p : {late.get(), later.get()})
      if (step >= 2) give_grad(*p, {1});
    optimizer.step_and_clear();
  }
  const std::vector<OptimizerState> counts = optimizer.counts();
  const auto bytes = [&](std::size_t i) { return counts[i].slot->value().storage(); };
  EXPECT_EQ(bytes(0), optimizer.step_slot().value().storage());
  EXPECT_EQ(bytes(1), bytes(0));
  EXPECT_NE(bytes(2), bytes(0));
  EXPECT_EQ(bytes(3), bytes(2));
  EXPECT_TRUE(Sgd({a.get()}, {.lr = 1}).counts().empty());
}

TEST(AdamW, DecaysMatricesOnlyWhenAsked) {
  for (bool matrices_only : {true, false}) {
    const AdamW::Options options{.lr = 0.1, .weight_decay = 0.5, .decay_matrices_only = matrices_only};
    auto matrix = parameter("matrix", {1, 1, 1, 1}, {2, 2}), vector = parameter("vector", {1, 1, 1, 1}, {4});
    AdamW optimizer({matrix.get(), vector.get()}, options);
    for (Parameter* p : optimizer.parameters()) give_grad(*p, {0, 0, 0, 0});  // only the decay moves them
    optimizer.step();
    expect_values(matrix->value(), Vector(4, 1 - 0.1 * 0.5), "matrix");
    expect_values(vector->value(), Vector(4, matrices_only ? 1.0 : 1 - 0.1 * 0.5), "vector");
  }
}

TEST(Sgd, FollowsTheHeavyBallWithDecay) {
  for (bool nesterov : {false, true}) {
    const Sgd::Options options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.3, .nesterov = nesterov};
    Vector x = {1, -2, 3, 0.5}, buffer(4, 0.0);
    auto p = parameter("w", x, {4});
    Sgd optimizer({p.get()}, options);
    for (const Vector& g : kGradients) {
      give_grad(*p, g);
      optimizer.step_and_clear();
      for (std::size_t i = 0; i < 4; ++i) {
        const double d = g[i] + 0.3 * x[i];
        buffer[i] = 0.9 * buffer[i] + d;
        x[i] -= 0.1 * (nesterov ? d + 0.9 * buffer[i] : buffer[i]);
      }
      expect_values(p->value(), x, nesterov ? "nesterov" : "heavy ball");
    }
  }
}

TEST(Sgd, WithoutMomentumKeepsNoState) {
  auto p = parameter("w", {1, 2, 3, 4}, {4});
  Sgd optimizer({p.get()}, {.lr = 0.5});
  give_grad(*p, {1, 1, 1, -1});
  optimizer.step();
  expect_values(p->value(), {0.5, 1.5, 2.5, 4.5}, "plain");
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(Optimizer, ScaleHoldsForOneStep) {
  auto p = parameter("w", {0, 0, 0, 0}, {4});
  Sgd optimizer({p.get()}, {.lr = 1});
  optimizer.set_gradient_scale(Tensor::scalar(0.5));
  give_grad(*p, {2, 2, 2, 2});
  optimizer.step();
  expect_values(p->value(), Vector(4, -1), "scaled");
  optimizer.step();
  expect_values(p->value(), Vector(4, -3), "not scaled any more");
}

TEST(Optimizer, ClippingScalesByTheNormOverAllParameters) {
  auto a = parameter("a", {0, 0, 0, 0}, {4}), b = parameter("b", {0}, {1});
  Sgd optimizer({a.get(), b.get()}, {.lr = 1});
  give_grad(*a, {2, 2, 2, 2});
  give_grad(*b, {3});
  EXPECT_NEAR(clip_grad_norm(optimizer, 1).item<double>(), 5, 1e-6);  // sqrt(16 + 9)
  optimizer.step();
  expect_values(a->value(), Vector(4, -0.4), "a");
  expect_values(b->value(), {-0.6}, "b");
  // A norm below the limit changes nothing, and no gradients have norm 0.
  give_grad(*a, {0.1, 0, 0, 0});
  give_grad(*b, {0});
  clip_grad_norm(optimizer, 1);
  optimizer.step_and_clear();
  expect_values(a->value(), {-0.5, -0.4, -0.4, -0.4}, "below the limit");
  EXPECT_EQ(grad_norm(optimizer.parameters()).item<double>(), 0);
  expect_error([&] { clip_grad_norm(optimizer, 0); }, {"max_norm", "got 0"});
}

TEST(Optimizer, AStepWhoseNormIsNotFiniteChangesNoParameter) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  auto a = parameter("a", {1, 2}, {2}), b = parameter("b", {3}, {1});
  Sgd optimizer({a.get(), b.get()}, {.lr = 1});
  for (const double bad : {std::nan(""), kInf})
    for (const double max_norm : {1.0, kInf}) {
      give_grad(*a, {bad, 1});
      give_grad(*b, {1});
      EXPECT_FALSE(std::isfinite(clip_grad_norm(optimizer, max_norm).item<double>()));
      optimizer.step_and_clear();
      expect_values(a->value(), {1, 2}, "a");
      expect_values(b->value(), {3}, "b, whose own gradient is finite");
    }
  EXPECT_EQ(optimizer.step_slot().value().item<double>(), 0) << "nor are they counted";
  give_grad(*b, {5});  // the next one counts in full: no limit
  clip_grad_norm(optimizer, kInf);
  optimizer.step();
  expect_values(b->value(), {-2}, "b");
  EXPECT_EQ(optimizer.step_slot().value().item<double>(), 1);
}

TEST(Optimizer, ParametersWithoutGradientStayAsTheyAre) {
  auto used = parameter("used", {1, 1}, {2}), unused = parameter("unused", {1, 1}, {2});
  AdamW optimizer({used.get(), unused.get()}, {.lr = 0.1, .weight_decay = 0.5});
  for (int step = 0; step < 2; ++step) {
    give_grad(*used, {1, 1});
    optimizer.step_and_clear();
  }
  expect_values(unused->value(), {1, 1}, "unused");
  EXPECT_NE(used->value().to_vector<float>(), unused->value().to_vector<float>());
  EXPECT_EQ(optimizer.state().size(), 4u) << "checkpoints hold the state of all parameters";
}

TEST(Optimizer, StateHasTheLayoutAndTheCategory) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const DeviceMesh mesh(group);
    Parameter p("w", {5, 2}, Init::zeros(), DType::f32);
    p.set(distribute(ones({5, 2}), mesh, Shard(0)));
    AdamW optimizer({&p});
    const std::int64_t before = RankContext::current().allocator().accounting().current(MemoryCategory::optimizer);
    for (const OptimizerState& state : optimizer.state()) {
      EXPECT_EQ(state.parameter, "w");
      EXPECT_EQ(state.slot->value().layout(), p.value().layout()) << state.kind;
    }
    const std::int64_t after = RankContext::current().allocator().accounting().current(MemoryCategory::optimizer);
    EXPECT_EQ(after - before, 2 * p.value().local().bytes());
  });
}

TEST(Optimizer, RefusalsNameWhatIsWrong) {
  expect_error([] { AdamW({}); }, {"at least one parameter"});
  auto p = parameter("w", {1, 1}, {2});
  expect_error([&] { Sgd({p.get()}, {.nesterov = true}); }, {"nesterov", "momentum"});
  Parameter meta("blocks.0.w", {2}, Init::zeros(), DType::f32);
  meta.set_grad(ones({2}));
  AdamW optimizer({&meta});
  expect_error([&] { optimizer.step(); }, {"\"blocks.0.w\"", "no values", "materialize"});
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const DeviceMesh mesh(group);
    Parameter q("q", {4}, Init::zeros(), DType::f32);
    q.set(distribute(ones({4}), mesh, Shard(0)));
    q.set_grad(ones({4}));
    AdamW mixed({&q});
    expect_error([&] { mixed.step(); }, {"\"q\"", "f32[4]{0: dp}", "f32[4]", "after backward"});
  });
}

TEST(Optimizer, AParameterTwiceIsRefusedByName) {
  auto a = parameter("a", {1}, {1}), b = parameter("blocks.0.b", {1}, {1});
  const std::vector<Parameter*> twice{b.get(), a.get(), b.get()}, null{a.get(), nullptr};
  expect_error([&] { AdamW{twice}; }, {"\"blocks.0.b\"", "twice", "move it twice a step", "once"});
  expect_error([&] { Sgd{twice}; }, {"\"blocks.0.b\"", "twice"});
  expect_error([&] { AdamW{null}; }, {"null pointer"});
  give_grad(*b, {3});
  expect_error([&] { (void)grad_norm(twice); }, {"\"blocks.0.b\"", "twice"});
  EXPECT_EQ(grad_norm({a.get(), b.get()}).item<double>(), 3);
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

TEST(Optimizer, NumbersThatNoStepCanMeanAreRefused) {
  auto p = parameter("w", {1}, {1});
  struct Case {
    double AdamW::Options::* field;
    const char* name;
    std::vector<double> refused, taken;
  };
  const std::vector<double> negative{-1, -1e-30, kNan, kInfinity, 1e300};
  // Values that f32 lacks or that a device may take for 0: a gradient of 0 would be divided by 0.
  const std::vector<double> no_divisor{-1, -1e-30, kNan, kInfinity, 1e300, 1e-50, 1e-45, 1.17e-38};
  for (const Case& c : {Case{&AdamW::Options::lr, "lr", negative, {0, 1e-30, 2}},
                        {&AdamW::Options::eps, "eps", no_divisor, {0, 1.18e-38, 1e-8, 1}},
                        {&AdamW::Options::weight_decay, "weight_decay", negative, {0, 0.1, 3}},
                        {&AdamW::Options::beta1, "beta1", {-0.1, 1, 1.5, kNan, kInfinity}, {0, 0.999999}},
                        {&AdamW::Options::beta2, "beta2", {-0.1, 1, 1.5, kNan, kInfinity}, {0, 0.999999}}}) {
    const auto make = [&](double value) {
      AdamW::Options options;
      options.*c.field = value;
      AdamW optimizer({p.get()}, options);
    };
    for (const double value : c.refused)
      expect_error([&] { make(value); }, {"AdamW", c.name, fmt::format("got {}", value)});
    for (const double value : c.taken) make(value);
  }
  for (const auto& [field, name] : {std::pair(&Sgd::Options::lr, "lr"),
                                    {&Sgd::Options::momentum, "momentum"},
                                    {&Sgd::Options::weight_decay, "weight_decay"}})
    for (const double value : negative)
      expect_error(
          [&, &field = field] {
            Sgd::Options options;
            options.*field = value;
            Sgd optimizer({p.get()}, options);
          },
          {"Sgd", name, fmt::format("got {}", value)});
  AdamW optimizer({p.get()});
  for (const double value : negative)
    expect_error([&] { optimizer.set_lr(value); }, {"set_lr", fmt::format("got {}", value)});
  give_grad(*p, {1});
  optimizer.set_lr(0);
  optimizer.step();
  EXPECT_EQ(p->value().detach().to_vector<float>(), std::vector<float>{1});
}

// The rows are functions of their own.
TEST(Optimizer, RowsRefuseTheSameNumbers) {
  const Tensor p = ones({2}), m = zeros({2}), v = zeros({2}), g = ones({2}), one = Tensor::scalar(1);
  const auto adamw = [&](const AdamWAttrs& attrs) {
    adamw_step({&p, 1}, {&m, 1}, {&v, 1}, {&g, 1}, one, one, one, attrs);
  };
  expect_error([&] { adamw({.eps = -1}); }, {"eps", "got -1"});
  expect_error([&] { adamw({.weight_decay = kNan}); }, {"weight decay", "got nan"});
  expect_error([&] { adamw({.beta1 = kNan}); }, {"betas", "nan"});
  const auto sgd = [&](const SgdAttrs& attrs) { sgd_step({&p, 1}, {&m, 1}, {&g, 1}, one, one, attrs); };
  expect_error([&] { sgd({.momentum = -1}); }, {"momentum", "got -1"});
  expect_error([&] { sgd({.momentum = 0.5, .weight_decay = -1}); }, {"weight decay", "got -1"});
}

/// The values in memory of another order: turned, or every second element of something larger.
Tensor strided(const Tensor& dense, bool turned) {
  if (turned) return transpose(contiguous(transpose(dense, 0, 1)), 0, 1);
  const Tensor wide = contiguous(cat({dense, dense}, 1));
  const Tensor pairs = reshape(wide, {dense.size(0), 2, dense.size(1)});
  return squeeze(narrow(pairs, 1, 1, 1), 1);
}

// Oracle: the same steps on dense values.
TEST(Optimizer, AValueThatIsNotDenseIsUpdated) {
  for (const bool turned : {true, false})
    for (const bool is_adamw : {true, false})
      for (const bool in_pieces : {false, true})
        for (const bool in_backward : {false, true}) {
          const testing::TempDir dir;
          const auto run = [&](bool is_strided) {
            auto p = parameter("w", {1, -2, 3, 0.5, 2, -1}, {2, 3}), q = parameter("q", {1, 2}, {2});
            const Tensor base = p->value().detach();
            if (is_strided) p->set(strided(base, turned));
            EXPECT_EQ(p->value().is_contiguous(), !is_strided);
            EXPECT_TRUE(same_bits(p->value().detach(), base));
            std::unique_ptr<Optimizer> optimizer;
            if (is_adamw) optimizer = std::make_unique<AdamW>(std::vector{p.get(), q.get()}, AdamW::Options{.lr = 0.1});
            else
              optimizer =
                  std::make_unique<Sgd>(std::vector{p.get(), q.get()}, Sgd::Options{.lr = 0.1, .momentum = 0.5});
            if (in_pieces) optimizer->offload({.folder = dir.path()});
            for (int step = 0; step < 3; ++step) {
              if (in_backward) optimizer->step_in_backward();
              backward(sum(square(p->value())) + sum(p->value() * ones({3}) * 0.5) + sum(square(q->value())));
              optimizer->step_and_clear();
            }
            EXPECT_EQ(optimizer->torn(), "");
            EXPECT_EQ(p->value().is_contiguous(), !is_strided);
            return p->value().detach().to_vector<float>();
          };
          EXPECT_EQ(run(true), run(false)) << turned << is_adamw << in_pieces << in_backward;
        }
}

TEST(Optimizer, AValueWhoseElementsShareBytesIsRefused) {
  auto p = parameter("w", {1, 2}, {2});
  const Tensor row = p->value().detach();
  p->set(expand(row, {3, 2}));
  p->set_grad(ones({3, 2}));
  AdamW optimizer({p.get()});
  expect_error([&] { optimizer.step(); }, {"\"w\"", "f32[3,2]", "share", "contiguous()"});
  EXPECT_EQ(optimizer.torn(), "");
}

// As cast_to() and fully_shard leave them where they come after the state. Nothing has changed: nothing is torn.
TEST(Optimizer, StateOfAnotherTypeOrLayoutIsRefusedBeforeAnythingChanges) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const DeviceMesh mesh(group);
    for (const Tensor& now : {ones({4}, DType::f64), distribute(ones({4}), mesh, Shard(0))}) {
      auto p = parameter("w", {1, 1, 1, 1}, {4});
      AdamW optimizer({p.get()});
      give_grad(*p, {1, 1, 1, 1});
      optimizer.step_and_clear();
      p->set(now);
      p->set_grad(now);
      expect_error([&] { optimizer.step(); }, {"\"w\"", "\"w.m\" is f32[4]", "make the optimizer after"});
      EXPECT_EQ(optimizer.torn(), "");
      p->set(ones({4}));
      give_grad(*p, {1, 1, 1, 1});
      optimizer.step();
      EXPECT_EQ(optimizer.step_slot().value().item<double>(), 2);
    }
  });
}

TEST(Optimizer, ADtypeThatItDoesNotUpdateIsRefusedBeforeAnythingChanges) {
  const auto p = parameter("w", {1, 1, 1, 1}, {4});
  p->set(cast(p->value().detach(), DType::bf16));
  p->set_grad(ones({4}, DType::bf16));
  AdamW adamw({p.get()});
  Sgd sgd({p.get()}, {.lr = 0.1});
  for (Optimizer* optimizer : std::initializer_list<Optimizer*>{&adamw, &sgd}) {
    expect_error([&] { optimizer->step(); }, {"\"w\" is bf16[4]", "MixedPrecision", "cast_to() f32"});
    EXPECT_EQ(optimizer->torn(), "");
  }
  p->set(ones({4}));
  give_grad(*p, {1, 1, 1, 1});
  adamw.step();
  EXPECT_EQ(adamw.step_slot().value().item<double>(), 1);
}

// The same on all ranks, wherever the largest shard lies: by it all decide what stays in memory.
TEST(OffloadedState, MostBytesAreThoseOfTheLargestShard) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const DeviceMesh mesh(group);
    for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{1, 7}, {7, 1}, {0, 8}}) {
      const Spec* const spec = Spec::of(mesh, Shard(0))->with_rows(0, rows);
      const Tensor local = zeros({rows[static_cast<std::size_t>(group->rank())], 4});
      EXPECT_EQ(most_bytes_of_a_rank(Tensor::distributed({8, 4}, spec, local)), std::ranges::max(rows) * 4 * 4);
    }
  });
}

// The first step makes the state; the memory for some of it may be refused.
TEST(AdamW, AFirstStepThatIsLeftBeforeItsUpdateIsMadeByTheNextCall) {
  const auto values_after_step_left_at = [](std::int64_t at) {
    const auto p = parameter("w", {1, 2, 3, 4}, {4});
    AdamW optimizer({p.get()}, {.lr = 0.1});
    give_grad(*p, kGradients[0]);
    if (at >= 0) {
      const testing::OpTrap trap(at);
      expect_error([&] { optimizer.step(); }, {"the trap"});
    }
    EXPECT_EQ(optimizer.torn(), "") << "op " << at;
    optimizer.step();
    EXPECT_EQ(optimizer.state().size(), 2U);
    return p->value().detach().to_vector<float>();
  };
  const auto expected = values_after_step_left_at(-1);
  for (const std::int64_t at : {0, 1}) EXPECT_EQ(values_after_step_left_at(at), expected);  // zeros of m, of v
}

}  // namespace
}  // namespace sherd::nn
