// The table on every group of the host.
#include <gtest/gtest.h>

#include "tests/comm/conformance/check_case.h"
#include "tests/comm/conformance/engines.h"

namespace sherd::testing {
namespace {

class Conformance : public ::testing::TestWithParam<Engine> {};
INSTANTIATE_TEST_SUITE_P(Groups, Conformance, ::testing::ValuesIn(host_engines()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Conformance, EveryTwoSettingsLeaveTheRightBytes) {
  const std::vector<CollectiveCase> cases = pairwise_cases(GetParam().worlds);
  for (const int ranks : GetParam().worlds) {
    const auto messages = GetParam().run(ranks, [&](ProcessGroup& group, Device device) {
      for (const CollectiveCase& c : cases)
        if (c.ranks == ranks && !check_case(group, c, device)) return;
    });
    for (const std::string& message : messages) EXPECT_EQ(message, "") << ranks << " ranks";
  }
}

// On 3 and 7 ranks the tree's order differs from its mirror's, on 4 and 7 from that of ranks.
TEST_P(Conformance, EveryCallMovesEveryType) {
  for (const int ranks : {3, GetParam().worlds.back()}) {
    const auto messages = GetParam().run(ranks, [&](ProcessGroup& group, Device device) {
      for (int op = 0; op < static_cast<int>(comm::CommOp::recv); ++op)
        for (int t = 0; t < kNumDTypes; ++t) {
          const auto dtype = static_cast<DType>(t);
          CollectiveCase c{.ranks = ranks, .op = static_cast<comm::CommOp>(op), .dtype = dtype, .size = 501};
          c.out_dtype = c.wire = dtype;
          c.reduction.kind = dtype == DType::boolean ? ReduceKind::max : ReduceKind::sum;
          if (!check_case(group, c, device)) return;
        }
    });
    for (const std::string& message : messages) EXPECT_EQ(message, "") << ranks << " ranks";
  }
}

// Many calls back to back, on all queues and sizes: finds windows that are refilled too early.
TEST_P(Conformance, RandomSequencesStayExact) {
  constexpr unsigned kSeed = 20240517;
  const int worlds[] = {4};
  const auto messages = GetParam().run(4, [&](ProcessGroup& group, Device device) {
    std::mt19937 random(kSeed);
    for (int call = 0; call < 150; ++call)
      if (!check_case(group, draw_case(worlds, random), device)) FAIL() << "seed " << kSeed << ", call " << call;
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
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
  const auto messages = GetParam().run(2, [&](ProcessGroup& group, Device device) {
    for (const CollectiveCase& c : {gather, cast, sum, widened, added}) check_case(group, c, device);
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

TEST_P(Conformance, SubgroupsAreGroups) {
  const int two[] = {2};
  const std::vector<CollectiveCase> cases = pairwise_cases(two);
  const auto messages = GetParam().run(4, [&](ProcessGroup& group, Device device) {
    const int column = group.rank() % 2;
    const auto pair = group.subgroup(std::vector<int>{column + 2, column}, "tp");
    EXPECT_EQ(pair->name(), "tp#1");
    EXPECT_EQ(pair->kind(), group.kind());
    EXPECT_EQ(pair->rank(), group.rank() < 2 ? 1 : 0);
    for (std::size_t i = 0; i < cases.size(); i += 2)
      if (!check_case(*pair, cases[i], device)) return;
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
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
