// Every row of the op table over every case of op_cases: what the row says (infer, dims, meta) is what it does, for
// any strides of its inputs, whatever owns the result's memory, in every dtype, on any number of threads; and the vjp
// is the derivative. Oracles: the f64 result for other dtypes, central differences for vjps, the plain call for the
// rest.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "runtime/autograd/autograd.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/dims.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/grad_check.h"
#include "tests/support/near.h"
#include "tests/support/op_cases.h"
#include "tests/support/threads.h"

namespace sherd::testing {
namespace {

Tensors run(const Op& op, const OpCase& c, std::vector<Tensor> inputs) {
  const GradMode off(false);
  const std::vector<Tensor> held = inputs;  // nothing is donated
  return call_op(op, inputs, c.attrs);
}

std::vector<Tensor> copies(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> result;
  for (const Tensor& t : inputs) result.push_back(dense_copy(t));
  return result;
}

bool has_floating_input(const OpCase& c) {
  return std::any_of(c.args.begin(), c.args.end(), [](const Arg& a) { return a.is_floating(); });
}

bool is_functional(const Op& op) { return !op.traits.effect && !op.mutated; }

std::vector<DType> dtypes_of(const OpCase& c) {
  if (!has_floating_input(c)) return {DType::f32};
  if (c.floats_only_f64_f32) return {DType::f64, DType::f32};
  return {DType::f64, DType::f32, DType::bf16};
}

void expect_same(const Tensors& actual, const Tensors& expected, std::string_view what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(same_bits(actual[i], expected[i])) << what << ", output " << i;
}

void expect_near(const Tensors& actual, const Tensors& expected, double limit, std::string_view what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(near(actual[i], expected[i], limit)) << what << ", output " << i;
}

// The coarsest dtype that a comparison goes through.
double limit_of(const OpCase& c, DType dtype, const Tensors& a, const Tensors& b) {
  double limit = tolerance(dtype);
  for (const Tensors* list : {&a, &b})
    for (const Tensor& t : *list) limit = std::max(limit, tolerance(t.dtype()));
  return limit * c.slack;
}

// ---- the checks ----

void check_metadata(const Op& op, const OpCase& c, const std::vector<Tensor>& inputs, const Tensors& out) {
  const Metas metas = op.infer({op, inputs, c.attrs});
  ASSERT_EQ(metas.size(), out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(metas[i].shape, out[i].shape()) << "infer, output " << i;
    EXPECT_EQ(metas[i].dtype, out[i].dtype()) << "infer, output " << i;
  }
  if (op.dims.empty()) return;
  const BoundDims bound = bind_dims(parse_dims(op.dims), inputs);
  ASSERT_EQ(bound.outputs.size(), out.size()) << "dims \"" << op.dims << '"';
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(bound.outputs[i].size(), out[i].ndim()) << "dims \"" << op.dims << "\", output " << i;
    for (int d = 0; d < out[i].ndim(); ++d)
      if (bound.outputs[i][d] != -1) {
        EXPECT_EQ(bound.outputs[i][d], out[i].shape()[d]) << "dims \"" << op.dims << "\", output " << i;
      }
  }
}

void check_meta_device(const Op& op, const OpCase& c, const std::vector<Tensor>& inputs, const Tensors& out) {
  std::vector<Tensor> metas;
  bool any = false;
  for (const Tensor& t : inputs) {
    metas.push_back(t.defined() ? Tensor::empty(t.shape(), t.dtype(), Device::meta()) : Tensor());
    any = any || t.defined();
  }
  if (!any) return;
  Accounting& account = RankContext::current().allocator().accounting();
  account.reset_peaks();
  const std::int64_t before = account.total();
  const Tensors shapes = run(op, c, metas);
  EXPECT_EQ(account.total_peak(), before) << "a call on the meta device took memory";
  ASSERT_EQ(shapes.size(), out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_TRUE(shapes[i].is_meta());
    EXPECT_EQ(shapes[i].shape(), out[i].shape()) << "meta, output " << i;
    EXPECT_EQ(shapes[i].dtype(), out[i].dtype()) << "meta, output " << i;
  }
}

void check_strides(const Op& op, const OpCase& c, const std::vector<Tensor>& inputs, const Tensors& out, DType dtype) {
  if (c.dense_only) return;
  const double limit = op.traits.pointwise || op.traits.view ? 0 : tolerance(dtype) * c.slack;
  const auto all = [&](Tensor (*form)(const Tensor&)) {
    std::vector<Tensor> moved;
    for (const Tensor& t : inputs) moved.push_back(t.defined() ? form(t) : t);
    return moved;
  };
  expect_near(run(op, c, all(with_reversed_strides)), out, limit, "reversed strides");
  expect_near(run(op, c, all(with_gaps)), out, limit, "a window of a larger storage");
  const std::vector<Tensor> repeated = all(with_zero_strides);
  expect_near(run(op, c, repeated), run(op, c, copies(repeated)), limit, "strides of 0");
}

void check_donation(const Op& op, const OpCase& c, const std::vector<Tensor>& inputs, const Tensors& out) {
  std::vector<Tensor> owned = copies(inputs);
  const GradMode off(false);
  expect_same(call_op(op, owned, c.attrs), out, "inputs moved in");
}

void check_destination(const Op& op, const OpCase& c, const std::vector<Tensor>& inputs, const Tensors& out,
                       DType dtype) {
  if (out.size() != 1) return;
  std::vector<Tensor> held = inputs;
  const Tensor base = draw(normal(out[0].shape()), out[0].dtype(), 5);
  const Tensor target = dense_copy(base);
  call_op_into(op, held, c.attrs, target, false);
  EXPECT_TRUE(same_bits(target, out[0])) << "written into a destination";
  if (!is_floating(out[0].dtype())) return;
  const Tensor sum = dense_copy(base);
  held = inputs;
  call_op_into(op, held, c.attrs, sum, true);
  const auto a = base.to_vector<double>(), b = out[0].to_vector<double>();
  std::vector<double> expected;
  for (std::size_t i = 0; i < a.size(); ++i) expected.push_back(a[i] + b[i]);
  EXPECT_TRUE(near(sum, Tensor::from<double>(expected, sum.shape()), limit_of(c, dtype, out, out)))
      << "accumulated into a destination";
}

void check_threads(const Op& op, const OpCase& c, const std::vector<Tensor>& inputs, const Tensors& out) {
  const Threads two(2);
  expect_same(run(op, c, inputs), out, "two threads");
}

std::vector<Tensor> widened(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> result;
  for (const Tensor& t : inputs) result.push_back(t.defined() && is_floating(t.dtype()) ? converted(t, DType::f64) : t);
  return result;
}

// The result in `dtype` against the f64 result of the same numbers.
void check_precision(const Op& op, const OpCase& c, const std::vector<Tensor>& inputs, const Tensors& out,
                     DType dtype) {
  if (dtype == DType::f64 || !has_floating_input(c)) return;
  const Tensors exact = run(op, c, widened(inputs));
  expect_near(out, exact, limit_of(c, dtype, out, exact), "against f64");
}

TensorFunction first_output(const Op& op, const OpCase& c) {
  return [&op, &c](std::span<const Tensor> inputs) {
    std::vector<Tensor> held(inputs.begin(), inputs.end());
    return call_op(op, held, c.attrs)[0];
  };
}

void check_gradient(const Op& op, const OpCase& c) {
  const std::vector<Tensor> inputs = inputs_of(c, DType::f64);
  const Tensors out = run(op, c, inputs);
  if (!is_floating(out[0].dtype())) return;
  if (out[0].dtype() == DType::f64) { EXPECT_TRUE(grad_check(first_output(op, c), inputs, {.along_lines = c.large})); }
  for (DType dtype : dtypes_of(c)) {
    if (dtype == DType::f64) continue;
    const std::vector<Tensor> rounded = inputs_of(c, dtype), wide = widened(rounded);
    const Tensor cotangent = draw(normal(out[0].shape()), run(op, c, rounded)[0].dtype(), 88);
    const auto exact = gradients(first_output(op, c), wide, converted(cotangent, run(op, c, wide)[0].dtype()));
    const auto actual = gradients(first_output(op, c), rounded, cotangent);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(actual[i].defined(), exact[i].defined()) << "gradient " << i;
      if (!actual[i].defined()) continue;
      EXPECT_EQ(actual[i].dtype(), rounded[i].dtype()) << "gradient " << i;
      EXPECT_TRUE(near(actual[i], exact[i], 4 * c.grad_slack * limit_of(c, dtype, {actual[i]}, {cotangent})))
          << "gradient " << i << " in " << name(dtype) << " against f64";
    }
  }
}

// ---- the sweep: one test per row and kind of check ----

class OpSweep : public ::testing::TestWithParam<std::string> {
 protected:
  // Released memory is filled with garbage, so a kernel that reads what it did not write, or a buffer that was given
  // away, does not pass by luck.
  void SetUp() override { RankContext::current().allocator().set_poison(true); }
  void TearDown() override { RankContext::current().allocator().set_poison(false); }
  std::vector<OpCase> cases() const {
    std::vector<OpCase> result;
    for (const OpCase& c : op_cases())
      if (c.op == GetParam()) result.push_back(c);
    return result;
  }
  const Op& op() const { return find_op(GetParam()); }
};

TEST_P(OpSweep, Values) {
  for (const OpCase& c : cases())
    for (DType dtype : dtypes_of(c)) {
      SCOPED_TRACE(fmt::format("case {} in {}", c.name, name(dtype)));
      const std::vector<Tensor> inputs = inputs_of(c, dtype), before = copies(inputs);
      const Tensors out = run(op(), c, inputs);
      check_metadata(op(), c, inputs, out);
      check_meta_device(op(), c, inputs, out);
      if (!is_functional(op())) continue;
      check_strides(op(), c, inputs, out, dtype);
      check_donation(op(), c, inputs, out);
      check_destination(op(), c, inputs, out, dtype);
      check_threads(op(), c, inputs, out);
      check_precision(op(), c, inputs, out, dtype);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].defined()) { EXPECT_TRUE(same_bits(inputs[i], before[i])) << "input " << i << " was written"; }
    }
}

TEST_P(OpSweep, Gradient) {
  if (!op().vjp) {
    EXPECT_FALSE(op().no_gradient.empty());
    return;
  }
  for (const OpCase& c : cases()) {
    if (!has_floating_input(c)) continue;
    SCOPED_TRACE("case " + c.name);
    check_gradient(op(), c);
  }
}

std::vector<std::string> row_names() {
  std::vector<std::string> names;
  for (const Op* row : op_table().rows())
    if (!is_run_by_dtensor(*row)) names.emplace_back(row->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Row, OpSweep, ::testing::ValuesIn(row_names()),
                         [](const ::testing::TestParamInfo<std::string>& row) { return row.param; });

// ---- completeness ----

TEST(OpTable, EveryRowHasItsColumns) {
  std::set<std::string> covered;
  for (const OpCase& c : op_cases()) covered.insert(c.op);
  OpTable families;  // and not what other tests have added
  register_families(families);
  for (const Op* each : families.rows()) {
    const Op& row = *each;
    const RowKernels& kernels = kernels_of(row);
    SCOPED_TRACE(fmt::format("row \"{}\"", row.name));
    EXPECT_FALSE(row.doc.empty()) << "has no doc";
    EXPECT_NE(row.infer, nullptr) << "has no infer";
    EXPECT_NE(row.vjp != nullptr, !row.no_gradient.empty()) << "needs a vjp, or a reason in no_gradient, not both";
    const bool has_kernel = kernels.kernel[static_cast<std::size_t>(Device::Kind::cpu)] != nullptr;
    if (is_run_by_dtensor(row)) {
      EXPECT_FALSE(has_kernel) << "has a kernel that nobody calls";
    } else {
      EXPECT_NE(has_kernel, row.traits.view) << (row.traits.view ? "is a view with a kernel" : "has no CPU kernel");
      EXPECT_TRUE(covered.contains(std::string(row.name))) << "has no case in tests/support/op_cases_*.cpp";
    }
    if (!row.dims.empty()) { EXPECT_NO_THROW(parse_dims(row.dims)); }
    if (row.traits.pointwise) { EXPECT_FALSE(row.dims.empty()) << "is pointwise, so dims can say it"; }
    if (row.algebra != Algebra::none || row.along) { EXPECT_FALSE(row.dims.empty()) << "has no dims, which say more"; }
    if (row.mutated) { EXPECT_TRUE(row.traits.effect) << "writes its inputs without the trait effect"; }
    if (row.traits.view) { EXPECT_FALSE(row.traits.pointwise || kernels.scratch[0]) << "is a view"; }
  }
}

TEST(OpTable, EveryCaseNamesARowAndItsNameIsUnique) {
  std::map<std::pair<std::string, std::string>, int> seen;
  for (const OpCase& c : op_cases()) {
    EXPECT_NO_THROW(find_op(c.op)) << c.op;
    EXPECT_EQ(++seen[std::pair(c.op, c.name)], 1) << c.op << ' ' << c.name;
  }
}

TEST(OpTable, UnknownRowNamesTheNearest) {
  try {
    find_op("adamv");
    FAIL() << "no error";
  } catch (const Error& error) { EXPECT_EQ(error.message(), "no op \"adamv\" (did you mean adamw?)"); }
}

}  // namespace
}  // namespace sherd::testing
