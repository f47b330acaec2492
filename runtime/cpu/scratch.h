#pragma once
// Scratch columns of the rows in runtime/op: how many bytes a kernel here wants besides its tensors. Each is defined
// beside the kernel that uses the bytes.
#include "runtime/op/core/op.h"

namespace sherd::cpu {

/// For rows that only want their inputs dense.
std::int64_t dense_scratch(const InferCall& call);
std::int64_t reduce_scratch(const InferCall& call);
std::int64_t sum_to_scratch(const InferCall& call);
std::int64_t var_scratch(const InferCall& call);
std::int64_t matmul_scratch(const InferCall& call);
std::int64_t linear_scratch(const InferCall& call);
std::int64_t linear_weight_grad_scratch(const InferCall& call);
std::int64_t norm_scratch(const InferCall& call);
std::int64_t norm_backward_scratch(const InferCall& call);
std::int64_t attention_scratch(const InferCall& call);
std::int64_t attention_backward_scratch(const InferCall& call);
std::int64_t rope_scratch(const InferCall& call);
std::int64_t cross_entropy_scratch(const InferCall& call);
std::int64_t linear_cross_entropy_scratch(const InferCall& call);
std::int64_t linear_cross_entropy_parts_scratch(const InferCall& call);

}  // namespace sherd::cpu
