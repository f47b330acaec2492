// Guards of a step whose replays have settled: they look at nothing that has not changed, and still see every change.
// Oracle: the step run eagerly, and what why() says.
#include "compile/run/guards.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "nn/module_list.h"
#include "nn/optim/sgd.h"
#include "tests/compile/tiny_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using Mode = CompiledStep::Mode;

constexpr int kSettled = 6;  // calls: one eager, one recorded, and after two replays in a row nothing is looked at

TEST(Guards, LookOnceAtWhatDoesNotChange) {
  TinyNet net;
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return net.train(x, y); });
  for (int i = 0; i < 3; ++i) step(TinyNet::x(i), TinyNet::y(i));
  Guards guards(*step.graph());
  for (int i = 3; i < 10; ++i) {
    const std::vector<Tensor> arguments{TinyNet::x(i), TinyNet::y(i)};
    net.begin(i);  // values of slots, not slots
    net.clear();   // there are no gradients
    EXPECT_EQ(guards.mismatch(arguments), "");
    step(arguments[0], arguments[1]);
    guards.replayed();
  }
  EXPECT_EQ(guards.num_looks(), 2);
  net.lr.set(Tensor::scalar(0.5));  // fits as the one before
  EXPECT_EQ(guards.mismatch(std::vector{TinyNet::x(1), TinyNet::y(1)}), "");
  EXPECT_EQ(guards.num_looks(), 3);
}

/// w of `shape` times the argument, whose gradient is in w.grad at the end, and a module's mode.
struct Settled {
  Slot w{"w", true};
  nn::Dropout drop{0.5};
  CompiledFunction<Tensor(const Tensor&)> step = compile_once([this](const Tensor& x) {
    w.clear_grad();
    Tensor y = w.value() * x;
    if (y.requires_grad()) backward(sum(y));
    return drop.training() ? y : y + 1.0;
  });

  Settled() {
    w.set(full({2}, 3.0));
    for (int i = 0; i < kSettled; ++i) step(ones({2}));
    EXPECT_EQ(step.why(), "replayed");
  }
  std::string why(const Tensor& x = ones({2})) {
    step(x);
    return step.why();
  }
};

TEST(Guards, SeeEachChangeOfWhatHasSettled) {
  {
    Settled s;
    s.w.set(full({2}, 5.0));
    EXPECT_EQ(s.step(ones({2})).to_vector<float>()[0], 5);
    EXPECT_EQ(s.step.why(), "replayed");
  }
  {
    Settled s;
    s.w.set(full({1}, 5.0));
    EXPECT_EQ(s.why(), "recorded: slot \"w\" is f32[1], the graph has f32[2]");
  }
  {
    Settled s;
    s.w.set_requires_grad(false);
    EXPECT_EQ(s.why(), "recorded: slot \"w\" does not want a gradient, in the graph it does");
  }
  {
    Settled s;
    s.drop.train(false);
    EXPECT_EQ(s.step(ones({2})).to_vector<float>()[0], 4);
    EXPECT_EQ(s.step.mode(), Mode::record) << s.step.why();
    s.drop.train(true);
    EXPECT_EQ(s.why(), "replayed");
  }
  {
    Settled s;
    EXPECT_EQ(s.why(ones({1})), "recorded: argument 0 is f32[1], the graph has f32[2]");
    EXPECT_EQ(s.why(), "replayed");
    const GradMode off(false);
    EXPECT_EQ(s.why(), "recorded: recording of gradients is off, the graph was captured with it on");
  }
}

// Another thread than the rank's may own a model; it waits meanwhile.
void on_another_thread(const std::function<void()>& change) {
  std::thread([&] {
    const RankScope scope;
    change();
  }).join();
}

TEST(Guards, SeeWhatAnotherThreadChanges) {
  {
    Settled s;
    std::thread([&] { s.drop.train(false); }).join();
    EXPECT_EQ(s.why(), "recorded: (model) training is false, in the graph it is true");
  }
  {
    Settled s;
    const Tensor shorter = full({1}, 5.0);
    on_another_thread([&] { s.w.set(shorter); });
    EXPECT_EQ(s.why(), "recorded: slot \"w\" is f32[1], the graph has f32[2]");
  }
  {
    Settled s;
    on_another_thread([&] { s.w.set_requires_grad(false); });
    EXPECT_EQ(s.why(), "recorded: slot \"w\" does not want a gradient, in the graph it does");
  }
}

TEST(Guards, SeeAChangeOfWhatAnotherRankHasMade) {
  nn::Dropout drop(0.5);
  std::atomic<int> turn{0};
  std::string before, after;
  std::thread rank([&] {
    const RankScope scope;
    auto step = compile_once([&](const Tensor& x) { return drop.training() ? x : x + 1.0; });
    for (int i = 0; i < kSettled; ++i) step(ones({2}));
    before = step.why();
    turn = 1;
    turn.notify_all();
    turn.wait(1);
    EXPECT_EQ(step(ones({2})).to_vector<float>()[0], 2);
    after = step.why();
  });
  turn.wait(0);
  drop.train(false);
  turn = 2;
  turn.notify_all();
  rank.join();
  EXPECT_EQ(before, "replayed");
  EXPECT_EQ(after, "recorded: (model) training is false, in the graph it is true");
}

/// A model, its optimizer, and two buffers, which one thread makes and another trains.
struct Owned {
  nn::Linear net{2, 2};
  Slot shift{"shift"}, calls{"calls"};
  std::optional<nn::Sgd> optimizer;
  Owned() {
    net.materialize(nn::Seed{7});
    optimizer.emplace(net.parameters(), nn::Sgd::Options{.lr = 0.1});
    shift.set(full({2}, 0.5));
    calls.set(Tensor::scalar(0.0));
  }
  Tensor train(const Tensor& x) {
    const Tensor loss = mean(square(net(x - shift.value())));
    backward(loss);
    optimizer->step_and_clear();
    const GradMode off(false);
    shift.set(shift.value() * 1.5);
    copy_into(calls.value(), calls.value() + 1.0);
    return loss.detach();
  }
};

// Oracle: the same steps, run eagerly.
TEST(Guards, StepsKeepTheStateOfAModelThatAnotherThreadHasMade) {
  const auto run = [](bool is_captured) {
    Owned owned;
    std::vector<float> seen;
    const auto see = [&](const Tensor& tensor) {
      for (const float each : tensor.to_vector<float>()) seen.push_back(each);
    };
    on_another_thread([&] {
      auto step = compile_once([&](const Tensor& x) { return owned.train(x); });
      for (int i = 0; i < 3 * kSettled; ++i) {
        if (i % kSettled == 0) owned.shift.set(full({2}, 0.25 * i));
        const Tensor x = full({3, 2}, i + 1.0);
        see(is_captured ? step(x) : owned.train(x));
        if (is_captured && i >= 4) { EXPECT_EQ(step.mode(), Mode::replay) << i << ": " << step.why(); }
      }
    });
    for (const nn::Parameter* parameter : owned.net.parameters()) see(parameter->value());
    see(owned.shift.value());
    see(owned.calls.value());
    return seen;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Guards, ASlotOfAnotherThreadIsStateWhateverLeadsToIt) {
  Slot w("w", true), flat("flat"), part("part"), frozen("frozen", true);
  for (Slot* slot : {&w, &flat, &frozen}) slot->set(ones({2}));
  part.set(narrow(flat.value(), 0, 1, 1));  // one storage
  const Tensor read = w.value();
  on_another_thread([&] {
    auto step = compile_once([&](const Tensor& x) {
      backward(sum(read * x));  // its gradient goes to w
      frozen.set_requires_grad(false);
      return sum(flat.value() * x) + part.value() + frozen.value();
    });
    for (int i = 1; i <= kSettled; ++i) {
      flat.set(full({2}, static_cast<double>(i)));
      part.set(narrow(flat.value(), 0, 1, 1));
      frozen.set_requires_grad(true);
      EXPECT_EQ(step(ones({2})).to_vector<float>()[0], 3 * i + 1);
      EXPECT_FALSE(frozen.requires_grad());
    }
    EXPECT_EQ(step.why(), "replayed");
  });
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{kSettled, kSettled}));
}

TEST(Guards, OneStepIsCalledByWhoMadeItsSlotsAndByAnother) {
  Slot w("w", true);
  w.set(full({2}, 3.0));
  auto step = compile_once([&](const Tensor& x) { backward(sum(w.value() * x)); });
  const auto call = [&] {
    for (int i = 0; i < kSettled; ++i) step(ones({2}));
    EXPECT_EQ(step.why(), "replayed");
  };
  on_another_thread(call);
  call();
  EXPECT_EQ(w.grad().to_vector<float>()[0], 2 * kSettled);
}

TEST(Guards, ASlotOfAnotherThreadMayEndWithinTheStep) {
  std::unique_ptr<Slot> w;
  on_another_thread([&] {
    auto step = compile_once([&](const Tensor& x) {
      const Tensor y = w->value() * x;
      w.reset();
      return y;
    });
    for (int i = 1; i <= kSettled; ++i) {
      on_another_thread([&] {
        w = std::make_unique<Slot>("w");
        w->set(full({2}, static_cast<double>(i)));
      });
      EXPECT_EQ(step(ones({2})).to_vector<float>()[0], i);
      EXPECT_EQ(step.mode(), Mode::eager);
    }
  });
}

TEST(Guards, SeeThatAnotherRankCalls) {
  auto step = compile_once([](const Tensor& x) { return x + 1.0; });
  for (int i = 0; i < kSettled; ++i) step(ones({2}));
  on_another_thread([&] {
    step(ones({2}));
    EXPECT_NE(step.why().find("called on another thread"), std::string::npos) << step.why();
  });
}

// A recording that was made while somebody held the gradient fits calls in which nobody does, and is another one.
TEST(Guards, AGradientThatWasHeldOnceIsNoDifference) {
  Slot w("w", true);
  w.set(full({2}, 3.0));
  auto step = compile([&](const Tensor& x) { backward(sum(w.value() * x)); });
  for (int i = 0; i < kSettled; ++i) step(ones({2}));
  {
    const Tensor held = w.grad();
    step(ones({2}));
  }
  for (int i = 0; i < kSettled; ++i) step(ones({2}));
  EXPECT_EQ(step.why(), "replayed");
  EXPECT_EQ(w.grad().to_vector<float>()[0], 2 * kSettled + 1);
}

TEST(Guards, SeeASlotThatHasEndedOnAnotherThread) {
  for (const bool keeps_gradient : {false, true}) {
    auto w = std::make_unique<Slot>("w", true);
    w->set(ones({2}));
    auto step = compile_once([&](const Tensor& x) {
      if (!keeps_gradient) w->clear_grad();
      backward(sum(w->value() * x));
    });
    for (int i = 0; i < kSettled; ++i) step(ones({2}));
    EXPECT_EQ(step.why(), "replayed");
    std::thread([&] { w.reset(); }).join();
    expect_error([&] { step(ones({2})); }, {"slot \"w\"", "no longer exists", "compile()"});
  }
}

TEST(Guards, SeeWhoElseHoldsAGradient) {
  Slot w("w", true);
  w.set(full({2}, 3.0));
  auto step = compile_once([&](const Tensor& x) { backward(sum(w.value() * x)); });
  for (int i = 0; i < kSettled; ++i) step(ones({2}));
  EXPECT_EQ(step.why(), "replayed");
  const Tensor held = w.grad();
  step(ones({2}));
  EXPECT_EQ(step.why(), "recorded: the gradient of \"w\" is held outside of the slot, in the graph it was not");
  EXPECT_EQ(held.to_vector<float>()[0], kSettled);
  EXPECT_EQ(w.grad().to_vector<float>()[0], kSettled + 1);
}

// The step changes nothing of a gradient but how it lies in its bytes. Oracle: the same step, run eagerly.
TEST(Guards, SeeAGradientThatIsPutBackAsAnotherView) {
  struct Two {
    Slot a{"a", true}, b{"b", true};
    Two() {
      const Tensor both = arange(12, DType::f32);
      for (Slot* slot : {&a, &b}) slot->set(ones({2, 3}));
      a.set_grad(view(narrow(both, 0, 0, 6), {2, 3}));
      b.set_grad(view(narrow(both, 0, 6, 6), {2, 3}));
    }
    Tensor exchange(const Tensor& x) {
      const Tensor kept = a.grad();
      a.set_grad(b.grad());
      b.set_grad(kept);
      return sum(a.grad()) * x;
    }
    Tensor turn(const Tensor& x) {
      a.set_grad(transpose(a.grad(), 0, 1));
      return x + 1.0;
    }
  };
  for (Tensor (Two::*body)(const Tensor&) : {&Two::exchange, &Two::turn}) {
    Two eager, captured;
    auto step = compile([&](const Tensor& x) { return (captured.*body)(x); });
    for (int i = 0; i < 9; ++i) {
      const Tensor x = full({}, i);
      EXPECT_TRUE(same_bits(step(x), (eager.*body)(x))) << i << " " << step.why();
      EXPECT_EQ(captured.a.grad().shape(), eager.a.grad().shape()) << i << " " << step.why();
      EXPECT_TRUE(same_bits(contiguous(captured.a.grad()), contiguous(eager.a.grad()))) << i << " " << step.why();
      EXPECT_TRUE(same_bits(captured.b.grad(), eager.b.grad())) << i << " " << step.why();
    }
    EXPECT_EQ(step.mode(), Mode::replay);
  }
}

TEST(Guards, SeeArgumentsThatShareMemory) {
  Slot w("w"), last("last");
  w.set(ones({2}));
  auto step = compile_once([&](const Tensor& x, const Tensor& y) {
    copy_into(x, w.value() * 2.0);
    last.set(x + y);
    return sum(x + y);
  });
  for (int i = 0; i < kSettled; ++i) EXPECT_EQ(step(zeros({2}), ones({2})).item<float>(), 6);
  EXPECT_EQ(step.why(), "replayed");
  const Tensor both = ones({2});
  EXPECT_EQ(step(both, both).item<float>(), 8);
  EXPECT_EQ(step.mode(), Mode::record);
  for (int i = 0; i < kSettled; ++i) step(zeros({2}), ones({2}));
  expect_error([&] { step(w.value(), ones({2})); }, {"argument 0", "slot \"w\""});
}

// What a replay leaves in the slot is this call's argument, wherever that lies in its memory.
TEST(Guards, NeverSettleWhereASlotKeepsAnArgument) {
  Slot last("last");
  last.set(zeros({2}));
  auto step = compile_once([&](const Tensor& x) {
    Tensor y = last.value() + x;
    last.set(x);
    return y;
  });
  float before = 0;
  for (int i = 0; i < 12; ++i) {
    const int start = i < kSettled ? 0 : i % 5;
    const Tensor x = narrow(Tensor::from<float>({1, 2, 3, 4, 5, 6, 7, 8}, {8}), 0, start, 2);
    EXPECT_EQ(step(x).to_vector<float>()[0], before + static_cast<float>(start + 1)) << step.why();
    before = static_cast<float>(start + 1);
  }
}

/// Four slots of which each hands its tensor on to the next, and the last is written in place.
struct HandedOn {
  Slot a{"a"}, b{"b"}, c{"c"}, d{"d"};
  void begin() {
    float value = 1;
    for (Slot* slot : {&a, &b, &c, &d}) slot->set(full({2}, value++));
  }
  Tensor step(const Tensor& x) {
    copy_into(d.value().detach(), x);
    Tensor y = a.value() * 1000.0 + b.value() * 100.0 + c.value() * 10.0 + d.value();
    d.set(c.value());
    c.set(b.value());
    b.set(a.value());
    return y;
  }
};

// After three steps all four are one tensor: what fits once need not fit a call later.
TEST(Guards, SeeTensorsThatSlotsHandOn) {
  HandedOn eager, captured;
  auto step = compile_once([&](const Tensor& x) { return captured.step(x); });
  for (int i = 0; i < 24; ++i) {
    if (i < 4 || i == 14)
      for (HandedOn* each : {&eager, &captured}) each->begin();
    const Tensor x = full({2}, i + 5.0);
    EXPECT_EQ(step(x).to_vector<float>(), eager.step(x).to_vector<float>()) << i << " " << step.why();
  }
  EXPECT_EQ(step.why(), "replayed");
}

/// Takes gradients and keeps none.
struct Sink final : GradSink {
  int accepted = 0;
  Destination destination(Slot&) override { return {}; }
  void wrote(Slot&) override {}
  void accept(Slot&, Tensor) override { ++accepted; }
  void finish(Slot&) override {}
};

TEST(Guards, SeeAnotherSinkOfGradients) {
  Settled s;
  Sink sink;
  s.w.set_sink(&sink);
  EXPECT_EQ(s.why(), "recorded: slot \"w\" was given a hook or another sink of its gradients since it was recorded");
  EXPECT_EQ(sink.accepted, 1);
  EXPECT_FALSE(s.w.grad().defined());
  s.w.set_sink(nullptr);
  s.step(ones({2}));
  EXPECT_TRUE(s.w.grad().defined()) << s.step.why();
}

struct Chain : nn::Layer<Chain> {
  nn::ModuleList<nn::Dropout>& list;
  Chain() : list(add<nn::ModuleList<nn::Dropout>>("list")) { list.append(0.0); }
  Tensor forward(Tensor x) {
    for (nn::Dropout* item : list.items()) x = (*item)(x) + 1.0;
    return x;
  }
};

TEST(Guards, SeeATreeThatGrows) {
  Chain chain;
  auto step = compile_once([&](const Tensor& x) { return chain(x); });
  nn::ModuleList<nn::Dropout> empty;
  auto over_items = compile_once([&](const Tensor& x) { return x + static_cast<double>(empty.items().size()); });
  for (int i = 0; i < kSettled; ++i) {
    EXPECT_EQ(step(zeros({1})).item<float>(), 1);
    EXPECT_EQ(over_items(zeros({1})).item<float>(), 0);
  }
  chain.list.append(0.0);
  empty.append(0.0);
  EXPECT_EQ(step(zeros({1})).item<float>(), 2) << step.why();
  EXPECT_EQ(over_items(zeros({1})).item<float>(), 1) << over_items.why();
  EXPECT_EQ(step.mode(), Mode::record);
}

TEST(Guards, SeeASlotThatIsGone) {
  auto w = std::make_unique<Slot>("w");
  w->set(Tensor::scalar(2));
  auto step = compile_once([&](const Tensor& x) { return w->value() * x; });
  for (int i = 0; i < kSettled; ++i) step(Tensor::scalar(1));
  w.reset();
  expect_error([&] { step(Tensor::scalar(1)); }, {"slot \"w\"", "no longer exists", "compile()"});
}

}  // namespace
}  // namespace sherd::testing
