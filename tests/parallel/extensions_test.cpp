// Communication of the user's own in a unit's place: gathers, reductions, hooks on reduced shards, encodings. Against
// one rank on the whole batch, against units without them bit for bit, counted, and captured.
#include <gtest/gtest.h>

#include <memory>

#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/unit/buffer_views.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// What a user's gather and reduction were called.
struct Calls {
  std::int64_t starts = 0, finishes = 0, cancels = 0, reductions = 0;
};

/// The usual gather, counted.
class CountedGather final : public nn::UnitGather {
 public:
  explicit CountedGather(Calls& calls) : calls_(calls) {}
  void start(const UnitLayout& unit, const Tensor& shards, const Tensor& full) override {
    ++calls_.starts;
    start_gather(unit, shards, full);
  }
  void finish(const UnitLayout&, const Tensor&, const Tensor&) override { ++calls_.finishes; }
  void cancel() override { ++calls_.cancels; }

 private:
  Calls& calls_;
};

nn::UnitReduce counted_reduce(Calls& calls) {
  return [&calls](const UnitReduceAttrs& attrs, const Tensor& gradients, std::span<const Tensor> out) {
    ++calls.reductions;
    start_reduce(attrs, gradients, out);
  };
}

/// A gather of functional rows, a collective for each parameter.
class GatherByRows final : public nn::UnitGather {
 public:
  explicit GatherByRows(ProcessGroup& group) : group_(group) {}
  void start(const UnitLayout& unit, const Tensor& shards, const Tensor&) override {
    for (const UnitPiece& p : unit.pieces) {
      Shape shape = p.shape;
      shape[0] = unit.count_here(p) * p.shape[0] / numel(p.shape);
      gathered_.push_back(all_gather(view_at(shards, shape, p.shard_offset, p.dtype), group_, p.shape[0]));
    }
  }
  void finish(const UnitLayout& unit, const Tensor&, const Tensor& full) override {
    restore_unit(unit, full);
    for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
      const UnitPiece& p = unit.pieces[i];
      copy_into(view_at(full, p.shape, p.full_offset, p.full_dtype), gathered_[i]);
    }
    gathered_.clear();
  }
  void cancel() override { gathered_.clear(); }

 private:
  ProcessGroup& group_;
  std::vector<Tensor> gathered_;
};

nn::UnitReduce reduce_by_rows(ProcessGroup& group) {
  return [&group](const UnitReduceAttrs& attrs, const Tensor& gradients, std::span<const Tensor> out) {
    for (std::size_t m = 0; m < out.size(); ++m) {
      const ReducedPiece& p = attrs.pieces[m];
      const UnitPiece& piece = attrs.unit->piece(p.piece);
      Tensor part = reduce_scatter(view_at(gradients, piece.shape, p.offset, piece.full_dtype), group);
      if (p.kind == ReduceKind::avg) part = mul(part, attrs.scale);
      copy_into(out[m], view(part, out[m].shape()), p.add_to != AddTo::nothing);
    }
  };
}

/// Calls fn(unit) for the units of a net on a mesh that shards.
template <class Fn>
void extend(nn::Module& net, const Fn& fn) {
  for (const nn::UnitHandle& unit : nn::units(net)) fn(unit);
}

void expect_same_local_bits(const nn::Module& a, const nn::Module& b) {
  const auto actual = a.parameters(), expected = b.parameters();
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(same_bits(actual[i]->sharded_value().local(), expected[i]->sharded_value().local()))
        << actual[i]->name();
}

// ---- gathers and reductions ----

void expect_custom_are_used(const Group& group, const Grid& grid) {
  const DeviceMesh mesh = grid.mesh(group);
  Net net(kUneven), reference(kUneven);
  shard(net, mesh);
  Calls calls;
  extend(net, [&](const nn::UnitHandle& unit) {
    unit.set_custom_gather(std::make_shared<CountedGather>(calls));
    unit.set_custom_reduce(counted_reduce(calls));
  });
  net.materialize(nn::Seed{11});
  reference.materialize(nn::Seed{11});
  const CommCounts before = settled_counts(mesh.group("dp"));
  backward(sum(net(batch_of(2, 5, 0, "x"))));
  CommCounts step = settled_counts(mesh.group("dp"));
  step -= before;
  const bool is_sharded = grid.shards > 1;
  EXPECT_EQ(calls.starts, is_sharded ? 2 * kUnits - 1 : 0) << "the root's stay between forward and backward";
  EXPECT_EQ(calls.finishes, calls.starts);
  EXPECT_EQ(calls.cancels, 0);
  EXPECT_EQ(calls.reductions, is_sharded ? kUnits : 0);
  EXPECT_EQ(step.all_gather.calls, calls.starts);
  EXPECT_EQ(step.reduce_scatter.calls, calls.reductions);
  for (nn::Parameter* p : net.parameters()) p->clear_grad();
  expect_trains_alike(on_slices(net, *group, 5, 2), on_batches(reference, 5, 2), {.steps = 4, .max_norm = 0.1});
}

TEST(FullyShard, F53_CustomGatherAndReductionAreUsed) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{1, 3}, Grid{2, 2}, Grid{2, 1}})
    run_ranks(grid.ranks(), [&](const Group& group) { expect_custom_are_used(group, grid); });
}

TEST(FullyShard, F53_CustomGatherAndReductionAreUsedWithProcesses) {
  run_processes(2, [](const Group& group) { expect_custom_are_used(group, {1, 2}); });
}

TEST(FullyShard, F53_GatherAndReductionOfOnesOwnRowsTrainLikeOneRank) {
  for (const Grid& grid : {Grid{1, 2}, Grid{1, 3}, Grid{1, 4}, Grid{2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      Net net(kUneven), reference(kUneven);
      shard(net, mesh);
      extend(net, [&](const nn::UnitHandle& unit) {
        unit.set_custom_gather(std::make_shared<GatherByRows>(mesh.group("dp")));
        unit.set_custom_reduce(reduce_by_rows(mesh.group("dp")));
      });
      net.materialize(nn::Seed{11});
      reference.materialize(nn::Seed{11});
      expect_trains_alike(on_slices(net, *group, 5, 2), on_batches(reference, 5, 2), {.steps = 4, .max_norm = 0.1});
      for (nn::Module* each : {static_cast<nn::Module*>(&net), static_cast<nn::Module*>(&reference)})
        for (nn::Parameter* p : each->parameters()) p->clear_grad();
      for (std::uint64_t micro = 0; micro < 3; ++micro) {  // later micro-batches add to grad()
        const Tensor x = batch_of(12, 5, micro, "x");
        backward(mul(sum(net(slice_of(x, *group))), static_cast<double>(group->size())));
        backward(sum(reference(x)));
      }
      expect_same_gradients(net, reference, 1e-4);
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    });
}

TEST(FullyShard, F53_AGatherThatNobodyUsesIsCancelled) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven);
    shard(net, DeviceMesh(group));
    Calls calls;
    extend(net, [&](const nn::UnitHandle& unit) { unit.set_custom_gather(std::make_shared<CountedGather>(calls)); });
    net.materialize();
    Block &first = *net.blocks.items()[0], &second = *net.blocks.items()[1];
    nn::unit_of(first).set_forward_prefetch({nn::unit_of(second)});
    {
      GradMode off(false);
      first(batch_of(2, 5, 0, "x"));
    }
    const nn::UnitHandle unused = nn::unit_of(second);
    EXPECT_TRUE(unused.is_gathered());
    unused.reshard();
    EXPECT_FALSE(unused.is_gathered());
    EXPECT_EQ(calls.starts, 2);
    EXPECT_EQ(calls.finishes, 1);
    EXPECT_EQ(calls.cancels, 1);
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

TEST(FullyShard, F53_AGatherIsSetBeforeTheFirstForwardAndLeavesBytes) {
  struct Nothing final : nn::UnitGather {
    void start(const UnitLayout&, const Tensor&, const Tensor&) override {}
  };
  run_ranks(2, [](const Group& group) {
    Net net(kUneven);
    shard(net, DeviceMesh(group));
    net.materialize();
    const nn::UnitHandle root = nn::unit_of(net);
    root.set_custom_gather(std::make_shared<Nothing>());
    expect_error([&] { root.unshard(); }, {"unit \"(model)\"", "have no bytes", "restore_unit"});
    expect_error([&] { root.set_custom_gather(nullptr); }, {"(model)", "gathered already", "before the first forward"});
  });
}

// ---- the hook between reduction and grad() ----

/// Halves what it sees.
nn::AllReduceHook halving(int& calls) {
  return [&calls](const nn::ReducedUnit& reduced) {
    ++calls;
    EXPECT_EQ(reduced.pieces.size(), reduced.shards.size());
    for (const Tensor& shard : reduced.shards) copy_into(shard, mul(shard, 0.5));
  };
}

TEST(FullyShard, F54_AHookSeesTheReducedShardOnceAndChangesIt) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{1, 3}, Grid{2, 2}, Grid{2, 1}})
    for (const bool is_bf16 : {false, true})
      run_ranks(grid.ranks(), [&](const Group& group) {
        nn::UnitPolicy options;
        if (is_bf16) options.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
        Net net(kUneven), other(kUneven);
        for (Net* each : {&net, &other}) {
          shard(*each, grid.mesh(group), options, options);
          each->materialize(nn::Seed{2});
        }
        int calls = 0;
        extend(net, [&](const nn::UnitHandle& unit) { unit.set_all_reduce_hook(halving(calls)); });
        for (int micro = 0; micro < 2; ++micro) {  // the second adds to the first's
          const Tensor x = slice_of(batch_of(12, 5, 0, "x"), *group);
          backward(sum(net(x)));
          backward(sum(other(x)));
          EXPECT_EQ(calls, kUnits * (micro + 1));
          const auto a = net.parameters(), e = other.parameters();
          for (std::size_t i = 0; i < a.size(); ++i)
            EXPECT_TRUE(same_bits(a[i]->grad().local(), mul(e[i]->grad().local(), 0.5))) << a[i]->name();
        }
      });
}

TEST(FullyShard, F54_AHookWaitsForThePassThatSynchronises) {
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      Net net(kUneven), other(kUneven);
      for (Net* each : {&net, &other}) {
        shard(*each, grid.mesh(group));
        each->materialize(nn::Seed{2});
      }
      int calls = 0;
      extend(net, [&](const nn::UnitHandle& unit) { unit.set_all_reduce_hook(halving(calls)); });
      const auto pass = [&](std::uint64_t micro) {
        const Tensor x = slice_of(batch_of(12, 5, micro, "x"), *group);
        for (Net* each : {&net, &other}) backward(sum((*each)(x)));
      };
      const auto expect_halves = [&] {
        const auto a = net.parameters(), e = other.parameters();
        for (std::size_t i = 0; i < a.size(); ++i)
          EXPECT_TRUE(near(a[i]->grad().local(), mul(e[i]->grad().local(), 0.5), 1e-6)) << a[i]->name();
      };
      for (Net* each : {&net, &other}) nn::units(*each).set_requires_gradient_sync(false);
      pass(0);
      EXPECT_EQ(calls, 0);
      for (Net* each : {&net, &other}) nn::units(*each).set_requires_gradient_sync(true);
      pass(1);
      EXPECT_EQ(calls, kUnits);
      expect_halves();
      for (Net* each : {&net, &other}) nn::units(*each).set_requires_all_reduce(false);
      pass(2);
      EXPECT_EQ(calls, grid.replicas > 1 ? kUnits : 2 * kUnits) << "sums wait for the replicas'";
      for (Net* each : {&net, &other}) nn::units(*each).set_requires_all_reduce(true);
      pass(3);
      EXPECT_EQ(calls, grid.replicas > 1 ? 2 * kUnits : 3 * kUnits);
      expect_halves();
    });
}

/// A training with extensions that `prepare` sets.
struct ExtendedTraining {
  Net net{kUneven};
  std::unique_ptr<nn::AdamW> optimizer;
  template <class Prepare>
  ExtendedTraining(const DeviceMesh& mesh, const nn::UnitPolicy& options, const Prepare& prepare) {
    nn::UnitPolicy blocks = options;
    blocks.mp_policy.output_dtype.reset();  // of the model's output alone
    shard(net, mesh, blocks, options);
    extend(net, prepare);
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05});
  }
  Tensor step(const Tensor& x, const Tensor& y) {
    const Tensor loss = mean_square(net(x), y);
    backward(loss);
    optimizer->step_and_clear();
    return loss.detach();
  }
};

nn::GatherTransform identity() {
  return {.name = "identity",
          .encode = [](const Tensor& shard) { return std::vector<Tensor>{shard}; },
          .decode = [](std::span<const Tensor> encoded, const Tensor& rows) { copy_into(rows, encoded[0]); }};
}

template <class Prepare>
void expect_replays(const Grid& grid, const Prepare& prepare) {
  for (const bool is_bf16 : {false, true})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      nn::UnitPolicy options;
      if (is_bf16)
        options.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32, .output_dtype = DType::f32};
      const auto of_mesh = [&](const nn::UnitHandle& unit) { prepare(unit, mesh); };
      ExtendedTraining eager(mesh, options, of_mesh), captured(mesh, options, of_mesh);
      expect_replays_bitwise(group, eager, captured, 6, [&](std::uint64_t i) {
        return std::pair(slice_of(batch_of(12, 5, i, "x"), *group), slice_of(batch_of(12, 2, i, "y"), *group));
      });
    });
}

TEST(FullyShard, F53_F77_GatherAndReductionOfOnesOwnRowsReplayBitwise) {
  for (const Grid& grid : {Grid{1, 2}, Grid{1, 3}, Grid{2, 2}})
    expect_replays(grid, [](const nn::UnitHandle& unit, const DeviceMesh& mesh) {
      unit.set_custom_gather(std::make_shared<GatherByRows>(mesh.group("dp")));
      unit.set_custom_reduce(reduce_by_rows(mesh.group("dp")));
    });
}

TEST(FullyShard, F54_F77_AHookReplaysBitwise) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{2, 2}})
    expect_replays(grid, [](const nn::UnitHandle& unit, const DeviceMesh&) {
      unit.set_all_reduce_hook([](const nn::ReducedUnit& reduced) {
        for (const Tensor& shard : reduced.shards) copy_into(shard, mul(shard, 0.5));
      });
    });
}

TEST(FullyShard, F54_F77_AnotherHookIsAnotherGraph) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{2});
    int calls = 0;
    auto step = compile_once([&](const Tensor& x) {
      const Tensor loss = sum(net(x));
      backward(loss);
      return loss.detach();
    });
    const Tensor x = slice_of(batch_of(12, 5, 0, "x"), *group);
    std::vector<Tensor> whole_gradients, halves;
    for (int call = 0; call < 6; ++call) {
      if (call == 3) extend(net, [&](const nn::UnitHandle& unit) { unit.set_all_reduce_hook(halving(calls)); });
      for (nn::Parameter* p : net.parameters()) p->clear_grad();
      step(x);
      std::vector<Tensor>& gradients = call < 3 ? whole_gradients : halves;
      gradients.clear();
      for (const nn::Parameter* p : net.parameters()) gradients.push_back(p->grad().local().detach());
    }
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
    EXPECT_EQ(calls, kUnits) << "while it was recorded";
    for (std::size_t i = 0; i < halves.size(); ++i)
      EXPECT_TRUE(same_bits(halves[i], mul(whole_gradients[i], 0.5))) << i;
  });
}

// ---- several meshes ----

TEST(FullyShard, F55_AUnitOnSeveralMeshesRefusesCommunicationOfOnesOwn) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"ep", 2}, {"dp", 2}});
    Net net(kUneven);
    nn::UnitPolicy options;
    options.mesh_of = [&](const nn::Parameter& p) {
      return p.name().ends_with("bias") ? std::optional<DeviceMesh>(root["ep"]) : std::nullopt;
    };
    const nn::UnitHandle unit = nn::fully_shard(net, root["dp"], options);
    ASSERT_EQ(unit.parts().size(), 2u);
    Calls calls;
    int hooks = 0;
    const auto refused = [&](std::string_view call, const auto& fn) {
      expect_error(fn, {call, "unit \"(model)\"", "several meshes", "fully_shard on the modules of each"});
    };
    refused("set_custom_gather", [&] { unit.set_custom_gather(std::make_shared<CountedGather>(calls)); });
    refused("set_gather_transform", [&] { unit.set_gather_transform(identity()); });
    refused("set_custom_reduce", [&] { unit.set_custom_reduce(counted_reduce(calls)); });
    refused("set_all_reduce_hook", [&] { unit.set_all_reduce_hook(halving(hooks)); });
  });
}

// What stays replicated beside is no other mesh: it is not gathered, and one more reduction for the hook.
TEST(FullyShard, F55_ReplicatedParametersBesideAreNoOtherMesh) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven);
    const nn::UnitPolicy options{.replicate_below_bytes = 20};
    shard(net, DeviceMesh(group), options, options);
    int calls = 0;
    std::int64_t reductions = 0;
    extend(net, [&](const nn::UnitHandle& unit) {
      reductions += static_cast<std::int64_t>(unit.parts().size());
      unit.set_gather_transform(identity());
      unit.set_all_reduce_hook(halving(calls));
    });
    net.materialize();
    backward(sum(net(batch_of(2, 5, 0, "x"))));
    EXPECT_GT(reductions, kUnits);
    EXPECT_EQ(calls, reductions);
  });
}

// ---- encodings ----

TEST(FullyShard, F96_AnIdentityTransformHasTheBitsOfNone) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{1, 4}, Grid{2, 2}})
    for (const bool is_bf16 : {false, true})
      for (const bool reshards : {true, false})
        run_ranks(grid.ranks(), [&](const Group& group) {
          const DeviceMesh mesh = grid.mesh(group);
          nn::UnitPolicy options{.reshard_after_forward = nn::ReshardAfterForward(reshards)};
          if (is_bf16) options.mp_policy = {.param_dtype = DType::bf16, .output_dtype = DType::f32};
          ExtendedTraining with(mesh, options,
                                [](const nn::UnitHandle& unit) { unit.set_gather_transform(identity()); });
          ExtendedTraining without(mesh, options, [](const nn::UnitHandle&) {});
          for (std::uint64_t i = 0; i < 4; ++i) {
            const Tensor x = slice_of(batch_of(12, 5, i, "x"), *group), y = slice_of(batch_of(12, 2, i, "y"), *group);
            const std::int64_t before = settled_counts(mesh.group("dp")).all_gather.calls;
            const Tensor loss = with.step(x, y);
            const std::int64_t between = settled_counts(mesh.group("dp")).all_gather.calls;
            EXPECT_TRUE(same_bits(loss, without.step(x, y)));
            EXPECT_EQ(between - before, settled_counts(mesh.group("dp")).all_gather.calls - between);
            EXPECT_EQ(held(MemoryCategory::unsharded), 0);
          }
          expect_same_local_bits(with.net, without.net);
        });
}

// Shards of inner dims, and matrices that one rank has.
TEST(FullyShard, F50_F96_AnIdentityTransformServesAnyPlacement) {
  for (const bool is_owned : {true, false})
    run_ranks(2, [=](const Group& group) {
      const DeviceMesh mesh(group);
      nn::UnitPolicy options;
      options.placement = [=](const nn::Parameter& p) {
        return p.shape().size() < 2 ? nn::ShardPlan{} : is_owned ? nn::owned() : nn::shard_dim(1);
      };
      ExtendedTraining with(mesh, options, [](const nn::UnitHandle& unit) { unit.set_gather_transform(identity()); });
      ExtendedTraining without(mesh, options, [](const nn::UnitHandle&) {});
      for (std::uint64_t i = 0; i < 3; ++i) {
        const Tensor x = slice_of(batch_of(12, 5, i, "x"), *group), y = slice_of(batch_of(12, 2, i, "y"), *group);
        const Tensor loss = with.step(x, y);
        EXPECT_TRUE(same_bits(loss, without.step(x, y)));
      }
      expect_same_local_bits(with.net, without.net);
    });
}

TEST(FullyShard, F96_F77_AnIdentityTransformReplaysBitwise) {
  for (const Grid& grid : {Grid{1, 2}, Grid{1, 3}, Grid{2, 2}})
    expect_replays(grid, [](const nn::UnitHandle& unit, const DeviceMesh&) { unit.set_gather_transform(identity()); });
}

// 7, 3 and 2 rows on 4 ranks: every rank encodes its own rows, and nothing is padded.
TEST(FullyShard, F96_UnevenShardsAreEncodedAsTheyAre) {
  run_ranks(4, [](const Group& group) {
    Net net(kUneven);
    shard(net, DeviceMesh(group));
    std::vector<Shape> seen;
    nn::GatherTransform transform = identity();
    transform.encode = [&](const Tensor& shard) {
      if (!shard.is_meta()) seen.push_back(shard.shape());
      return std::vector<Tensor>{shard};
    };
    nn::unit_of(*net.blocks.items()[0]).set_gather_transform(transform);
    nn::unit_of(net).set_gather_transform(transform);
    net.materialize(nn::Seed{3});
    const CommCounts before = settled_counts(*group);
    nn::unit_of(*net.blocks.items()[0]).unshard();
    const std::int64_t rows = group->rank() == 3 ? 1 : 2;  // of 7
    EXPECT_EQ(seen, (std::vector<Shape>{{rows, 5}, {rows}}));
    seen.clear();
    nn::unit_of(net).unshard();
    const std::int64_t few = group->rank() < 2 ? 1 : 0;  // of 2
    EXPECT_EQ(seen, (std::vector<Shape>{{few, 3}, {few}}));
    EXPECT_EQ(settled_counts(*group).all_gather.bytes - before.all_gather.bytes, 4 * (7 * 5 + 7 + 2 * 3 + 2));
    for (const nn::Parameter* p : nn::unit_of(net).parameters())
      EXPECT_TRUE(same_bits(p->value(), full_tensor(p->sharded_value().detach()))) << p->name();
    nn::unit_of(net).reshard();
    nn::unit_of(*net.blocks.items()[0]).reshard();
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    EXPECT_EQ(held(MemoryCategory::communication), 0);
  });
}

TEST(FullyShard, F96_OneSidedAndInconstantTransformsAreRefused) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven);
    shard(net, DeviceMesh(group));
    const nn::UnitHandle root = nn::unit_of(net);
    const auto refused = [&](nn::GatherTransform transform, std::initializer_list<std::string_view> parts) {
      expect_error([&] { root.set_gather_transform(std::move(transform)); }, parts);
    };
    nn::GatherTransform one_sided = identity();
    one_sided.decode = nullptr;
    refused(one_sided, {"\"identity\"", "unit \"(model)\"", "no decode", "both, or none"});
    one_sided = identity();
    one_sided.encode = nullptr;
    refused(one_sided, {"\"identity\"", "no encode"});
    nn::GatherTransform odd = identity();
    odd.encode = [](const Tensor& shard) {
      return shard.size(0) == 1 && shard.ndim() == 2 ? std::vector<Tensor>{shard, shard} : std::vector<Tensor>{shard};
    };
    nn::GatherTransform fine = odd;
    root.set_gather_transform(fine);                                   // 2 rows on 2 ranks are one each
    const nn::UnitHandle block = nn::unit_of(*net.blocks.items()[1]);  // 3 rows are 2 and 1
    expect_error([&] { block.set_gather_transform(odd); }, {"\"identity\"", "1 tensors on one rank and as 2"});
    odd.encode = [](const Tensor& shard) {
      return std::vector<Tensor>{shard.size(0) == 1 ? cast(shard, DType::bf16) : shard};
    };
    expect_error([&] { block.set_gather_transform(odd); }, {"f32 on one rank and as bf16 on another"});
    odd.encode = [](const Tensor& shard) {
      return std::vector<Tensor>{shard.is_meta() ? cast(shard, DType::bf16) : shard};
    };
    block.set_gather_transform(odd);
    net.materialize();
    expect_error([&] { block.unshard(); }, {"\"identity\"", "blocks.1", "on meta as bf16"});
  });
}

// A failed step frees what was encoded, and the next one is right.
TEST(FullyShard, F43_F96_AfterAnErrorTheNextStepIsRight) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    ExtendedTraining with(mesh, {}, [](const nn::UnitHandle& unit) { unit.set_gather_transform(identity()); });
    ExtendedTraining without(mesh, {}, [](const nn::UnitHandle&) {});
    const Tensor x = slice_of(batch_of(12, 5, 0, "x"), *group), y = slice_of(batch_of(12, 2, 0, "y"), *group);
    for (ExtendedTraining* each : {&with, &without}) {
      each->step(x, y);
      expect_error(
          [&] {
            const Tensor loss = mean_square(each->net(x), y);
            register_grad_hook(loss, [](const Tensor&) -> Tensor { fail("the user's hook"); });
            backward(mul(loss, 1));
          },
          {"the user's hook"});
      nn::reset_after_error(each->net);
      EXPECT_EQ(held(MemoryCategory::communication), 0);
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    }
    const Tensor loss = with.step(x, y);
    EXPECT_TRUE(same_bits(loss, without.step(x, y)));
    expect_same_local_bits(with.net, without.net);
  });
}

// Backward does not come to a unit whose outputs need no gradient.
TEST(FullyShard, F43_F64_WhatBackwardGatheredAndDidNotUseIsDropped) {
  for (const bool encodes : {false, true})
    run_ranks(2, [=](const Group& group) {
      Net net(kThreeBlocks);
      shard(net, DeviceMesh(group));
      nn::units(net).set_reshard_after_backward(false);
      const nn::UnitHandle first = nn::unit_of(*net.blocks.items()[0]);
      if (encodes) first.set_gather_transform(identity());
      net.materialize(nn::Seed{3});
      for (nn::Parameter* p : first.parameters()) p->set_requires_grad(false);
      nn::AdamW optimizer(net.parameters(), {.lr = 0.01});
      for (int step = 0; step < 2; ++step) {
        backward(sum(net(batch_of(2, 6, 0, "x"))));
        RankContext::current().drain_queues();
        EXPECT_FALSE(first.is_gathered());
        EXPECT_EQ(held(MemoryCategory::communication), 0);
        optimizer.step_and_clear();
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      }
    });
}

}  // namespace
}  // namespace sherd::testing
