#pragma once
// The text of an einsum, read together with the operands that give its labels their sizes.
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/op/core/tensor.h"

namespace sherd {

/// Labels, one per dim: letters, and digits for the dims of "...", counted from its last one, which is '0'.
using EinsumLabels = std::string;

struct EinsumEquation {
  std::vector<EinsumLabels> inputs;  ///< per operand; a label may stand there twice
  EinsumLabels output;               ///< no label twice
  /// Elements along a label. An operand has so many, or one, which stands for all of them.
  std::int64_t size(char label) const { return sizes[static_cast<unsigned char>(label)]; }

  std::array<std::int64_t, 128> sizes{};
};

/// Reads "bij,bjk->bik" as PyTorch does: blanks mean nothing, "..." are any dims, and without "->" the result has those
/// of "..." and then the labels that occur once, in the order of the alphabet. Error, naming the label or the operand:
/// a malformed text, other numbers of operands or of dims, an output label that is in no operand or there twice, two
/// sizes of a label.
EinsumEquation parse_einsum(std::string_view equation, std::span<const Tensor> operands);

}  // namespace sherd
