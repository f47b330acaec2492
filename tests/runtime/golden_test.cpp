// The oracle files themselves: readable, complete, and right where a closed form is at hand.
#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <stdexcept>

namespace sherd::testing {
namespace {

TEST(Golden, SiluGridIsTheClosedForm) {
  const Golden golden("activation");
  const auto& x = golden.at("silu_grid.in.x");
  const auto& y = golden.at("silu_grid.out");
  ASSERT_EQ(x.shape, y.shape);
  ASSERT_EQ(x.f32.size(), 97u);
  for (std::size_t i = 0; i < x.f32.size(); ++i) {
    const double v = x.f32[i];
    EXPECT_NEAR(y.f32[i], v / (1 + std::exp(-v)), 1e-6);
  }
}

TEST(Golden, EveryCaseHasInputsAndOneGradientPerFloatingInput) {
  for (const char* file : {"norm", "softmax", "activation", "attention", "loss", "product"}) {
    const Golden golden(file);
    ASSERT_FALSE(golden.cases().empty());
    for (const auto& name : golden.cases()) {
      EXPECT_EQ(golden.at(name + ".out").shape, golden.at(name + ".cotangent").shape) << name;
      ASSERT_FALSE(golden.names(name, "in").empty()) << name;
      for (const auto& input : golden.names(name, "in")) {
        const auto& value = golden.at(name + ".in." + input);
        if (value.dtype == "F32") { EXPECT_EQ(golden.at(name + ".grad." + input).shape, value.shape) << name; }
      }
    }
  }
}

TEST(Golden, AttributesAndIntegersAreRead) {
  const Golden loss("loss");
  EXPECT_EQ(loss.integer("cross_entropy_one_left", "ignore_index"), -100);
  int kept = 0;
  for (const auto target : loss.at("cross_entropy_one_left.in.targets").i64) kept += target != -100;
  EXPECT_EQ(kept, 1);
  EXPECT_TRUE(Golden("gpt2").flag("gpt2", "bias"));
  EXPECT_FALSE(Golden("gpt2_no_bias").flag("gpt2_no_bias", "bias"));
  EXPECT_EQ(Golden("llama").number("llama", "lr"), 1e-2);
  EXPECT_EQ(Golden("softmax").cases("log_").size(), 6u);
}

TEST(Golden, WhatIsMissingIsNamed) {
  const Golden golden("norm");
  EXPECT_FALSE(golden.has("nothing.out"));
  EXPECT_THROW(golden.at("nothing.out"), std::out_of_range);
  EXPECT_THROW(golden.number("layer_norm", "nothing"), std::out_of_range);
  EXPECT_THROW(Golden("no_such_file"), std::runtime_error);
}

}  // namespace
}  // namespace sherd::testing
