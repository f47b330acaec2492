#pragma once
#include <string>

#include "compile/ir/program.h"

namespace sherd::ir {

/// The order in which a program adds over leaves of a batch and over ranks, each a balanced tree
/// (comm/group/sum_order.h), and how often what travels is rounded to a type narrower than the result's: "sums 4 leaves
/// in 2 levels, 2 ranks of dp in 1 level, rounds gradients to bf16". Empty where it adds over neither.
std::string order_of_sums(const Program& program);

}  // namespace sherd::ir
