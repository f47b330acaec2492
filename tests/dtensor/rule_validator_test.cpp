// A sample of the rule validator: every row of the op table, on meshes of 2, 3 and 2x2 ranks; see validate/. All of it:
// validate_rules --full. And that the validator finds what is wrong, or missing, where rules are broken on purpose.
#include <gtest/gtest.h>

#include "dtensor/rule.h"
#include "runtime/op/core/op.h"
#include "tests/dtensor/validate/report.h"
#include "tests/support/draw.h"

namespace sherd::testing {
namespace {

class RuleValidator : public ::testing::TestWithParam<std::string> {};

TEST_P(RuleValidator, SpreadCallsEqualOneRanks) {
  for (const std::string& line : failures(validate_row(op_table().at(GetParam()), {}))) ADD_FAILURE() << line;
}

// Sanitizers look for races and stray accesses, which rows share: some rows are enough, at ten times the time.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kEveryRow = 8;
#else
constexpr std::size_t kEveryRow = 1;
#endif

std::vector<std::string> row_names() {
  std::vector<std::string> names;
  const std::vector<const Op*> rows = op_table().rows();
  for (std::size_t i = 0; i < rows.size(); i += kEveryRow) names.emplace_back(rows[i]->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Row, RuleValidator, ::testing::ValuesIn(row_names()),
                         [](const ::testing::TestParamInfo<std::string>& row) { return row.param; });

/// Another rule for the row "neg", which needs none, while this object lives.
class BrokenNeg {
 public:
  explicit BrokenNeg(void (*signatures)(const RuleCall&, Signatures&)) {
    register_rule(op::neg, {.signatures = signatures});
  }
  ~BrokenNeg() { register_rule(op::neg, {.derived = true}); }
  BrokenNeg(const BrokenNeg&) = delete;
  BrokenNeg& operator=(const BrokenNeg&) = delete;

  static std::string failures_of(Placement in) {
    for (const std::string& line : failures(validate_row(op::neg, {})))
      if (line.find(": " + to_string(in) + " -> ") != std::string::npos) return line;
    return {};
  }
};

TEST(RuleValidatorFinds, AResultThatIsWrong) {
  const BrokenNeg broken([](const RuleCall& call, Signatures& signatures) {
    signatures.push_back({{Partial()}, {Partial(ReduceKind::avg)}, 0});
    if (call.ndim(0) > 0) signatures.push_back({{Shard(0)}, {Shard(0)}, 0});
  });
  EXPECT_EQ(BrokenNeg::failures_of(Partial()).substr(0, 10), "wrong: neg");
  EXPECT_EQ(BrokenNeg::failures_of(Shard(0)), "");
}

TEST(RuleValidatorFinds, ASignatureThatIsMissing) {
  const BrokenNeg broken([](const RuleCall& call, Signatures& signatures) {
    for (int d = 0; d < call.ndim(0); ++d) signatures.push_back({{Shard(d)}, {Shard(d)}, 0});
    signatures.push_back({{Partial(ReduceKind::max)}, {Partial(ReduceKind::min)}, 0});
  });
  EXPECT_EQ(BrokenNeg::failures_of(Partial()).substr(0, 12), "missing: neg");
  EXPECT_EQ(BrokenNeg::failures_of(Partial(ReduceKind::max)), "");
}

TEST(RuleValidatorFinds, NothingWhereRulesAreRight) {
  EXPECT_EQ(failures(validate_row(op::neg, {})), std::vector<std::string>{});
}

// The oracle's own shards: read with the placement they were made by, they give the full tensor; read with another,
// they do not.
TEST(ValidatorParts, ReadAsTheyWereCutAreTheWhole) {
  for (const Arg& arg : {normal({5, 3}), ids({4, 6}, 9), flags({7}), normal({})})
    for (int ranks : {1, 2, 3}) {
      const Tensor tensor = draw(arg, DType::f32, 3);
      const Values whole = values_of(tensor);
      for (const Placement& as : placements_of(tensor)) {
        const std::vector<Values> parts = parts_along(whole, as, ranks, 17);
        const std::optional<Values> again = read_as(parts, as, whole.shape);
        ASSERT_TRUE(again.has_value()) << to_string(as);
        EXPECT_TRUE(is_near(*again, whole, 0)) << to_string(as);
        if (ranks > 1 && as.is_partial()) { EXPECT_FALSE(read_as(parts, Replicate(), whole.shape)) << to_string(as); }
      }
    }
}

}  // namespace
}  // namespace sherd::testing
