// Failures on one rank only, after all have planned alike: the other ranks are told at once, and all continue
// together.
#include <gtest/gtest.h>

#include <array>

#include "compile/compile.h"
#include "dtensor/api.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// One id per rank. The deadline is the group's, of minutes: a test that waited for it would not end in time.
Tensor ids_of(const DeviceMesh& mesh, std::int64_t of_rank_1) {
  return distribute(Tensor::from<std::int64_t>({0, of_rank_1}, {2}), mesh, Shard(0));
}

// A collective that failed raises where its result is read.
void read(const Tensor& t) { (void)t.to_vector<float>(); }

// The errors that all ranks raise.
void expect_failure(const std::function<void()>& step) { expect_error(step, {"rank 1", "embedding", "7"}); }

TEST(FailingTogether, AnIdOutsideTheVocabularyOfOneRankReachesAll) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor table = distribute(ones({7, 3}), mesh, Replicate());
    const Tensor good = ids_of(mesh, 6), bad = ids_of(mesh, 7);
    for (int round = 0; round < 2; ++round) {
      expect_failure([&] { read(full_tensor(embedding(table, bad))); });
      expect_failure([&] { read(full_tensor(good)); });  // fails until all ranks have called reset()
      group->reset();
      EXPECT_TRUE(same_bits(full_tensor(embedding(table, good)), ones({2, 3})));
    }
  });
}

TEST(FailingTogether, AReplayThatFailsOnOneRankReachesAll) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor table = distribute(ones({7, 3}), mesh, Replicate());
    CompileOptions options;
    options.group = group;
    auto step =
        compile_once([](const Tensor& t, const Tensor& ids) { return full_tensor(embedding(t, ids)); }, options);
    for (int i = 0; i < 3; ++i) step(table, ids_of(mesh, 6));
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
    const Tensor good = ids_of(mesh, 6), bad = ids_of(mesh, 7);
    expect_failure([&] { read(step(table, bad)); });
    group->reset();
    EXPECT_TRUE(same_bits(step(table, good), ones({2, 3})));
  });
}

// Parts of unlike size, which from_local() cannot see by itself: the call that meets says so, on each rank, also on one
// that holds no elements.
TEST(FailingTogether, PartsOfUnlikeSizeWithoutAShapeAreNamed) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    for (const std::int64_t of_rank_1 : {1, 0}) {
      const Shape part{group->rank() == 0 ? 3 : of_rank_1, 2};
      const Tensor x = from_local(ones(part), mesh, {Shard(0)});
      expect_error([&] { read(full_tensor(x)); },
                   {"all_gather", "rank 0", "rank 1", "from_local()", "`shape`", "with_rows()"});
      group->reset();
      expect_error([&] { read(redistribute(x, {{Shard(1)}}).local()); },
                   {"all_to_all", "sends", "from_local()", "`shape`", "with_rows()"});
      group->reset();
      const Spec* const listed = Spec::of(mesh, Shard(0))->with_rows(0, std::array<std::int64_t, 2>{3, of_rank_1});
      EXPECT_TRUE(same_bits(full_tensor(from_local(ones(part), listed)), ones({3 + of_rank_1, 2})));
    }
  });
}

// What is wrong on all ranks is refused on all, and nothing has to be reset.
TEST(FailingTogether, WhatPlanningRefusesLeavesTheGroupAsItWas) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = distribute(ones({4, 4}), mesh, Shard(0));
    expect_error([&] { matmul(x, distribute(ones({3, 4}), mesh, Shard(0))); }, {"inner dimensions"});
    expect_error([&] { redistribute(x, {{Partial()}}); }, {"Partial"});
    expect_error([&] { copy_into(distribute(ones({4, 3}), mesh, Shard(0)), x); }, {"destination"});
    EXPECT_TRUE(same_bits(full_tensor(x), ones({4, 4})));
  });
}

}  // namespace
}  // namespace sherd::testing
