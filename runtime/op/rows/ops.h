#pragma once
// The functions people call. Each is one row of the op table (or a short composition of rows); shapes, dtypes and
// errors are those of PyTorch's function of that name unless said otherwise. Inputs are taken by value: a tensor that
// is moved in and has no other owner may give its memory to the result. Blocking: CPU kernels have run on return,
// those of a device are queued.
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/op/core/dispatch.h"

namespace sherd {

// ---- making ----
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = Device::cpu());
Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu());
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu());
/// 0, 1, ... count-1.
Tensor arange(std::int64_t count, DType dtype = DType::i64, Device device = Device::cpu());
/// The same values on another device; the tensor itself if it is there. To the host: waits for the values. From the
/// host: does not wait, and `x` may change when it returns. Differentiable.
Tensor to(Tensor x, Device device);

// ---- pointwise; binary ones broadcast and promote ----
Tensor add(Tensor a, Tensor b);
Tensor sub(Tensor a, Tensor b);
Tensor mul(Tensor a, Tensor b);
Tensor div(Tensor a, Tensor b);  ///< integers divide to f32
Tensor maximum(Tensor a, Tensor b);
Tensor minimum(Tensor a, Tensor b);
/// With a constant: the result keeps the tensor's dtype (integer tensors need an integral constant).
Tensor add(Tensor a, double b);
Tensor mul(Tensor a, double b);
Tensor pow(Tensor a, double exponent);
Tensor neg(Tensor x);
Tensor abs(Tensor x);
Tensor exp(Tensor x);
Tensor log(Tensor x);
Tensor sqrt(Tensor x);
Tensor rsqrt(Tensor x);
Tensor reciprocal(Tensor x);
Tensor square(Tensor x);
Tensor sin(Tensor x);
Tensor cos(Tensor x);
Tensor tanh(Tensor x);
Tensor erf(Tensor x);
Tensor sigmoid(Tensor x);
Tensor relu(Tensor x);
Tensor silu(Tensor x);
Tensor gelu(Tensor x);       ///< by erf
Tensor gelu_tanh(Tensor x);  ///< its approximation by tanh
/// silu(gate) * up.
Tensor swiglu(Tensor gate, Tensor up);
Tensor clamp(Tensor x, double low, double high);
/// Comparisons broadcast and give bool.
Tensor equal(Tensor a, Tensor b);
Tensor not_equal(Tensor a, Tensor b);
Tensor less(Tensor a, Tensor b);
Tensor less_equal(Tensor a, Tensor b);
Tensor greater(Tensor a, Tensor b);
Tensor greater_equal(Tensor a, Tensor b);
Tensor logical_and(Tensor a, Tensor b);
Tensor logical_or(Tensor a, Tensor b);
Tensor logical_not(Tensor x);
/// bool: neither NaN nor infinite. Of floating-point tensors.
Tensor isfinite(Tensor x);
/// Where `condition` (bool) holds, a, else b; all three broadcast.
Tensor where(Tensor condition, Tensor a, Tensor b);
Tensor cast(Tensor x, DType dtype);  ///< no-op (the same tensor) for an equal dtype

inline Tensor operator+(Tensor a, Tensor b) { return add(std::move(a), std::move(b)); }
inline Tensor operator-(Tensor a, Tensor b) { return sub(std::move(a), std::move(b)); }
inline Tensor operator*(Tensor a, Tensor b) { return mul(std::move(a), std::move(b)); }
inline Tensor operator/(Tensor a, Tensor b) { return div(std::move(a), std::move(b)); }
inline Tensor operator+(Tensor a, double b) { return add(std::move(a), b); }
inline Tensor operator-(Tensor a, double b) { return add(std::move(a), -b); }
inline Tensor operator*(Tensor a, double b) { return mul(std::move(a), b); }
inline Tensor operator/(Tensor a, double b) { return mul(std::move(a), 1.0 / b); }
inline Tensor operator-(Tensor a) { return neg(std::move(a)); }

// ---- reductions; an empty `dims` reduces all ----
Tensor sum(Tensor x, std::vector<int> dims = {}, bool keep_dims = false);  ///< bool and integers sum to i64
Tensor mean(Tensor x, std::vector<int> dims = {}, bool keep_dims = false);
Tensor max(Tensor x, std::vector<int> dims = {}, bool keep_dims = false);
Tensor min(Tensor x, std::vector<int> dims = {}, bool keep_dims = false);
Tensor prod(Tensor x, std::vector<int> dims = {}, bool keep_dims = false);
Tensor any(Tensor x, std::vector<int> dims = {}, bool keep_dims = false);
Tensor all(Tensor x, std::vector<int> dims = {}, bool keep_dims = false);
Tensor argmax(Tensor x, int dim, bool keep_dims = false);
/// Mean squared distance from the mean, over n - correction: 1 as in statistics, 0 as in norms. 0-element slices and
/// n <= correction give NaN.
Tensor var(Tensor x, std::vector<int> dims = {}, int correction = 1, bool keep_dims = false);
/// Sums over the dims along which `shape` would be broadcast to x's shape.
Tensor sum_to(Tensor x, const Shape& shape);

// ---- matrix products ----
/// a [..., M, K], b [..., K, N] -> [..., M, N]; leading dims broadcast; 1-d operands as in PyTorch.
Tensor matmul(Tensor a, Tensor b);
/// x [..., K], weight [N, K], bias [N] or undefined -> [..., N].
Tensor linear(Tensor x, Tensor weight, Tensor bias = {});

// ---- views: read-only aliases, no bytes move ----
Tensor view(Tensor x, Shape shape);     ///< one dim may be -1; Error if the strides do not allow an alias
Tensor reshape(Tensor x, Shape shape);  ///< view when possible, else a copy
Tensor permute(Tensor x, std::vector<int> order);
Tensor transpose(Tensor x, int dim0, int dim1);
Tensor expand(Tensor x, const Shape& shape);
Tensor unsqueeze(Tensor x, int dim);
Tensor squeeze(Tensor x, int dim);
Tensor flatten(Tensor x, int first_dim, int last_dim);
Tensor narrow(Tensor x, int dim, std::int64_t start, std::int64_t length);
Tensor select(Tensor x, int dim, std::int64_t index);
std::vector<Tensor> split(const Tensor& x, int dim, const std::vector<std::int64_t>& sizes);
std::vector<Tensor> chunk(const Tensor& x, int dim, int count);
Tensor contiguous(Tensor x);  ///< the same tensor if it is dense already

// ---- gathering and joining ----
Tensor cat(std::vector<Tensor> tensors, int dim);
Tensor stack(std::vector<Tensor> tensors, int dim);
/// Rows of `table` [V, D] at `ids` (i32 or i64, any shape) -> [..., D]. An id outside 0..V-1 is an Error naming it.
Tensor embedding(Tensor table, Tensor ids);
/// Elements of x [..., N, ...] along `dim` at `index` (1-d, i32 or i64).
Tensor index_select(Tensor x, int dim, Tensor index);
/// out[..., i, ...] = x[..., index[..., i, ...], ...]: x and index (i32 or i64) have as many dims, index is no larger
/// than x along the others. An index outside the dim is an Error naming it.
Tensor gather(Tensor x, int dim, Tensor index);
/// x with source's elements written (the last in row-major order wins) or added where `index` says; index and source
/// have one shape, which is no larger than x's along the other dims.
Tensor scatter(Tensor x, int dim, Tensor index, Tensor source);
Tensor scatter_add(Tensor x, int dim, Tensor index, Tensor source);
/// The k largest of each slice along `dim`, largest first, equal ones in order; and their indices (i64). NaN is
/// largest, as in PyTorch: `auto [values, indices] = topk(x, 5)`.
std::pair<Tensor, Tensor> topk(Tensor x, std::int64_t k, int dim = -1);

// ---- normalisation, attention, loss ----
Tensor softmax(Tensor x, int dim);
Tensor log_softmax(Tensor x, int dim);
/// Over the last dim; weight and bias [D] or undefined. Statistics in f32 (f64 for f64).
Tensor layer_norm(Tensor x, Tensor weight, Tensor bias, double eps = 1e-5);
Tensor rms_norm(Tensor x, Tensor weight, double eps = 1e-5);
/// x [B, H, T, K], K even: pairs (i, i + K/2) of position first_position + t turn by position / theta^(2i/K).
Tensor rope(Tensor x, double theta = 10000, std::int64_t first_position = 0);
/// q [B, H, Tq, K], k and v [B, Hkv, Tk, K], Hkv divides H (grouped queries) -> [B, H, Tq, K]. `causal` lets query i
/// see keys up to i + Tk - Tq. scale: 1/sqrt(K) when 0. Works in tiles: the Tq x Tk matrix of one tile only is ever
/// held.
Tensor scaled_dot_product_attention(Tensor q, Tensor k, Tensor v, bool causal = true, double scale = 0);
/// logits [..., V], targets [...] (i32 or i64) -> 0-d mean of the negative log likelihood over targets that are not
/// ignore_index (0 if there is none). A target outside 0..V-1 is an Error naming it. bf16/f16 logits give an f32 loss.
Tensor cross_entropy(Tensor logits, Tensor targets, std::int64_t ignore_index = -100);
/// cross_entropy(linear(x, weight), targets) in chunks of rows: never holds all logits. x [..., K], weight [V, K].
Tensor linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, std::int64_t ignore_index = -100);

// ---- random: values depend on (key, step, global element index) only ----
/// Hash of (seed, path, purpose, call index) for the random rows.
std::uint64_t random_key(std::uint64_t seed, std::string_view path, std::string_view purpose,
                         std::uint64_t call_index = 0);
/// `first`: global index of element 0; `step`: 0-d i64 tensor or undefined.
Tensor random_normal(const Shape& shape, std::uint64_t key, double mean = 0, double std = 1, std::int64_t first = 0,
                     DType dtype = DType::f32, Tensor step = {}, Device device = Device::cpu());
Tensor random_uniform(const Shape& shape, std::uint64_t key, double low = 0, double high = 1, std::int64_t first = 0,
                      DType dtype = DType::f32, Tensor step = {}, Device device = Device::cpu());
/// Zeroes elements with probability p and divides the others by 1-p. p = 0 returns x. `all`: how many elements the
/// whole has that x is a part of, 0: not said; wholes of different sizes have independent masks.
Tensor dropout(Tensor x, double p, std::uint64_t key, Tensor step = {}, std::int64_t first = 0, std::int64_t all = 0);

// ---- in place, below autograd: for slots, buffers of units, backward ----
/// Writes (or adds) `value` into `target`'s bytes; equal shape, dtype converted by the one rule.
void copy_into(const Tensor& target, Tensor value, bool accumulate = false);
/// Fills `target`'s bytes with one value.
void fill_into(const Tensor& target, double value);

// ---- collectives as rows: functional, on plain tensors ----
/// Reduces over the group; the same bits on every rank.
Tensor all_reduce(Tensor x, ProcessGroup& group, ReduceKind kind = ReduceKind::sum);
/// Concatenates the ranks' shards along `dim` to `size` elements of it (equal other dims; sizes by the chunk rule).
Tensor all_gather(Tensor x, ProcessGroup& group, std::int64_t size, int dim = 0);
/// Sums (or reduces) x over the group and keeps this rank's chunk of `dim`.
Tensor reduce_scatter(Tensor x, ProcessGroup& group, ReduceKind kind = ReduceKind::sum, int dim = 0);
/// From sharded along `joined_dim` (which has `size` elements on all ranks together) to sharded along `split_dim`.
Tensor all_to_all(Tensor x, ProcessGroup& group, int joined_dim, std::int64_t size, int split_dim);
Tensor broadcast_from(Tensor x, ProcessGroup& group, int root);

}  // namespace sherd
