// Random rows of modules under fully_shard: a rank draws its part of what one rank draws for all rows, and nobody tells
// it where that part is. Oracle: the same model on one rank, bit for bit, since all of it is element by element.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "compile/compile.h"
#include "nn/batch_part.h"
#include "nn/models/gpt.h"
#include "nn/plan/apply.h"
#include "nn/recompute.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/strategy_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr std::int64_t kWholeRows = 8, kNoisyWidth = 24;
constexpr int kMicroBatches = 2, kNoisySteps = 5;

/// A dropout of a gain, called twice.
struct Noisy : nn::Layer<Noisy> {
  nn::Parameter& gain;
  nn::Dropout& drop;
  Noisy() : gain(add_parameter("gain", {kNoisyWidth}, nn::Init::uniform(1))), drop(add<nn::Dropout>("drop", 0.5)) {}
  Tensor forward(const Tensor& x) { return drop(drop(x * gain) + x); }
};

/// Two of them, and a dropout of the root's own.
struct NoisyNet : nn::Layer<NoisyNet> {
  nn::ModuleList<Noisy>& blocks;
  nn::Dropout& last;
  nn::Parameter& bias;  // so that the root has a unit
  NoisyNet()
      : blocks(add<nn::ModuleList<Noisy>>("blocks")),
        last(add<nn::Dropout>("last", 0.25)),
        bias(add_parameter("bias", {kNoisyWidth}, nn::Init::uniform(1))) {
    blocks.append();
    blocks.append();
  }
  Tensor forward(Tensor x) {
    for (Noisy* block : blocks.items()) x = (*block)(x);
    return last(x + bias);
  }
};

/// All rows of a micro-batch.
Tensor whole_batch(int step, int micro) {
  const auto index = static_cast<std::uint64_t>(kMicroBatches * step + micro);
  return random_normal({kWholeRows, kNoisyWidth}, random_key(7, "x", "test", index));
}
Tensor rows_of_rank(const Tensor& whole, std::int64_t rank, std::int64_t ranks) {
  const std::int64_t rows = whole.size(0) / ranks;
  return contiguous(narrow(whole, 0, rank * rows, rows));
}

using Drawn = std::vector<std::vector<float>>;

std::vector<float> floats_of(const Tensor& t) { return cast(t.local().detach(), DType::f32).to_vector<float>(); }

/// What a dropout draws before the model's first forward, in evaluation, and the outputs of all micro-batches of
/// training steps. `rank` of `ranks` has data of its own.
Drawn draws_of(NoisyNet& net, std::int64_t rank, std::int64_t ranks, bool is_captured, const Group& group) {
  Drawn drawn;
  nn::set_seed({5});
  nn::set_step(0);
  {
    const GradMode off(false);
    drawn.push_back(floats_of(net.blocks.items()[1]->drop(rows_of_rank(whole_batch(0, 0), rank, ranks))));
    drawn.push_back(floats_of(net.last(rows_of_rank(whole_batch(0, 1), rank, ranks))));
    drawn.push_back(floats_of(net(rows_of_rank(whole_batch(0, 1), rank, ranks))));
    net.train(false);
    drawn.push_back(floats_of(net(rows_of_rank(whole_batch(0, 1), rank, ranks))));
    net.train(true);
  }
  const auto pass = [&](std::span<const Tensor> in) {
    std::vector<Tensor> out;
    for (const Tensor& x : in) {
      const Tensor y = net(x);
      backward(sum(square(y)));
      out.push_back(y.detach());
    }
    for (nn::Parameter* p : net.parameters()) p->clear_grad();
    return out;
  };
  CompiledStep step(pass, {.group = group});
  for (int s = 1; s <= kNoisySteps; ++s) {
    nn::set_step(s);
    std::vector<Tensor> in;
    for (int m = 0; m < kMicroBatches; ++m) in.push_back(rows_of_rank(whole_batch(s, m), rank, ranks));
    for (const Tensor& y : is_captured ? step(in) : pass(in)) drawn.push_back(floats_of(y));
  }
  EXPECT_EQ(step.mode(), is_captured ? CompiledStep::Mode::replay : CompiledStep::Mode::none) << step.why();
  return drawn;
}

/// One rank's, of all rows. In bf16 a model computes as units cast it.
Drawn whole_draws(bool bf16) {
  const RankScope scope;
  NoisyNet net;
  if (bf16) {
    const Group alone = make_single_group();
    const nn::UnitPolicy options{.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}};
    shard(net, DeviceMesh(alone), options, options);
    net.materialize(nn::Seed{3});
    return draws_of(net, 0, 1, false, alone);
  }
  net.materialize(nn::Seed{3});
  return draws_of(net, 0, 1, false, nullptr);
}

void expect_part(const Drawn& drawn, const Drawn& whole, std::int64_t rank, std::int64_t ranks) {
  ASSERT_EQ(drawn.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto count = static_cast<std::ptrdiff_t>(whole[i].size()) / ranks;
    const auto first = whole[i].begin() + rank * count;
    EXPECT_EQ(drawn[i], std::vector<float>(first, first + count)) << "draw " << i;
  }
}

/// A way to lay out the model.
struct Layout {
  std::string text;
  std::vector<DeviceMesh::Axis> axes;
  std::function<void(NoisyNet&, const DeviceMesh&)> wrap;
  std::vector<std::string> data{};  ///< axes whose ranks have data of their own; empty: all
  bool bf16 = false;
  int ranks() const {
    int count = 1;
    for (const DeviceMesh::Axis& axis : axes) count *= axis.size;
    return count;
  }
};

void expect_draws_of_one_rank(const Layout& layout, const Group& group, const Drawn& whole) {
  const DeviceMesh mesh(group, layout.axes);
  std::int64_t rank = 0, ranks = 1;
  for (int a = 0; a < mesh.ndim(); ++a) {
    if (!layout.data.empty() && std::ranges::find(layout.data, mesh.axis_name(a)) == layout.data.end()) continue;
    rank = rank * mesh.size(a) + mesh.coordinate(a);
    ranks *= mesh.size(a);
  }
  for (const bool is_captured : {false, true})
    for (const bool is_recomputed : {false, true}) {
      SCOPED_TRACE(
          fmt::format("{}{}{}", layout.text, is_captured ? " captured" : "", is_recomputed ? " recomputed" : ""));
      NoisyNet net;
      layout.wrap(net, mesh);
      if (is_recomputed) nn::recompute_blocks(net, {nn::Recompute::full});
      net.materialize(nn::Seed{3});
      expect_part(draws_of(net, rank, ranks, is_captured, group), whole, rank, ranks);
    }
}

Layout layout_of(const StrategyCase& c) {
  std::vector<DeviceMesh::Axis> axes{{"dp", c.shards}};
  if (c.replicas > 1) axes.insert(axes.begin(), {"replicate", c.replicas});
  const nn::UnitPolicy policy = c.policy();
  return {c.text(),
          axes,
          [policy](NoisyNet& net, const DeviceMesh& mesh) { shard(net, mesh, policy, policy); },
          {},
          c.bf16};
}

auto over(const nn::UnitPolicy& options) {
  return [options](NoisyNet& net, const DeviceMesh& mesh) { shard(net, mesh, options, options); };
}
auto over_slice(std::vector<std::string> names) {
  return [names](NoisyNet& net, const DeviceMesh& mesh) { shard(net, mesh.slice(names)); };
}

TEST(FullyShard, F143_RanksDrawTheMasksOfOneRankUnderEveryStrategy) {
  const Drawn whole[] = {whole_draws(false), whole_draws(true)};
  for (const StrategyCase& c : strategy_cases())
    run_ranks(c.ranks(), [&](const Group& group) { expect_draws_of_one_rank(layout_of(c), group, whole[c.bf16]); });
}

TEST(FullyShard, F143_RanksDrawTheMasksOfOneRankOnEveryMesh) {
  const Drawn whole = whole_draws(false);
  const Layout layouts[] = {
      {"one rank", {{"dp", 1}}, over({})},
      {"beside tp", {{"dp", 2}, {"tp", 2}}, over_slice({"dp"}), {"dp"}},
      {"beside a slower axis", {{"pp", 2}, {"dp", 2}}, over_slice({"dp"}), {"dp"}},
      {"replicas beside tp", {{"replicate", 2}, {"dp", 1}, {"tp", 2}}, over_slice({"replicate", "dp"}), {"replicate"}},
      {"named axes", {{"dp", 2}, {"cp", 2}}, over({.data_axes = nn::DataAxes{.shard = {"dp", "cp"}}})},
      {"named replicas", {{"dp", 2}, {"tp", 2}}, over({.data_axes = nn::DataAxes{.replicate = {"dp"}}}), {"dp"}},
      {"small parameters replicated", {{"dp", 2}}, over({.replicate_below_bytes = 1 << 20})},
      {"no unit of the root",
       {{"dp", 2}, {"tp", 2}},
       [](NoisyNet& net, const DeviceMesh& mesh) {
         for (Noisy* block : net.blocks.items()) nn::fully_shard(*block, mesh["dp"]);
       },
       {"dp"}},
      {"one unit of two modules",
       {{"dp", 2}},
       [](NoisyNet& net, const DeviceMesh& mesh) {
         nn::fully_shard({net.blocks.items()[0], net.blocks.items()[1]}, mesh);
         nn::fully_shard(net, mesh);
       }},
      {"blocks over fewer axes, as experts are",
       {{"dp", 2}, {"ep", 2}},
       [](NoisyNet& net, const DeviceMesh& mesh) {
         for (Noisy* block : net.blocks.items()) nn::fully_shard(*block, mesh["dp"]);
         nn::fully_shard(net, mesh, {.data_axes = nn::DataAxes{.shard = {"dp", "ep"}}});
       }},
  };
  for (const Layout& layout : layouts)
    run_ranks(layout.ranks(), [&](const Group& group) { expect_draws_of_one_rank(layout, group, whole); });
}

// Meshes that one has split and another has not.
TEST(FullyShard, F143_RanksDrawTheMasksOfOneRankOnMeshesOfTwoRoots) {
  const Drawn whole = whole_draws(false);
  for (const bool inner_first : {true, false})
    run_ranks(4, [&](const Group& group) {
      const DeviceMesh all(group, {{"dp", 4}}), grid = all.unflatten("dp", {{"edp", 2}, {"ep", 2}});
      NoisyNet net;
      for (Noisy* block : net.blocks.items()) nn::fully_shard(*block, inner_first ? grid["edp"] : all);
      nn::fully_shard(net, inner_first ? all : grid["edp"]);
      net.materialize(nn::Seed{3});
      nn::set_seed({5});
      nn::set_step(0);
      const Tensor part = rows_of_rank(whole_batch(0, 0), group->rank(), 4);
      const auto first = whole[0].begin() + group->rank() * std::ssize(whole[0]) / 4;
      EXPECT_EQ(floats_of(net.blocks.items()[1]->drop(part)),
                std::vector<float>(first, first + std::ssize(whole[0]) / 4));
    });
}

TEST(FullyShard, F143_MeshesThatShareSomeRanksAreRefused) {
  run_ranks(4, [&](const Group& group) {
    const DeviceMesh one(group, {{"a", 2}, {"b", 2}}), other(group, {{"c", 4}}),
        crossed = other.unflatten("c", {{"d", 2}, {"e", 2}});
    NoisyNet net;
    for (Noisy* block : net.blocks.items()) nn::fully_shard(*block, one["b"]);
    nn::fully_shard(net, crossed["d"]);
    net.materialize(nn::Seed{3});
    expect_error([&] { net.blocks.items()[1]->drop(whole_batch(0, 0)); }, {"set_batch_part()", "mesh("});
  });
}

TEST(FullyShard, F143_RanksDrawTheMasksOfOneRankWithProcesses) {
  const Drawn whole = whole_draws(false);
  run_processes(4, [&](const Group& group) {
    expect_draws_of_one_rank({"hybrid", {{"replicate", 2}, {"dp", 2}}, over(nn::strategy("hybrid_shard"))}, group,
                             whole);
  });
}

/// What this rank draws in the last of so many calls of forward_backward() in one step, for its part of a batch of
/// ones, row after row.
std::vector<float> drawn_in_parts(const Group& group, std::int64_t parts, bool accumulates_shards, int calls = 1) {
  NoisyNet net;
  shard(net, DeviceMesh(group));
  net.materialize(nn::Seed{3});
  nn::set_seed({5});
  nn::set_step(1);
  const Tensor own[] = {rows_of_rank(ones({kWholeRows, kNoisyWidth}), group->rank(), group->size())};
  std::vector<float> all;
  for (int call = 0; call < calls; ++call) {
    all.clear();
    nn::forward_backward({.accumulate_shards = accumulates_shards, .micro_batches = parts}, net, own,
                         [&](std::span<const Tensor> part) {
                           const Tensor y = net(part[0]);
                           const std::vector<float> drawn = floats_of(y);
                           all.insert(all.end(), drawn.begin(), drawn.end());
                           return sum(square(y));
                         });
  }
  return all;
}

// Its micro-batches are neighbours in the whole batch; where shards add up, those of all ranks are.
TEST(FullyShard, F143_MicroBatchesDrawTheMasksOfTheWholeBatch) {
  std::vector<float> whole;
  run_ranks(1, [&](const Group& group) { whole = drawn_in_parts(group, 1, false); });
  for (const int ranks : {1, 2, 4})
    for (const std::int64_t parts : {1, 2})
      for (const bool shards : {false, true})
        run_ranks(ranks, [&](const Group& group) {
          const std::vector<float> drawn = drawn_in_parts(group, parts, shards);
          const std::ptrdiff_t count = std::ssize(whole) / (ranks * parts);
          ASSERT_EQ(std::ssize(drawn), parts * count);
          for (std::ptrdiff_t p = 0; p < parts; ++p) {
            const auto from = whole.begin() + count * (shards ? p * ranks + group->rank() : group->rank() * parts + p);
            const auto own = drawn.begin() + p * count;
            EXPECT_EQ(std::vector(own, own + count), std::vector(from, from + count))
                << ranks << " ranks, part " << p << (shards ? " of shards" : "");
          }
        });
}

// A loop of its own may make several passes in a step, or leave set_step() out.
TEST(FullyShard, F143_ALaterCallInAStepDrawsAnewInItsMicroBatchesToo) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      const std::vector<float> whole = drawn_in_parts(group, 1, false, 2);
      EXPECT_NE(whole, drawn_in_parts(group, 1, false, 1));
      EXPECT_EQ(drawn_in_parts(group, 2, false, 2), whole);
      EXPECT_EQ(drawn_in_parts(group, 4 / group->size(), false, 2), whole);
    });
}

// The rows are equal, so that only masks tell them apart.
TEST(FullyShard, F143_GptOfTwoEqualRows) {
  const nn::Gpt::Config config{.vocabulary = 11, .tokens = 6, .layers = 1, .heads = 2, .width = 8, .dropout = 0.5};
  const std::vector<std::int64_t> ids{1, 7, 3, 0, 9, 4};
  const auto logits = [&](nn::Gpt& model, std::int64_t rows) {
    std::vector<std::int64_t> all;
    for (std::int64_t r = 0; r < rows; ++r) all.insert(all.end(), ids.begin(), ids.end());
    nn::set_seed({5});
    nn::set_step(3);
    return model(Tensor::from<std::int64_t>(all, {rows, 6}), Tensor()).detach();
  };
  std::vector<float> whole;
  {
    const RankScope scope;
    nn::Gpt model(config);
    model.materialize(nn::Seed{1});
    whole = logits(model, 2).to_vector<float>();
  }
  EXPECT_GT(std::abs(whole[0] - whole[66]), 1e-4);
  for (const char* strategy : {"no_shard", "shard_optimizer", "shard_grad_op", "full_shard"})
    run_ranks(2, [&](const Group& group) {
      nn::Gpt model(config);
      shard(model, DeviceMesh(group), nn::strategy(strategy), nn::strategy(strategy));
      model.materialize(nn::Seed{1});
      const auto first = whole.begin() + group->rank() * 66;
      const Tensor expected = Tensor::from<float>(std::vector<float>(first, first + 66), {1, 6, 11});
      EXPECT_TRUE(near(logits(model, 1), expected, 1e-6)) << strategy;
    });
}

TEST(FullyShard, F143_TwoModelsOnTwoMeshesDrawEachByItsOwn) {
  const Drawn whole = whole_draws(false);
  run_ranks(4, [&](const Group& group) {
    const DeviceMesh line(group), grid(group, {{"dp", 2}, {"tp", 2}});
    NoisyNet a, b;
    shard(a, line);
    shard(b, grid["dp"]);
    a.materialize(nn::Seed{3});
    b.materialize(nn::Seed{3});
    nn::set_seed({5});
    for (int s = 1; s <= 2; ++s) {
      nn::set_step(s);
      for (int m = 0; m < kMicroBatches; ++m) {
        const auto& expected = whole[static_cast<std::size_t>(4 + kMicroBatches * (s - 1) + m)];
        const auto expect = [&](NoisyNet& net, std::int64_t rank, std::int64_t ranks) {
          const auto first = expected.begin() + rank * std::ssize(expected) / ranks;
          EXPECT_EQ(floats_of(net(rows_of_rank(whole_batch(s, m), rank, ranks))),
                    std::vector<float>(first, first + std::ssize(expected) / ranks));
        };
        expect(a, group->rank(), 4);
        expect(b, group->rank() / 2, 2);
      }
    }
  });
}

// A tensor on the data axes says by itself which elements it has: a shard, or all of them.
TEST(FullyShard, F143_DropoutOfATensorOnTheDataAxes) {
  const Drawn whole = whole_draws(false);
  run_ranks(2, [&](const Group& group) {
    const DeviceMesh mesh(group);
    NoisyNet net;
    shard(net, mesh);
    nn::set_seed({5});
    for (const Placement placement : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
      nn::set_step(1);
      nn::set_step(0);
      const Tensor y = net.blocks.items()[1]->drop(distribute(whole_batch(0, 0), mesh, placement));
      EXPECT_EQ(floats_of(full_tensor(y)), whole[0]);
    }
    const DeviceMesh other(group, {{"tp", 2}});  // a root of its own, of the same ranks
    for (const Placement placement : {Placement(Shard(0)), Placement(Replicate())}) {
      nn::set_step(1);
      nn::set_step(0);
      const Tensor y = net.blocks.items()[1]->drop(distribute(whole_batch(0, 0), other, placement));
      EXPECT_EQ(floats_of(full_tensor(y)), whole[0]);
    }
  });
}

// ---- parts that the units cannot know ----

/// Rows of a mask.
std::vector<std::vector<float>> rows_of_mask(const Tensor& y) {
  const std::vector<float> all = floats_of(y);
  std::vector<std::vector<float>> rows;
  for (auto at = all.begin(); at != all.end(); at += kNoisyWidth) rows.emplace_back(at, at + kNoisyWidth);
  return rows;
}

TEST(FullyShard, F143_RanksWithUnlikeNumbersOfRowsShareNoMask) {
  for (const bool is_captured : {false, true})
    for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{3, 1}, {1, 3}, {2, 1}, {3, 1, 3, 1}}) {
      std::mutex guard;
      std::vector<std::vector<std::vector<float>>> masks(kNoisySteps);  // by step, of all ranks
      run_ranks(static_cast<int>(rows.size()), [&](const Group& group) {
        Noisy net;
        nn::fully_shard(net, DeviceMesh(group));
        net.materialize(nn::Seed{3});
        const auto own = static_cast<std::size_t>(group->rank());
        CompiledStep step([&](std::span<const Tensor> in) { return std::vector<Tensor>{net.drop(in[0])}; },
                          {.group = group});
        const Tensor x = ones({rows[own], kNoisyWidth});
        for (std::size_t s = 0; s < masks.size(); ++s) {
          nn::set_step(static_cast<std::int64_t>(s));
          const auto drawn = rows_of_mask(is_captured ? step({&x, 1})[0] : net.drop(x));
          const std::lock_guard lock(guard);
          masks[s].insert(masks[s].end(), drawn.begin(), drawn.end());
        }
      });
      for (const auto& of_step : masks)
        EXPECT_EQ(std::set(of_step.begin(), of_step.end()).size(), of_step.size())
            << fmt::format("{}", fmt::join(rows, ","));
    }
}

TEST(FullyShard, F143_SetBatchPartSaysWhichRowsARankHas) {
  const Drawn whole = whole_draws(false);
  run_ranks(2, [&](const Group& group) {
    NoisyNet net;
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    nn::set_seed({5});
    CompiledStep step([&](std::span<const Tensor> in) { return std::vector<Tensor>{net(in[0]), net(in[1])}; },
                      {.group = group});
    // Ranks have 5 and 3 of 8 rows for three steps, then as many each.
    for (int s = 1; s <= kNoisySteps; ++s) {
      const bool is_unlike = s <= 3;
      const std::int64_t first = group->rank() == 0 ? 0 : is_unlike ? 5 : 4;
      const std::int64_t rows = group->rank() == 0 ? (is_unlike ? 5 : 4) : kWholeRows - first;
      if (is_unlike) nn::set_batch_part(nn::BatchPart{first, rows, kWholeRows});
      else nn::set_batch_part(std::nullopt);
      nn::set_step(s);
      std::vector<Tensor> in;
      for (int m = 0; m < kMicroBatches; ++m) in.push_back(contiguous(narrow(whole_batch(s, m), 0, first, rows)));
      const std::vector<Tensor> out = step(in);
      for (int m = 0; m < kMicroBatches; ++m) {
        const auto& expected = whole[static_cast<std::size_t>(4 + kMicroBatches * (s - 1) + m)];
        const auto begin = expected.begin() + first * kNoisyWidth;
        EXPECT_EQ(floats_of(out[static_cast<std::size_t>(m)]), std::vector<float>(begin, begin + rows * kNoisyWidth))
            << "step " << s << ": " << step.why();
      }
    }
  });
}

TEST(FullyShard, F143_ACapturedStepFollowsSeedAndPart) {
  run_ranks(2, [&](const Group& group) {
    Noisy net;
    nn::fully_shard(net, DeviceMesh(group));
    const auto draw = [&](std::span<const Tensor> in) { return std::vector<Tensor>{net.drop(in[0])}; };
    CompiledStep step(draw, {.group = group});
    const Tensor x = ones({2, kNoisyWidth});
    for (int s = 0; s < 16; ++s) {  // the part is taken back at last
      nn::set_seed({static_cast<std::uint64_t>(std::min(s / 4, 2))});
      nn::set_batch_part(s / 4 != 2 ? std::nullopt : std::optional(nn::BatchPart{1 - group->rank(), 1, 2}));
      nn::set_step(s);
      const Tensor captured = step({&x, 1})[0];
      nn::set_step(-1);
      nn::set_step(s);
      EXPECT_TRUE(same_bits(captured, draw({&x, 1})[0])) << s << ": " << step.why();
    }
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
  });
}

TEST(FullyShard, F143_PartsThatTakeTurnsAreReplayed) {
  run_ranks(2, [&](const Group& group) {
    Noisy net;
    nn::fully_shard(net, DeviceMesh(group));
    CompiledStep step([&](std::span<const Tensor> in) { return std::vector<Tensor>{net.drop(in[0])}; },
                      {.group = group});
    const Tensor x = ones({2, kNoisyWidth});
    for (int s = 0; s < 16; ++s) {
      nn::set_batch_part(s % 2 == 0 ? std::nullopt : std::optional(nn::BatchPart{1 - group->rank(), 1, 2}));
      nn::set_step(s);
      step({&x, 1});
      EXPECT_TRUE(s < 8 || step.mode() == CompiledStep::Mode::replay) << s << ": " << step.why();
    }
  });
}

TEST(RandomRows, APartThatIsNoneIsRefused) {
  const RankScope rank;
  expect_error([] { nn::set_batch_part(nn::BatchPart{3, 2, 4}); }, {"set_batch_part", "3 to 5 of 4"});
  expect_error([] { nn::set_batch_part(nn::BatchPart{-1, 2, 4}); }, {"set_batch_part", "-1 to 1 of 4"});
  nn::set_batch_part(nn::BatchPart{3, 0, 4});
  nn::Dropout drop(0.5);
  EXPECT_EQ(drop(zeros({0, 3})).numel(), 0);
  expect_error([&] { drop(ones({2, 3})); }, {"f32[2,3]", "none of 4 rows"});
}

}  // namespace
}  // namespace sherd::testing
