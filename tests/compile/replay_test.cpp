// A replay is the program: same bits, same memory, same state afterwards. The oracle is the same step run eagerly on
// slots of its own.
#include "compile/run/replay.h"

#include <gtest/gtest.h>

#include "compile/compile.h"
#include "compile/ir/text/print.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/step_names.h"
#include "tests/compile/tiny_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using Mode = CompiledStep::Mode;

Allocator& allocator() { return RankContext::current().allocator(); }

TEST(Replay, TwentyTrainingStepsAreBitwiseTheEagerOnes) {
  TinyNet eager, captured;
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return captured.train(x, y); });
  for (int i = 0; i < 20; ++i) {
    eager.begin(i);
    captured.begin(i);
    const Tensor x = TinyNet::x(i), y = TinyNet::y(i);
    const Tensor expected = eager.train(x, y);
    EXPECT_TRUE(same_bits(step(x, y), expected)) << "step " << i;
    EXPECT_EQ(step.mode(), i == 0 ? Mode::eager : i == 1 ? Mode::record : Mode::replay) << step.why();
    expect_same_state(captured, eager);
    expect_same_grads(captured, eager);
  }
}

TEST(Replay, ADropoutMaskFollowsTheStepSlot) {
  TinyNet net;
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return net.loss(x, y).detach(); });
  const Tensor x = TinyNet::x(0), y = TinyNet::y(0);
  for (int i = 0; i < 3; ++i) step(x, y);
  const Tensor same = step(x, y), again = step(x, y);
  net.begin(7);
  const Tensor other = step(x, y);
  EXPECT_EQ(step.mode(), Mode::replay);
  EXPECT_TRUE(same_bits(same, again));
  EXPECT_FALSE(same_bits(same, other));
}

TEST(Replay, MovedInTensorsAreReusedAsInTheProgram) {
  auto step = compile_once([](const Tensor& x) { return relu(exp(x + x)); });
  const Tensor x = drawn({3, 4}, "x");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(step(x), relu(exp(x + x))));
  // One temporary only: each op but the first writes over its input.
  EXPECT_EQ(to_string(step.graph()->program),
            "$0 f32[3,4]\n"
            "%0 f32[3,4] = add($0, $0)\n"
            "%0 = exp(%0)\n"
            "%0 = relu(%0)\n"
            "return %0\n");
  EXPECT_TRUE(same_bits(x, drawn({3, 4}, "x")));
}

TEST(Replay, GradientsLeftInSlotsAccumulateAcrossCalls) {
  TinyNet eager, captured;
  const auto run = [](TinyNet& net, const Tensor& x, const Tensor& y) {
    Tensor loss = net.loss(x, y);
    backward(loss);
    return loss;
  };
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return run(captured, x, y); });
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(same_bits(step(TinyNet::x(i), TinyNet::y(i)), run(eager, TinyNet::x(i), TinyNet::y(i)).detach()));
    expect_same_grads(captured, eager);
  }
  EXPECT_EQ(step.mode(), Mode::replay);
  // Without old gradients the program takes another way: it makes them instead of adding to them.
  captured.clear();
  eager.clear();
  for (int i = 6; i < 9; ++i) {
    step(TinyNet::x(i), TinyNet::y(i));
    run(eager, TinyNet::x(i), TinyNet::y(i));
    expect_same_grads(captured, eager);
    if (i == 6) {
      EXPECT_EQ(step.why(), "recorded: slot \"w1\" has no gradient before the step, in the graph it has one");
    }
  }
}

// Eager, a gradient that somebody else holds is not added to in place: the sum is a tensor of its own.
TEST(Replay, GradientsTheCallerHoldsStayAsTheyWere) {
  TinyNet eager, captured;
  const auto run = [](TinyNet& net, int i) { backward(net.loss(TinyNet::x(i), TinyNet::y(i))); };
  auto step = compile_once([&](const Tensor& a, const Tensor& b) { backward(captured.loss(a, b)); });
  std::vector<Tensor> held, expected;
  for (int i = 0; i < 9; ++i) {
    if (i == 3 || i == 7)
      for (std::size_t p = 0; p < 3; ++p) {
        held.push_back(captured.params[p]->grad());
        expected.push_back(held.back() + 0.0);
      }
    if (i == 5) held.clear(), expected.clear();
    step(TinyNet::x(i), TinyNet::y(i));
    run(eager, i);
    expect_same_grads(captured, eager);
    for (std::size_t h = 0; h < held.size(); ++h) EXPECT_TRUE(same_bits(held[h], expected[h])) << "call " << i;
  }
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
}

// The two passes of a generative adversarial step: the second network is frozen in one and trained in the other.
TEST(Replay, ASlotFrozenForAPartOfTheStepIsReplayed) {
  struct Gan {
    Slot g{"g", true}, d{"d", true};
    Gan() {
      g.set(drawn({3}, "g"));
      d.set(drawn({3}, "d"));
    }
    Tensor train(const Tensor& x) {
      d.set_requires_grad(false);
      const Tensor fake = g.value() * x;
      const Tensor fooled = mean(square(d.value() * fake - 1.0));
      backward(fooled);
      d.set_requires_grad(true);
      const Tensor told = mean(square(d.value() * fake.detach())) + mean(square(d.value() * x - 1.0));
      backward(told);
      GradMode off(false);
      for (Slot* slot : {&g, &d}) {
        slot->set(slot->value() - slot->grad() * 0.1);
        slot->clear_grad();
      }
      return fooled + told;
    }
  };
  Gan eager, captured;
  auto step = compile_once([&](const Tensor& x) { return captured.train(x); });
  for (int i = 0; i < 6; ++i) {
    const Tensor x = drawn({3}, "x", static_cast<std::uint64_t>(i));
    EXPECT_TRUE(same_bits(step(x), eager.train(x).detach())) << i;
    EXPECT_EQ(step.mode(), i == 0 ? Mode::eager : i == 1 ? Mode::record : Mode::replay) << step.why();
    EXPECT_TRUE(same_bits(captured.g.value(), eager.g.value())) << i;
    EXPECT_TRUE(same_bits(captured.d.value(), eager.d.value())) << i;
  }
  captured.d.set_requires_grad(false);  // the step does not look at what it was before
  step(drawn({3}, "x"));
  EXPECT_TRUE(captured.d.requires_grad());
}

TEST(Replay, SlotsAreLeftFrozenAsInTheProgram) {
  Slot w("w", true);
  w.set(Tensor::scalar(2));
  auto step = compile_once([&](const Tensor& x) {
    const Tensor y = w.value() * x;
    w.set_requires_grad(false);
    return y.detach();
  });
  for (int i = 0; i < 5; ++i) {
    w.set_requires_grad(true);
    step(Tensor::scalar(i));
    EXPECT_FALSE(w.requires_grad()) << i;
    EXPECT_FALSE(w.value().requires_grad()) << i;
  }
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
}

TEST(Replay, GradientsClearedFirstAreFreedFirst) {
  TinyNet eager, captured;
  const auto run = [](TinyNet& net, const Tensor& x, const Tensor& y) {
    net.clear();
    Tensor loss = net.loss(x, y);
    backward(loss);
    net.update();
    return loss;
  };
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return run(captured, x, y); });
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(same_bits(step(TinyNet::x(i), TinyNet::y(i)), run(eager, TinyNet::x(i), TinyNet::y(i)).detach()));
    expect_same_grads(captured, eager);
    expect_same_state(captured, eager);
  }
  const auto gradient_peak = [](auto&& call) {
    allocator().accounting().reset_peaks();
    call(TinyNet::x(5), TinyNet::y(5));
    return allocator().accounting().peak(MemoryCategory::gradients);
  };
  const std::int64_t expected = gradient_peak([&](const Tensor& x, const Tensor& y) { run(eager, x, y); });
  EXPECT_EQ(gradient_peak([&](const Tensor& x, const Tensor& y) { step(x, y); }), expected);
  EXPECT_EQ(step.mode(), Mode::replay);
}

TEST(Replay, SlotsGetNewTensorsInOrderAndTheLastOneWins) {
  Slot a("a"), b("b");
  a.set(Tensor::scalar(1));
  b.set(Tensor::scalar(10));
  auto step = compile_once([&](const Tensor& x) {
    const Tensor old = a.value();
    a.set(b.value() + x);
    b.set(old);
    b.set(b.value() + 0.5);
  });
  float ea = 1, eb = 10;
  for (int i = 0; i < 6; ++i) {
    step(Tensor::scalar(i));
    const float old = ea;
    ea = eb + static_cast<float>(i);
    eb = old + 0.5f;
    EXPECT_EQ(a.value().item<float>(), ea) << i;
    EXPECT_EQ(b.value().item<float>(), eb) << i;
  }
  EXPECT_EQ(step.mode(), Mode::replay);
}

TEST(Replay, SwappedTensorsAreSeen) {
  Slot w("w");
  w.set(Tensor::from<float>({1, 2}, {2}));
  auto step = compile_once([&](const Tensor& x) { return w.value() * x; });
  const Tensor x = Tensor::from<float>({3, 5}, {2});
  for (int i = 0; i < 3; ++i) step(x);
  w.set(Tensor::from<float>({10, 20}, {2}));
  EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{30, 100}));
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
  w.set(cast(w.value(), DType::f64));
  EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{30, 100}));
  EXPECT_EQ(step.why(), "recorded: slot \"w\" is f64[2], the graph has f32[2]");
}

TEST(Replay, SlotsThatShareMemoryAreWrittenThroughIt) {
  Slot first("first"), second("second");
  const Tensor arena = zeros({4});
  first.set(narrow(arena, 0, 0, 2));
  second.set(narrow(arena, 0, 2, 2));
  auto step = compile_once([&](const Tensor& x) {
    first.assign(first.value() + x);
    return second.value() + narrow(arena, 0, 1, 2);
  });
  const Tensor x = Tensor::from<float>({1, 2}, {2});
  for (int i = 1; i <= 4; ++i)
    EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{2.0f * static_cast<float>(i), 0})) << i;
  EXPECT_EQ(step.mode(), Mode::replay);
  const std::string text = to_string(step.graph()->program);
  EXPECT_NE(text.find("@second f32[2]+2 in @first\n"), std::string::npos) << text;
  EXPECT_NE(text.find("(@second, @first:f32[2]+1)"), std::string::npos) << text;
  second.set(narrow(zeros({4}), 0, 2, 2));  // looks the same, but lies elsewhere
  step(x);
  EXPECT_EQ(step.why(), "recorded: slot \"second\" no longer shares memory with slot \"first\"");
  first.set(zeros({2}));
  step(x);
  EXPECT_EQ(step.why(), "recorded: slot \"first\" lies in 8 bytes of memory, the graph has 16");
}

TEST(Replay, MemoryIsThatOfTheProgramAndSteady) {
  TinyNet eager, captured;
  const auto peak_of = [&](auto&& run) {
    allocator().accounting().reset_peaks();
    const std::int64_t before = allocator().accounting().total();
    run();
    EXPECT_EQ(allocator().accounting().total(), before);
    return allocator().accounting().total_peak() - before;
  };
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return captured.train(x, y); });
  const Tensor x = TinyNet::x(0, 64), y = TinyNet::y(0, 64);
  for (int i = 0; i < 3; ++i) step(x, y);
  eager.train(x, y);
  const std::int64_t program = peak_of([&] { eager.train(x, y); });
  const CategoryBytes eager_peaks = allocator().accounting().peak();
  const std::int64_t system_calls = allocator().system_calls();
  const std::int64_t replay = peak_of([&] { step(x, y); });
  EXPECT_LE(replay, program);
  const auto gradients = static_cast<std::size_t>(MemoryCategory::gradients);
  EXPECT_EQ(allocator().accounting().peak()[gradients], eager_peaks[gradients]);
  EXPECT_GT(eager_peaks[gradients], 0);
  for (int i = 0; i < 10; ++i) step(x, y);
  EXPECT_EQ(allocator().system_calls(), system_calls);
}

TEST(Replay, AnErrorNamesTheNodeAndLeavesNothingBehind) {
  Slot table("table"), count("count");
  table.set(drawn({4, 3}, "table"));
  count.set(Tensor::scalar(0));
  auto step = compile_once([&](const Tensor& ids) {
    count.set(count.value() + 1.0);
    const Tensor scaled = table.value() * 2.0;
    return sum(embedding(scaled, ids));
  });
  const Tensor good = Tensor::from<std::int64_t>({0, 3}, {2}), bad = Tensor::from<std::int64_t>({0, 4}, {2});
  for (int i = 0; i < 3; ++i) step(good);
  const float counted = count.value().item<float>();
  const std::int64_t held = allocator().accounting().total();
  expect_error([&] { step(bad); }, {"4", "embedding", "f32[4,3]  i64[2]", "replay  node 2 of 4"});
  EXPECT_EQ(allocator().accounting().total(), held);
  EXPECT_EQ(count.value().item<float>(), counted);
  const Tensor loss = step(good);
  EXPECT_EQ(step.mode(), Mode::replay);
  EXPECT_EQ(count.value().item<float>(), counted + 1);
  EXPECT_TRUE(same_bits(loss, sum(embedding(table.value() * 2.0, good))));
}

TEST(Replay, ResultsMayBeViewsArgumentsStateOrNothing) {
  Slot w("w");
  w.set(drawn({3, 2}, "w"));
  CompiledStep step([&](std::span<const Tensor> in) {
    const Tensor doubled = in[0] + in[0];
    return std::vector<Tensor>{transpose(doubled, 0, 1), narrow(in[0], 0, 1, 2), w.value(), Tensor()};
  });
  for (int i = 0; i < 4; ++i) {
    const Tensor whole = drawn({4, 2}, "x", static_cast<std::uint64_t>(i));
    const Tensor x[] = {narrow(whole, 0, i % 2, 3)};  // starts at another element every other time
    const std::vector<Tensor> out = step(x);
    EXPECT_TRUE(same_bits(out[0], transpose(x[0] + x[0], 0, 1)));
    EXPECT_TRUE(same_bits(out[1], narrow(x[0], 0, 1, 2)));
    EXPECT_EQ(out[1].storage(), whole.storage());
    EXPECT_EQ(out[2].storage(), w.value().storage());
    EXPECT_FALSE(out[3].defined());
  }
  EXPECT_EQ(step.mode(), Mode::replay);
}

// A stand-in for a unit of fully_shard: its gathered bytes are there between two effect rows only.
class FakeUnit final : public StorageOwner {
 public:
  FakeUnit()
      : storage(Storage::released(8, MemoryCategory::unsharded)),
        gathered(Tensor::over(storage, {2}, {1}, 0, DType::f32)) {
    storage->owner = this;
  }
  ~FakeUnit() { storage->owner = nullptr; }
  void ensure_present(Storage&) override {
    ++rescues;
    gather();
  }
  void abandon_replay(Storage& s, std::string_view) noexcept override {
    ++abandoned;
    s.release_data();
  }
  void gather() {
    storage->restore_data();
    gathered.mutable_data<float>()[0] = gathered.mutable_data<float>()[1] = value;
  }
  Ref<Storage> storage;
  Tensor gathered;
  float value = 1;
  int rescues = 0, abandoned = 0;
};

constinit const Op kFakeGather{.name = "fake_gather",
                               .infer = [](const InferCall&) { return Metas{}; },
                               .traits = {.effect = true},
                               .no_gradient = "effect",
                               .residency = {.restores = 1u << 0}};
constinit const Op kFakeRelease{.name = "fake_release",
                                .infer = [](const InferCall&) { return Metas{}; },
                                .traits = {.effect = true},
                                .no_gradient = "effect",
                                .residency = {.releases = 1u << 0}};

void issue(FakeUnit& unit, const Op& row) {
  add_rows([](OpTable& table) {
    table.add({&kFakeGather, &kFakeRelease});
    table.kernel(kFakeGather, Device::Kind::cpu,
                 [](const KernelCall& call) { static_cast<FakeUnit&>(*call.in[0].storage()->owner).gather(); });
    table.kernel(kFakeRelease, Device::Kind::cpu, [](const KernelCall& call) { call.in[0].storage()->release_data(); });
  });
  Tensor in[] = {unit.gathered};
  call_op(row, in, {});
}

TEST(Replay, UnitsBytesComeAndGoByEffectRows) {
  FakeUnit unit;
  auto step = compile_once([&](const Tensor& ids) {
    issue(unit, kFakeGather);
    const Tensor rows = embedding(view(unit.gathered, {2, 1}), ids);
    issue(unit, kFakeRelease);
    return sum(rows);
  });
  const Tensor ids = Tensor::from<std::int64_t>({0, 1, 1}, {3});
  for (int i = 1; i <= 4; ++i) {
    unit.value = static_cast<float>(i);
    EXPECT_EQ(step(ids).item<float>(), 3 * unit.value);
    EXPECT_FALSE(unit.storage->is_present());
  }
  EXPECT_EQ(unit.rescues, 0);
  EXPECT_EQ(to_string(step.graph()->program),
            "$0 i64[3]\n"
            "&0 f32[2]\n"
            "fake_gather(&0) restores &0\n"
            "%0 f32[3,1] = embedding(&0:f32[2,1], $0)\n"
            "fake_release(&0) releases &0\n"
            "%1 f32[] = sum(%0) {dims=3 keep=false}\n"
            "return %1\n");
  EXPECT_THROW(step(Tensor::from<std::int64_t>({0, 1, 2}, {3})), Error);
  EXPECT_EQ(unit.abandoned, 1);
  EXPECT_FALSE(unit.storage->is_present());
}

// The step uses what was gathered before it. A late gather is a node, so a replay does not ask the owner for one.
TEST(Replay, BytesThatTheStepDoesNotGatherMustBeThere) {
  FakeUnit unit;
  const auto named = name_storage("fake full", unit.storage);
  unit.gather();
  auto step = compile_once([&](const Tensor& x) { return unit.gathered * x; });
  const Tensor x = Tensor::from<float>({2, 3}, {2});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{2, 3}));
  unit.storage->release_data();
  expect_error([&] { step(x); }, {"\"fake full\" of a unit", "was not gathered in the recorded step", "unshard()"});
  EXPECT_EQ(unit.rescues, 0);
  EXPECT_EQ(unit.abandoned, 1);
  unit.gather();
  EXPECT_EQ(step(x).to_vector<float>(), (std::vector<float>{2, 3}));
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
}

}  // namespace
}  // namespace sherd::testing
