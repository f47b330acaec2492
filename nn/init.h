#pragma once
// Initial values as elementwise functions of (seed, parameter name, global element index): any layout on any number
// of ranks draws the same bits, each rank only its own elements.
#include <cstdint>
#include <string_view>

#include "runtime/op/core/tensor.h"

namespace sherd::nn {

/// How a parameter starts. A value type: what to draw, not when.
struct Init {
  enum class Kind : std::uint8_t { constant, normal, uniform };
  Kind kind = Kind::constant;
  double a = 0;  ///< constant: value; normal: mean; uniform: low
  double b = 0;  ///< normal: std; uniform: high

  static Init constant(double value) { return {Kind::constant, value, 0}; }
  static Init zeros() { return constant(0); }
  static Init ones() { return constant(1); }
  static Init normal(double std) { return {Kind::normal, 0, std}; }
  static Init uniform(double bound) { return {Kind::uniform, -bound, bound}; }
};

struct Seed {
  std::uint64_t value = 0;
};

/// Fills `target` (plain or distributed, with bytes on any device) with the initial values of the parameter `name`.
void fill_initial(const Tensor& target, const Init& init, std::string_view name, Seed seed);

}  // namespace sherd::nn
