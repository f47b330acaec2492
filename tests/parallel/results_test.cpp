// Modules whose forward returns structs and maps, under every strategy: backward finds its way from whichever of their
// tensors the loss is made of, and casts reach all of them. Against the same model on one rank.
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct HeadResult {
  Tensor logits;
  std::map<std::string, Tensor> losses;
  std::optional<std::vector<Tensor>> kept;
  std::int64_t calls = 0;
  static constexpr std::tuple tensor_members{&HeadResult::logits, &HeadResult::losses, &HeadResult::kept};
};

struct ResultHead : nn::Layer<ResultHead> {
  nn::Linear &main, &side;
  ResultHead() : main(add<nn::Linear>("main", 7, 5)), side(add<nn::Linear>("side", 7, 3)) {}
  HeadResult forward(const Tensor& x) {
    const Tensor aside = side(x);
    return {main(x), {{"side", mean(square(aside))}, {"size", mean(square(x))}}, std::vector<Tensor>{aside, x}, 1};
  }
};

/// The head's result, with a block's before it.
struct ResultNet : nn::Layer<ResultNet> {
  Block &first, &second;
  ResultHead& head;
  ResultNet() : first(add<Block>("first", 6, 7)), second(add<Block>("second", 7, 7)), head(add<ResultHead>("head")) {}
  std::map<std::string, HeadResult> forward(const Tensor& x) {
    const Tensor h = first(x);
    return {{"early", head(h)}, {"late", head(second(h))}};
  }
};

/// What a loss is made of.
using Choice = std::function<Tensor(const std::map<std::string, HeadResult>&)>;
const std::vector<Choice> kChoices = {
    [](const auto& result) { return mean(square(result.at("late").logits)); },
    [](const auto& result) { return result.at("late").losses.at("side"); },
    [](const auto& result) { return result.at("early").losses.at("size"); },
    [](const auto& result) {
      return mean(square((*result.at("early").kept)[0])) + mean(square(result.at("late").logits));
    },
    [](const auto& result) { return mean(square((*result.at("late").kept)[1])); },
};

TEST(FullyShard, F204_StructsAndMapsOfResultsTrainLikeOneRank) {
  for (const std::string& name : nn::strategy_names())
    for (const bool wraps_blocks : {true, false})
      run_ranks(4, [&](const Group& group) {
        SCOPED_TRACE(fmt::format("{} {}", name, wraps_blocks));
        const DeviceMesh mesh = Grid{2, 2}.mesh(group);
        ResultNet net, reference;
        const nn::UnitPolicy policy = nn::strategy(name);
        if (wraps_blocks) nn::fully_shard(net.first, mesh, policy), nn::fully_shard(net.second, mesh, policy);
        const nn::UnitHandle head = nn::fully_shard(net.head, mesh, policy);
        nn::fully_shard(net, mesh, policy);
        net.materialize(nn::Seed{3});
        reference.materialize(nn::Seed{3});
        for (std::size_t step = 0; step < 2 * kChoices.size(); ++step) {
          SCOPED_TRACE(step);
          const Tensor x = batch_of(12, 6, step, "x");
          const Choice& loss = kChoices[step % kChoices.size()];
          backward(loss(net(slice_of(x, *group))));
          backward(loss(reference(x)));
          const auto a = net.parameters(), e = reference.parameters();
          for (std::size_t i = 0; i < a.size(); ++i) {
            ASSERT_EQ(a[i]->grad().defined(), e[i]->grad().defined()) << a[i]->name();
            if (!a[i]->grad().defined()) continue;
            EXPECT_TRUE(near(a[i]->grad().local(), part_of(e[i]->grad().detach(), a[i]->grad()), 2e-5)) << a[i]->name();
            a[i]->reshard();
            a[i]->clear_grad();
            e[i]->clear_grad();
          }
          for (nn::Parameter* p : a) p->reshard();
          EXPECT_EQ(held(MemoryCategory::unsharded), 0);
          EXPECT_EQ(held(MemoryCategory::gradients), 0);
        }
        EXPECT_EQ(head.late_gathers(), 0);
      });
}

TEST(FullyShard, F91_F204_CastsReachAllThatAResultHolds) {
  run_ranks(2, [](const Group& group) {
    ResultNet net;
    const nn::UnitPolicy policy{.mp_policy = {.param_dtype = DType::bf16}};
    nn::UnitPolicy of_root = policy;
    of_root.mp_policy.output_dtype = DType::f32;
    for (nn::Module* m : std::initializer_list<nn::Module*>{&net.first, &net.second, &net.head})
      nn::fully_shard(*m, DeviceMesh(group), policy);
    nn::fully_shard(net, DeviceMesh(group), of_root);
    net.materialize(nn::Seed{3});
    const auto result = net(batch_of(2, 6, 0, "x"));
    for (const auto& [name, part] : result) {
      EXPECT_EQ(part.logits.dtype(), DType::f32) << name;
      EXPECT_EQ(part.losses.at("side").dtype(), DType::f32) << name;
      for (const Tensor& t : *part.kept) EXPECT_EQ(t.dtype(), DType::f32) << name;
      EXPECT_EQ(part.calls, 1);
    }
    backward(result.at("late").losses.at("side"));
    for (const nn::Parameter* p : net.head.side.parameters()) EXPECT_EQ(p->grad().dtype(), DType::f32);
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

}  // namespace
}  // namespace sherd::testing
