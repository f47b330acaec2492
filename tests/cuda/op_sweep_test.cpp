// Every row of the op table over every case of op_cases: the device's result is the CPU's, for any strides of the
// inputs, whatever owns the result's memory, in every dtype, and twice the same bits.
#include <gtest/gtest.h>

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/random_attrs.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/near.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {
namespace {

// Rows without inputs say in their attributes where they run.
Attrs on_cuda(const OpCase& c) {
  const auto moved = [&]<class A>(A attrs) {
    attrs.device = kCuda;
    return Attrs(attrs);
  };
  if (c.op == "full") return moved(c.attrs.as<FullAttrs>());
  if (c.op == "arange") return moved(c.attrs.as<ArangeAttrs>());
  if (c.op.starts_with("random_")) return moved(c.attrs.as<RandomAttrs>());
  if (c.op == "to_device") return moved(c.attrs.as<TransferAttrs>());
  return c.attrs;
}

std::vector<Tensor> moved(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> result;
  for (const Tensor& t : inputs) result.push_back(on_device(t));
  return result;
}

std::vector<Tensor> copies(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> result;
  for (const Tensor& t : inputs) result.push_back(t.defined() ? dense_copy(t) : t);
  return result;
}

Tensors run(const Op& op, const Attrs& attrs, std::vector<Tensor> inputs) {
  const GradMode off(false);
  const std::vector<Tensor> held = inputs;  // nothing is donated
  return call_op(op, inputs, attrs);
}

std::vector<DType> dtypes_of(const OpCase& c) {
  if (std::none_of(c.args.begin(), c.args.end(), [](const Arg& a) { return a.is_floating(); })) return {DType::f32};
  if (c.floats_only_f64_f32) return {DType::f64, DType::f32};
  return {DType::f64, DType::f32, DType::bf16, DType::f16};
}

/// A list without tensors has no device.
bool has_tensors(const OpCase& c) {
  return std::ranges::any_of(c.args, [](const Arg& arg) { return arg.draw != Draw::absent; });
}

class CudaOpSweep : public cuda::CudaTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    RankContext::current().device(kCuda).allocator().set_poison(true);
  }
  static const Op& op() { return find_op(GetParam()); }

  // Both devices compute in the dtype of the case, so its tolerance bounds what they may differ by.
  static double limit_of(const OpCase& c, DType dtype, const Tensor& t) {
    return std::max(tolerance(dtype), tolerance(t.dtype())) * c.slack;
  }
  static void expect_near(const OpCase& c, DType dtype, const Tensors& actual, const Tensors& expected,
                          std::string_view what) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (op().device || has_tensors(c)) { EXPECT_EQ(actual[i].device(), kCuda) << what << ", output " << i; }
      EXPECT_EQ(actual[i].dtype(), expected[i].dtype()) << what << ", output " << i;
      EXPECT_TRUE(near(on_host(actual[i]), expected[i], limit_of(c, dtype, expected[i]))) << what << ", output " << i;
    }
  }

  static void check_values(const OpCase& c, DType dtype, const std::vector<Tensor>& inputs) {
    const Tensors expected = run(op(), c.attrs, inputs);
    const std::vector<Tensor> there = moved(inputs);
    const Tensors out = run(op(), on_cuda(c), there);
    expect_near(c, dtype, out, expected, "values");
    const Tensors again = run(op(), on_cuda(c), there);
    for (std::size_t i = 0; i < out.size(); ++i)
      EXPECT_TRUE(same_bits(on_host(again[i]), on_host(out[i]))) << "a second run, output " << i;
    if (c.large) return;
    std::vector<Tensor> owned = moved(copies(inputs));
    const GradMode off(false);
    const Tensors donated = call_op(op(), owned, on_cuda(c));
    for (std::size_t i = 0; i < out.size(); ++i)
      EXPECT_TRUE(same_bits(on_host(donated[i]), on_host(out[i]))) << "inputs moved in, output " << i;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined()) {
        EXPECT_TRUE(same_bits(on_host(there[i]), inputs[i])) << "input " << i << " was written";
      }
  }

  static void check_strides(const OpCase& c, DType dtype, const std::vector<Tensor>& inputs) {
    if (c.dense_only || c.large) return;
    for (Tensor (*form)(const Tensor&) : {with_reversed_strides, with_gaps, with_zero_strides}) {
      std::vector<Tensor> strided;
      for (const Tensor& t : inputs) strided.push_back(t.defined() ? form(t) : t);
      expect_near(c, dtype, run(op(), on_cuda(c), moved(strided)), run(op(), c.attrs, strided), "strides");
    }
  }

  static void check_destination(const OpCase& c, DType dtype, const std::vector<Tensor>& inputs) {
    const Tensors expected = run(op(), c.attrs, inputs);
    if (expected.size() != 1) return;
    const Tensor base = draw(normal(expected[0].shape()), expected[0].dtype(), 5);
    for (const bool accumulate : {false, true}) {
      const Tensor target = dense_copy(base), there = on_device(base);
      std::vector<Tensor> held = inputs, held_there = moved(inputs);
      call_op_into(op(), held, c.attrs, target, accumulate);
      call_op_into(op(), held_there, on_cuda(c), there, accumulate);
      expect_near(c, dtype, Tensors{there}, Tensors{target}, accumulate ? "accumulated" : "into a destination");
    }
  }

  // Rows that write their inputs: these are the results.
  static void check_effects(const OpCase& c, DType dtype, const std::vector<Tensor>& inputs) {
    const std::vector<Tensor> here = copies(inputs), there = moved(inputs);
    run(op(), c.attrs, here);
    run(op(), on_cuda(c), there);
    for (std::size_t i = 0; i < here.size(); ++i)
      if (here[i].defined()) expect_near(c, dtype, Tensors{there[i]}, Tensors{here[i]}, "inputs after the call");
  }
};

TEST_P(CudaOpSweep, EqualsTheCpu) {
  for (const OpCase& c : op_cases()) {
    if (c.op != GetParam()) continue;
    for (const DType dtype : dtypes_of(c)) {
      if (c.large && dtype != DType::bf16 && dtype != dtypes_of(c).back()) continue;  // threads in software are slow
      SCOPED_TRACE(fmt::format("case {} in {}", c.name, name(dtype)));
      const std::vector<Tensor> inputs = inputs_of(c, dtype);
      if (op().traits.effect || op().mutated) {
        check_effects(c, dtype, inputs);
        continue;
      }
      check_values(c, dtype, inputs);
      check_strides(c, dtype, inputs);
      if (!c.large) check_destination(c, dtype, inputs);
    }
  }
}

std::vector<std::string> row_names() {
  std::vector<std::string> names;
  for (const Op* row : op_table().rows())
    if (!row->traits.view && !row->traits.issues && !is_run_by_dtensor(*row)) names.emplace_back(row->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Row, CudaOpSweep, ::testing::ValuesIn(row_names()),
                         [](const ::testing::TestParamInfo<std::string>& row) { return row.param; });

class CudaOpTable : public cuda::CudaTest {};

TEST_F(CudaOpTable, EveryRowHasAKernel) {
  RankContext::current().device(kCuda);  // fills the column
  for (const Op* row : op_table().rows()) {
    const bool has_kernel = kernels_of(*row).kernel[static_cast<std::size_t>(Device::Kind::cuda)] != nullptr;
    EXPECT_EQ(has_kernel, !row->traits.view && !is_run_by_dtensor(*row)) << row->name;
  }
}

}  // namespace
}  // namespace sherd::testing
