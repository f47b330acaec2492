#include "tests/parallel/parity.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

template <class Compare>
void expect_each(const nn::Module& spread, const nn::Module& reference, bool gradients, const Compare& compare) {
  const auto a = spread.parameters(), e = reference.parameters();
  ASSERT_EQ(a.size(), e.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Tensor value = gradients ? a[i]->grad() : a[i]->value();
    const Tensor expected = gradients ? e[i]->grad() : e[i]->value();
    ASSERT_TRUE(value.defined() && value.is_distributed()) << a[i]->name();
    ASSERT_TRUE(expected.defined()) << e[i]->name();
    EXPECT_EQ(value.layout(), a[i]->value().layout()) << a[i]->name();
    EXPECT_TRUE(compare(value.local(), part_of(expected.detach(), value))) << a[i]->name() << " " << describe(value);
  }
}

auto near_to(double limit) {
  return [limit](const Tensor& actual, const Tensor& expected) { return near(actual, expected, limit); };
}

void zero_gradients(nn::Module& module) {
  for (nn::Parameter* p : module.parameters()) {
    const Tensor& grad = p->grad();
    if (grad.defined()) fill_into(grad.is_distributed() ? grad.local() : grad, 0);
  }
}

}  // namespace

void expect_same_values(const nn::Module& spread, const nn::Module& reference, double limit) {
  expect_each(spread, reference, false, near_to(limit));
}
void expect_same_bits(const nn::Module& spread, const nn::Module& reference) {
  expect_each(spread, reference, false, same_bits);
}
void expect_same_gradients(const nn::Module& spread, const nn::Module& reference, double limit) {
  expect_each(spread, reference, true, near_to(limit));
}

double mean_over(ProcessGroup& ranks, double value) {
  ranks.host().all_reduce({in_place(&value, DType::f64, 1)}, {.kind = ReduceKind::avg});
  return value;
}

void expect_equal_on_all(ProcessGroup& ranks, double value) {
  std::vector<double> all(static_cast<std::size_t>(ranks.size()), 0);
  all[static_cast<std::size_t>(ranks.rank())] = value;
  ranks.host().all_reduce({in_place(all.data(), DType::f64, ranks.size())}, {});
  for (const double other : all) EXPECT_EQ(other, value);
}

void expect_left_by_all(nn::Module& net, nn::Optimizer& optimizer, const std::function<void()>& step,
                        std::string_view reason) {
  const auto start = std::chrono::steady_clock::now();
  // What was reduced before the error is lost with the step; only touching it tells.
  expect_error(
      [&] {
        step();
        RankContext::current().drain_queues();
        for (nn::Parameter* p : net.parameters()) (void)p->grad().local().raw();
      },
      {reason});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  optimizer.clear_gradients();
  nn::reset_after_error(net);
  EXPECT_EQ(held(MemoryCategory::gradients) + held(MemoryCategory::communication), 0);
}

void expect_trains_alike(const Side& spread, const Side& reference, const TrainingOptions& options) {
  // A first step of AdamW is lr * g / (|g| + eps): with the usual eps of 1e-8 a gradient that is nearly zero, and so
  // mostly the rounding of its sum, would move a parameter by much of lr.
  const nn::AdamW::Options adamw{.lr = options.lr, .eps = 1e-4};
  nn::AdamW optimizer(spread.model.parameters(), adamw);
  nn::AdamW expected_optimizer(reference.model.parameters(), adamw);
  for (std::uint64_t step = 0; step < static_cast<std::uint64_t>(options.steps); ++step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    if (options.before_step) options.before_step(step, optimizer);
    // Losses are read when backward has been issued: reading is waiting.
    const Tensor loss = spread.loss(step);
    backward(loss);
    const Tensor expected_loss = reference.loss(step);
    backward(expected_loss);
    const double value = loss.item<double>();
    EXPECT_NEAR(spread.ranks ? mean_over(*spread.ranks, value) : value, expected_loss.item<double>(), 1e-5);
    if (options.gradient_limit > 0) expect_same_gradients(spread.model, reference.model, options.gradient_limit);
    if (options.max_norm > 0) {
      const double norm = nn::clip_grad_norm(optimizer, options.max_norm).item<double>();
      const double expected = nn::clip_grad_norm(expected_optimizer, options.max_norm).item<double>();
      EXPECT_NEAR(norm, expected, options.norm_limit * expected);
    }
    optimizer.step();
    expected_optimizer.step();
    if (options.zero_gradients) {
      zero_gradients(spread.model);
      zero_gradients(reference.model);
    } else {
      optimizer.clear_gradients();
      expected_optimizer.clear_gradients();
    }
  }
  if (options.value_limit > 0) expect_same_values(spread.model, reference.model, options.value_limit);
}

}  // namespace sherd::testing
