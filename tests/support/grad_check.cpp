#include "tests/support/grad_check.h"

#include <cmath>
#include <memory>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "tests/support/draw.h"

namespace sherd::testing {

namespace {

// sum(cotangent * (f(x + step * direction) - f(x - step * direction))) / (2 step) for input `which`. Subtracted before
// summing: the sums themselves may be large.
double difference_quotient(const TensorFunction& fn, std::vector<Tensor> inputs, std::size_t which,
                           const std::vector<double>& direction, double step, const std::vector<double>& cotangent) {
  const Tensor x = inputs[which];
  const auto shifted = [&](double by) {
    Tensor moved = dense_copy(x);
    for (std::size_t i = 0; i < direction.size(); ++i) moved.mutable_data<double>()[i] += by * direction[i];
    inputs[which] = moved;
    return fn(inputs).to_vector<double>();
  };
  const GradMode off(false);
  const auto above = shifted(step), below = shifted(-step);
  double sum = 0;
  for (std::size_t i = 0; i < above.size(); ++i) sum += cotangent[i] * (above[i] - below[i]);
  return sum / (2 * step);
}

}  // namespace

std::vector<Tensor> gradients(const TensorFunction& fn, std::span<const Tensor> inputs, const Tensor& cotangent) {
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Tensor> values;
  for (const Tensor& x : inputs) {
    const bool wanted = x.defined() && is_floating(x.dtype());
    slots.push_back(wanted ? std::make_unique<Slot>("input", true) : nullptr);
    if (wanted) slots.back()->set(x);
    values.push_back(wanted ? slots.back()->value() : x);
  }
  const Tensor out = fn(values);
  backward(out, {.grad = cotangent});
  std::vector<Tensor> result;
  for (const auto& slot : slots) result.push_back(slot ? slot->grad() : Tensor());
  return result;
}

::testing::AssertionResult grad_check(const TensorFunction& fn, std::span<const Tensor> inputs,
                                      const GradCheckOptions& options) {
  Tensor out;
  {
    const GradMode off(false);
    out = fn(inputs);
  }
  const Tensor cotangent = draw(normal(out.shape()), out.dtype(), 77);
  const std::vector<double> weights = cotangent.to_vector<double>();
  const std::vector<Tensor> grads = gradients(fn, inputs, cotangent);
  const std::vector<Tensor> constants(inputs.begin(), inputs.end());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].dtype() != DType::f64) continue;
    const auto n = static_cast<std::size_t>(inputs[i].numel());
    if (!grads[i].defined()) return ::testing::AssertionFailure() << "input " << i << " got no gradient";
    if (grads[i].shape() != inputs[i].shape() || grads[i].dtype() != inputs[i].dtype())
      return ::testing::AssertionFailure()
             << "input " << i << " is " << describe(inputs[i]) << ", its gradient " << describe(grads[i]);
    const auto grad = grads[i].to_vector<double>();
    const auto compare = [&](const std::vector<double>& direction, double analytic, std::string_view what) {
      const double numeric = difference_quotient(fn, constants, i, direction, options.step, weights);
      if (std::abs(analytic - numeric) <= options.tolerance * (1 + std::abs(numeric)))
        return ::testing::AssertionSuccess();
      return ::testing::AssertionFailure()
             << fmt::format("gradient of input {} {}, {}: vjp gives {:.12g}, central difference {:.12g}", i,
                            describe(inputs[i]), what, analytic, numeric);
    };
    if (options.along_lines) {
      const auto direction = draw(normal(inputs[i].shape()), DType::f64, 99 + i).to_vector<double>();
      double analytic = 0;
      for (std::size_t e = 0; e < n; ++e) analytic += grad[e] * direction[e];
      if (auto result = compare(direction, analytic, "along a line"); !result) return result;
      continue;
    }
    for (std::size_t e = 0; e < n; ++e) {
      std::vector<double> direction(n, 0.0);
      direction[e] = 1;
      if (auto result = compare(direction, grad[e], fmt::format("element {}", e)); !result) return result;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace sherd::testing
