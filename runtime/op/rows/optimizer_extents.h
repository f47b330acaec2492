#pragma once
// The lists of an optimizer row as extents: runs of elements that are adjacent in every list. Parameters in one arena,
// as units place them, become one extent. Every backend's kernels start from these.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/op/core/tensor.h"

namespace sherd {

inline constexpr int kMaxOptimizerLists = 4;  ///< parameters, up to two states, gradients

struct OptimizerExtent {
  std::byte* at[kMaxOptimizerLists];  ///< parameter, states..., gradient
  std::int64_t count;
  DType dtype, grad_dtype;
};

/// Extents of `lists` lists of n tensors each, empty tensors left out. The last list holds the gradients; one that is
/// not dense is an Error.
std::vector<OptimizerExtent> optimizer_extents(std::span<const Tensor> in, std::size_t n, std::size_t lists);

}  // namespace sherd
