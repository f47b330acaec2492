#pragma once
// What a row does with Partial inputs, that is with values whose reduction over ranks is still to come: which
// reductions may come after the row. Mathematics that no other column knows. dtensor/derived.cpp turns it into
// sharding signatures.
#include <cstdint>

namespace sherd {

/// A set: a row may have several. In all of them the inputs that are not named are replicated.
enum class Algebra : std::uint16_t {
  none = 0,
  linear = 1 << 0,       ///< f(sum x) = sum f(x) in the first input: sums and averages pass it
  last = 1 << 1,         ///< the same in the last input
  product = 1 << 2,      ///< the same in each input
  joint = 1 << 3,        ///< a + b: sums of both inputs add up; averages and extrema of one shift by the other
  joint_minus = 1 << 4,  ///< a - b: as joint, but an extremum of b changes sides
  branches = 1 << 5,     ///< where: any reduction of both branches, averages and extrema of one
  shift = 1 << 6,        ///< x + constant: averages and extrema pass
  increasing = 1 << 7,   ///< extrema pass; of functions that are finite everywhere: sqrt of one rank's value may be NaN
  decreasing = 1 << 8,   ///< extrema pass and change sides
  larger = 1 << 9,       ///< maximum: maxima of both inputs, either extremum of one
  smaller = 1 << 10,     ///< minimum
  moves = 1 << 11,       ///< values are moved and not changed: any reduction of all inputs passes
  between_floats = 1 << 12,  ///< limits the others to calls whose first input and result are floating-point
};

constexpr Algebra operator|(Algebra a, Algebra b) {
  return static_cast<Algebra>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr bool has(Algebra set, Algebra one) { return (static_cast<unsigned>(set) & static_cast<unsigned>(one)) != 0; }

}  // namespace sherd
