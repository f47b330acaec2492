// The module tree: names, sharing, modes, hooks, what errors say, and what materialize() keeps.
#include "nn/module.h"

#include <gtest/gtest.h>

#include <map>
#include <unordered_map>

#include "dtensor/api.h"
#include "nn/layers/linear.h"
#include "nn/module_list.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::nn {
namespace {

using testing::expect_error;
using testing::run_ranks;
using testing::same_bits;

struct Block : Layer<Block> {
  Linear &up, &down;
  Block(std::int64_t in, std::int64_t hidden)
      : up(add<Linear>("up", in, hidden)), down(add<Linear>("down", hidden, in, Linear::Options{.bias = false})) {}
  Tensor forward(const Tensor& x) { return down(relu(up(x))); }
};

struct Net : Layer<Net> {
  Parameter& gain;
  Buffer& offset;
  ModuleList<Block>& blocks;
  Net()
      : gain(add_parameter("gain", {4}, Init::ones())),
        offset(add_buffer("offset", Tensor::from<float>({1, 2, 3, 4}, {4}))),
        blocks(add<ModuleList<Block>>("blocks")) {
    for (int i = 0; i < 2; ++i) blocks.append(4, 6);
  }
  Tensor forward(Tensor x) {
    for (Block* block : blocks.items()) x = (*block)(x);
    return x * gain + offset;
  }
};

template <class T>
std::vector<std::string> names(const std::vector<std::pair<std::string, T*>>& named) {
  std::vector<std::string> result;
  for (const auto& [name, slot] : named) result.push_back(name);
  return result;
}

Tensor input() { return Tensor::from<float>({1, -2, 3, -4, 5, 6, -7, 8}, {2, 4}); }

TEST(Module, PathsAreTheNamesFromTheRoot) {
  Net net;
  EXPECT_EQ(net.path(), "");
  EXPECT_EQ(net.blocks.items()[1]->down.path(), "blocks.1.down");
  EXPECT_EQ(net.blocks.items()[1]->down.name(), "down");
  EXPECT_EQ(net.blocks.items()[1]->parent()->path(), "blocks");
  EXPECT_EQ(net.blocks.items()[1]->up.weight.name(), "blocks.1.up.weight");
  EXPECT_EQ(net.gain.name(), "gain");
}

TEST(Module, ParametersComeInOrderOfConstruction) {
  Net net;
  const std::vector<std::string> expected = {"gain",
                                             "blocks.0.up.weight",
                                             "blocks.0.up.bias",
                                             "blocks.0.down.weight",
                                             "blocks.1.up.weight",
                                             "blocks.1.up.bias",
                                             "blocks.1.down.weight"};
  EXPECT_EQ(names(net.named_parameters()), expected);
  EXPECT_EQ(net.parameters().size(), expected.size());
  EXPECT_EQ(net.num_parameters(), 4 + 2 * (24 + 6 + 24));
  EXPECT_EQ(names(net.named_buffers()), std::vector<std::string>{"offset"});
  // Relative to the module that is asked, while the slot keeps its full name.
  const auto below = net.blocks.items()[0]->named_parameters();
  EXPECT_EQ(below[0].first, "up.weight");
  EXPECT_EQ(below[0].second->name(), "blocks.0.up.weight");
}

TEST(Module, ForEachVisitsParentsFirst) {
  Net net;
  std::vector<std::string> paths;
  net.for_each_module([&](Module& m) { paths.push_back(m.path()); });
  const std::vector<std::string> expected = {"",         "blocks",      "blocks.0",     "blocks.0.up", "blocks.0.down",
                                             "blocks.1", "blocks.1.up", "blocks.1.down"};
  EXPECT_EQ(paths, expected);
}

TEST(Module, ParameterIsFoundByPathOrTheErrorNamesTheNearest) {
  Net net;
  EXPECT_EQ(&net.parameter("blocks.1.up.bias"), net.blocks.items()[1]->up.bias);
  expect_error([&] { net.parameter("blocks.1.up.bais"); }, {"\"blocks.1.up.bais\"", "blocks.1.up.bias"});
  expect_error([&] { net.parameter("blocks.1.up"); }, {"no parameter \"blocks.1.up\""});
}

TEST(Module, NamesAreUnique) {
  struct Twice : Module {
    explicit Twice(int what) {
      if (what == 0) add<Linear>("a", 2, 2), add<Linear>("a", 2, 2);
      if (what == 1) add_parameter("p", {1}, Init::zeros()), add_parameter("p", {2}, Init::zeros());
      if (what == 2) share_parameter("p", add_parameter("p", {1}, Init::zeros()));
      if (what == 3) add_buffer("b", Tensor::scalar(1)), add_buffer("b", Tensor::scalar(2));
      if (what == 4) add<Linear>("", 2, 2);
      if (what == 5) add<Linear>("a.b", 2, 2);
      if (what == 6) add_parameter("a.b", {1}, Init::zeros());
    }
  };
  expect_error([] { Twice(0); }, {"child \"a\" already"});
  expect_error([] { Twice(1); }, {"parameter \"p\" already"});
  expect_error([] { Twice(2); }, {"parameter \"p\" already"});
  expect_error([] { Twice(3); }, {"buffer \"b\" already"});
  expect_error([] { Twice(4); }, {"must not be empty"});
  expect_error([] { Twice(5); }, {"hold a dot", "\"a.b\""});
  expect_error([] { Twice(6); }, {"hold a dot", "\"a.b\""});
}

TEST(Module, SharedParametersCountOnceUnderTheirFirstName) {
  struct Tied : Module {
    Linear& first;
    Parameter& again;
    Tied() : first(add<Linear>("first", 3, 3)), again(share_parameter("again", first.weight)) {}
  };
  Tied tied;
  EXPECT_EQ(&tied.again, &tied.first.weight);
  EXPECT_EQ(tied.again.name(), "first.weight");
  EXPECT_EQ(tied.num_parameters(), 9 + 3);
  // The module's own name for it comes before its children's.
  EXPECT_EQ(names(tied.named_parameters()), (std::vector<std::string>{"again", "first.bias"}));
  ASSERT_EQ(tied.own_parameters().size(), 1u);
  EXPECT_TRUE(tied.own_parameters()[0].shared);
}

TEST(Module, AllocateGivesMemoryThatNothingTrainsOnBeforeItHasValues) {
  Net net, drawn;
  net.allocate();
  Parameter &loaded = net.parameter("blocks.0.up.bias"), &left = net.parameter("blocks.1.up.weight");
  EXPECT_FALSE(left.value().is_meta());
  EXPECT_FALSE(left.initialised());
  loaded.assign(full({6}, 3));
  loaded.mark_initialised();
  Sgd optimizer(net.parameters(), {.lr = 0.1});
  backward(sum(net(input())));
  expect_error([&] { optimizer.step(); }, {"refused", "\"gain\"", "drawn or loaded"});
  optimizer.clear_gradients();
  net.cast_to(DType::f64);
  EXPECT_NE(left.torn(), "") << "a cast gives no values";
  net.cast_to(DType::f32);
  // What has no values yet is drawn: those that it would have had.
  net.materialize(Seed{3});
  drawn.materialize(Seed{3});
  EXPECT_EQ(left.value().to_vector<float>(), drawn.parameter("blocks.1.up.weight").value().to_vector<float>());
  EXPECT_EQ(loaded.value().to_vector<float>(), std::vector<float>(6, 3));
  EXPECT_EQ(optimizer.torn(), "");
}

TEST(Module, TrainingModeIsSetForTheSubtree) {
  Net net;
  net.for_each_module([](Module& m) { EXPECT_TRUE(m.training()); });
  net.blocks.items()[0]->train(false);
  EXPECT_TRUE(net.training());
  EXPECT_FALSE(net.blocks.items()[0]->up.training());
  EXPECT_TRUE(net.blocks.items()[1]->training());
  net.train(false);
  net.for_each_module([](Module& m) { EXPECT_FALSE(m.training()) << m.path(); });
}

// Writes what happens into a list: "a>blocks.0", "a<blocks.0 1" (with the number of outputs), "a!blocks.0".
struct Recorder final : ModuleHook {
  Recorder(std::string label, std::vector<std::string>& out) : name(std::move(label)), log(out) {}
  void before_forward(Module& m) override {
    if (throws_before) fail("{} refuses", name);
    log.push_back(name + ">" + m.path());
  }
  void after_forward(Module& m, const std::function<void(const TensorVisitor&)>& visit) override {
    if (throws_after) fail("{} refuses the result", name);
    int outputs = 0;
    visit([&](const Tensor&) { ++outputs; });
    log.push_back(fmt::format("{}<{} {}", name, m.path(), outputs));
  }
  void abandon_forward(Module& m, std::string_view) noexcept override { log.push_back(name + "!" + m.path()); }
  void before_materialize(Module& m, Device) override { log.push_back(name + "*" + m.path()); }

  std::string name;
  std::vector<std::string>& log;
  bool throws_before = false, throws_after = false;
};

struct Hooked {
  Net net;
  std::vector<std::string> log;
  std::shared_ptr<Recorder> a = std::make_shared<Recorder>("a", log), b = std::make_shared<Recorder>("b", log),
                            root = std::make_shared<Recorder>("r", log);
  Hooked() {
    net.materialize();
    net.add_hook(root);
    net.blocks.items()[0]->add_hook(a);
    net.blocks.items()[0]->add_hook(b);
  }
};

TEST(ModuleHooks, NestLikeBrackets) {
  Hooked h;
  h.net(input());
  EXPECT_EQ(h.log,
            (std::vector<std::string>{"r>", "a>blocks.0", "b>blocks.0", "b<blocks.0 1", "a<blocks.0 1", "r< 1"}));
}

TEST(ModuleHooks, AnErrorInForwardAbandonsWhatWasEntered) {
  Hooked h;
  expect_error([&] { h.net(Tensor::from<float>({1, 2, 3}, {1, 3})); }, {"linear"});
  EXPECT_EQ(h.log, (std::vector<std::string>{"r>", "a>blocks.0", "b>blocks.0", "b!blocks.0", "a!blocks.0", "r!"}));
  EXPECT_EQ(RankContext::current().module_path, nullptr);
}

TEST(ModuleHooks, AnErrorInAHookAbandonsTheOthers) {
  Hooked h;
  h.b->throws_before = true;
  expect_error([&] { h.net(input()); }, {"b refuses"});
  EXPECT_EQ(h.log, (std::vector<std::string>{"r>", "a>blocks.0", "a!blocks.0", "r!"}));
  EXPECT_EQ(RankContext::current().module_path, nullptr);
  h.log.clear();
  h.b->throws_before = false;
  h.b->throws_after = true;
  expect_error([&] { h.net(input()); }, {"b refuses the result"});
  EXPECT_EQ(h.log, (std::vector<std::string>{"r>", "a>blocks.0", "b>blocks.0", "a!blocks.0", "r!"}));
  h.b->throws_after = false;
  h.log.clear();
  h.net(input());  // nothing is left behind
  EXPECT_EQ(h.log.size(), 6u);
}

TEST(ModuleHooks, MaterializeTellsParentsFirst) {
  Hooked h;
  h.net.materialize();
  EXPECT_EQ(h.log, (std::vector<std::string>{"r*", "a*blocks.0", "b*blocks.0"}));
}

TEST(ModuleHooks, F67_OutputsAreFoundInPairsTuplesVectorsAndOptionals) {
  struct Many : Layer<Many> {
    std::tuple<Tensor, std::vector<Tensor>, std::pair<Tensor, std::optional<Tensor>>> forward(const Tensor& x) {
      return {x, {x, x}, {Tensor(), x}};
    }
  };
  Many many;
  std::vector<std::string> log;
  many.add_hook(std::make_shared<Recorder>("m", log));
  many(input());
  EXPECT_EQ(log.back(), "m< 4");  // undefined ones are left out
}

struct Losses {
  Tensor total;
  std::optional<Tensor> auxiliary;
  int count = 0;
  static constexpr std::tuple tensor_members{&Losses::total, &Losses::auxiliary, &Losses::count};
};

TEST(ModuleHooks, F67_F204_OutputsAreFoundInStructsAndMaps) {
  struct Many : Layer<Many> {
    std::tuple<Losses, std::map<std::string, Tensor>, std::unordered_map<int, std::vector<Losses>>, std::string>
    forward(const Tensor& x) {
      return {{x, x, 2}, {{"a", x}, {"b", Tensor()}}, {{7, {{x, {}, 0}}}}, "text"};
    }
  };
  Many many;
  std::vector<std::string> log;
  many.add_hook(std::make_shared<Recorder>("m", log));
  many(input());
  EXPECT_EQ(log.back(), "m< 4");  // two of the struct, one of each map
}

struct Encoder : Layer<Encoder> {
  Linear& inner;
  int calls = 0;
  Encoder() : inner(add<Linear>("inner", 4, 4)) {}
  Tensor forward(const Tensor& x) { return call_hooked(*this, &Encoder::embed, x); }
  Tensor embed(const Tensor& x) { return inner(x); }
  void count() { ++calls; }
  Tensor refuse(const Tensor& x) const {
    check(x.ndim() == 7, "no op has run yet");
    return x;
  }
};

TEST(ModuleHooks, F74_OtherMethodsAreCalledBetweenHooksToo) {
  Encoder encoder;
  encoder.materialize();
  const Tensor plain = call_hooked(encoder, &Encoder::embed, input());  // without hooks
  std::vector<std::string> log;
  encoder.add_hook(std::make_shared<Recorder>("e", log));
  EXPECT_TRUE(same_bits(call_hooked(encoder, &Encoder::embed, input()), plain));
  EXPECT_EQ(log.size(), 2u);
  EXPECT_EQ(log.back(), "e< 1");
  call_hooked(encoder, &Encoder::count);
  EXPECT_EQ(encoder.calls, 1);
  EXPECT_EQ(log.back(), "e< 0");
  EXPECT_TRUE(same_bits(encoder(input()), plain));  // forward calls the method between hooks of its own
  EXPECT_EQ(log.size(), 8u);
  expect_error([&] { call_hooked(encoder, &Encoder::refuse, input()); }, {"no op has run", "(model)"});
}

TEST(ModuleErrors, NameTheModuleThatFailed) {
  Net net;
  net.materialize();
  expect_error([&] { net(Tensor::from<float>({1, 2, 3}, {1, 3})); }, {"linear", "module  blocks.0.up"});
  struct Strict : Layer<Strict> {
    Tensor forward(const Tensor& x) {
      check(x.ndim() == 7, "no op has run yet");
      return x;
    }
  };
  struct Outer : Layer<Outer> {
    Strict& inner;
    Outer() : inner(add<Strict>("inner")) {}
    Tensor forward(const Tensor& x) { return inner(x); }
  };
  Outer outer;
  try {
    outer(input());
    ADD_FAILURE() << "no Error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("module  inner"), std::string::npos) << text;
    EXPECT_EQ(text.find("(model)"), std::string::npos) << "the innermost module only: " << text;
  }
}

TEST(Materialize, MetaParametersGetBytesAndKeepThemAfterwards) {
  Net net;
  for (const Parameter* p : net.parameters()) EXPECT_TRUE(p->value().is_meta());
  net.materialize(Seed{1});
  for (const Parameter* p : net.parameters()) {
    EXPECT_FALSE(p->value().is_meta());
    EXPECT_TRUE(p->initialised());
  }
  const std::vector<float> drawn = net.parameter("blocks.0.up.weight").value().to_vector<float>();
  net.materialize(Seed{2});
  EXPECT_EQ(net.parameter("blocks.0.up.weight").value().to_vector<float>(), drawn);
}

TEST(Materialize, LoadedValuesAreKept) {
  Net net;
  const Tensor loaded = Tensor::from<float>({9, 8, 7, 6}, {4});
  net.gain.set(loaded);
  net.gain.mark_initialised();
  net.materialize();
  EXPECT_TRUE(same_bits(net.gain.value(), loaded));
}

TEST(Materialize, F22_AModelWithoutValuesSaysSoWhenItIsUsed) {
  Net net;
  expect_error([&] { net(input()); }, {"cpu and meta", "f32[6,4](meta)", "module  blocks.0.up"});
}

TEST(Module, PrintsTheTreeWithShapesPlacementsAndBytes) {
  Net net;
  net.materialize();
  const DeviceMesh mesh(make_single_group());
  net.gain.set(distribute(net.gain.value(), mesh, Shard(0)));
  EXPECT_EQ("\n" + to_string(net), R"(
gain f32[4]{0: dp}  16 B
offset f32[4] (buffer)  16 B
blocks
  0
    up
      weight f32[6,4]  96 B
      bias f32[6]  24 B
    down
      weight f32[4,6]  96 B
  1
    up
      weight f32[6,4]  96 B
      bias f32[6]  24 B
    down
      weight f32[4,6]  96 B
7 parameters, 448 B
)");
}

TEST(Module, PrintsWhatThisRankHolds) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Net net;
    net.materialize();
    net.gain.set(distribute(net.gain.value(), DeviceMesh(group), Shard(0)));
    const std::string text = to_string(net);
    for (const char* part : {"gain f32[4]{0: dp}  16 B, 8 B here", "7 parameters, 448 B, 440 B here\n"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  });
}

// Sizes are those of meta tensors, so nothing of a model that fits nowhere is made before it is refused.
TEST(Module, ParametersThatFitNowhereAreRefusedBeforeAnyIsThere) {
  struct Huge : Layer<Huge> {
    Huge() { add_parameter("w", {std::int64_t{1} << 20, std::int64_t{1} << 24}, Init::zeros()); }
  };
  Huge huge;
  const Accounting& account = RankContext::current().allocator().accounting();
  const std::int64_t before = account.total();
  testing::expect_error([&] { huge.materialize(); }, {"the parameters alone take", "70.4 TB", "the host has"});
  testing::expect_error([&] { huge.allocate(); }, {"the parameters alone take"});
  EXPECT_EQ(account.total(), before);

  Allocator& allocator = RankContext::current().allocator();
  nn::Linear small(100, 100);
  allocator.set_limit(1000);
  EXPECT_THROW(small.materialize(), OutOfMemory);
  allocator.set_limit(0);
  small.materialize();
}

// As in PyTorch; a list of one class knows its items, too.
TEST(ModuleList, HasModulesOfAnyClass) {
  ModuleList<> list;
  list.append<Linear>(2, 3);
  Block& second = list.append<Block>(4, 8);
  EXPECT_EQ(list.named_parameters()[0].first, "0.weight");
  EXPECT_EQ(second.down.weight.name(), "1.down.weight");
  EXPECT_TRUE(is_container(list));
  EXPECT_FALSE(is_container(second));
}

}  // namespace
}  // namespace sherd::nn
