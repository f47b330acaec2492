#pragma once
// The calls that are distributed over ranks: the op cases as they are, and the same with other sizes.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/op_cases.h"

namespace sherd::testing {

/// as_is: whatever sizes the case has, so also 0 and 1. even: every size of two or more divides by the ranks. uneven:
/// none does, and no rank's shard is empty. sparse: some ranks' shards are empty.
enum class Sizes : std::uint8_t { as_is, even, uneven, sparse };
std::string name(Sizes sizes);

struct Variant {
  OpCase op_case;
  Sizes sizes = Sizes::as_is;
  std::string name() const { return op_case.name + " " + testing::name(sizes); }
};

/// Dense inputs; the same seed gives the same values on every rank.
std::vector<Tensor> inputs_of(const Variant& variant, DType dtype, std::uint64_t seed);

/// Calls of a row for a mesh of so many ranks. Sizes that attributes hold cannot be changed here; rows that have such
/// attributes come with cases of their own for even and uneven sizes.
std::vector<Variant> variants_of(const Op& op, int ranks);

}  // namespace sherd::testing
