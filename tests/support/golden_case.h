#pragma once
// One case of a golden file against a function of its inputs: values and gradients, computed in f64 and in f32.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/grad_check.h"
#include "tests/support/near.h"

namespace sherd::testing {

/// "<case>.<part>" as a tensor: integers as i64, the rest in `dtype`; undefined where the file has none.
inline Tensor golden_tensor(const Golden& golden, const std::string& key, DType dtype) {
  if (!golden.has(key)) return {};
  const GoldenTensor& stored = golden.at(key);
  const Shape shape{std::span<const std::int64_t>(stored.shape)};
  if (stored.dtype == "I64") return Tensor::from<std::int64_t>(stored.i64, shape);
  if (dtype == DType::f32) return Tensor::from<float>(stored.f32, shape);
  return Tensor::from<double>(std::vector<double>(stored.f32.begin(), stored.f32.end()), shape);
}

/// Expects fn(inputs) and its gradients to be those of the case; `inputs` are names, in the order fn takes them. The
/// file holds f64 results rounded to f32, so that rounding is the tolerance of f64.
inline void expect_golden(const Golden& golden, const std::string& test_case, const std::vector<std::string>& inputs,
                          const TensorFunction& fn) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    SCOPED_TRACE(test_case + " in " + std::string(name(dtype)));
    const double limit = dtype == DType::f64 ? 1e-7 : tolerance(DType::f32);
    std::vector<Tensor> values;
    for (const std::string& input : inputs) values.push_back(golden_tensor(golden, test_case + ".in." + input, dtype));
    EXPECT_TRUE(near(fn(values), golden_tensor(golden, test_case + ".out", dtype), limit));
    const auto grads = sherd::testing::gradients(fn, values, golden_tensor(golden, test_case + ".cotangent", dtype));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Tensor expected = golden_tensor(golden, test_case + ".grad." + inputs[i], dtype);
      if (!expected.defined()) continue;
      ASSERT_TRUE(grads[i].defined()) << "no gradient of " << inputs[i];
      EXPECT_TRUE(near(grads[i], expected, limit)) << "gradient of " << inputs[i];
    }
  }
}

}  // namespace sherd::testing
