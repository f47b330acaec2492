// Activations and embedding against PyTorch; other fused rows have their goldens beside their own tests.
#include <gtest/gtest.h>

#include "runtime/op/rows/ops.h"
#include "tests/support/golden_case.h"

namespace sherd::testing {
namespace {

TEST(Activation, ValuesAndGradientsArePyTorchs) {
  const Golden golden("activation");
  const std::map<std::string, TensorFunction> rows = {
      {"gelu_erf", [](auto in) { return gelu(in[0]); }},
      {"gelu_tanh", [](auto in) { return gelu_tanh(in[0]); }},
      {"silu", [](auto in) { return silu(in[0]); }},
      {"swiglu", [](auto in) { return swiglu(in[0], in[1]); }},
  };
  int checked = 0;
  for (const auto& [row, fn] : rows)
    for (const std::string& test_case : {row, row + "_grid"}) {
      ASSERT_TRUE(golden.has(test_case + ".out")) << test_case;
      const bool is_pair = row == "swiglu";
      expect_golden(golden, test_case, is_pair ? std::vector<std::string>{"gate", "up"} : std::vector<std::string>{"x"},
                    fn);
      ++checked;
    }
  EXPECT_EQ(static_cast<std::size_t>(checked), golden.cases().size()) << "a golden case nobody compares with";
}

TEST(Embedding, RowsAndTheirSummedGradientsArePyTorchs) {
  const Golden golden("product");
  expect_golden(golden, "embedding", {"table", "ids"}, [](auto in) { return embedding(in[0], in[1]); });
}

}  // namespace
}  // namespace sherd::testing
