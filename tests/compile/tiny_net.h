#pragma once
// A training step small enough to read as a graph, over plain slots: two linear layers with one weight used twice,
// dropout that counts with a slot, moved-in tensors that donate their memory, and AdamW in place.
#include <memory>
#include <string>
#include <vector>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "tests/support/near.h"

namespace sherd::testing {

inline Tensor drawn(const Shape& shape, std::string_view what, std::uint64_t index = 0) {
  return random_normal(shape, random_key(11, what, "test", index));
}

struct TinyNet {
  static constexpr std::int64_t kIn = 5, kWidth = 6;
  std::vector<std::unique_ptr<Slot>> params, m, v;
  Slot lr{"lr"}, step{"step"}, scale{"scale"}, draw_step{"draw_step"};

  explicit TinyNet(Device device = Device::cpu()) {
    const Shape shapes[] = {{kWidth, kIn}, {kWidth}, {kWidth, kWidth}};
    const char* const names[] = {"w1", "b1", "w2"};
    for (std::size_t i = 0; i < 3; ++i) {
      params.push_back(std::make_unique<Slot>(names[i], true));
      params[i]->set(to(drawn(shapes[i], names[i]), device));
      for (auto* state : {&m, &v}) {
        state->push_back(std::make_unique<Slot>(std::string(names[i]) + (state == &m ? ".m" : ".v")));
        state->back()->set(zeros(shapes[i], DType::f32, device));
      }
    }
    lr.set(full({}, 0.01, DType::f32, device));
    step.set(full({}, 0, DType::f32, device));
    scale.set(full({}, 1, DType::f32, device));
    draw_step.set(full({}, 0, DType::i64, device));
  }

  const Tensor& w1() const { return params[0]->value(); }
  const Tensor& b1() const { return params[1]->value(); }
  const Tensor& w2() const { return params[2]->value(); }

  // x [B, kIn], y [B, kWidth] -> 0-d
  Tensor loss(const Tensor& x, const Tensor& y) const {
    Tensor h = relu(linear(x, w1(), b1()));
    h = dropout(std::move(h), 0.25, random_key(3, "tiny", "dropout"), draw_step.value());
    h = relu(linear(h, w2()));
    return mean(square(linear(h, w2()) - y));
  }
  void update() {
    GradMode off(false);
    step.set(step.value() + 1.0);
    std::vector<Tensor> p, first, second, grads;
    for (std::size_t i = 0; i < params.size(); ++i) {
      p.push_back(params[i]->value());
      first.push_back(m[i]->value());
      second.push_back(v[i]->value());
      grads.push_back(params[i]->grad());
    }
    adamw_step(p, first, second, grads, lr.value(), step.value(), scale.value(), {.weight_decay = 0.1});
  }
  void clear() {
    for (const auto& p : params) p->clear_grad();
  }
  Tensor train(const Tensor& x, const Tensor& y) {
    Tensor result = loss(x, y);
    backward(result);
    update();
    clear();
    return result;
  }
  /// What changes from step to step outside of the captured function.
  void begin(int index) {
    lr.assign(Tensor::scalar(0.01 / (1 + index)));
    draw_step.assign(Tensor::scalar(index, DType::i64));
  }
  static Tensor x(int index, std::int64_t rows = 4) {
    return drawn({rows, kIn}, "x", static_cast<std::uint64_t>(index));
  }
  static Tensor y(int index, std::int64_t rows = 4) {
    return drawn({rows, kWidth}, "y", static_cast<std::uint64_t>(index));
  }
};

inline void expect_same_state(const TinyNet& a, const TinyNet& b) {
  for (std::size_t i = 0; i < a.params.size(); ++i) {
    EXPECT_TRUE(same_bits(a.params[i]->value(), b.params[i]->value())) << a.params[i]->name();
    EXPECT_TRUE(same_bits(a.m[i]->value(), b.m[i]->value())) << a.m[i]->name();
    EXPECT_TRUE(same_bits(a.v[i]->value(), b.v[i]->value())) << a.v[i]->name();
  }
  EXPECT_TRUE(same_bits(a.step.value(), b.step.value()));
}

inline void expect_same_grads(const TinyNet& a, const TinyNet& b) {
  for (std::size_t i = 0; i < a.params.size(); ++i) {
    ASSERT_EQ(a.params[i]->grad().defined(), b.params[i]->grad().defined()) << a.params[i]->name();
    if (a.params[i]->grad().defined()) {
      EXPECT_TRUE(same_bits(a.params[i]->grad(), b.params[i]->grad())) << a.params[i]->name();
    }
  }
}

}  // namespace sherd::testing
