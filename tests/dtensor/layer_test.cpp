// The dist layer: what it refuses, what it caches, and rows that work on local extents.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "compile/compile.h"
#include "compile/ir/text/print.h"
#include "dtensor/api.h"
#include "dtensor/propagate.h"
#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "tests/dtensor/layouts.h"
#include "tests/support/expect_error.h"
#include "tests/support/message_of.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

Tensor drawn_values(const Shape& shape, std::string_view what) {
  return random_normal(shape, random_key(3, what, "test"));
}

Metas infer_twice(const InferCall& call) {
  Metas metas;
  metas.push_back({call.in[0].shape, call.in[0].dtype});
  return metas;
}
void twice(const KernelCall& call) {
  for (std::int64_t i = 0; i < call.out[0].numel(); ++i)
    call.out[0].mutable_data<float>()[i] = 2 * call.in[0].data<float>()[i];
}
constexpr Op users_row(std::string_view name) { return {.name = name, .infer = infer_twice, .no_gradient = "test"}; }
constinit const Op kUnknownRow = users_row("unknown_row"), kUsersRow = users_row("users_row");

void add_users_rows() {
  add_rows([](OpTable& table) {
    table.add({&kUnknownRow, &kUsersRow});
    for (const Op* row : {&kUnknownRow, &kUsersRow}) table.kernel(*row, Device::Kind::cpu, twice);
  });
}

TEST(DistLayer, F147_ARowWithoutRuleIsRefusedAndOneOfTheUsersOwnWorks) {
  const auto on_ranks = [](const auto& body) {
    run_ranks(2, [&](const Group& group) {
      const DeviceMesh mesh(group);
      body(distribute(drawn_values({4, 4}, "a"), mesh, Shard(0)), group->rank());
    });
  };
  add_users_rows();
  on_ranks([](const Tensor& rows, int rank) {
    expect_error([&] { call(kUnknownRow, {}, rows); },
                 {"unknown_row", "no sharding rule", "f32[4,4]{0: dp}", fmt::format("rank {} of 2", rank)});
  });
  register_rule(kUsersRow, {.signatures = [](const RuleCall& call, Signatures& signatures) {
                  for (int d = 0; d < call.ndim(0); ++d) signatures.push_back({{Shard(d)}, {Shard(d)}, 0});
                }});
  on_ranks([](const Tensor& rows, int) {
    const StrictCommunication strict;
    const Tensor doubled = call(kUsersRow, {}, rows);
    EXPECT_EQ(describe(doubled), "f32[4,4]{0: dp}");
    EXPECT_TRUE(same_bits(full_tensor(doubled), mul(drawn_values({4, 4}, "a"), 2)));
  });
}

// A contraction with a plain float, a plain float with a gradient: each may be a rank's own.
TEST(DistLayer, F146_AmbiguousPlainTensorsAreRefused) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor plain = drawn_values({4, 4}, "b"), rows = distribute(drawn_values({4, 4}, "a"), mesh, Shard(0));
      expect_error([&] { matmul(plain, rows); },
                   {"matmul", "input 0", "plain tensor f32[4,4]", "distribute()", "from_local()", "f32[4,4]{0: dp}",
                    "ImplicitReplication scope around forward and backward()"});
      expect_error([&] { copy_into(rows, plain); }, {"f32[4,4]{0: dp}", "local()"});
      expect_error([&] { fill_into(rows, 0); }, {"f32[4,4]{0: dp}", "local()"});
      Slot weight("weight", /*requires_grad=*/true);
      weight.set(plain);
      EXPECT_TRUE(same_bits(full_tensor(mul(rows, plain)), mul(drawn_values({4, 4}, "a"), plain)));
      expect_error([&] { mul(rows, weight.value()); },  // also where the plan of a tensor without gradient is known
                   {"mul", "input 1", "plain tensor f32[4,4]", "a gradient flows to it", "ImplicitReplication"});
      const Tensor two = mul(rows, Tensor::scalar(2));  // one number is the same on all ranks
      EXPECT_TRUE(same_bits(full_tensor(two), mul(drawn_values({4, 4}, "a"), 2)));
    });
}

// The rows of backward meet the plain tensors that forward has met.
TEST(DistLayer, F146_TheScopeCoversForwardAndBackward) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      Slot x("x", /*requires_grad=*/true), weight("weight", /*requires_grad=*/true);
      x.set(distribute(drawn_values({4, 4}, "a"), mesh, Shard(0)));
      weight.set(drawn_values({4, 4}, "b"));
      const auto forward = [&] { return sum(square(matmul(x.value(), weight.value()))); };
      Tensor loss;
      {
        const ImplicitReplication implicit;
        loss = forward();
        backward(loss);
      }
      Slot one_rank("x", true);
      one_rank.set(drawn_values({4, 4}, "a"));
      backward(sum(square(matmul(one_rank.value(), drawn_values({4, 4}, "b")))));
      EXPECT_TRUE(near(full_tensor(x.grad()), one_rank.grad()));
      {
        const ImplicitReplication implicit;
        loss = forward();
      }
      expect_error([&] { backward(loss); },
                   {"plain tensor f32[4,4]", "ImplicitReplication scope around forward and backward()"});
    });
}

// Losses against plain targets, by class and by number, and the lookup of plain ids: forward and backward without a
// scope, however the rest lies. Oracle: the same on one rank.
TEST(DistLayer, F146_PlainTargetsIdsAndMasksCountAsReplicated) {
  const auto losses = [](const Tensor& x, const Tensor& table) {
    const Tensor classes = Tensor::from<std::int64_t>({1, 0, 6, -100, 3}, {5});
    const Tensor ids = Tensor::from<std::int32_t>({2, 0, 4, 4, 1}, {5});
    const Tensor numbers = drawn_values({5, 7}, "y"), mask = less(drawn_values({5, 7}, "mask"), Tensor::scalar(0));
    const Tensor looked_up = embedding(table, ids);
    return cross_entropy(x, classes) + mean(square(x - numbers)) + sum(where(mask, x * x, looked_up * looked_up)) +
           sum(gather(x, 1, Tensor::from<std::int64_t>({3, 1, 2, 0, 6}, {5, 1})));
  };
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [&](const Group& group) {
      const DeviceMesh mesh(group, "tp");
      for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
        Slot x("x", true), table("table", true), x1("x", true), table1("table", true);
        x1.set(drawn_values({5, 7}, "x"));
        table1.set(drawn_values({5, 7}, "table"));
        x.set(distribute(x1.value().detach(), mesh, p));
        table.set(distribute(table1.value().detach(), mesh, p));
        const Tensor loss = losses(x.value(), table.value()), loss1 = losses(x1.value(), table1.value());
        EXPECT_TRUE(near(full_tensor(loss), loss1)) << to_string(p);
        backward(loss);
        backward(loss1);
        EXPECT_TRUE(near(full_tensor(x.grad()), x1.grad())) << to_string(p);
        EXPECT_TRUE(near(full_tensor(table.grad()), table1.grad())) << to_string(p);
      }
    });
}

// Each rank's own targets beside a sharded batch: they do not fit, and the error says what to do with a part.
TEST(DistLayer, F146_TargetsOfTheLocalBatchAreRefusedByShape) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor logits = distribute(drawn_values({4, 7}, "x"), mesh, Shard(0));
    const Tensor whole = Tensor::from<std::int64_t>({1, 0, 6, 3}, {4}), part = narrow(whole, 0, 2 * group->rank(), 2);
    expect_error([&] { cross_entropy(logits, part); },
                 {"cross_entropy", "input 1", "plain tensor i64[2]", "this rank's part", "from_local()"});
    expect_error([&] { logits - drawn_values({2, 7}, "y"); },
                 {"sub", "input 1", "plain tensor f32[2,7]", "this rank's part", "from_local()"});
    const Tensor expected = cross_entropy(drawn_values({4, 7}, "x"), whole);
    EXPECT_TRUE(near(full_tensor(cross_entropy(logits, from_local(part, mesh, {Shard(0)}))), expected));
    EXPECT_TRUE(near(full_tensor(cross_entropy(logits, whole)), expected)) << "the whole batch fits";
  });
}

// A part of one row fits by broadcasting: refused on every rank, also on those that hold more.
TEST(DistLayer, F146_APlainTensorThatMayBeAPartOrBroadcastIsRefused) {
  for (const auto& [ranks, size] : {std::pair<int, std::int64_t>(2, 2), {2, 3}, {3, 3}})
    run_ranks(ranks, [size = size](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor x = distribute(drawn_values({size, 4}, "x"), mesh, Shard(0)), row = drawn_values({1, 4}, "y");
      expect_error([&] { x - row; }, {"sub", "input 1", "plain tensor f32[1,4]", "one element along dim 0", "input 0",
                                      "a rank's part", "from_local()", "ImplicitReplication"});
      EXPECT_TRUE(
          same_bits(full_tensor(x - drawn_values({4}, "y")), drawn_values({size, 4}, "x") - drawn_values({4}, "y")));
      const ImplicitReplication implicit;
      EXPECT_TRUE(same_bits(full_tensor(x - row), drawn_values({size, 4}, "x") - row));
    });
  run_ranks(2, [](const Group& group) {  // no rank holds one row of six
    const DeviceMesh mesh(group);
    const Tensor x = distribute(drawn_values({6, 4}, "x"), mesh, Shard(0)), row = drawn_values({1, 4}, "y");
    EXPECT_TRUE(same_bits(full_tensor(x - row), drawn_values({6, 4}, "x") - row));
  });
}

// An index may be shorter than what it picks from. One as long as a rank's part of the batch may be of that part: each
// rank would pick from the first rows, by its own.
TEST(DistLayer, F146_AnIndexThatMayBeOfAPartIsRefused) {
  const auto ones_of = [](const Shape& shape) { return cast(ones(shape), DType::i64); };
  for (const auto& [ranks, size, part] :
       {std::tuple<int, std::int64_t, std::int64_t>(2, 4, 2), {2, 2, 1}, {2, 3, 2}, {2, 3, 1}, {3, 4, 2}})
    run_ranks(ranks, [=, size = size, part = part](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor whole = drawn_values({size, 4}, "x"), x = distribute(whole, mesh, Shard(0)),
                   index = ones_of({part, 1}), source = drawn_values({part, 1}, "y"),
                   terms = distribute(source, mesh, Replicate());
      const auto refused = [&](std::string_view row, const auto& fn) {
        expect_error(fn, {row, "input 1", fmt::format("plain tensor i64[{},1]", part), "along dim 0", "{0: dp}",
                          "a rank's part", "from_local()", "ImplicitReplication scope around forward and backward()"});
      };
      refused("gather", [&] { gather(x, 1, index); });
      refused("scatter", [&] { scatter(x, 1, index, terms); });
      refused("scatter_add", [&] { scatter_add(x, 1, index, terms); });
      const ImplicitReplication implicit;
      EXPECT_TRUE(same_bits(full_tensor(gather(x, 1, index)), gather(whole, 1, index)));
      EXPECT_TRUE(same_bits(full_tensor(scatter(x, 1, index, terms)), scatter(whole, 1, index, source)));
    });
  // An index may have any length along the dim that is picked from, and along one that is not sharded.
  run_ranks(2, [&](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor whole = drawn_values({6, 4}, "x"), rows = distribute(whole, mesh, Shard(0)),
                 columns = distribute(whole, mesh, Shard(1));
    for (const Shape& shape : {Shape{6, 1}, Shape{2, 1}, Shape{5, 4}})  // a rank has three rows
      EXPECT_TRUE(same_bits(full_tensor(gather(rows, 1, ones_of(shape))), gather(whole, 1, ones_of(shape))));
    for (const Shape& shape : {Shape{6, 2}, Shape{3, 2}})
      EXPECT_TRUE(same_bits(full_tensor(gather(columns, 1, ones_of(shape))), gather(whole, 1, ones_of(shape))));
  });
}

TEST(DistLayer, TensorsOfTwoMeshesDoNotMix) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh dp(group, "dp"), tp(group, "tp");
    const Tensor a = distribute(drawn_values({4, 4}, "a"), dp, Shard(0)),
                 b = distribute(drawn_values({4, 4}, "b"), tp, Shard(0));
    expect_error([&] { add(a, b); }, {"add", "different meshes", "mesh(dp=2)", "mesh(tp=2)"});
  });
  run_ranks(4, [](const Group& group) {  // a slice is a mesh of its own
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const Tensor a = distribute(drawn_values({4, 4}, "a"), mesh, {Replicate(), Shard(0)}),
                 b = distribute(drawn_values({4, 4}, "b"), mesh["tp"], Shard(0));
    expect_error([&] { add(a, b); }, {"add", "different meshes", "mesh(dp=2,tp=2)", "mesh(tp=2)"});
  });
}

// Its peer is in the reduction that rank 1 does not come to.
TEST(DistLayer, AMistakeOfOneRankIsNamedOnTheOthers) {
  std::string errors[2];
  const auto train = [&](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor rows = distribute(drawn_values({4, 4}, "a"), mesh, Shard(0));
    try {
      const Tensor factor = group->rank() == 1 ? drawn_values({4, 4}, "b") : rows;
      full_tensor(sum(matmul(rows, factor))).item<float>();
    } catch (const Error& error) {
      errors[group->rank()] = error.what();
      throw;
    }
  };
  EXPECT_THROW(run_ranks(2, train), Error);
  for (const std::string& error : errors) EXPECT_NE(error.find("plain tensor f32[4,4]"), std::string::npos) << error;
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
}

TEST(DistLayer, ShapeErrorsComeBeforeCommunicationOnEveryRank) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(drawn_values({5, 4}, "a"), mesh, Shard(1)),
                 b = distribute(drawn_values({5, 4}, "b"), mesh, Shard(0));
    const CommCounts before = group->host().counts();
    expect_error([&] { matmul(a, b); }, {"matmul", "inner dimensions differ: 4 and 5", "{1: dp}", "{0: dp}"});
    EXPECT_EQ(group->host().counts().all_gather.calls, before.all_gather.calls);
  });
}

TEST(DistLayer, ErrorsOfInferShowLayouts) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(drawn_values({5, 4}, "a"), mesh, Shard(1)),
                 b = distribute(drawn_values({5, 3}, "b"), mesh, Shard(0));
    EXPECT_EQ(message_of([&] { cat({a, b}, 0); }),
              "cat of f32[5,4]{1: dp} and f32[5,3]{0: dp} along dim 0: only that dim may differ");
  });
}

TEST(DistLayer, F149_StrictModeNamesWhatWouldMove) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(drawn_values({4, 4}, "a"), mesh, Shard(0)),
                 b = distribute(drawn_values({4, 4}, "b"), mesh, Shard(1));
    const StrictCommunication strict;
    expect_error([&] { add(a, b); }, {"add", "would have to move", "{0: dp}", "{1: dp}", "redistribute()"});
    const StrictCommunication lax(false);
    EXPECT_TRUE(same_bits(full_tensor(add(a, b)), add(drawn_values({4, 4}, "a"), drawn_values({4, 4}, "b"))));
  });
}

TEST(DistLayer, ImplicitCommunicationIsCountedForTheOpThatNeedsIt) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(drawn_values({4, 4}, "a"), mesh, Shard(0)),
                 b = distribute(drawn_values({4, 4}, "b"), mesh, Shard(1));
    CommCounter counter;
    add(a, b);
    EXPECT_EQ(counter.of_op("add").calls, 1);
    EXPECT_EQ(counter.of(comm::CommOp::all_to_all).calls, 1) << counter.describe();
    redistribute(a, {Replicate()});
    EXPECT_EQ(counter.of_op("add").calls, 1) << "that was asked for";
    EXPECT_EQ(counter.total().calls, 2);
  });
}

TEST(DistLayer, F148_TheSecondCallFindsThePlan) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(drawn_values({4, 4}, "a"), mesh, Shard(0));
    const Tensor first = mul(a, 3);
    const PlanCounts before = plan_counts();
    const Tensor second = mul(a, 3), other_value = mul(a, 4);
    EXPECT_EQ(plan_counts().found - before.found, 1);
    EXPECT_EQ(plan_counts().made - before.made, 1);
    EXPECT_TRUE(same_bits(full_tensor(first), full_tensor(second)));
    EXPECT_FALSE(same_bits(full_tensor(first), full_tensor(other_value)));
  });
}

TEST(DistLayer, PowerSumSeesEachRanksOwnElements) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const Tensor whole = drawn_values({5, 3}, "g");
      const Tensor rows = distribute(whole, mesh, Shard(0));
      double expected = 0;
      const Spec::Range own = chunk_range(5, group->size(), group->rank());
      const std::vector<double> all = whole.to_vector<double>();
      for (std::int64_t i = 3 * own.begin; i < 3 * own.end; ++i)
        expected += all[static_cast<std::size_t>(i)] * all[static_cast<std::size_t>(i)];
      const Tensor list[] = {rows};
      EXPECT_NEAR(power_sum(list, 2).item<double>(), expected, 1e-6);
    });
}

// Updates of shards and of full tensors must give the same bits: every element is updated by itself.
TEST(DistLayer, F76_F145_OptimizerRowsOnShardsEqualThoseOnTheWhole) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      const auto update = [&](bool sharded) {
        std::vector<Tensor> t;
        for (const char* what : {"p", "m", "v", "g"}) {
          const Tensor value =
              what == std::string_view("v") ? square(drawn_values({7, 3}, what)) : drawn_values({7, 3}, what);
          t.push_back(sharded ? distribute(value, mesh, Shard(0)) : value);
        }
        const std::span<const Tensor> all(t);
        const CommCounter counter;
        adamw_step(all.subspan(0, 1), all.subspan(1, 1), all.subspan(2, 1), all.subspan(3, 1), Tensor::scalar(0.1),
                   Tensor::scalar(3), Tensor::scalar(0.5), {.weight_decay = 0.1});
        sgd_step(all.subspan(0, 1), all.subspan(1, 1), all.subspan(3, 1), Tensor::scalar(0.1), Tensor::scalar(1),
                 {.momentum = 0.9});
        EXPECT_EQ(counter.describe(), "no communication");
        return t;
      };
      const std::vector<Tensor> whole = update(false), shards = update(true);
      const Tensor start = drawn_values({7, 3}, "p");
      EXPECT_FALSE(same_bits(whole[0], start));
      for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bits(full_tensor(shards[i]), whole[i])) << i;
    });
}

// One call for parameters of all layouts, a plain one among them.
TEST(DistLayer, F145_OneCallUpdatesParametersOfAllLayouts) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    std::vector<const Spec*> layouts = all_layouts(mesh, {Replicate(), Shard(0), Shard(1)});
    layouts.push_back(Spec::of(mesh["tp"], Shard(1)));
    layouts.push_back(nullptr);
    const auto update = [&](bool is_spread) {
      std::vector<Tensor> lists[4];
      for (std::size_t i = 0; i < layouts.size(); ++i)
        for (std::size_t list = 0; list < 4; ++list) {
          const Tensor whole = drawn_values({5, 3}, fmt::format("{} {}", list, i)),
                       value = list == 2 ? square(whole) : whole;
          lists[list].push_back(is_spread && layouts[i] ? laid_out(value, layouts[i]) : value);
        }
      const CommCounter counter;
      adamw_step(lists[0], lists[1], lists[2], lists[3], Tensor::scalar(0.1), Tensor::scalar(3), Tensor::scalar(0.5),
                 {.weight_decay = 0.1});
      EXPECT_EQ(counter.describe(), "no communication");
      return lists[0];
    };
    const std::vector<Tensor> expected = update(false), got = update(true);
    for (std::size_t i = 0; i < layouts.size(); ++i)
      EXPECT_TRUE(same_bits(layouts[i] ? full_tensor(got[i]) : got[i], expected[i])) << describe(got[i]);
  });
}

// The local shapes are equal, and yet their rows are other elements.
TEST(DistLayer, F145_AGradientThatLiesOtherwiseIsRefused) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const auto at = [&](Placement dp, Placement tp) {
      return laid_out(drawn_values({4, 4}, "p"), Spec::of(mesh, {dp, tp}));
    };
    const Tensor param[] = {at(Shard(0), Replicate())}, momentum[] = {at(Shard(0), Replicate())};
    const Tensor one = Tensor::scalar(1);
    for (const Tensor& wrong : {at(Replicate(), Shard(0)), at(Shard(0), Partial()), drawn_values({2, 4}, "p")}) {
      const std::string text = "gradient 0 is " + describe(wrong);
      expect_error([&] { sgd_step(param, momentum, {&wrong, 1}, one, one, {.momentum = 0.9}); },
                   {text, "its parameter is f32[4,4]{0: dp}", "redistribute()"});
      expect_error([&] { adamw_step(param, momentum, momentum, {&wrong, 1}, one, one, one, {}); }, {text});
    }
    const Tensor other[] = {at(Replicate(), Shard(0))};
    expect_error([&] { sgd_step(param, other, param, one, one, {.momentum = 0.9}); }, {"momentum 0", "{0: tp}"});
    expect_error([&] { adamw_step(param, momentum, other, param, one, one, one, {}); }, {"second moment 0"});
  });
}

// Writing in place keeps the layout of the destination; under strict mode it moves nothing.
TEST(DistLayer, F129_InPlaceKeepsTheLayout) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = drawn_values({4, 6}, "a"), b = drawn_values({4, 6}, "b");
    const Tensor target = distribute(a, mesh, Shard(0));
    {
      const StrictCommunication strict;
      copy_into(target, distribute(b, mesh, Shard(0)), /*accumulate=*/true);
      EXPECT_EQ(describe(target), "f32[4,6]{0: dp}");
      expect_error([&] { copy_into(target, distribute(b, mesh, Shard(1))); },
                   {"copy", "would have to move", "{1: dp}", "{0: dp}", "destination"});
    }
    EXPECT_TRUE(same_bits(full_tensor(target), add(a, b)));
    copy_into(target, distribute(b, mesh, Shard(1)));
    EXPECT_EQ(describe(target), "f32[4,6]{0: dp}");
    EXPECT_TRUE(same_bits(full_tensor(target), b));
    copy_into(target, laid_out(a, Spec::of(mesh, Partial())), /*accumulate=*/true);  // reduced first
    EXPECT_EQ(describe(target), "f32[4,6]{0: dp}");
    EXPECT_TRUE(near(full_tensor(target), add(a, b)));
  });
}

// Either operand of a sum may be redistributed to the layout of the other, at the same price: the caller of the row
// says which.
TEST(DistLayer, AResultLiesAsItIsWantedWherePricesAreEqual) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = drawn_values({4, 4}, "a"), b = drawn_values({4, 4}, "b");
    const Tensor rows = laid_out(a, Spec::of(mesh, Shard(0))), columns = laid_out(b, Spec::of(mesh, Shard(1)));
    for (const Tensor* wanted : {&rows, &columns, &rows}) {
      Tensor in[] = {rows, columns};
      const Tensor sum = call_op(find_op("add"), in, {}, {.layout = wanted->layout()})[0];
      EXPECT_EQ(describe(sum), describe(*wanted));
      EXPECT_TRUE(same_bits(full_tensor(sum), add(a, b)));
      EXPECT_EQ(describe(sum_of_gradients(rows, columns, wanted->layout())), describe(*wanted));
    }
  });
}

TEST(DistLayer, AResultIsAddedInPlaceToASumThatLiesAlike) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = drawn_values({4, 4}, "a"), b = drawn_values({4, 4}, "b"), c = drawn_values({4, 4}, "c");
    const auto at = [&](const Tensor& whole, Placement p) { return laid_out(whole, Spec::of(mesh, p)); };
    const auto product_into = [&](const Tensor& sum) {
      Tensor in[] = {at(a, Shard(0)), at(b, Replicate())};
      return Tensor(call_op(find_op("matmul"), in, {}, {.sum = &sum})[0]);
    };
    const Tensor rows = distribute(c, mesh, Shard(0)), columns = distribute(c, mesh, Shard(1));
    EXPECT_EQ(product_into(rows).impl(), rows.impl());
    EXPECT_TRUE(near(full_tensor(rows), add(c, matmul(a, b))));
    EXPECT_TRUE(near(full_tensor(product_into(columns)), matmul(a, b)));
    EXPECT_TRUE(same_bits(full_tensor(columns), c));
  });
}

// Partial values can be written into Partial ones; a full value would have to be divided among the ranks.
TEST(DistLayer, F129_NothingIsWrittenIntoTermsButTerms) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = drawn_values({4, 6}, "a"), b = drawn_values({4, 6}, "b");
    const auto at = [&](const Tensor& whole, Placement p) { return laid_out(whole, Spec::of(mesh, p)); };
    const Tensor terms = at(a, Partial());
    for (Placement p : {Replicate(), Shard(0), Partial(ReduceKind::max)})
      expect_error([&] { copy_into(terms, at(b, p)); }, {"copy", "would become P", "by ops only"});
    EXPECT_TRUE(near(full_tensor(terms), a));
    const StrictCommunication strict;
    copy_into(terms, at(b, Partial()), /*accumulate=*/true);
    EXPECT_EQ(describe(terms), "f32[4,6]{+dp}");
    EXPECT_TRUE(near(full_tensor(terms), add(a, b)));
  });
}

// pytorch #168255: the cache of sharding decisions was never hit for lists of tensors, as stack takes.
TEST(DistLayer, F148_ListsFindTheirPlanToo) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = distribute(drawn_values({4, 4}, "a"), mesh, Shard(0)),
                 b = distribute(drawn_values({4, 4}, "b"), mesh, Shard(0));
    const auto made = [&](const std::vector<Tensor>& list) {
      const std::int64_t before = plan_counts().made;
      stack(list, 0);
      return plan_counts().made - before;
    };
    EXPECT_GT(made({a, b}), 0);
    EXPECT_EQ(made({a, b}), 0);
    EXPECT_EQ(made({b, a}), 0);
    EXPECT_GT(made({a, b, a}), 0);
  });
}

// pytorch #166031, #188390: ranks that are threads found each other's plans, which contain what their rank holds. Here
// one thread is rank r of a mesh and rank 3 - r of its mirror image.
TEST(DistLayer, F148_APlanIsThatOfOneRank) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, "tp"), mirrored(group->subgroup(std::vector{3, 2, 1, 0}), "tp");
    const Tensor table = drawn_values({7, 5}, "table"), ids = Tensor::from<std::int64_t>({6, 0, 3, 5, 2}, {5});
    for (const DeviceMesh& m : {mesh, mirrored, mesh}) {
      const Tensor rows = laid_out(table, Spec::of(m, Shard(0))), all = laid_out(ids, Spec::of(m, Replicate()));
      EXPECT_TRUE(same_bits(full_tensor(embedding(rows, all)), embedding(table, ids)));
      EXPECT_TRUE(same_bits(full_tensor(narrow(rows, 0, 1, 4)), contiguous(narrow(table, 0, 1, 4))));
    }
  });
}

// A mesh contains all ranks of its group. A rank that is in none of its groups has no handle to it, and no rank waits
// for that one.
TEST(DistLayer, F150_RanksOutsideTheMeshAreRefused) {
  run_ranks(3, [](const Group& group) {
    expect_error([&] { DeviceMesh(group, std::vector<DeviceMesh::Axis>{{"dp", 2}}); }, {"2 places", "3 ranks"});
    // Rank 0 asks for a group, hence a mesh, that it is not in: all ranks raise.
    expect_error([&] { group->subgroup(group->rank() == 0 ? std::vector{1} : std::vector{group->rank()}); },
                 {"rank 0 gives the ranks 1", "rank 0 will be in"});
    const DeviceMesh all(group);
    const Tensor a = drawn_values({4, 4}, "a"), rows = distribute(a, all, Shard(0));
    const Group part = group->subgroup(group->rank() == 0 ? std::vector{0} : std::vector{1, 2});
    if (group->rank() > 0) {
      const DeviceMesh two(part);
      const Tensor b = distribute(a, two, Shard(0));
      EXPECT_TRUE(near(full_tensor(matmul(b, transpose(b, 0, 1))), matmul(a, transpose(a, 0, 1))));
      expect_error([&] { add(rows, b); }, {"different meshes", "mesh(dp=3)", "mesh(dp=2)"});
      expect_error([&] { distribute(a, two, Shard(0), 2); }, {"source 2", "mesh(dp=2)"});
    }
    EXPECT_TRUE(same_bits(full_tensor(rows), a));
  });
}

Tensor signs(const Shape& shape, std::string_view what) { return call(op::sign, {}, drawn_values(shape, what)); }

// The gradients of several products for one activation are added up in place, as on one rank: Partial to Partial.
TEST(DistLayer, GradientsOfOneInputAddUpInPlace) {
  const auto run = [](const std::function<Tensor(const Tensor&, Placement)>& spread, std::string& text) {
    Slot x("x", true);
    x.set(spread(signs({4, 6}, "x"), Replicate()));  // small integers: sums are exact in any order
    std::vector<Tensor> weights;
    for (const char* name : {"q", "k", "v"}) weights.push_back(spread(signs({8, 6}, name), Shard(0)));
    auto step = compile([&](const Tensor& q, const Tensor& k, const Tensor& v) {
      x.clear_grad();
      const Tensor h = mul(x.value(), 2);
      const Tensor loss = sum(mul(mul(linear(h, q), linear(h, k)), linear(h, v)));
      backward(loss);
      return loss;
    });
    for (int i = 0; i < 2; ++i) step(weights[0], weights[1], weights[2]);
    for (const std::string& line : lines(step.graph()->program, {})) text += line + "\n";
    return x.grad().is_distributed() ? full_tensor(x.grad()) : x.grad();
  };
  std::string plain_text;
  const Tensor whole = run([](const Tensor& t, Placement) { return t; }, plain_text);
  EXPECT_NE(plain_text.find(" += matmul("), std::string::npos) << plain_text;
  const std::vector<double> expected = whole.to_vector<double>();
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [&](const Group& group) {
      const DeviceMesh mesh(group);
      std::string text;
      const Tensor gradient = run([&](const Tensor& t, Placement p) { return distribute(t, mesh, p); }, text);
      std::size_t found = 0, sums = 0;
      for (std::size_t at = 0; (at = text.find(" += matmul(", at)) != std::string::npos; ++at) ++found;
      for (std::size_t at = 0; (at = text.find("= add(", at)) != std::string::npos; ++at) ++sums;
      EXPECT_EQ(found, 2u) << text;
      EXPECT_EQ(sums, 0u) << text;
      EXPECT_EQ(gradient.to_vector<double>(), expected);
    });
}

}  // namespace
}  // namespace sherd::testing
