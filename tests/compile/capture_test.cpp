// What a recording contains, as text, and what it refuses.
#include "compile/capture/capture.h"

#include <gtest/gtest.h>

#include "tests/compile/training_step.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

Graph capture(std::span<const Tensor> arguments, const std::function<std::vector<Tensor>()>& step) {
  Graph graph = recorded(arguments, step);
  check_round_trip(graph.program);
  return graph;
}

TEST(Capture, ATrainingStepPrintsAsItsProgram) {
  Slot w("w", true), lr("lr");
  w.set(drawn({2, 3}, "w"));
  lr.set(Tensor::scalar(0.5));
  RankContext& context = RankContext::current();
  const std::string* outer = context.module_path;
  const Tensor x[] = {drawn({4, 3}, "x")};
  const Graph graph = capture(x, [&]() -> std::vector<Tensor> {
    context.module_path = context.intern("blocks.0");
    Tensor loss = sum(linear(x[0], w.value()));
    context.module_path = outer;
    backward(loss);
    GradMode off(false);
    w.set(w.value() - w.grad() * lr.value());
    return {loss};
  });
  EXPECT_EQ(to_string(graph.program),
            "$0 f32[4,3]\n"
            "@w f32[2,3]\n"
            "@lr f32[]\n"
            "%0 f32[4,2] = linear($0, @w, none)  # blocks.0\n"
            "%1 f32[] = sum(%0) {dims=3 keep=false}  # blocks.0\n"
            "%2 f32[] = full() {shape=[] value=1 dtype=f32}\n"
            "%3 f32[2,3] = linear_weight_grad(%2:f32[4,2]s[0,0], $0)  # blocks.0\n"
            "%4 f32[2,3] = mul(%3, @lr)\n"
            "%4 = sub(@w, %4)\n"
            "return %1\n"
            "@w = %4\n"
            "@w.grad = %3\n");
}

TEST(Capture, TwoRecordingsOfOneProgramHaveOneHash) {
  TinyNet a, b;
  const Tensor in[] = {TinyNet::x(0), TinyNet::y(0)};
  const Tensor other[] = {TinyNet::x(0, 8), TinyNet::y(0, 8)};
  const auto record = [](TinyNet& net, std::span<const Tensor> xy) {
    return capture(xy, [&]() -> std::vector<Tensor> { return {net.train(xy[0], xy[1])}; });
  };
  const Program first = record(a, in).program, second = record(b, in).program, larger = record(a, other).program;
  EXPECT_EQ(to_string(first), to_string(second));
  EXPECT_EQ(first.hash(), second.hash());
  EXPECT_NE(first.hash(), larger.hash());
  EXPECT_EQ(lines(first, {.rank_neutral = true}), lines(larger, {.rank_neutral = true}));
}

TEST(Capture, AWeightUsedTwiceAddsItsSecondGradientInPlace) {
  TinyNet net;
  const Tensor in[] = {TinyNet::x(0), TinyNet::y(0)};
  const std::string text =
      to_string(capture(in, [&]() -> std::vector<Tensor> { return {net.train(in[0], in[1])}; }).program);
  EXPECT_NE(text.find(" += "), std::string::npos) << text;
  EXPECT_NE(text.find("adamw(@w1!, @b1!, @w2!, @w1.m!"), std::string::npos) << text;
}

TEST(Capture, KeepsNothingOfTheStepAlive) {
  TinyNet net;
  const Tensor in[] = {TinyNet::x(0, 64), TinyNet::y(0, 64)};
  Accounting& accounting = RankContext::current().allocator().accounting();
  net.train(in[0], in[1]);
  const auto peak_of = [&](auto&& run) {
    accounting.reset_peaks();
    const std::int64_t before = accounting.total();
    run();
    EXPECT_EQ(accounting.total(), before);
    return accounting.total_peak() - before;
  };
  const std::int64_t plain = peak_of([&] { net.train(in[0], in[1]); });
  EXPECT_EQ(peak_of([&] { capture(in, [&]() -> std::vector<Tensor> { return {net.train(in[0], in[1])}; }); }), plain);
}

TEST(Capture, HostMadeTensorsAreConstantsAndNotDonated) {
  const Tensor x[] = {Tensor::scalar(3)};
  const Graph graph = capture(x, [&]() -> std::vector<Tensor> { return {mul(Tensor::scalar(2), x[0])}; });
  EXPECT_EQ(to_string(graph.program),
            "$0 f32[]\n"
            "#0 f32[]\n"
            "%0 f32[] = mul(#0, $0)\n"
            "return %0\n");
  EXPECT_EQ(*reinterpret_cast<const float*>(graph.live.storage(graph.program.value(1))->read()), 2.0f);
}

TEST(Capture, WritingIntoHostMadeTensorsIsRefused) {
  const Tensor x[] = {Tensor::scalar(3)};
  expect_error(
      [&] {
        capture(x, [&]() -> std::vector<Tensor> {
          const Tensor total = Tensor::scalar(1);
          const Tensor first = total + x[0];
          copy_into(total, x[0], true);
          return {total + first};
        });
      },
      {"copy", "filled on the host", "f32[]", "zeros()"});
  expect_error(
      [&] {
        capture(x, [&]() -> std::vector<Tensor> {
          const Tensor total = Tensor::scalar(1);
          copy_into(total, x[0], true);
          return {total};
        });
      },
      {"copy adds to f32[]", "zeros()"});
}

TEST(Capture, ReadingWhatOnlyTheHostHasFilledIsRefused) {
  const Tensor x[] = {drawn({2}, "x")};
  const auto record = [&](const std::function<Tensor()>& step) {
    return capture(x, [&]() -> std::vector<Tensor> { return {step()}; });
  };
  const auto half_filled = [&] {
    const Tensor t = Tensor::from<float>({1, 2, 3, 4}, {4});
    copy_into(narrow(t, 0, 0, 2), x[0]);
    return t;
  };
  expect_error([&] { record(half_filled); }, {"the end of the step reads f32[4]", "on the host", "zeros()"});
  expect_error([&] { record([&] { return half_filled() + 1.0; }); }, {"add_scalar reads f32[4]", "on the host"});
  expect_error(
      [&] {
        record([&] {
          const Tensor t = half_filled(), rest = narrow(t, 0, 2, 2);
          copy_into(rest, x[0], true);
          return rest;
        });
      },
      {"copy reads f32[2]", "on the host"});
  const Graph pieces = record([&] {
    const Tensor t = half_filled();
    const Tensor first = narrow(t, 0, 0, 2) + 1.0;
    copy_into(narrow(t, 0, 2, 2), first);
    return t;
  });
  EXPECT_EQ(pieces.program.nodes.size(), 3u);
}

TEST(Capture, ReadingAValueIsRefusedWithItsOrigin) {
  Slot w("w");
  w.set(Tensor::scalar(2));
  RankContext& context = RankContext::current();
  const Tensor x[] = {Tensor::scalar(3)};
  const auto refused = [&](const std::function<void()>& read, std::string_view what, std::string_view origin) {
    expect_error([&] { capture(x, [&]() -> std::vector<Tensor> { return read(), std::vector<Tensor>(); }); },
                 {what, "captured step", origin, "where()"});
    EXPECT_EQ(context.capture, nullptr);
  };
  refused([&] { (void)x[0].item<float>(); }, "item() on f32[]", "argument 0");
  refused([&] { (void)w.value().to_vector<float>(); }, "to_vector() on f32[]", "the value of slot \"w\"");
  refused([&] { (void)(x[0] + w.value()).item<float>(); }, "item() on f32[]", "the result of add");
  refused([&] { (void)Tensor::scalar(1).item<float>(); }, "item() on f32[]", "made on the host");
}

TEST(Capture, HooksMustBeMarkedCapturable) {
  TinyNet net;
  const Tensor in[] = {TinyNet::x(0), TinyNet::y(0)};
  const auto record = [&] { return capture(in, [&]() -> std::vector<Tensor> { return {net.train(in[0], in[1])}; }); };
  int calls = 0;
  net.params[2]->on_grad_accumulated([&](Slot&) { ++calls; }, {.capturable = true});
  record();
  EXPECT_EQ(calls, 1);
  net.params[2]->on_grad_accumulated([&](Slot&) { ++calls; });
  expect_error([&] { record(); }, {"hook of \"w2\"", "capturable"});
  net.clear();
  net.train(in[0], in[1]);  // outside of a recording both run
  EXPECT_EQ(calls, 4);

  const auto with_hook = [&](auto add_hook) {
    Slot w("w", true);
    w.set(Tensor::scalar(2));
    capture({}, [&]() -> std::vector<Tensor> {
      const Tensor y = w.value() * 3.0;
      add_hook(y, [](const Tensor& g) { return g * 2.0; });
      backward(y);
      return {};
    });
    return w.grad().item<float>();
  };
  EXPECT_EQ(with_hook(register_capturable_grad_hook), 6.0f);
  expect_error([&] { with_hook([](const Tensor& t, GradHook hook) { register_grad_hook(t, std::move(hook)); }); },
               {"hook on the result of mul", "capturable"});
}

TEST(Capture, ArgumentsMustComeWithoutHistory) {
  Slot w("w", true);
  w.set(Tensor::scalar(2));
  const Tensor history[] = {w.value() * 2.0};
  expect_error([&] { Recorder recorder(history); }, {"argument 0", "history", "detach()"});
  const Tensor undefined[] = {Tensor()};
  expect_error([&] { Recorder recorder(undefined); }, {"argument 0", "undefined"});
  const Tensor meta[] = {Tensor::empty({2}, DType::f32, Device::meta())};
  expect_error([&] { Recorder recorder(meta); }, {"argument 0", "f32[2](meta)", "materialize"});
  Slot plain("plain");
  plain.set(Tensor::scalar(2));
  const Tensor shared[] = {plain.value()};
  expect_error([&] { capture(shared, [&]() -> std::vector<Tensor> { return {plain.value() + 1.0}; }); },
               {"argument 0", "slot \"plain\"", "copy"});
}

TEST(Capture, ArgumentsOfOneStorageAreToldApart) {
  const Tensor batch = drawn({3, 5}, "batch");
  const Tensor in[] = {narrow(batch, 1, 0, 4), narrow(batch, 1, 1, 4)};
  const Graph graph = capture(in, [&]() -> std::vector<Tensor> { return {in[0] - in[1]}; });
  EXPECT_EQ(graph.program.arguments[1].shares, 0);
  EXPECT_EQ(graph.program.arguments[1].shift, 4);
}

TEST(Capture, ATensorThatLiesPartlyInAnArgumentIsRefused) {
  const Tensor batch = drawn({8}, "batch");
  const Tensor x[] = {narrow(batch, 0, 0, 4)};
  const auto record = [&](const Tensor& other) {
    return capture(x, [&]() -> std::vector<Tensor> { return {sum(x[0]) + sum(other)}; });
  };
  expect_error([&] { record(narrow(batch, 0, 2, 4)); },
               {"f32[4]", "lies partly in argument 0", "pass all of it as an argument, or use a copy"});
  expect_error([&] { record(batch); }, {"f32[8]", "partly in argument 0"});
  record(narrow(batch, 0, 1, 2));
  record(narrow(batch, 0, 4, 4));
}

TEST(Capture, OneRecordingAtATime) {
  const Recorder outer({});
  expect_error([] { Recorder inner({}); }, {"being captured"});
}

TEST(Capture, SlotsThatLiveWithinTheStepLeaveNoTrace) {
  const Tensor x[] = {Tensor::scalar(3)};
  const Graph graph = capture(x, [&]() -> std::vector<Tensor> {
    Slot local("local");
    local.set(x[0] + 1.0);
    return {local.value() * 2.0};
  });
  EXPECT_TRUE(graph.program.updates.empty());
  EXPECT_TRUE(graph.program.slots[0].is_local);
  EXPECT_FALSE(graph.live.slots[0]);
}

}  // namespace
}  // namespace sherd::testing
