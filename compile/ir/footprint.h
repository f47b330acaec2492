#pragma once
// What a rank holds while a program runs, in the accounts of its allocator: what the program uses, and nothing else
// that the rank holds beside it. compile/run/footprint.h finds it.
#include <cstdint>
#include <vector>

#include "runtime/memory/accounting.h"

namespace sherd::ir {

struct Footprint {
  CategoryBytes before{};                ///< as the step begins: arguments, slots, constants, units that are present
  CategoryBytes most{};                  ///< most of each category; their moments differ
  CategoryBytes at_peak{};               ///< at the moment of `peak`
  std::int64_t peak = 0;                 ///< most of all together
  int node = -1;                         ///< which ran then, the first of several; -1: the peak is before the first
  std::vector<CategoryBytes> by_node{};  ///< at the moment within each node at which most is held
};

}  // namespace sherd::ir
