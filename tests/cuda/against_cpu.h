#pragma once
// The CPU's kernels as the oracle of the device's: one call on both, with the tolerance of the dtype.
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/op/core/dispatch.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/on_device.h"
#include "tests/support/draw.h"
#include "tests/support/near.h"

namespace sherd::testing {

/// Calls the row on what the inputs are on; nothing is donated.
inline Tensors call_row(std::string_view row, std::vector<Tensor> inputs, const Attrs& attrs = {}) {
  const std::vector<Tensor> held = inputs;
  return call_op(find_op(row), inputs, attrs);
}

/// A change of strides that both sides see: applied to an input after it was brought to its device.
using View = Tensor (*)(const Tensor&);
inline Tensor as_is(const Tensor& t) { return t; }

/// Every output of the row is on the device what it is on the CPU, within the tolerance of the coarsest dtype of its
/// inputs and outputs times `slack`; and two runs on the device have the same bits.
inline void expect_as_on_cpu(std::string_view row, const std::vector<Tensor>& inputs, const Attrs& attrs = {},
                             double slack = 1, View view = as_is) {
  const auto viewed = [&](std::vector<Tensor> tensors) {
    for (Tensor& t : tensors)
      if (t.defined()) t = view(t);
    return tensors;
  };
  const Tensors expected = call_row(row, viewed(inputs), attrs);
  std::vector<Tensor> moved;
  for (const Tensor& t : inputs) moved.push_back(on_device(t));
  const Tensors actual = call_row(row, viewed(moved), attrs);
  const Tensors again = call_row(row, viewed(moved), attrs);
  ASSERT_EQ(actual.size(), expected.size()) << row;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    double limit = tolerance(expected[i].dtype());
    for (const Tensor& t : inputs)
      if (t.defined() && limit > 0) limit = std::max(limit, tolerance(t.dtype()));
    EXPECT_EQ(actual[i].dtype(), expected[i].dtype()) << row << ", output " << i;
    EXPECT_TRUE(near(actual[i], expected[i], limit * slack)) << row << ", output " << i;
    EXPECT_TRUE(same_bits(again[i], actual[i])) << row << ", output " << i << ", second run";
  }
}

}  // namespace sherd::testing
