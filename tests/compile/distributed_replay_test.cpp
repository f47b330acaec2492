// Captured steps over distributed tensors: when a graph holds for another call, on all ranks alike.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>

#include "compile/compile.h"
#include "dtensor/api.h"
#include "dtensor/scopes.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Mode = CompiledStep::Mode;

Tensor rows(const DeviceMesh& mesh, std::int64_t count) {
  return distribute(ones({count, 4}), mesh, Shard(0), kOwnData);
}

// 5 and 6 rows have the same first part of two: 3. The mean divides by the size of the whole.
TEST(DistributedReplay, EqualPartsOfAnotherWholeAreAnotherGraphOnEveryRank) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "dp");
    auto step = compile_once([](const Tensor& x) { return full_tensor(mean(x)); });
    for (const std::int64_t count : {5, 5, 5}) EXPECT_EQ(step(rows(mesh, count)).item<float>(), 1);
    EXPECT_EQ(step.mode(), Mode::replay);
    EXPECT_EQ(step(rows(mesh, 6)).item<float>(), 1);
    EXPECT_EQ(step.mode(), Mode::record);
    EXPECT_NE(step.why().find("argument 0 is f32[3,4] (local part of f32[6,4]{0: dp}), the graph has "),
              std::string::npos)
        << step.why();
    EXPECT_NE(step.why().find("(local part of f32[5,4]{0: dp})"), std::string::npos) << step.why();
    for (const std::int64_t count : {5, 6, 6, 5}) {
      EXPECT_EQ(step(rows(mesh, count)).item<float>(), 1);
      EXPECT_EQ(step.mode(), Mode::replay) << step.why();
    }
  });
}

// Oracle: the step, run eagerly in the same scopes.
TEST(DistributedReplay, ScopesAroundTheCallAreThoseOfTheEagerStep) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "dp");
    const Tensor split = rows(mesh, 4);
    const auto mixes = [&](const Tensor& x) { return full_tensor(sum(matmul(x, transpose(split, 0, 1)))); };
    const auto moves = [&](const Tensor& x) { return full_tensor(cat({split, split}, 0)) + x; };
    const auto expect_followed = [](const auto& body, const Tensor& x, const auto& refusing, const auto& allowing) {
      auto step = compile([&](const Tensor& t) { return body(t); });
      for (int i = 0; i < 5; ++i) allowing([&] { EXPECT_TRUE(same_bits(step(x), body(x))) << i; });
      ASSERT_EQ(step.mode(), Mode::replay) << step.why();
      refusing([&] {
        EXPECT_THROW(body(x), Error);
        EXPECT_THROW(step(x), Error);
      });
      allowing([&] { EXPECT_TRUE(same_bits(step(x), body(x))); });
      EXPECT_EQ(step.mode(), Mode::replay) << step.why();
    };
    const auto outside = [](const auto& run) { run(); };
    expect_followed(mixes, ones({3, 4}), outside, [](const auto& run) {
      const ImplicitReplication on;
      run();
    });
    const auto strictly = [](const auto& run) {
      const StrictCommunication on;
      run();
    };
    expect_followed(moves, ones({1}), strictly, outside);
  });
}

TEST(DistributedReplay, ATensorOfTheStepThatIsAlsoAnArgumentIsNamed) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "dp");
    const Tensor base = rows(mesh, 5);
    auto step = compile([&](const Tensor& x) { return x - base; });
    for (int i = 0; i < 2; ++i) step(base);
    expect_error([&] { step(base); }, {"sub", "input 1", "holds itself", "argument 0"});
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(sum(step(rows(mesh, 5) * 3.0).local()).item<float>(), group->rank() ? 16 : 24);
    EXPECT_EQ(step.mode(), Mode::replay);
  });
}

// One rank has two of three rows, or heads; the other has one, which lies dense in any order of dims.
TEST(DistributedReplay, UnevenPartsAreCopiedByAllRanksOrByNone) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    CompileOptions options;
    options.group = group;
    const auto expect_replays = [&](const Tensor& x, const std::function<Tensor(const Tensor&)>& f) {
      auto step = compile_once([&](const Tensor& t) { return f(t); }, options);
      const Tensor expected = f(x);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(step(x).local(), expected.local()));
      EXPECT_EQ(step.mode(), Mode::replay) << step.why();
    };
    const auto cut = [&](const Shape& shape, int dim) {
      return distribute(random_normal(shape, 7), mesh, Shard(dim), kOwnData);
    };
    expect_replays(cut({3, 3}, 0), [](const Tensor& x) { return contiguous(transpose(x, 0, 1)); });
    expect_replays(cut({3, 3}, 0), [](const Tensor& x) { return reshape(transpose(x, 0, 1), {3, 1, 3}); });
    expect_replays(cut({2, 5, 3, 4}, 2), [](const Tensor& x) {  // [B, T, H, K]
      const Tensor q = transpose(x, 1, 2);
      return contiguous(transpose(scaled_dot_product_attention(q, q, q), 1, 2));
    });
  });
}

// A gradient that is asked for as terms is one rank's; an infinite one does not become NaN on the others.
TEST(DistributedReplay, TermsOfAGradientAreOneProgram) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    CompileOptions options;
    options.group = group;
    for (const Shape& shape : {Shape{2, 3}, Shape{}}) {
      Slot w("w", true);
      w.set(ones(shape));
      const Tensor cotangent = full(shape, std::numeric_limits<double>::infinity());
      auto step = compile_once(
          [&](const Tensor& x) {
            w.clear_grad();
            const Tensor y = from_local(mul(w.value(), x), mesh, {Replicate()}, {.grad_placements = {{Partial()}}});
            backward(y, {.grad = distribute(cotangent, mesh, Replicate())});
            return w.grad();
          },
          options);
      for (int i = 0; i < 4; ++i)
        EXPECT_TRUE(same_bits(step(ones(shape)), group->rank() == 0 ? cotangent : zeros(shape))) << step.why();
      EXPECT_EQ(step.mode(), Mode::replay) << step.why();
    }
  });
}

TEST(DistributedReplay, AMeshThatIsGoneIsAnErrorOnEveryRank) {
  run_ranks(2, [](const Group& group) {
    const std::vector<int> own{group->rank()};
    for (const Group& ranks : {group, group->subgroup(own)}) {
      std::optional<DeviceMesh> mesh(std::in_place, ranks, "tp");
      Slot w("w");
      w.set(distribute(ones({3, 2}), *mesh, Shard(0), kOwnData));
      auto step = compile_once([&](const Tensor& x) { return add(full_tensor(w.value()), x); });
      for (int i = 0; i < 6; ++i) EXPECT_TRUE(same_bits(step(ones({3, 2})), full({3, 2}, 2)));
      EXPECT_EQ(step.mode(), Mode::replay) << step.why();
      mesh.reset();
      expect_error([&] { step(ones({3, 2})); }, {"the mesh of a tensor with placement {0: tp} is gone"});
    }
  });
}

}  // namespace
}  // namespace sherd::testing
