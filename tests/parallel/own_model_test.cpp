// A user's own model with a plan, its losses outside of it, plain data: it trains as on one rank, without any scope.
#include <gtest/gtest.h>

#include "dtensor/api.h"
#include "dtensor/scopes.h"
#include "nn/layers/embedding.h"
#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Classes of each token, and a number: one loss each.
struct Tagger : nn::Layer<Tagger> {
  nn::Embedding& tok = add<nn::Embedding>("tok", 11, 6);
  nn::Linear& up = add<nn::Linear>("up", 6, 10);
  nn::Linear& down = add<nn::Linear>("down", 10, 6);
  nn::Linear& classes = add<nn::Linear>("classes", 6, 7);
  nn::Linear& number = add<nn::Linear>("number", 6, 1);
  std::pair<Tensor, Tensor> forward(const Tensor& ids) {  // [B, T] -> [B, T, 7], [B, T, 1]
    const Tensor x = tok(ids), h = x + down(gelu(up(x)));
    return {classes(h), number(h)};
  }
};

struct Data {
  Tensor ids, classes, numbers, counted;  // [12, 4] each, numbers [12, 4, 1]
  explicit Data(std::uint64_t step, bool ignores_some = true) {
    std::vector<std::int32_t> tokens, labels;
    for (std::uint64_t i = 0; i < 48; ++i) {
      tokens.push_back(static_cast<std::int32_t>((3 * i + 5 * step) % 11));
      labels.push_back(ignores_some && (i + step) % 5 == 0 ? -100 : tokens.back() % 7);
    }
    ids = Tensor::from<std::int32_t>(tokens, {12, 4});
    classes = Tensor::from<std::int32_t>(labels, {12, 4});
    numbers = batch3(12, 1, step, "numbers");
    counted = less(batch3(12, 1, step, "counted"), Tensor::scalar(0.5));
  }
};

Tensor loss_of(Tagger& model, const Data& data) {
  const auto [classes, numbers] = model(data.ids);
  const Tensor errors = where(data.counted, square(numbers - data.numbers), Tensor::scalar(0));
  return cross_entropy(classes, data.classes) + mean(errors);
}

// The classes are sharded too where the plan says so: the loss reduces over them.
TEST(TensorParallel, F146_AFirstOwnModelTrainsOnPlainTargets) {
  for (const bool shards_classes : {false, true})
    for (const int ranks : {1, 2, 3})
      run_ranks(ranks, [&](const Group& group) {
        Tagger model, reference;
        nn::Plan plan{{"up", nn::colwise()}, {"down", nn::rowwise()}};
        if (shards_classes) plan.emplace_back("classes", nn::colwise());
        nn::parallelize(model, DeviceMesh(group, "tp"), plan);
        model.materialize(nn::Seed{11});
        reference.materialize(nn::Seed{11});
        const Side spread{model, [&](std::uint64_t step) { return to_local(loss_of(model, Data(step))); }};
        const Side whole{reference, [&](std::uint64_t step) { return loss_of(reference, Data(step)); }};
        expect_trains_alike(spread, whole, {.steps = 4, .gradient_limit = 2e-5, .value_limit = 2e-5});
      });
}

// Every row counts, so that the mean over ranks is that over rows. Over dp x tp each data rank has its own plain rows:
// logits are distributed over tp alone.
TEST(TensorParallel, F146_AFirstOwnModelTrainsUnderFullyShard) {
  for (const auto& [dp, tp] : {std::pair(2, 2), {3, 1}, {1, 2}})
    run_ranks(dp * tp, [dp = dp, tp = tp](const Group& group) {
      const DeviceMesh mesh(group, {{"dp", dp}, {"tp", tp}});
      Tagger model, reference;
      nn::parallelize(model, mesh["tp"], {{"up", nn::colwise()}, {"down", nn::rowwise()}});
      nn::fully_shard(model, mesh["dp"]);
      model.materialize(nn::Seed{11});
      reference.materialize(nn::Seed{11});
      const auto rows = [&](Data data) {
        const std::int64_t count = 12 / dp, first = mesh["dp"].coordinate() * count;
        for (Tensor* t : {&data.ids, &data.classes, &data.numbers, &data.counted})
          *t = contiguous(narrow(*t, 0, first, count));
        return data;
      };
      const Side spread{model, [&](std::uint64_t step) { return to_local(loss_of(model, rows(Data(step, false)))); },
                        group.get()};
      const Side whole{reference, [&](std::uint64_t step) { return loss_of(reference, Data(step, false)); }};
      expect_trains_alike(spread, whole, {.steps = 3, .gradient_limit = 2e-5, .value_limit = 2e-5});
    });
}

// What is not data: a plain parameter of the user's own beside distributed activations.
TEST(TensorParallel, F146_APlainParameterBesideAPlanIsRefused) {
  run_ranks(2, [](const Group& group) {
    Tagger model;
    nn::parallelize(model, DeviceMesh(group, "tp"), {{"up", nn::colwise()}, {"down", nn::rowwise()}});
    model.materialize(nn::Seed{11});
    Slot scale("scale", /*requires_grad=*/true);
    scale.set(full({7}, 2));
    const Data data(0);
    expect_error([&] { model(data.ids).first* scale.value(); },
                 {"mul", "plain tensor f32[7]", "a gradient flows to it", "from_local()",
                  "ImplicitReplication scope around forward and backward()"});
    const ImplicitReplication implicit;
    backward(cross_entropy(model(data.ids).first * scale.value(), data.classes));
    EXPECT_TRUE(scale.grad().defined());
  });
}

/// A temperature beside a model of which the plan speaks.
struct Tempered : nn::Layer<Tempered> {
  Tagger& tagger = add<Tagger>("tagger");
  nn::Parameter& scale = add_parameter("scale", {1}, nn::Init::uniform(1));
  Tensor loss(const Data& data, const Tensor& by) { return cross_entropy(tagger(data.ids).first * by, data.classes); }
};

// A single number counts as replicated, its gradient lies on the ranks: no optimizer takes that for a plain parameter.
TEST(TensorParallel, F146_APlainParameterOfOneNumberIsNamedByTheOptimizer) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    Tempered model;
    nn::parallelize(model.tagger, mesh, {{"up", nn::colwise()}, {"down", nn::rowwise()}});
    model.materialize(nn::Seed{11});
    nn::AdamW optimizer(model.parameters());
    const Data data(0);
    backward(model.loss(data, model.scale.value()));
    expect_error([&] { optimizer.step(); },
                 {"\"scale\" is f32[1] but", "parallelize() its module too", "from_local(), as replicated"});
    optimizer.clear_gradients();
    backward(model.loss(data, from_local(model.scale.value(), mesh, {Replicate()})));
    optimizer.step();
  });
}

}  // namespace
}  // namespace sherd::testing
