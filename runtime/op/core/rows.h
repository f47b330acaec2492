#pragma once
// The rows of the op table, by name: `call(op::add, {}, std::move(a), std::move(b))`. A row is defined, with all its
// columns, in its family's file, which also adds it to the table. Rows of other layers are declared in those layers.
namespace sherd {

struct Op;

namespace op {

// pointwise.cpp
extern const Op add, sub, mul, div, maximum, minimum, swiglu, swiglu_backward, where;
extern const Op equal, not_equal, less, less_equal, logical_and, logical_or;
extern const Op add_scalar, mul_scalar, pow_scalar, clamp, cast, clamp_backward;
// pointwise_unary.cpp
extern const Op neg, abs, square, exp, log, sqrt, rsqrt, reciprocal, sin, cos, tanh, erf, sigmoid, relu, silu, gelu,
    gelu_tanh;
extern const Op relu_backward, sigmoid_backward, tanh_backward, silu_backward, gelu_backward, gelu_tanh_backward;
extern const Op sign, logical_not;
// reduce.cpp
extern const Op sum, sum_to, mean, var, max, min, prod, any, all, argmax;
// matmul.cpp
extern const Op matmul, linear, linear_weight_grad, leaf_linear, leaf_matmul, leaf_weight_grad;
// view.cpp
extern const Op view, permute, expand, narrow, copy;
// index.cpp, gather.cpp
extern const Op cat, pad_to, embedding, embedding_backward, index_select, index_select_backward;
extern const Op gather, gather_backward, scatter, scatter_backward, scatter_add, topk;
// norm.cpp
extern const Op softmax, softmax_backward, log_softmax, log_softmax_backward;
extern const Op layer_norm, layer_norm_backward, rms_norm, rms_norm_backward;
// attention.cpp
extern const Op scaled_dot_product_attention, scaled_dot_product_attention_backward, rope;
// loss.cpp, loss_gradient.cpp
extern const Op cross_entropy, cross_entropy_backward, cross_entropy_parts;
extern const Op linear_cross_entropy, linear_cross_entropy_backward, linear_cross_entropy_parts;
// random.cpp
extern const Op random_normal, random_uniform, dropout;
// create.cpp
extern const Op full, arange;
// optimizer.cpp
extern const Op adamw, sgd, count_step, power_sum, power_sum_from, exact_power_sum, exact_total;
// collective.cpp
extern const Op all_reduce, all_gather, reduce_scatter, all_to_all, broadcast;
// unit.cpp
extern const Op gather_start, restore, release, buffer, reduce_start, replica_sum_start;
// transfer.cpp
extern const Op to_device;
// wait.cpp
extern const Op wait;

}  // namespace op
}  // namespace sherd
