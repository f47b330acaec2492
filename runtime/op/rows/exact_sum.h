#pragma once
// Sums of gradients that have the same bits however parameters are sharded: rows are summed one by one, each in the
// order that its length decides, and rows are added without rounding.
//
//   Tensor words = exact_power_sum(gradients, 2);                  // this rank's rows
//   words = all_reduce(words, mesh.group("dp"), ReduceKind::sum);  // integers: any order
//   Tensor total = exact_total(words);                             // f64, rounded once
#include <span>

#include "runtime/op/core/tensor.h"

namespace sherd {

/// i64 [kExactWords] on the device of the tensors: the sum of |x|^p, p finite, over all elements of `tensors`, this rank's
/// own alone; each index of dim 0 is summed in f64 first. Sums of such words are words of the sum, of up to 2^31 rows.
/// Floating dtypes.
Tensor exact_power_sum(std::span<const Tensor> tensors, double p);
/// 0-d f64: the double nearest to the sum; NaN or infinity if any row's was.
Tensor exact_total(Tensor words);

}  // namespace sherd
