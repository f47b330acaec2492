// The table on every group of the host.
#include <gtest/gtest.h>

#include "tests/comm/conformance/check_case.h"
#include "tests/comm/conformance/engines.h"

namespace sherd::testing {
namespace {

class Conformance : public ::testing::TestWithParam<Engine> {
 protected:
  /// All ranks must end well.
  void run(int ranks, const EngineBody& body) const {
    for (const std::string& message : GetParam().run(ranks, body)) EXPECT_EQ(message, "") << ranks << " ranks";
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, Conformance, ::testing::ValuesIn(host_engines()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Conformance, EveryTwoSettingsLeaveTheRightBytes) {
  const std::vector<CollectiveCase> cases = pairwise_cases(GetParam().worlds);
  for (const int ranks : GetParam().worlds) {
    run(ranks, [&](ProcessGroup& group, Device device) {
      for (const CollectiveCase& c : cases)
        if (c.ranks == ranks && !check_case(group, c, device)) return;
    });
  }
}

// On 3 and 7 ranks the tree's order differs from its mirror's, on 4 and 7 from that of ranks.
TEST_P(Conformance, EveryCallMovesEveryType) {
  for (const int ranks : {3, GetParam().worlds.back()}) {
    run(ranks, [&](ProcessGroup& group, Device device) {
      for (int op = 0; op < static_cast<int>(comm::CommOp::recv); ++op)
        for (int t = 0; t < kNumDTypes; ++t) {
          const auto dtype = static_cast<DType>(t);
          CollectiveCase c{.ranks = ranks, .op = static_cast<comm::CommOp>(op), .dtype = dtype, .size = 501};
          c.out_dtype = c.wire = dtype;
          c.reduction.kind = dtype == DType::boolean ? ReduceKind::max : ReduceKind::sum;
          if (!check_case(group, c, device)) return;
        }
    });
  }
}

// Many calls back to back, on all queues and sizes: finds windows that are refilled too early.
// tools/soak/collectives.sh draws others, on other numbers of ranks.
TEST_P(Conformance, RandomSequencesStayExact) {
  const unsigned drawn = static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()),
                 seed = 20240517 + drawn;
  const int worlds[] = {GetParam().worlds[(3 + drawn) % GetParam().worlds.size()]};
  run(worlds[0], [&](ProcessGroup& group, Device device) {
    std::mt19937 random(seed);
    for (int call = 0; call < 150; ++call)
      if (!check_case(group, draw_case(worlds, random), device)) FAIL() << "seed " << seed << ", call " << call;
  });
}

// What is written past the caches is the same.
TEST_P(Conformance, LargeTransfersAreTheSame) {
  using comm::CommOp;
  CollectiveCase gather{.size = 1'500'037, .split = Split::chunks, .in_heap = true, .queue = "gather"}, cast = gather;
  cast.out_dtype = DType::bf16;
  cast.size *= 2;
  CollectiveCase sum = gather, widened = gather, added = gather;
  sum.op = widened.op = added.op = CommOp::reduce_scatter;
  sum.reduction.scale = 0.5;
  widened.dtype = DType::bf16, widened.size *= 2;
  added.accumulate = true;
  run(2, [&](ProcessGroup& group, Device device) {
    for (const CollectiveCase& c : {gather, cast, sum, widened, added}) check_case(group, c, device);
  });
}

TEST_P(Conformance, SubgroupsAreGroups) {
  const int two[] = {2};
  const std::vector<CollectiveCase> cases = pairwise_cases(two);
  run(4, [&](ProcessGroup& group, Device device) {
    const int column = group.rank() % 2;
    const auto pair = group.subgroup(std::vector<int>{column + 2, column}, "tp");
    EXPECT_EQ(pair->name(), "tp#1");
    EXPECT_EQ(pair->kind(), group.kind());
    EXPECT_EQ(pair->rank(), group.rank() < 2 ? 1 : 0);
    for (std::size_t i = 0; i < cases.size(); i += 2)
      if (!check_case(*pair, cases[i], device)) return;
  });
}

// In the library's order the sums of whole numbers are the same. An f64 that travels narrower is summed so there.
TEST(FastSums, OfWholeNumbersAreExact) {
  const Engine engine = composed_engine(SumsBy::fast);
  const std::vector<CollectiveCase> cases = pairwise_cases(engine.worlds);
  for (const int ranks : engine.worlds) {
    const auto messages = engine.run(ranks, [&](ProcessGroup& group, Device device) {
      EXPECT_FALSE(group.abilities().ordered_sum);
      for (CollectiveCase c : cases) {
        c.whole = true;
        const bool is_rounded = c.dtype == DType::f64 && byte_size(c.wire) < 8;
        if (c.ranks == ranks && !is_rounded && !check_case(group, c, device)) return;
      }
    });
    for (const std::string& message : messages) EXPECT_EQ(message, "") << ranks << " ranks";
  }
}

}  // namespace
}  // namespace sherd::testing
