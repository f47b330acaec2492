// Every case of every row, captured: the third call, a replay, gives the bits of the eager call, and writes in place
// what the eager call writes.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "runtime/op/core/dispatch.h"
#include "tests/support/near.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {
namespace {

// Copies, because some rows write into their inputs; absent ones are left out.
std::vector<Tensor> fresh_copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const Tensor& t : tensors)
    if (t.defined()) result.push_back(dense_copy(t));
  return result;
}

// The arguments at the places where `pattern` has tensors.
std::vector<Tensor> inputs_like(const std::vector<Tensor>& pattern, std::span<const Tensor> arguments) {
  std::vector<Tensor> in;
  std::size_t next = 0;
  for (const Tensor& t : pattern) in.push_back(t.defined() ? arguments[next++] : Tensor());
  return in;
}

TEST(OpCasesCaptured, ReplayEqualsEagerBitForBit) {
  for (const OpCase& c : op_cases()) {
    SCOPED_TRACE(c.op + " " + c.name);
    const Op& op = op_table().at(c.op);
    const std::vector<Tensor> pattern = inputs_of(c, DType::f32);
    const std::vector<Tensor> written = fresh_copies(pattern);
    std::vector<Tensor> eager_in = inputs_like(pattern, written);
    const Tensors expected = call_op(op, eager_in, c.attrs);

    CompiledStep step([&](std::span<const Tensor> arguments) {
      std::vector<Tensor> in = inputs_like(pattern, arguments);
      const Tensors out = call_op(op, in, c.attrs);
      return std::vector<Tensor>(out.begin(), out.end());
    });
    for (int call = 0; call < 4; ++call) {
      const std::vector<Tensor> arguments = fresh_copies(pattern);
      const std::vector<Tensor> actual = step(arguments);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << step.why();
      for (std::size_t i = 0; i < arguments.size(); ++i)
        if (written[i].storage()->is_present()) {  // release frees it
          EXPECT_TRUE(same_bits(arguments[i], written[i])) << "input " << i << ", " << step.why();
        } else {
          EXPECT_FALSE(arguments[i].storage()->is_present()) << step.why();
        }
    }
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
  }
}

}  // namespace
}  // namespace sherd::testing
