#include "tests/support/op_cases.h"

namespace sherd::testing {

std::vector<Tensor> inputs_of(const OpCase& test_case, DType dtype) {
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < test_case.args.size(); ++i) inputs.push_back(draw(test_case.args[i], dtype, 1000 + i));
  return inputs;
}

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> cases = [] {
    OpCases all;
    add_pointwise_cases(all);
    add_reduce_cases(all);
    add_view_cases(all);
    add_index_cases(all);
    add_matmul_cases(all);
    add_fused_cases(all);
    add_random_cases(all);
    add_optimizer_cases(all);
    add_collective_cases(all);
    add_unit_cases(all);
    return all;
  }();
  return cases;
}

}  // namespace sherd::testing
