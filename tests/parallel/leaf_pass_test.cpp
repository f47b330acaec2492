// Leaves of a batch that share one pass (autograd/leaves.h). Oracle: a pass over each leaf alone, whose gradients are
// added up here as a tree; and what a pass refuses, by name.
#include <gtest/gtest.h>

#include <map>

#include "compile/compile.h"
#include "nn/plan/leaf_pass.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/leaves.h"
#include "runtime/comm/group/sum_order.h"
#include "runtime/op/rows/matmul_attrs.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

constexpr std::int64_t kLeafRows = 2, kLeafTokens = 11, kLeafWidth = 23, kLeafIds = 37;  // no whole vectors

/// Weights that are used in all the ways in which a gradient sums over rows.
struct LeafNet {
  std::map<std::string, std::unique_ptr<Slot>> slots;

  explicit LeafNet(std::uint64_t seed = 1) {
    const std::vector<std::pair<std::string, Shape>> all{{"tied", {kLeafIds, kLeafWidth}},
                                                         {"positions", {7, kLeafWidth}},
                                                         {"weight", {kLeafWidth, kLeafWidth}},
                                                         {"bias", {kLeafWidth}},
                                                         {"turned", {kLeafWidth, kLeafWidth}},
                                                         {"doubled", {kLeafWidth, kLeafWidth}},
                                                         {"gain", {kLeafWidth}},
                                                         {"offset", {kLeafWidth}}};
    for (const auto& [name, shape] : all) {
      slots.emplace(name, std::make_unique<Slot>(name, true));
      slots.at(name)->set(mul(random_normal(shape, random_key(seed, name, "leaf", 0)), 0.3));
    }
  }
  const Tensor& operator[](const std::string& name) const { return slots.at(name)->value(); }

  // Positions repeat, so that their gradients are sums over ids too.
  Tensor loss(const Tensor& ids, const Tensor& targets) const {
    const LeafNet& at = *this;
    const Tensor places = reshape(cat({arange(7, DType::i64), arange(4, DType::i64)}, 0), {kLeafTokens});
    Tensor x = embedding(at["tied"], ids) + embedding(at["positions"], places);
    x = layer_norm(linear(x, at["weight"], at["bias"]), at["gain"], at["offset"], 1e-5);
    x = matmul(gelu(x), transpose(at["turned"], 0, 1));
    x = swiglu(x, gelu_tanh(x));
    x = matmul(mul(matmul(x, at["doubled"]), at["gain"]), at["doubled"]);
    return linear_cross_entropy(rms_norm(x, at["gain"], 1e-5), at["tied"], targets, 3);
  }
};

struct LeafBatch {
  Tensor ids, targets;
  explicit LeafBatch(std::int64_t leaves, std::uint64_t seed = 0) {
    const Shape shape{leaves * kLeafRows, kLeafTokens};
    ids = Tensor::empty(shape, DType::i32);
    targets = Tensor::empty(shape, DType::i32);
    for (std::int64_t i = 0; i < ids.numel(); ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      ids.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>((seed >> 33U) % kLeafIds);
      targets.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>((seed >> 20U) % kLeafIds);
    }
  }
};

using SlotGradients = std::map<std::string, Tensor>;

SlotGradients taken(LeafNet& net) {
  SlotGradients all;
  for (const auto& [name, slot] : net.slots) {
    all[name] = slot->grad().detach();
    slot->clear_grad();
  }
  return all;
}

Tensor tree_of(const std::vector<Tensor>& terms) {
  return sum_in_tree(std::span(terms), [](const Tensor& a, const Tensor& b) { return add(a, b); });
}

TEST(LeafPass, HasTheBitsOfPassesOverEachLeafAlone) {
  run_ranks(1, [](const auto&) {
    LeafNet net;
    for (const std::int64_t leaves : {2, 4, 8}) {
      const LeafBatch batch(leaves);
      std::map<std::string, std::vector<Tensor>> terms;
      std::vector<Tensor> losses;
      for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
        const auto rows = [leaf](const Tensor& t) { return narrow(t, 0, leaf * kLeafRows, kLeafRows); };
        const Tensor loss = net.loss(rows(batch.ids), rows(batch.targets));
        backward(loss);
        losses.push_back(loss.detach());
        for (auto& [name, gradient] : taken(net)) terms[name].push_back(gradient);
      }
      const LeavesScope scope(leaves);
      const Tensor loss = net.loss(batch.ids, batch.targets);
      backward(loss);
      EXPECT_TRUE(same_bits(loss.detach(), tree_of(losses))) << leaves;
      for (auto& [name, gradient] : taken(net))
        EXPECT_TRUE(same_bits(gradient, tree_of(terms.at(name)))) << name << ", " << leaves << " leaves";
    }
  });
}

Tensor drawn_rows(const Shape& shape, DType dtype, std::uint64_t seed) {
  return cast(random_normal(shape, random_key(seed, "rows", "leaf", 0)), dtype);
}

// Whole vectors and none, several rectangles of a result, rows of one block of products and of several.
TEST(LeafPass, ProductsHaveTheBitsOfEachLeafAlone) {
  run_ranks(1, [](const auto&) {
    struct Case {
      std::int64_t rows, positions, in, out;
    };
    for (const Case& c : {Case{1, 9, 5, 3}, {2, 11, 71, 40}, {1, 64, 530, 300}, {1, 700, 64, 600}, {1, 32, 1536, 48}})
      for (const std::int64_t leaves : {1, 2, 3, 4, 8})
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
          const Tensor x = drawn_rows({c.rows * leaves, c.positions, c.in}, dtype, 1);
          const Tensor grad = drawn_rows({c.rows * leaves, c.positions, c.out}, dtype, 2);
          const Tensor weight = drawn_rows({c.out, c.in}, dtype, 3), bias = drawn_rows({c.out}, dtype, 4);
          std::vector<Tensor> results, slopes, sums;
          for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
            const Tensor own = narrow(x, 0, leaf * c.rows, c.rows), own_grad = narrow(grad, 0, leaf * c.rows, c.rows);
            results.push_back(linear(own, weight, bias));
            slopes.push_back(matmul(own_grad, weight));
            sums.push_back(cast(call(op::linear_weight_grad, {}, own_grad, own), DType::f32));
          }
          const std::string what = fmt::format("{} leaves of {} x {}, {}", leaves, x, weight, name(dtype));
          const LeafAttrs attrs{leaves};
          EXPECT_TRUE(same_bits(call(op::leaf_linear, attrs, x, weight, bias), cat(results, 0))) << what;
          EXPECT_TRUE(same_bits(call(op::leaf_matmul, attrs, grad, weight), cat(slopes, 0))) << what;
          const Tensor added = drawn_rows(x.shape(), dtype, 6), apart = drawn_rows(x.shape(), dtype, 6);
          call_into(op::leaf_matmul, attrs, added, true, grad, weight);
          for (std::int64_t leaf = 0; leaf < leaves; ++leaf)
            call_into(op::matmul, {}, narrow(apart, 0, leaf * c.rows, c.rows), true,
                      narrow(grad, 0, leaf * c.rows, c.rows), weight);
          EXPECT_TRUE(same_bits(added, apart)) << what;
          const Tensor sum = call(op::leaf_weight_grad, attrs, grad, x),
                       before = drawn_rows(sum.shape(), DType::f32, 5);
          EXPECT_TRUE(same_bits(sum, tree_of(sums))) << what;
          call_into(op::leaf_weight_grad, attrs, before, true, grad, x);
          EXPECT_TRUE(same_bits(before, add(drawn_rows(sum.shape(), DType::f32, 5), sum))) << what;
        }
  });
}

TEST(LeafPass, AddsToWhatIsThere) {
  run_ranks(1, [](const auto&) {
    LeafNet net;
    const LeafBatch one(4, 1), two(4, 2);
    const auto pass = [&](const LeafBatch& batch) {
      const LeavesScope scope(4);
      backward(net.loss(batch.ids, batch.targets));
    };
    pass(one);
    const SlotGradients first = taken(net);
    pass(two);
    const SlotGradients second = taken(net);
    pass(one);
    pass(two);
    for (auto& [name, gradient] : taken(net))
      EXPECT_TRUE(same_bits(gradient, add(first.at(name), second.at(name)))) << name;
  });
}

TEST(LeafPass, RefusesByNameWhatSumsLeavesTogether) {
  run_ranks(1, [](const auto&) {
    LeafNet net;
    const LeafBatch batch(2);
    const LeavesScope scope(2);
    Slot whole("whole", true);  // a weight for each row
    whole.set(ones({2 * kLeafRows, kLeafTokens, kLeafWidth}));
    const auto x = [&] { return embedding(net["tied"], batch.ids); };
    const auto loss_of = [&](const Tensor& y) { return linear_cross_entropy(y, net["tied"], batch.targets); };
    expect_error([&] { backward(loss_of(mul(x(), whole.value()))); }, {"\"whole\"", "mul", "2 leaves", "give_rows()"});
    expect_error([&] { backward(cross_entropy(linear(x(), net["tied"], {}), batch.targets)); },
                 {"2 leaves", "cross_entropy", "only linear_cross_entropy"});
    const auto mixed = [&](const Tensor& y) { return add(y, mul(expand(mean(y, {0}, true), y.shape()), net["gain"])); };
    expect_error([&] { backward(loss_of(mixed(x()))); }, {"embedding", "both of all rows", "2 leaves"});
    const auto by_matmul = [&] { return matmul(cast(x(), DType::bf16), cast(net["doubled"], DType::bf16)); };
    expect_error([&] { backward(loss_of(cast(by_matmul(), DType::f32))); }, {"matmul()", "bf16", "take linear()"});
    expect_error([] { LeavesScope three(3); }, {"3 leaves", "power of two"});
    const LeafBatch odd(1);
    const LeavesScope four(4);
    expect_error([&] { backward(net.loss(odd.ids, odd.targets)); }, {"4 leaves of rows"});
  });
}

TEST(LeafPass, HasNoCapturedStepWithinIt) {
  run_ranks(1, [](const auto&) {
    CompiledStep step([](std::span<const Tensor> in) { return std::vector{add(in[0], 1)}; });
    const Tensor in[] = {ones({2})};
    const LeavesScope scope(2);
    expect_error([&] { step(in); }, {"within a pass over 2 leaves", "open the scope in the step"});
  });
}

TEST(LeafPass, SaysWhyLeavesRunOneAfterTheOther) {
  run_ranks(1, [](const auto&) {
    struct Own : nn::LanguageModel {
      nn::Parameter& weight = add_parameter("weight", {2, 2}, nn::Init::ones());
      Tensor forward(const Tensor& tokens, const Tensor&) override { return tokens; }
      std::vector<Module*> blocks() override { return {}; }
      std::int64_t max_tokens() const override { return 1; }
    };
    struct Apart : Own {
      std::string why_leaves_apart() const override { return ""; }
    };
    const nn::TrainingPlan plan{.numerics = "layout_free"};
    const auto why = [&plan](nn::TrainingPlan other = {}) {
      other.numerics = plan.numerics;
      return nn::why_micro_batches(other, Apart(), 64);
    };
    EXPECT_EQ(why(), "");
    EXPECT_NE(nn::why_micro_batches(plan, Own(), 64).find("does not say"), std::string::npos);
    EXPECT_NE(nn::why_micro_batches(plan, Apart(), 8).find("8 positions"), std::string::npos);
    EXPECT_EQ(why({.param_dtype = DType::bf16}), "");
    EXPECT_NE(why({.param_dtype = DType::f16}).find("f16"), std::string::npos);
    EXPECT_NE(why({.device = Device::cuda(1)}).find("cuda:1"), std::string::npos);
    EXPECT_EQ(why({.mesh = "dp=1,tp=2"}), "");
    EXPECT_EQ(why({.mesh = "dp=1,tp=2", .param_dtype = DType::bf16}), "");
    Apart narrow;
    narrow.cast_to(DType::bf16);
    EXPECT_NE(nn::why_micro_batches(plan, narrow, 64).find("\"weight\" is bf16"), std::string::npos);
  });
}

}  // namespace
}  // namespace sherd::testing
