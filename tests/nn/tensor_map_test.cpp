// Hooks that put other tensors in place of a module's inputs and outputs.
#include "nn/tensor_map.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <unordered_map>

#include "nn/module.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {
namespace {

using Pair = std::pair<Tensor, std::vector<Tensor>>;

struct Mixed : Layer<Mixed> {
  // Results: a + scale, and b's tensors with an undefined one.
  Pair forward(const Tensor& a, const std::vector<Tensor>& b, const std::optional<Tensor>& c, double scale, Tensor d) {
    seen_c = c.has_value();
    return {a + scale, {b[0] + d, b[1], Tensor()}};
  }
  bool seen_c = false;
};

struct Call {
  char side;
  std::size_t index, count;
  double value;
  friend bool operator==(const Call&, const Call&) = default;
};

// Adds `amount`, and writes down what it was shown.
struct Adding : ModuleHook {
  double amount;
  std::vector<Call>* calls;
  bool inputs = true, outputs = true;
  Adding(double a, std::vector<Call>* c) : amount(a), calls(c) {}
  bool maps_inputs() const override { return inputs; }
  bool maps_outputs() const override { return outputs; }
  void map_input(Module&, Tensor& t, TensorPlace place) override {
    calls->push_back({'i', place.index, place.count, t.item<double>()});
    t = t + amount;
  }
  void map_output(Module&, Tensor& t, TensorPlace place) override {
    calls->push_back({'o', place.index, place.count, t.item<double>()});
    t = t * amount;
  }
};

Tensor number(double value) { return Tensor::scalar(value); }

struct Scores {
  Tensor value;
  double weight = 0;
  std::unordered_map<std::string, Tensor> by_name;
  static constexpr std::tuple tensor_members{&Scores::value, &Scores::weight, &Scores::by_name};
};

// Each member of a struct has its place, and a map is visited in the order of its keys.
TEST(TensorMap, F204_StructsAndMapsAreMapped) {
  struct Scoring : Layer<Scoring> {
    Scores forward(const Scores& in) { return in; }
  };
  struct Naming : Layer<Naming> {
    std::map<int, Tensor> forward(const Tensor& x) { return {{9, x + 2}, {4, x + 1}}; }
  };
  Scoring scoring;
  std::vector<Call> calls;
  scoring.add_hook(std::make_shared<Adding>(10, &calls));
  const Scores in{number(1), 0.5, {{"z", number(4)}, {"a", number(2)}, {"m", number(3)}}};
  const Scores out = scoring(in);
  EXPECT_EQ(out.value.item<double>(), (1 + 10) * 10);
  EXPECT_EQ(out.weight, 0.5);
  EXPECT_EQ(out.by_name.at("z").item<double>(), (4 + 10) * 10);
  EXPECT_EQ(in.value.item<double>(), 1) << "arguments are copied before they are mapped";
  const std::vector<Call> expected{{'i', 0, 1, 1},  {'i', 0, 1, 2},  {'i', 0, 1, 3},  {'i', 0, 1, 4},
                                   {'o', 0, 3, 11}, {'o', 2, 3, 12}, {'o', 2, 3, 13}, {'o', 2, 3, 14}};
  EXPECT_EQ(calls, expected);
  calls.clear();
  Naming naming;
  naming.add_hook(std::make_shared<Adding>(10, &calls));
  EXPECT_EQ(naming(number(0)).at(9).item<double>(), (2 + 10) * 10);
  EXPECT_EQ(calls, (std::vector<Call>{{'i', 0, 1, 0}, {'o', 0, 2, 11}, {'o', 1, 2, 12}}));
}

TEST(TensorMap, ArraysAreMapped) {
  struct Swapping : Layer<Swapping> {
    std::array<Tensor, 2> forward(const std::array<Tensor, 2>& in) { return {in[1], in[0]}; }
  };
  Swapping module;
  std::vector<Call> calls;
  module.add_hook(std::make_shared<Adding>(10, &calls));
  const std::array<Tensor, 2> in{number(1), number(2)}, out = module(in);
  EXPECT_EQ(out[0].item<double>(), (2 + 10) * 10);
  EXPECT_EQ(out[1].item<double>(), (1 + 10) * 10);
  EXPECT_EQ(in[0].item<double>(), 1);
  const std::vector<Call> expected{{'i', 0, 1, 1}, {'i', 0, 1, 2}, {'o', 0, 2, 12}, {'o', 1, 2, 11}};
  EXPECT_EQ(calls, expected);
}

TEST(TensorMap, ArgumentsAndResultsAreShownWithTheirPlaces) {
  Mixed module;
  std::vector<Call> calls;
  module.add_hook(std::make_shared<Adding>(10, &calls));
  const std::vector<Tensor> list{number(1), number(2)};
  const Tensor a = number(5);
  const auto [first, rest] = module(a, list, std::optional<Tensor>(), 0.5, Tensor(number(3)));
  EXPECT_FALSE(module.seen_c);
  EXPECT_EQ(first.item<double>(), (5 + 10 + 0.5) * 10);
  EXPECT_EQ(rest[0].item<double>(), (1 + 10 + 3 + 10) * 10);
  EXPECT_EQ(rest[1].item<double>(), (2 + 10) * 10);
  EXPECT_FALSE(rest[2].defined());
  // The caller's own tensors are as they were.
  EXPECT_EQ(a.item<double>(), 5);
  EXPECT_EQ(list[0].item<double>(), 1);
  for (const Call& call : {Call{'i', 0, 5, 5}, Call{'i', 1, 5, 1}, Call{'i', 1, 5, 2}, Call{'i', 4, 5, 3},
                           Call{'o', 0, 2, 15.5}, Call{'o', 1, 2, 24}, Call{'o', 1, 2, 12}})
    EXPECT_EQ(std::count(calls.begin(), calls.end(), call), 1) << call.side << call.index << " " << call.value;
  EXPECT_EQ(calls.size(), 7u);
}

struct Identity : Layer<Identity> {
  const void* seen = nullptr;
  Tensor forward(const Tensor& x) {
    seen = x.impl();
    return x;
  }
};

TEST(TensorMap, InputsPassHooksInOrderAndOutputsInReverse) {
  Identity module;
  std::vector<Call> calls;
  module.add_hook(std::make_shared<Adding>(1, &calls));
  module.add_hook(std::make_shared<Adding>(2, &calls));
  EXPECT_EQ(module(number(0)).item<double>(), ((0 + 1 + 2) * 2) * 1);
  const std::vector<Call> expected{{'i', 0, 1, 0}, {'i', 0, 1, 1}, {'o', 0, 1, 3}, {'o', 0, 1, 6}};
  EXPECT_EQ(calls, expected);
}

TEST(TensorMap, WithoutAHookThatMapsArgumentsAreTheCallersOwn) {
  Identity module;
  std::vector<Call> calls;
  auto idle = std::make_shared<Adding>(1, &calls);
  idle->inputs = idle->outputs = false;
  module.add_hook(idle);
  const Tensor x = number(1);
  module(x);
  EXPECT_EQ(module.seen, x.impl());
  EXPECT_TRUE(calls.empty());
}

}  // namespace
}  // namespace sherd::nn
